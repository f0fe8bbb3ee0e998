#!/usr/bin/env python3
"""rootdk beside PyTorch's CPU attention: the same tensors, the same process, run by run in turn.

    bench/compare_torch.py --device cpu [--dtype bf16] [--threads 1] [--repeat 10] [--backward] [--json]

Needs PyTorch and the Python package of this repository (python/ on the path; it finds the library in build/).
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

try:
    import torch
except ImportError:
    sys.exit("compare_torch: PyTorch is not importable here")
import rootdk

# batch, heads, kv_heads, len, head_dim, causal
CASES = [
    (1, 8, 8, 2048, 128, False),
    (1, 8, 8, 2048, 64, False),
    (1, 8, 8, 2048, 128, True),
    (1, 8, 2, 2048, 128, True),
    (32, 8, 8, 128, 64, False),
    (1, 8, 8, 4096, 128, False),
]
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def seconds(body):
    start = time.perf_counter()
    body()
    return time.perf_counter() - start


def forward_pair(q, k, v, causal, threads):
    """The two calls that are timed, and their results."""
    out = torch.empty_like(q)
    grouped = q.shape[1] != k.shape[1]

    def ours():
        rootdk.attention(q, k, v, causal=causal, out=out, threads=threads)
        return out

    def theirs():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    return ours, theirs


def backward_pair(q, k, v, causal, threads):
    """Gradients alone: the forward pass has run."""
    forward = rootdk.attention(q, k, v, causal=causal, stats="lse", threads=threads)
    grad = torch.randn_like(q)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *leaves, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

    def ours():
        return rootdk.attention_backward(grad, q, k, v, forward.out, forward.lse, causal=causal, threads=threads)["q"]

    def theirs():
        return torch.autograd.grad(expected, leaves, grad, retain_graph=True)[0]

    return ours, theirs


def measure(case, options):
    batch, heads, kv_heads, length, head_dim, causal = case
    torch.manual_seed(0)
    kind = TYPES[options.dtype]
    q = torch.randn(batch, heads, length, head_dim).to(kind)
    k, v = (torch.randn(batch, kv_heads, length, head_dim).to(kind) for _ in range(2))
    pair = backward_pair if options.backward else forward_pair
    ours, theirs = pair(q, k, v, causal, options.threads)
    difference = (ours().float() - theirs().float()).abs().max().item()
    times, torch_times = [], []
    for _ in range(options.repeat):
        times.append(seconds(ours))
        torch_times.append(seconds(theirs))
    best, best_torch = min(times), min(torch_times)
    flops = 4.0 * batch * heads * length * length * head_dim * (0.5 if causal else 1.0) * (2.5 if options.backward else 1)
    return {
        "operation": "backward" if options.backward else "forward",
        "implementation": rootdk.explain(q, k, v, causal=causal).chosen,
        "dtype": options.dtype, "batch": batch, "heads": heads, "kv_heads": kv_heads, "len": length,
        "head_dim": head_dim, "causal": causal, "threads": options.threads,
        "seconds": best, "gflops": 1e-9 * flops / best,
        "torch": torch.__version__, "torch_seconds": best_torch, "torch_gflops": 1e-9 * flops / best_torch,
        "speedup_vs_torch": best_torch / best,
        "median_speedup": statistics.median(theirs / ours for ours, theirs in zip(times, torch_times)),
        "largest_difference": difference,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=sorted(TYPES), default="f32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for case in CASES:
        result = measure(case, options)
        if options.json:
            print(json.dumps(result), flush=True)
        else:
            print("{operation} {dtype} batch {batch} heads {heads}/{kv_heads} len {len} d {head_dim} causal {causal}: "
                  "{implementation} {gflops:.0f} GFLOP/s, PyTorch {torch_gflops:.0f}: {speedup_vs_torch:.2f} times "
                  "(median of the pairs {median_speedup:.2f}), "
                  "largest difference {largest_difference:.1e}".format(**result), flush=True)


if __name__ == "__main__":
    main()
