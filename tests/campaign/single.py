"""One configuration: drawn, run, made smaller, and written as a command that repeats it."""

import collections
import copy
import json
import shlex
import traceback

import numpy as np

import attention_cases
import cache_cases
import merge_cases
import rootdk

KINDS = {"attention": (attention_cases, 0.84), "cache": (cache_cases, 0.14), "merge": (merge_cases, 0.02)}


class Report:
    """Counts of what was run, by (target, type, what)."""

    def __init__(self, target="", device="cpu"):
        self.target = target
        self.counts = collections.Counter()
        self.targets = _targets(device)

    def count(self, *key):
        self.counts[key] += 1


def _targets(device):
    """The names of all implementations, in their order."""
    q = np.ones((1, 1, 1, 8), np.float32)
    names = [name for name, refusal in rootdk.explain(q, q, q).candidates]
    on_cuda = [name for name in names if name.startswith("sm")]
    return on_cuda if device == "cuda" else [name for name in names if name not in on_cuda]


def draw(seed, index, options):
    random = np.random.default_rng([seed, index])
    kinds = options.kinds.split(",")
    shares = np.array([KINDS[kind][1] for kind in kinds])
    kind = str(random.choice(kinds, p=shares / shares.sum()))
    return KINDS[kind][0].draw(random, options.device)


def run_case(case, report):
    """The problems of a configuration; an unexpected exception is one."""
    try:
        return KINDS[case["kind"]][0].run(case, report) or []
    except attention_cases.Refused as refusal:
        report.count("none", case["dtype"], "refused")
        report.last_refusal = str(refusal)
        return []
    except Exception as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-2:])
        return [f"{type(error).__name__}: {error}\n{where}"]


def repeat(case, options):
    where = f" --device {options.device}" if options.device != "cpu" else ""
    where += f" --target {options.target}" if options.target else ""
    return f"tests/campaign/campaign.py{where} --case {shlex.quote(json.dumps(case, separators=(',', ':')))}"


def signature(problems):
    """What kind of failure it is, so that a smaller configuration fails in the same way."""
    return problems[0].split("[")[0].split(" is ")[0].split("\n")[0][:60] if problems else ""


# --- making smaller ------------------------------------------------------------------------------------------------

_SIZES = ("q_len", "kv_len", "batch", "group", "kv_heads", "head_dim", "value_dim", "layers", "parts", "packed")
_SIZES += ("max_tokens",)
_PLAIN = {"layouts": ["bhsd"] * 3, "values": ["normal"] * 3, "threads": 1}
_NEEDED = {"kind", "seed", "dtype", "q_dtype", "place", "target", "layout", "page_size", "pages", "values", "ops"}
_NEEDED |= {"empty", "spread", "heads"}


def _simpler(case):
    """Configurations that are a little simpler, the boldest first."""
    for i in reversed(range(len(case.get("ops", ())))):
        smaller = copy.deepcopy(case)
        del smaller["ops"][i]
        yield smaller
    for i, op in enumerate(case.get("ops", ())):
        for name in set(op) - {"op", "on", "more", "layer", "tokens", "share", "first", "last"}:
            smaller = copy.deepcopy(case)
            del smaller["ops"][i][name]
            yield smaller
    for name in case:
        if name not in _NEEDED and name not in _SIZES and name not in _PLAIN:
            yield {k: v for k, v in case.items() if k != name}
    if case["kind"] == "attention":
        for name, plain in _PLAIN.items():
            if case[name] != plain:
                yield dict(case, **{name: plain})
    for name in _SIZES:
        size = case.get(name, 0)
        for less in (1, size // 2, size - 1):
            if 0 < less < size:
                yield dict(case, **{name: less})
    for name in ("bias", "mask", "block_mask"):
        if case.get(name) and any(case[name]["full"]):
            yield dict(case, **{name: dict(case[name], full=[0] * 4)})


def shrink(case, fails, tries=250):
    """The simplest configuration that was found to fail in so many tries. `fails` runs one."""
    progress = True
    while progress and tries > 0:
        progress = False
        for smaller in _simpler(case):
            tries -= 1
            if tries < 0:
                break
            if fails(smaller):
                case, progress = smaller, True
                break
    return case
