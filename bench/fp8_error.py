#!/usr/bin/env python3
"""How far attention in e4m3 is from the exact result, and whether it finds needles: docs/fp8.md has the tables.

    bench/fp8_error.py                                  # the reference, which rounds weights
    bench/fp8_error.py --target fp8_cpu --keys 2048
    bench/fp8_error.py --device cuda --keys 2048 32768 524288 --needles
"""

import argparse
import math

import rootdk
import torch

HEAD_DIM = 128


def exact(q, k, v):
    """In f64, a few rows at a time."""
    rows = []
    for some in q.double().split(16, dim=2):
        weights = torch.softmax(some @ k.double().transpose(-1, -2) / math.sqrt(HEAD_DIM), -1)
        rows.append(weights @ v.double())
    return torch.cat(rows, dim=2)


def operands(kind, keys, rows, device):
    """As cuDNN's fp8 kernels were measured: normal numbers, one key channel x 20, and keys with a common offset."""
    q = torch.randn(1, 1, rows, HEAD_DIM, device=device)
    k, v = (torch.randn(1, 1, keys, HEAD_DIM, device=device) for _ in range(2))
    if kind == "outlier":
        k[..., 5] *= 20
    if kind == "offset":
        k += 4 * torch.randn(1, 1, 1, HEAD_DIM, device=device)
    return q, k, v


def ways(args):
    """The options of each column; the GPU's kernels do not rotate."""
    found = {"bf16": {}, "e4m3": {"compute": "f8e4m3"}}
    return found if args.device == "cuda" else found | {"e4m3, rotated": {"compute": "f8e4m3", "rotate": True}}


def error_table(args):
    options = list(ways(args).items())
    print("| keys | inputs | " + " | ".join(name for name, _ in options) + " |")
    print("| ---: | --- |" + " ---: |" * len(options))
    for keys in args.keys:
        for kind in ("normal", "outlier", "offset"):
            torch.manual_seed(0)
            q, k, v = operands(kind, keys, args.rows, args.device)
            truth = exact(q, k, v)
            found = []
            for name, asked in options:
                x = (q, k, v) if asked and args.f32 else tuple(t.bfloat16() for t in (q, k, v))
                out = rootdk.attention(*x, target=args.target if asked else None, **asked)
                found.append(float((out.double() - truth).norm() / truth.norm()))
            print(f"| {keys} | {kind} | " + " | ".join(f"{e:.4f}" for e in found) + " |", flush=True)


def needle_table(args):
    """A query finds its needle where, of all values of needles, the output is nearest to that of its own."""
    keys, rows = args.needle_keys, args.rows
    names = list(ways(args))
    print("\n| logit of the needle | weight | " + " | ".join(names) + " |")
    print("| ---: | ---: |" + " ---: |" * len(names))
    for logit in (5.0, 5.5, 6.0, 7.0, 9.0, 12.0):
        torch.manual_seed(1)
        q, k, v = operands("normal", keys, rows, args.device)
        place = torch.randperm(keys, device=args.device)[:rows]
        towards = q[0, 0] / q[0, 0].pow(2).sum(-1, keepdim=True) * math.sqrt(HEAD_DIM)
        own = (k[0, 0, place] * q[0, 0]).sum(-1, keepdim=True) / math.sqrt(HEAD_DIM)
        k[0, 0, place] += (logit - own) * towards  # of its own query, exactly this logit
        x = tuple(t.bfloat16() for t in (q, k, v))
        found = []
        for asked in ways(args).values():
            out = rootdk.attention(*x, target=args.target if asked else None, **asked)[0, 0].float()
            nearest = (out @ v[0, 0, place].T).argmax(-1)
            found.append(float((nearest == torch.arange(rows, device=args.device)).float().mean()))
        weight = 1 / (1 + keys * math.exp(0.5 - logit))
        print(f"| {logit:.1f} | {weight:.5f} | " + " | ".join(f"{100 * x:.1f} %" for x in found) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--target", default=None, help="of the e4m3 calls (default: reference on the CPU)")
    parser.add_argument("--keys", type=int, nargs="*", default=[2048, 32768])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--f32", action="store_true", help="quantise from f32 instead of bf16")
    parser.add_argument("--needles", action="store_true")
    parser.add_argument("--needle-keys", type=int, default=131072)
    args = parser.parse_args()
    if args.target is None and args.device == "cpu":
        args.target = "reference"
    error_table(args)
    if args.needles:
        needle_table(args)


if __name__ == "__main__":
    main()
