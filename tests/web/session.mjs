// The page's requests answered by the compiled library under node, as live_native answers them natively: a request a
// line in, an answer a line out, the arrays inside.
// usage: node session.mjs rootdk_live.js rootdk_live.wasm[.gz] MODEL_FOLDER
import fs from 'node:fs';
import {createRequire} from 'node:module';
import path from 'node:path';
import readline from 'node:readline';
import vm from 'node:vm';
import zlib from 'node:zlib';

const [glue, wasm, folder] = process.argv.slice(2);
const bytes = fs.readFileSync(wasm);
const load = vm.runInThisContext(
    `(function (require, __filename, __dirname) {${fs.readFileSync(glue, 'utf8')}; return loadRootdk; })`)(
    createRequire(import.meta.url), path.resolve(glue), path.dirname(path.resolve(glue)));
const module = await load({wasmBinary: wasm.endsWith('.gz') ? zlib.gunzipSync(bytes) : bytes});

function call(name, types, values) {
  const answer = JSON.parse(module.ccall(name, 'string', types, values));
  if (answer.error) throw new Error(answer.error);
  return answer;
}

for (const name of fs.readdirSync(folder)) {
  const file = fs.readFileSync(path.join(folder, name)), at = module._malloc(file.length);
  module.HEAPU8.set(file, at);
  call('live_file', ['string', 'number', 'number'], [name, at, file.length]);
  module._free(at);
}
call('live_open', ['string'], ['model']);

for await (const line of readline.createInterface({input: process.stdin})) {
  const answer = JSON.parse(module.ccall('live_request', 'string', ['string'], [line]));
  for (const array of Object.values(answer.arrays || {})) {
    const count = array.shape.reduce((a, b) => a * b, 1);
    array.values = Array.from(module.HEAPF32.subarray(array.at >> 2, (array.at >> 2) + count));
    delete array.at;
  }
  process.stdout.write(JSON.stringify(answer) + '\n');
}
