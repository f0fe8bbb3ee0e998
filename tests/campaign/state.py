"""Where a campaign stands, in a file that it goes on from, and the table of campaigns."""

import collections
import json
import os
import platform
import secrets
import time


def processor():
    try:
        with open("/proc/cpuinfo") as info:
            return next(line.split(":")[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


class State:
    def __init__(self, seed, path=None):
        self.seed, self.path = seed, path
        self.finished = []  # [first, last) that are done, apart from `done`
        self.done = 0  # every configuration below this is done
        self.ran = 0
        self.counts = collections.Counter()
        self.failures = []  # {"index", "case", "problems"}
        self.seconds = 0.0

    @classmethod
    def open(cls, options):
        if options.state and options.state.exists():
            saved = json.loads(options.state.read_text())
            if options.seed not in (None, saved["seed"]):
                raise SystemExit(f"{options.state} is of seed {saved['seed']}, not {options.seed}: name another file")
            if saved["device"] != options.device or saved["target"] != options.target:
                had = f"device {saved['device']} and target {saved['target'] or 'any'}"
                raise SystemExit(f"{options.state} is of {had}: name another file")
            state = cls(saved["seed"], options.state)
            state.done = state.ran = saved["done"]
            state.seconds, state.failures = saved["seconds"], saved["failures"]
            state.counts = collections.Counter({tuple(key): n for key, n in saved["counts"]})
            return state
        return cls(secrets.randbits(48) if options.seed is None else options.seed, options.state)

    def took(self, first, last, counts):
        """A chunk was run."""
        self.counts.update(counts)
        self.ran += last - first
        self.finished.append((first, last))
        self.finished.sort()
        while self.finished and self.finished[0][0] == self.done:
            self.done = self.finished.pop(0)[1]

    def save(self, options, seconds):
        if self.path is None:
            return
        content = {
            "seed": self.seed,
            "device": options.device,
            "target": options.target,
            "done": self.done,
            "seconds": self.seconds + seconds,
            "failures": self.failures,
            "counts": sorted([list(key), n] for key, n in self.counts.items()),
        }
        beside = self.path.with_name(self.path.name + ".new")
        beside.write_text(json.dumps(content))
        os.replace(beside, self.path)

    def finish(self, seconds, options):
        self.save(options, seconds)
        self.seconds += seconds
        if options.table:
            self._write_table(options)

    def _write_table(self, options):
        lines = options.table.with_suffix(".jsonl")
        entry = {
            "when": time.strftime("%Y-%m-%d", time.gmtime()),
            "seed": self.seed,
            "device": options.device,
            "target": options.target or "all",
            "processor": processor(),
            "configurations": self.ran,
            "failures": len(self.failures),
            "seconds": round(self.seconds),
            "counts": sorted([*key, n] for key, n in self.counts.items()),
        }
        with lines.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        rows = [json.loads(line) for line in lines.read_text().splitlines()]
        columns = ("when", "device", "target", "processor", "seed", "configurations", "failures", "seconds")
        text = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
        text += ["| " + " | ".join(str(row[column]) for column in columns) + " |" for row in rows]
        text += ["", "What the last of them ran:", "", "| target | type | what | times |", "| --- | --- | --- | --- |"]
        text += [f"| {target} | {dtype} | {what} | {n} |" for target, dtype, what, n in rows[-1]["counts"]]
        options.table.with_suffix(".md").write_text("\n".join(text) + "\n")

    def summary(self):
        by_target = collections.Counter()
        for (target, _, what), n in self.counts.items():
            by_target[f"{what} on {target}" if target != "none" else what] += n
        calls = ", ".join(f"{n} {name}" for name, n in sorted(by_target.items()))
        return f"campaign: seed {self.seed}: {self.ran} configurations, {len(self.failures)} failures ({calls})"
