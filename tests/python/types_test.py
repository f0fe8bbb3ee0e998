"""Static types: what goes in comes out, and mistakes are found before a program runs. Needs mypy, and skips without it."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

for needed in ("mypy", "numpy", "torch", "typing_extensions"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed", allow_module_level=True)

PACKAGE = Path(os.environ.get("ROOTDK_SOURCE_DIR", Path(__file__).resolve().parents[2])) / "python"

RIGHT = """
import numpy
import torch
from typing import Any, Dict, List, Tuple
from typing_extensions import assert_type
import rootdk
import rootdk.distributed
import rootdk.torch

Array = numpy.ndarray[Any, numpy.dtype[Any]]

def arrays(a: Array) -> None:
    assert_type(rootdk.attention(a, a, a, causal=True, mask=a, kv_lengths=[3]), Array)
    assert_type(rootdk.attention(a, a, a, stats=True), rootdk.AttentionResult[Array])
    assert_type(rootdk.attention(a, a, a, map_size=(4, 8)).pooled_map, Array)
    assert_type(rootdk.attention(a, a, a, weights=[0, 1]).weights, Array)
    assert_type(rootdk.attention_backward(a, a, a, a, a, a), Dict[str, Array])
    assert_type(rootdk.merge_states(a, a), Tuple[Array, Array])
    assert_type(rootdk.rope(a, positions=[1, 2]), Array)
    assert_type(rootdk.alibi_slopes(4), Array)
    assert_type(rootdk.sinusoidal_positions(4, 8, out=a), Array)

def tensors(t: torch.Tensor) -> None:
    assert_type(rootdk.attention(t, t, t, bias=t, seed=t), torch.Tensor)
    assert_type(rootdk.attention(t, t, t, stats=("lse", "entropy")).lse, torch.Tensor)
    assert_type(rootdk.torch.attention(t, t, t), torch.Tensor)
    assert_type(rootdk.torch.attention(t, t, t, stats="lse"), rootdk.AttentionResult[torch.Tensor])
    assert_type(rootdk.torch.scaled_dot_product_attention(t, t, t), torch.Tensor)
    assert_type(rootdk.distributed.attention(t, t, t, shares="zigzag", causal=True), torch.Tensor)
    assert_type(rootdk.distributed.attention(t, t, t, stats=True).entropy, torch.Tensor)
    assert_type(rootdk.torch.rope(t), torch.Tensor)

def caches(a: Array, t: torch.Tensor) -> None:
    cache = rootdk.KvCache(kv_heads=1, head_dim=8, pages=1)
    with cache.open() as sequence:
        sequence.append(t, t, layer=0)
        assert_type(sequence.attend(t, window=4), torch.Tensor)
        assert_type(cache.attend(a, [(sequence, 2)], stats=True), rootdk.AttentionResult[Array])

def models(t: torch.Tensor) -> None:
    model = rootdk.load("builtin")
    assert_type(model.generate("a", temperature=0.5, stop="b").ids, List[int])
    assert_type(model.forward(t), torch.Tensor)
    assert_type(model.forward([1, 2]), Array)
    assert_type(model.embed(["a", "b"]), Array)
"""

WRONG = {
    "rootdk.attention(a, a, a, causl=True)": "causl",
    "rootdk.attention(1, 2, 3)": "No overload variant",
    "rootdk.attention(a, a, a).lse": '"lse"',
    "rootdk.attention(a, a, a, window='far')": "No overload variant",
    "rootdk.torch.attention(a, a, a)": "No overload variant",
    "rootdk.load('builtin').stream('a', temprature=1.0)": "temprature",
}


def check(tmp_path, text):
    program = tmp_path / "program.py"
    program.write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path.parent / "mypy"), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "MYPYPATH": str(PACKAGE)}, cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    return [line for line in done.stdout.splitlines() if re.match(r"program\.py:\d+: error", line)], done.stdout


def test_what_goes_in_comes_out(tmp_path):
    errors, shown = check(tmp_path, RIGHT)
    assert not errors, "\n".join(errors)
    assert "internal error" not in shown.lower()


def test_mistakes_are_found(tmp_path):
    lines = ["import numpy", "from typing import Any", "import rootdk", "import rootdk.torch"]
    lines.append("def program(a: numpy.ndarray[Any, numpy.dtype[Any]]) -> None:")
    first = len(lines) + 1
    errors, shown = check(tmp_path, "\n".join(lines + ["    " + call for call in WRONG]) + "\n")
    for number, (call, message) in enumerate(WRONG.items(), first):
        found = [line for line in errors if line.startswith(f"program.py:{number}:")]
        assert any(message in line for line in found), f"{call}\n{shown[-3000:]}"


def test_the_package_itself_has_no_errors(tmp_path):
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path.parent / "mypy"), "-p", "rootdk"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "MYPYPATH": str(PACKAGE)}, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
