// The library, compiled to WebAssembly: requests in, answers out. web/engine/session.h lists the requests.

function bytesOf(base64) {
  const text = atob(base64.trim()), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) bytes[i] = text.charCodeAt(i);
  return bytes;
}

async function unpacked(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Turns the answer of one of the engine's functions into an object; its errors are thrown.
function readAnswer(module, text) {
  const answer = JSON.parse(text);
  if (answer.error) throw new Error(answer.error);
  for (const [name, {at, shape}] of Object.entries(answer.arrays || {})) {
    const count = shape.reduce((a, b) => a * b, 1);
    answer.arrays[name] = {shape, values: module.HEAPF32.slice(at >> 2, (at >> 2) + count)};
  }
  return answer;
}

export class Engine {
  static async start() {
    const engine = new Engine();
    engine.wasm = await unpacked(bytesOf(document.getElementById('wasm').textContent));
    engine.module = await loadRootdk({wasmBinary: engine.wasm});
    const model = JSON.parse(document.getElementById('model').textContent);
    for (const [name, base64] of Object.entries(model.files)) engine.putFile(name, bytesOf(base64));
    readAnswer(engine.module, engine.module.ccall('live_open', 'string', ['string'], [model.name]));
    engine.context = model.context;
    return engine;
  }

  putFile(name, bytes) {
    const at = this.module._malloc(bytes.length);
    this.module.HEAPU8.set(bytes, at);
    readAnswer(
        this.module,
        this.module.ccall('live_file', 'string', ['string', 'number', 'number'], [name, at, bytes.length]));
    this.module._free(at);
  }

  request(request) {
    return readAnswer(this.module, this.module.ccall('live_request', 'string', ['string'], [JSON.stringify(request)]));
  }

  // A request that may take seconds: answered by a second copy of the library, beside the page.
  later(request) {
    if (!this.worker) {
      const code = document.getElementById('glue').textContent + ';(' + workerMain + ')()';
      this.worker = new Worker(URL.createObjectURL(new Blob([code], {type: 'text/javascript'})));
      this.worker.postMessage({wasm: this.wasm});
      this.waiting = new Map();
      this.worker.onmessage = ({data}) => {
        const {resolve, reject} = this.waiting.get(data.number);
        this.waiting.delete(data.number);
        const answer = JSON.parse(data.text);
        if (answer.error)
          reject(new Error(answer.error));
        else
          resolve(answer);
      };
    }
    const number = this.number = (this.number || 0) + 1;
    return new Promise((resolve, reject) => {
      this.waiting.set(number, {resolve, reject});
      this.worker.postMessage({number, request: JSON.stringify(request)});
    });
  }
}

// Runs inside the worker, behind the glue code.
function workerMain() {
  let module;
  self.onmessage = async ({data}) => {
    if (data.wasm)
      module = loadRootdk({wasmBinary : data.wasm});
    else
      self.postMessage(
          {number: data.number, text: (await module).ccall('live_request', 'string', ['string'], [data.request])});
  };
}
