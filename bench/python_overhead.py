#!/usr/bin/env python3
"""What a call from Python costs over the C function: a small forward through rootdk.attention, and the same call
through the C ABI with its structs already written. Prints microseconds and exits with 1 where the difference exceeds --limit.

usage: PYTHONPATH=python bench/python_overhead.py [--device cpu|cuda|mock] [--json] [--limit 25]

On cuda the time is that of the calling thread until the kernels are launched, beside PyTorch's own function. mock shows the
package's part of that without a GPU and without the compiled binding: CPU tensors that say they lie on one, and a library and a
PyTorch runtime whose CUDA functions do nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import numpy

import rootdk
from rootdk import _abi
from rootdk._arrays import kind_of, small_code
from rootdk._params import Params, write_execution
from rootdk._slots import OFFSETS, write_qkv, write_tensor

SHAPE = (1, 1, 1, 16)
CUDA_SHAPE = (1, 1, 64, 64)
CALLS, ROUNDS = 200, 80


def seconds_a_call(function):
    """Time of this thread alone: a call this small runs on it, and other work on the machine does not count."""
    begin = time.thread_time()
    for _ in range(CALLS):
        function()
    return (time.thread_time() - begin) / CALLS


def execution_of(arena, kind, q):
    """(address, what it needs to live): on a GPU the current stream, with scratch memory."""
    if not kind.is_cuda(q):
        return 0, None
    scratch = q.new_empty(16 << 20)
    stream = kind.torch._C._cuda_getCurrentRawStream(q.get_device())
    size = scratch.numel() * scratch.element_size()
    return write_execution(arena, None, None, stream, scratch.data_ptr(), size), scratch


def c_backward_call(q, causal=True):
    """The C function of the gradients of q, k and v on structs that are written once. Its memory is not initialised."""
    kind, arena = kind_of(q, "q"), _abi.Arena()
    write_qkv(arena, kind, q, q, q)
    small = kind.empty(tuple(q.shape[:3]), small_code(kind.code(q, "q")), q)
    arrays = {name: kind.empty_like(q, name) for name in ("out", "upstream.out", "grad.q", "grad.k", "grad.v")}
    arrays["lse"] = small
    at = {name: write_tensor(arena, kind, name, x, name) for name, x in arrays.items()}
    execution, scratch = execution_of(arena, kind, q)
    arguments = (
        _abi.SAVED.write(arena, arena.base, arena.base + OFFSETS["k"], arena.base + OFFSETS["v"], at["out"], at["lse"], 0),
        _abi.UPSTREAM.write(arena, at["upstream.out"], 0, 0),
        _abi.GRADIENTS_STRUCT.write(arena, at["grad.q"], at["grad.k"], at["grad.v"], 0, 0, 0, 0, 0, 0),
        Params({"causal": causal}).write(arena, kind, q),
        execution,
    )
    keep = (arena, arrays, scratch)
    return lambda: _abi.attention_backward(*arguments) if keep else None


def c_call(q, causal=True):
    """The C function on structs that are written once."""
    kind, arena = kind_of(q, "q"), _abi.Arena()
    write_qkv(arena, kind, q, q, q)
    out = kind.empty(tuple(q.shape), kind.code(q, "q"), q)
    out_at = write_tensor(arena, kind, "out", out, "out")
    params_at = Params({"causal": causal}).write(arena, kind, q)
    execution, scratch = execution_of(arena, kind, q)
    arguments = (arena.base, arena.base + OFFSETS["k"], arena.base + OFFSETS["v"], out_at, params_at, 0, execution)
    keep = (arena, out, scratch)
    return lambda: _abi.attention(*arguments) if keep else None


def mock_cuda():
    """Lets CPU tensors pass for CUDA ones, and calls for the GPU do nothing."""
    import torch

    from rootdk import _arrays

    def nothing(*_):
        return 0

    _abi.attention = lambda *arguments: 0
    _abi.attention_workspace = lambda *arguments: 0
    _arrays.TorchKind.is_cuda = lambda kind, x: True
    torch._C._cuda_getDevice = nothing
    torch._C._cuda_isCurrentStreamCapturing = nothing
    torch._C._cuda_getCurrentRawStream = nothing
    torch.Tensor.get_device = nothing
    from rootdk import _cuda

    _cuda._new_scratch = lambda torch, device, size: torch.empty(size, dtype=torch.uint8)


def cuda_cases(device):
    import torch

    from rootdk import torch as operators

    if device == "mock":
        mock_cuda()
    where = "cpu" if device == "mock" else "cuda"
    t = torch.ones(CUDA_SHAPE, dtype=torch.bfloat16, device=where)
    yield "PyTorch", t, lambda: rootdk.attention(t, t, t, causal=True)
    yield "PyTorch, drop-in", t, lambda: operators.scaled_dot_product_attention(t, t, t, is_causal=True)
    if device == "cuda":
        theirs = torch.nn.functional.scaled_dot_product_attention
        yield "PyTorch's own", t, lambda: theirs(t, t, t, is_causal=True)


def cases(device):
    if device != "cpu":
        yield from cuda_cases(device)
        return
    q = numpy.ones(SHAPE, numpy.float32)
    yield "NumPy", q, lambda: rootdk.attention(q, q, q, causal=True)
    yield "NumPy, all statistics", q, lambda: rootdk.attention(q, q, q, causal=True, stats=True)
    view = memoryview(q)
    yield "memoryview", q, lambda: rootdk.attention(view, view, view, causal=True)
    try:
        import torch
    except ImportError:
        return
    t = torch.ones(SHAPE)
    yield "PyTorch", t, lambda: rootdk.attention(t, t, t, causal=True)
    from rootdk import torch as operators

    yield "PyTorch, drop-in", t, lambda: operators.scaled_dot_product_attention(t, t, t, is_causal=True)
    g = torch.ones(SHAPE, requires_grad=True)
    yield "PyTorch, with gradient", t, lambda: operators.attention(g, g, g, causal=True)
    leaves = tuple(torch.ones(SHAPE, requires_grad=True) for _ in range(3))
    grad = torch.ones(SHAPE)
    both = lambda: torch.autograd.grad(operators.attention(*leaves, causal=True), leaves, grad)  # noqa: E731
    yield "PyTorch, with backward", t, both


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda", "mock"), default="cpu")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--limit", type=float, default=25.0, help="microseconds over the C call for a plain forward")
    arguments = parser.parse_args()
    if arguments.device == "mock" and os.environ.get("ROOTDK_BINDING") != "0":  # the binding would see through it
        return subprocess.call([sys.executable, *sys.argv], env={**os.environ, "ROOTDK_BINDING": "0"})
    table = []
    for name, q, call in cases(arguments.device):
        bare = c_call(q)
        # In turns, and the best of each: other work on the machine then strikes both.
        pairs = [(seconds_a_call(bare), seconds_a_call(call)) for _ in range(ROUNDS)]
        c, python = (1e6 * min(column) for column in zip(*pairs))
        table.append(
            {"arrays": name, "c_us": round(c, 2), "python_us": round(python, 2), "overhead_us": round(python - c, 2)}
        )
    if arguments.json:
        print(json.dumps(table, indent=2))
    else:
        print(f"{'arrays':24} {'C call':>10} {'Python call':>12} {'overhead':>10}  microseconds")
        for row in table:
            print(f"{row['arrays']:24} {row['c_us']:10.2f} {row['python_us']:12.2f} {row['overhead_us']:10.2f}")
    plain = [row for row in table if row["arrays"] in ("NumPy", "PyTorch")]
    return int(any(row["overhead_us"] > arguments.limit for row in plain))


if __name__ == "__main__":
    sys.exit(main())
