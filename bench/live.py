"""The live page measured: WebAssembly beside the native SSE2 target, a text through the built-in model, frames of the knobs.

usage: bench/live.py [BUILD]     after make test, which builds live_native; BUILD is build
Native code and WebAssembly take turns in one run, on one thread each; the best of each counts.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else SOURCE / "build").resolve()
ROUNDS = 7
LONG_TEXT = "ROMEO: But soft, what light through yonder window breaks? It is the east, and Juliet is the sun. Arise, fair sun, " \
            "and kill the envious moon, who is already sick and pale with grief, that thou her maid art far more fair than she."


class Answering:
    def __init__(self, command, **environment):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, **environment})

    def request(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def forward_rates():
    native = Answering([BUILD / "tests/live_native"], ROOTDK_TARGET="baseline", ROOTDK_THREADS="1")
    node = Answering(["node", "--no-experimental-fetch", SOURCE / "tests/web/session.mjs", SOURCE / "web/built/rootdk_live.js",
                      SOURCE / "web/built/rootdk_live.wasm.gz", SOURCE / "models/builtin"])
    print("f32 forward, one thread, GFLOP/s: WebAssembly under node / native SSE2 (baseline)")
    for d in (32, 64, 128):
        rates = {}
        for _ in range(ROUNDS):
            for name, program in (("wasm", node), ("baseline", native)):
                answer = program.request(do="time", heads=4, n=512, d=d, repeats=3)
                assert name in answer["kernel"], f"{answer['kernel']} answered for {name}"
                rates[name] = max(rates.get(name, 0), answer["gflops"])
        print(f"  head_dim {d:3}: {rates['wasm']:5.1f} / {rates['baseline']:5.1f} = {rates['wasm'] / rates['baseline']:.2f}")


def page_times():
    sys.path.insert(0, str(SOURCE / "tests/web"))
    from browser import Page  # skips with a message where there is no browser
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "live.html"
        subprocess.run([BUILD / "rootdk", "live", "--out", file], check=True, stdout=subprocess.DEVNULL)
        page = Page(file, pathlib.Path(folder))
        try:
            page.open((1280, 900), False)
            run = page.script("""
                const {engine} = rootdkLive, times = [];
                const ids = engine.request({do: 'run', text: arguments[0]}).ids.slice(0, 64);
                for (let i = 0; i < 20; ++i) { const begin = performance.now(); engine.request({do: 'run', ids, next: 10}); times.push(performance.now() - begin); }
                return {n: ids.length, times}""", LONG_TEXT)
            print(f"page of {file.stat().st_size / 1e6:.2f} MB; {run['n']} tokens through the built-in model, all weights taken out: "
                  f"best {min(run['times']):.1f} ms, median {sorted(run['times'])[10]:.1f} ms")
            page.show("knobs")
            frames = page.driver.execute_async_script("""
                const done = arguments[0], {change, views} = rootdkLive, work = [], begin = performance.now();
                let frame = 0;
                const next = () => {
                  if (frame) work.push(views.get('knobs').milliseconds);
                  if (++frame > 120) return done({work, rate: 120e3 / (performance.now() - begin)});
                  change({temperature: 1 + frame / 100, softcap: frame % 40});
                  requestAnimationFrame(next);
                };
                requestAnimationFrame(next)""")
            work = sorted(frames["work"])
            print(f"knobs on 64 x 64, a change in every frame: {frames['rate']:.0f} frames a second; attention, statistics and drawing take "
                  f"{work[len(work) // 2]:.1f} ms (median), {work[-1]:.1f} ms (longest)")
        finally:
            page.driver.quit()


forward_rates()
page_times()
