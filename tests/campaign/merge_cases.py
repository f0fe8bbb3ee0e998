"""Configurations of merge_states."""

import numpy as np

import oracle
import rootdk
from arrays import TYPES, Place, round_to


def draw(random, device):
    dtype = str(random.choice(["f32", "bf16", "f16", "f64"]))
    return {
        "kind": "merge",
        "seed": int(random.integers(2**31)),
        "dtype": dtype,
        "place": "torch" if dtype == "bf16" else "numpy",
        "parts": int(random.integers(1, 6)),
        "batch": int(random.integers(1, 3)),
        "heads": int(random.integers(1, 4)),
        "q_len": int(random.integers(0, 20)),
        "value_dim": int(random.choice([1, 3, 8, 17, 64])),
        "empty": float(random.choice([0, 0.2, 0.7])),  # share of parts without keys
        "spread": float(random.choice([1, 30, 1000])),
    }


def run(c, report):
    random = np.random.default_rng(c["seed"])
    place, small = Place(c["place"]), "f64" if c["dtype"] == "f64" else "f32"
    shape = (c["parts"], c["batch"], c["heads"], c["q_len"])
    out = round_to(random.standard_normal((*shape, c["value_dim"])), c["dtype"])
    lse = round_to(random.standard_normal(shape) * c["spread"], small)
    gone = random.random(shape) < c["empty"]
    lse[gone] = -np.inf
    if c["empty"]:
        out[gone] = random.choice([np.nan, np.inf, 0])
    ours, our_lse = (place.values(x) for x in rootdk.merge_states(place.make(out, c["dtype"]), place.make(lse, small)))
    report.count("reference", c["dtype"], "merge")
    wanted, wanted_lse = oracle.merged(out, lse)
    size = np.abs(np.where(gone[..., None], 0, out)).sum(0)
    unit, small_unit = TYPES[c["dtype"]][0], TYPES[small][0]
    allowed = 2 * unit * np.abs(wanted) + 8 * small_unit * size * c["spread"] + 1e-7 * (c["dtype"] == "f16")
    problems = []
    if not (np.abs(ours - wanted) <= allowed).all():
        problems.append(f"merge_states: out is off by {np.nanmax(np.abs(ours - wanted))}")
    finite = np.where(np.isneginf(wanted_lse), 0, wanted_lse)
    close = (np.abs(our_lse - finite) <= 8 * small_unit * (1 + c["spread"] * 8)) | (our_lse == wanted_lse)
    if not close.all():
        problems.append("merge_states: lse is off")
    return problems
