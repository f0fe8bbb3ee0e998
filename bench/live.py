"""The live page measured: WebAssembly beside the native SSE2 target, a text through the built-in model, frames of the knobs.

usage: bench/live.py [BUILD]     after make test, which builds live_native; BUILD is build
Native code and WebAssembly take turns in one run, on one thread each; the best of each counts. All times are processor time, so that
other work on the machine disturbs little.
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

    def processor_seconds(self):  # of the thread that answers
        return int(pathlib.Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0]) * 1e-9


def forward_rates():
    native = Answering([BUILD / "tests/live_native"], ROOTDK_TARGET="baseline", ROOTDK_THREADS="1")
    node = Answering(["node", "--no-experimental-fetch", SOURCE / "tests/web/session.mjs", SOURCE / "web/built/rootdk_live.js",
                      SOURCE / "web/built/rootdk_live.wasm.gz", SOURCE / "models/builtin"])
    print("f32 forward, 8 heads of 512 x 512, GFLOP/s: WebAssembly under node / native SSE2 (baseline)")
    for d in (32, 64, 128):
        rates = {}
        for _ in range(ROUNDS):
            for name, program in (("wasm", node), ("baseline", native)):
                before = program.processor_seconds()
                answer = program.request(do="time", heads=8, n=512, d=d, repeats=4)
                seconds = (program.processor_seconds() - before) / 5
                assert name in answer["kernel"], f"{answer['kernel']} answered for {name}"
                rates[name] = max(rates.get(name, 0), 4e-9 * 8 * 512 * 512 * d / seconds)
        print(f"  head_dim {d:3}: {rates['wasm']:5.1f} / {rates['baseline']:5.1f} = {rates['wasm'] / rates['baseline']:.2f}")


def per_run(page, count, script, *arguments):
    """Milliseconds that the page's thread works for one of `count` runs: the best of ROUNDS. The script ends with done()."""
    page.driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})

    def busy():
        metrics = page.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")
    best = float("inf")
    for _ in range(ROUNDS):
        before = busy()
        page.driver.execute_async_script(script, *arguments)
        best = min(best, (busy() - before) / count * 1e3)
    return best


def page_times():
    sys.path.insert(0, str(SOURCE / "tests/web"))
    from browser import Page  # leaves with a message where there is no browser
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "live.html"
        subprocess.run([BUILD / "rootdk", "live", "--out", file], check=True, stdout=subprocess.DEVNULL)
        page = Page(file, pathlib.Path(folder))
        try:
            page.open((1280, 900), False)
            page.show("claims")  # nothing of it is drawn anew
            model = per_run(page, 20, """
                const [text, done] = arguments, {engine} = rootdkLive;
                const ids = engine.request({do: 'run', text}).ids.slice(0, 64);
                if (ids.length !== 64) throw new Error(`${ids.length} tokens`);
                for (let i = 0; i < 19; ++i) engine.request({do: 'run', ids, next: 10});
                done()""", LONG_TEXT)
            print(f"page of {file.stat().st_size / 1e6:.2f} MB; 64 tokens through the built-in model, with the weights of all heads: {model:.1f} ms")
            page.show("knobs")
            frame = per_run(page, 60, """
                const [done] = arguments, {change} = rootdkLive;
                let frame = 0;
                const next = () => {
                  if (++frame > 60) return done();
                  change({dropout: frame % 10 / 20, d: 64 + frame % 2});  // the knobs that leave the model alone
                  requestAnimationFrame(next);
                };
                requestAnimationFrame(next)""")
            print(f"knobs on 64 x 64 with d_k 64, a change in every frame: {frame:.1f} ms of work a frame, {1e3 / frame:.0f} frames a second")
        finally:
            page.driver.quit()


forward_rates()
page_times()
