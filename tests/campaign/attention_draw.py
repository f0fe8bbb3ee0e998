"""How a configuration of attention is drawn: a plain dict that JSON holds."""

import numpy as np

import oracle
from arrays import LAYOUTS, VALUES

EDGES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 96, 127, 128, 129)
DIMS = (1, 2, 3, 4, 5, 7, 8, 8, 12, 16, 16, 17, 24, 31, 32, 32, 33, 40, 48, 63, 64, 64, 65, 72, 80, 96, 128)

def _length(random, most):
    if random.random() < 0.03:
        return 0
    return int(min(most, random.choice(EDGES) if random.random() < 0.6 else random.integers(1, most + 1)))


def _some(random, share):
    return bool(random.random() < share)


def _flags(random):
    """Which of four dimensions are full, not 1."""
    return [int(_some(random, 0.6)) for _ in range(4)]


def _place(random, device, dtype):
    if device == "cuda":
        return "cuda"
    return "torch" if dtype == "bf16" else str(random.choice(["numpy", "torch"], p=[0.7, 0.3]))


def _limit(c, most):
    """The oracle keeps the whole matrix: many heads or long sequences, not both."""

    def weights():
        return c["batch"] * c["kv_heads"] * c["group"] * c["q_len"] * c["kv_len"]

    for name, less in (("batch", 1), ("group", 2), ("kv_heads", 2), ("group", 1), ("kv_heads", 1)):
        if weights() > most:
            c[name] = min(c[name], less)
    while weights() > most:
        c["q_len"] //= 2


def draw(random, device):
    shares = [0.4, 0.35, 0.2, 0.05] if device == "cpu" else [0.25, 0.45, 0.3, 0]
    dtype = str(random.choice(["f32", "bf16", "f16", "f64"], p=shares))
    big = random.random()
    most = 40 if big < 0.7 else 140 if big < 0.97 else 520 if big < 0.998 else 1300
    c = {
        "kind": "attention",
        "seed": int(random.integers(2**31)),
        "dtype": dtype,
        "batch": int(random.choice([1, 1, 2, 3])),
        "kv_heads": int(random.choice([1, 1, 2, 3])),
        "group": int(random.choice([1, 1, 2, 3, 4, 8])),
        "q_len": _length(random, most),
        "kv_len": _length(random, most),
        "head_dim": int(random.choice(DIMS)),
        "place": _place(random, device, dtype),
        "target": int(random.integers(1000)),  # of those that accept, modulo their number
        "threads": int(random.choice([1, 2, 3], p=[0.84, 0.08, 0.08])),
        "values": [str(random.choice(VALUES, p=[0.5] + [0.5 / 7] * 7))] * 3,
        "layouts": [str(x) for x in random.choice(LAYOUTS, 3, p=[0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05])],
    }
    if device == "cuda" and _some(random, 0.75):  # what the fast paths take
        c["head_dim"] = int(random.choice([8, 16, 32, 40, 64, 64, 64, 80, 96, 128, 128, 128, 192, 256]))
    c["value_dim"] = c["head_dim"] if _some(random, 0.7) else int(random.choice(DIMS))
    if _some(random, 0.01):
        c["batch" if _some(random, 0.5) else "q_len"] = 0
    if _some(random, 0.02):
        c["head_dim"] = int(random.choice([192, 256, 320, 512]))
    if _some(random, 0.15):
        c["values"] = [str(random.choice(VALUES)) for _ in range(3)]
    _limit(c, 60_000 if most < 500 else 500_000)
    _draw_logits(random, c)
    _draw_masks(random, c)
    _draw_terms(random, c)
    _draw_results(random, c)
    return c


