#!/usr/bin/env python3
"""rootdk's gradients beside PyTorch's on the same CUDA tensors: cuDNN, FlashAttention-2 and ours, timed in turn,
in a new order every round.

    python3 bench/compare_torch.py --device cuda --backward --library build/src/librootdk.so [--sections ...]

Everything between the upstream gradient and the three gradients is inside the time, the small kernels before and after
included. Errors are relative to float64 on the first head (sections `grid` and `few`, n up to 2048).
"""
import ctypes

import compare_torch_cuda
import torch
from compare_torch_cuda import POINTER, Rootdk, attended_pairs, feature_turns, interleaved, random, torch_attention, view
from torch.nn.attention import SDPBackend

ROUNDS = 5


def struct(names):
    class Struct(ctypes.Structure):
        _fields_ = [("struct_size", ctypes.c_size_t)] + [(name, POINTER) for name in names.split()]

    return Struct


Saved = struct("q k v out lse entropy")
Upstream = struct("out lse entropy")
Gradients = struct("q k v bias relative_table alibi_slopes sinks additive_v column_mass")


class RootdkBackward:
    """A prepared call: run() does nothing but the library's own call."""

    def __init__(self, library, q, k, v, grad_out, params=None, target=None):
        forward = Rootdk(library, q, k, v, params, stats=("lse",))
        forward.run()
        self.library, self.forward = library, forward
        self.gradients = {name: torch.full_like(x, float("nan")) for name, x in (("q", q), ("k", k), ("v", v))}
        self.kept = [grad_out]
        saved = {"q": q, "k": k, "v": v, "out": forward.out, "lse": forward.rows["lse"]}
        self.structs = [
            self.fill(Saved(), saved),
            self.fill(Upstream(), {"out": grad_out}),
            self.fill(Gradients(), self.gradients),
            forward.params,
        ]
        self.execution = forward.execution
        if target:
            self.execution.target = target.encode()
        size = ctypes.c_size_t()
        self.check(library.rootdk_attention_backward_workspace(*map(ctypes.byref, self.structs), ctypes.byref(size)))
        self.workspace = torch.full((max(size.value, 1),), 255, device=q.device, dtype=torch.uint8)
        self.execution.workspace = self.workspace.data_ptr()
        self.execution.workspace_bytes = size.value

    def fill(self, target, tensors):
        target.struct_size = ctypes.sizeof(target)
        for name, tensor in tensors.items():
            held = view(tensor)
            self.kept += [tensor, held]
            setattr(target, name, ctypes.pointer(held))
        return target

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.library.rootdk_last_error().decode())

    def run(self):
        self.check(self.library.rootdk_attention_backward(*map(ctypes.byref, self.structs), ctypes.byref(self.execution)))
        return tuple(self.gradients.values())


