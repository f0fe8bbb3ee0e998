"""Shapes of attention that models have, and the arithmetic of a comparison: rounds, time limits, ratios. No PyTorch here.

Used by compare_torch_models.py."""
import json
import math
import statistics
import time
from random import Random
from typing import NamedTuple


class Shape(NamedTuple):
    name: str
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    causal: bool = False

    def __str__(self):
        kind = "causal" if self.causal else "full"
        return f"{self.batch}, {self.heads}/{self.kv_heads}, {self.q_len} x {self.kv_len}, {self.head_dim} {kind}"


SHAPES = [
    Shape("ViT-B", 64, 12, 12, 197, 197, 64),
    Shape("ViT-L 384", 32, 16, 16, 577, 577, 64),
    Shape("ViT-H", 64, 16, 16, 257, 257, 80),
    Shape("BERT", 32, 12, 12, 512, 512, 64),
    Shape("BERT 128", 128, 12, 12, 128, 128, 64),
    Shape("GPT-2 M", 8, 16, 16, 1024, 1024, 64, True),
    Shape("LLaMA, odd length", 4, 32, 8, 3000, 3000, 128, True),
    Shape("LLaMA 32k", 1, 32, 8, 32768, 32768, 128, True),
    Shape("Flux DiT", 2, 24, 24, 4608, 4608, 128),
    Shape("video DiT", 2, 40, 40, 1560, 1560, 128),
    Shape("SDXL self", 2, 10, 10, 4096, 4096, 64),
    Shape("SDXL cross", 2, 10, 10, 4096, 77, 64),
    Shape("SDXL cross 2", 2, 20, 20, 1024, 77, 64),
    Shape("decode", 1, 16, 16, 1, 4096, 64),
    Shape("Whisper encoder", 1, 20, 20, 1500, 1500, 64),
    Shape("head_dim 72", 8, 8, 8, 2048, 2048, 72),
    Shape("head_dim 80", 8, 8, 8, 2048, 2048, 80, True),
    Shape("head_dim 96", 8, 8, 8, 2048, 2048, 96, True),
    Shape("head_dim 112", 8, 8, 8, 2048, 2048, 112, True),
    Shape("head_dim 160", 8, 8, 8, 2048, 2048, 160, True),
    Shape("Gemma", 8, 8, 4, 2048, 2048, 256, True),
    Shape("head_dim 32", 4, 16, 16, 2048, 2048, 32),
    Shape("MLA prefill", 1, 128, 128, 4096, 4096, 192, True),
    Shape("speculative decode", 16, 32, 8, 16, 8192, 128),
    Shape("chunked prefill", 1, 32, 8, 256, 32768, 128),
    Shape("one head", 1, 1, 1, 16384, 16384, 128, True),
]