def _draw_logits(random, c):
    if _some(random, 0.2):
        c["scale"] = [
            "none",
            "inverse_head_dim",
            round(float(random.uniform(0.01, 1.5)), 3),
            round(float(-random.uniform(0.01, 0.5)), 3),
        ][random.integers(4)]
    if _some(random, 0.12):
        c["temperature"] = round(float(np.exp(random.uniform(-1.2, 1.2))), 3)
    if _some(random, 0.12):
        c["softcap"] = round(float(random.uniform(0.5, 50)), 2)
    if _some(random, 0.16):
        c["score"] = str(random.choice(["cosine", "additive"]))
        if c["score"] == "additive":
            c["q_len"], c["kv_len"] = min(c["q_len"], 40), min(c["kv_len"], 48)
            c["head_dim"] = min(c["head_dim"], 64)


def _draw_masks(random, c):
    if _some(random, 0.35):
        c["causal"] = True
    if _some(random, 0.2):
        left, right = (None if _some(random, 0.3) else int(random.integers(0, 40)) for _ in range(2))
        if left is not None or right is not None:
            c["window"] = [left, right]
    if _some(random, 0.12):
        c["packed"] = int(random.integers(1, 5))
        c["batch"] = 1
        if _some(random, 0.3):
            c["max_len"] = True
        return
    if _some(random, 0.2):
        c["kv_lengths"] = str(random.choice(["any", "any", "full", "zero"]))
    if _some(random, 0.15):
        c["mask"] = {"full": _flags(random), "share": float(random.choice([0.1, 0.5, 0.9]))}
    if _some(random, 0.1):
        blocks = [int(x) for x in random.choice([1, 2, 3, 8, 16, 20, 32, 64, 128], 2)]
        c["block_mask"] = {"full": _flags(random), "size": blocks, "share": float(random.choice([0.3, 0.6, 0.9]))}


def _draw_terms(random, c):
    if not c.get("packed") and _some(random, 0.18):
        infinite = float(random.choice([0, 0, 0, 0.1, 0.5]))
        c["bias"] = {"full": _flags(random), "f32": _some(random, 0.5), "infinite": infinite}
    if _some(random, 0.12):
        entries = int(random.choice([1, 2, 9, 33, 65]))
        c["relative"] = {"one_row": _some(random, 0.4), "entries": entries, "zero": int(random.integers(entries))}
    if _some(random, 0.12):
        c["alibi"] = True
    if _some(random, 0.2):
        c["sinks"] = str(random.choice(["normal", "normal", "large", "minus_infinity"]))
    if _some(random, 0.12):
        c["dropout"] = float(random.choice([0.1, 0.5, 0.9, 0.00001, 0.3]))
        c["dropout_seed"] = int(random.integers(2**63))
    if _some(random, 0.12):
        c["hidden"] = str(random.choice(["nan", "inf", "mix"]))
    elif _some(random, 0.04) and not c.get("dropout"):
        c["seen"] = str(random.choice(["q", "k", "v"]))  # NaN where some rows see it


def _draw_results(random, c):
    if _some(random, 0.55):
        names = oracle.ROW_STATS + ("column_mass",)
        c["stats"] = list(names) if _some(random, 0.5) else [n for n in names if _some(random, 0.3)]
    if not c.get("packed") and _some(random, 0.15):
        c["map_size"] = [int(x) for x in random.integers(1, 12, 2)]
    if _some(random, 0.1):
        c["weights"] = True if _some(random, 0.5) else int(random.integers(1, 6))
    if _some(random, 0.2):
        c["out"] = str(random.choice(["bhsd", "bshd", "padded"]))
    if _some(random, 0.45) and not c.get("seen"):
        c["backward"] = {
            "only": ["q", "k", "v"] if _some(random, 0.4) else None,  # None: everything
            "grad_lse": _some(random, 0.25),
            "grad_entropy": _some(random, 0.15),
            "layout": str(random.choice(["bhsd", "bshd", "padded"])),
        }
    if ("mask" in c or "bias" in c or "block_mask" in c) and _some(random, 0.4):
        c["term_layout"] = str(random.choice(["bshd", "padded", "two_dimensions"]))
    if c.get("stats") and _some(random, 0.05):
        c["stats_stride"] = int(random.integers(1, 4))
    checks = [name for name in ("threads", "plain", "alone") if _some(random, 0.12)]
    if checks:
        c["checks"] = checks