def torch_backward(backend, q, k, v, grad_out, causal):
    """A call that repeats PyTorch's backward."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        out = torch_attention(backend, *leaves, causal)
    return lambda: torch.autograd.grad(out, leaves, grad_out, retain_graph=True)


def reference_gradients(q, k, v, grad_out, causal):
    """Gradients of the first head in float64."""
    leaves = [x[:1, :1].double().requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        logits = leaves[0] @ leaves[1].transpose(-1, -2) * q.shape[-1] ** -0.5
        if causal:
            position = torch.arange(q.shape[2], device=q.device) + k.shape[2] - q.shape[2]
            logits = logits.masked_fill(torch.arange(k.shape[2], device=q.device)[None, :] > position[:, None], float("-inf"))
        out = torch.softmax(logits, -1) @ leaves[2]
    return torch.autograd.grad(out, leaves, grad_out[:1, :1].double())


def error(gradients, truth):
    """The largest relative error of the three."""
    return max(((g[:1, :1].double() - t).norm() / t.norm()).item() for g, t in zip(gradients, truth))


def compare(library, report, b, h, n, dim, causal):
    q, k, v, grad_out = (random(b, h, n, dim) for _ in range(4))
    ours = RootdkBackward(library, q, k, v, grad_out, {"causal": int(causal)})
    contenders = {"ours": ours.run}
    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash2", SDPBackend.FLASH_ATTENTION)):
        try:
            call = torch_backward(backend, q, k, v, grad_out, causal)
            call()
            contenders[name] = call
        except RuntimeError:
            pass
    errors = {}
    if n <= 2048:
        truth = reference_gradients(q, k, v, grad_out, causal)
        errors = {name: error(call(), truth) for name, call in contenders.items()}
    first = [g.clone() for g in ours.run()]
    same = all(torch.equal(a, b) for a, b in zip(first, ours.run()))
    ms = interleaved(contenders, rounds=ROUNDS)
    flops = 10.0 * b * h * dim * (n * n * (0.5 if causal else 1.0))
    row = {"dim": dim, "causal": int(causal), "heads": b * h, "n": n}
    row |= {f"{name}_tflops": flops / t * 1e-9 for name, t in ms.items()}
    row |= {f"over_{name}": ms[name] / ms["ours"] for name in ms if name != "ours"}
    row |= {f"error_{name}": e for name, e in errors.items()}
    report.add(**row, same_bits=int(same))


def section_grid(library, args, report):
    """Plain and causal; batch times length is 16384, heads times head_dim 2048."""
    for dim in args.dims:
        for causal in (False, True):
            for n in args.lengths:
                compare(library, report, 16384 // n, 2048 // dim, n, dim, causal)


def section_few(library, args, report):
    """One and two heads."""
    for dim in args.dims:
        for causal in (False, True):
            for heads, n in ((1, 8192), (2, 8192), (1, 16384), (2, 16384)):
                compare(library, report, 1, heads, n, dim, causal)


def section_features(library, args, report):
    """Rate on the work left, relative to plain causal at the same n."""
    dim, n = 128, 8192
    b, h = 16384 // n, 2048 // dim
    q, k, v, grad_out = (random(b, h, n, dim) for _ in range(4))
    lengths = [1500, 700, 3000, 260, 5000, 1800, 2500, 1624]
    starts = torch.tensor([sum(lengths[:i]) for i in range(len(lengths) + 1)], device="cuda", dtype=torch.int32)
    packed = [random(1, h, sum(lengths), dim) for _ in range(4)]
    grouped = [random(b, heads, n, dim) for heads in (32, 8, 8, 32)]
    slopes = torch.tensor([2.0 ** (-8 * (i + 1) / h) for i in range(h)], device="cuda")
    table = torch.randn(h, 257, device="cuda")
    causal, pairs = {"causal": 1}, b * h * attended_pairs(n, True)
    bounds = {"q_starts": starts, "kv_starts": starts, "max_q_len": max(lengths), "max_kv_len": max(lengths)}
    cases = {
        "causal": (q, k, v, grad_out, causal, pairs),
        "gqa 32/8": (*grouped, causal, b * 32 * attended_pairs(n, True)),
        "packed": (*packed, causal | bounds, h * sum(attended_pairs(length, True) for length in lengths)),
        "window 1024": (q, k, v, grad_out, causal | {"window_left": 1024}, b * h * attended_pairs(n, True, 1024)),
        "alibi": (q, k, v, grad_out, causal | {"alibi_slopes": slopes}, pairs),
        "softcap 50": (q, k, v, grad_out, causal | {"softcap": 50.0}, pairs),
        "relative table": (q, k, v, grad_out, causal | {"relative_table": table, "relative_zero": 128}, pairs),
        "dropout 0.1": (q, k, v, grad_out, causal | {"dropout": 0.1, "seed": 1}, pairs),
    }
    for names in feature_turns(cases):
        calls = {name: RootdkBackward(library, *cases[name][:5]) for name in names}
        ms = interleaved({name: call.run for name, call in calls.items()}, rounds=2 * ROUNDS)
        rate = {name: 10.0 * dim * cases[name][5] / ms[name] * 1e-9 for name in names}
        for name in names:
            report.add(feature=name, tflops=rate[name], of_causal=rate[name] / rate["causal"])


SECTIONS = {"grid": section_grid, "few": section_few, "features": section_features}


if __name__ == "__main__":
    compare_torch_cuda.main(__doc__, SECTIONS, dims="64,128,256", lengths="2048,4096,8192,16384")