def small(shape, longest=320):
    """The same kind of shape for a CPU: the ratio of heads, the mask and what is odd about the lengths stay."""
    group = shape.heads // shape.kv_heads
    kv_heads = min(shape.kv_heads, max(1, 4 // group))
    q_len, kv_len = (n if n <= longest else longest - 8 + n % 8 for n in (shape.q_len, shape.kv_len))
    return shape._replace(
        batch=min(shape.batch, 2), heads=kv_heads * group, kv_heads=kv_heads, q_len=q_len, kv_len=kv_len
    )


def read_shapes(path):
    """Further shapes from a JSON file: a list of objects with the fields of Shape."""
    with open(path) as file:
        return [Shape(**entry) for entry in json.load(file)]


class Deadline:
    """Hands out what is left of a number of seconds."""

    def __init__(self, seconds, clock=time.monotonic):
        self._clock = clock
        self._end = clock() + seconds

    def left(self):
        return self._end - self._clock()

    def share(self, parts):
        """The end of one of `parts` equal parts of the time that is left."""
        return self._clock() + max(0.0, self.left()) / max(1, parts)

    def passed(self, moment):
        return self._clock() >= moment


class Times(NamedTuple):
    """Seconds of one call."""

    median: float
    best: float
    rounds: int


def interleaved(measures, passed, least=3, most=25):
    """Times of each contender. `measures` are functions that give seconds; a round calls each once, in a new order, so
    that drift of clock and temperature hits all alike. Rounds end when passed() says so, but not before `least`."""
    order, generator = list(measures), Random(0)
    seconds = {name: [] for name in measures}
    for round_ in range(most):
        if round_ >= least and passed():
            break
        generator.shuffle(order)
        for name in order:
            seconds[name].append(measures[name]())
    return {name: Times(statistics.median(values), min(values), len(values)) for name, values in seconds.items()}


C_FUNCTION = "C function"  # ours without Python: shown, and no contender


def ratios(times, ours="rootdk"):
    """(by medians, by best) of the fastest other contender over ours; None where there is no other."""
    others = [t for name, t in times.items() if name not in (ours, C_FUNCTION)]
    if ours not in times or not others:
        return None, None
    return (
        min(t.median for t in others) / times[ours].median,
        min(t.best for t in others) / times[ours].best,
    )


def geometric_mean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def calls_a_measure(seconds, wanted=2e-3, most=50):
    """How many calls one measure holds: enough that the clock's own error does not count."""
    return max(1, min(most, math.ceil(wanted / max(seconds, 1e-9))))


class Report:
    """What has been found so far: printed as it comes, and written to a JSON file after each line of it."""

    def __init__(self, path=None, show=print):
        self.content = {"shapes": [], "host": [], "means": [], "failures": []}
        self._path, self._show = path, show

    def write(self):
        if self._path:
            with open(self._path, "w") as file:
                json.dump(self.content, file, indent=1)

    def header(self, **facts):
        self.content.update(facts)
        self._show("  ".join(f"{name} {value}" for name, value in facts.items()))
        self.write()

    def failure(self, where, error):
        """What did not work; the comparison goes on."""
        line = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {line[0] if line else ''}" if isinstance(error, BaseException) else str(error)
        self.content["failures"].append({"where": where, "reason": reason[:400]})
        self._show(f"FAILED {where}: {reason[:400]}")
        self.write()

    def shape(self, shape, mode, pass_, times, refused, **more):
        by_median, by_best = ratios(times)
        row = {"name": shape.name, "shape": shape._asdict(), "mode": mode, "pass": pass_}
        row["microseconds"] = {
            name: {"median": 1e6 * t.median, "best": 1e6 * t.best, "rounds": t.rounds} for name, t in times.items()
        }
        row.update(ratio=by_median, ratio_best=by_best, refused=refused, **more)
        self.content["shapes"].append(row)
        figures = "  ".join(f"{name} {1e6 * t.median:.1f} ({1e6 * t.best:.1f})" for name, t in times.items())
        ratio = "no ratio" if by_median is None else f"ratio {by_median:.2f} ({by_best:.2f})"
        self._show(f"{shape.name:19} {str(shape):36} {mode:5} {pass_:16} {ratio}  us: {figures}")
        self.write()

    def host(self, kind, times, refused):
        by_median, by_best = ratios(times)
        micro = {name: {"median": 1e6 * t.median, "best": 1e6 * t.best} for name, t in times.items()}
        row = {"call": kind, "microseconds": micro, "ratio": by_median, "ratio_best": by_best, "refused": refused}
        self.content["host"].append(row)
        figures = "  ".join(f"{name} {1e6 * t.median:.1f} ({1e6 * t.best:.1f})" for name, t in times.items())
        reasons = "".join(f"  {name} refused: {reason}" for name, reason in refused.items())
        self._show(f"host time, {kind:28} us: {figures}{reasons}")
        self.write()

    def means(self):
        """The geometric mean of the ratios by mode and pass, and the shapes that lose."""
        groups = {}
        for row in self.content["shapes"]:
            if row["ratio"] is not None:
                groups.setdefault((row["mode"], row["pass"]), []).append(row)
        self.content["means"] = []
        for (mode, pass_), rows in groups.items():
            entry = {
                "mode": mode,
                "pass": pass_,
                "shapes": len(rows),
                "mean": geometric_mean(row["ratio"] for row in rows),
                "mean_best": geometric_mean(row["ratio_best"] for row in rows),
                "below_one": {row["name"]: row["ratio"] for row in rows if row["ratio"] < 1.0},
            }
            self.content["means"].append(entry)
            losers = ", ".join(f"{name} {ratio:.2f}" for name, ratio in entry["below_one"].items()) or "none"
            self._show(
                f"{mode} {pass_}: geometric mean {entry['mean']:.3f} (best {entry['mean_best']:.3f}) of "
                f"{len(rows)} shapes; below 1.00: {losers}"
            )
        failures = self.content["failures"]
        self._show(f"failures: {len(failures)}")
        for entry in failures:
            self._show(f"  {entry['where']}: {entry['reason']}")
        self.write()
