#!/usr/bin/env python3
"""Attention of new tokens over a KV cache on a GPU, kernels alone (a CUDA graph), beside a copy of memory.

    bench/cache_cuda.py [--heads 32] [--kv-heads 8] [--head-dim 128] [--rounds 15] [--cases 16x8192,1x8192] [--json FILE]
    bench/cache_cuda.py --prompt 512     so many new tokens a sequence instead of one
    bench/cache_cuda.py --eager          calls as users make them, without a graph

Time of a call and TB/s of keys and values, without the scales of i8 and f8e4m3. The copy counts what it reads and writes,
and is measured in every round; "of copy" is the ratio of medians. Sequences are filled in turn, so that the pages of
each lie scattered over the pool. Contenders take turns in a new order every round; figures are medians, in brackets the
best. One case of few bytes is read from L2 when it comes again, as in a model whose keys were just written.
"""
import argparse
import gc
import json
import pathlib
import random
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

CALLS = 20  # of one graph
COPY_BYTES, COPIES = 1 << 30, 5


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--cases", default="16x8192,64x4096,1x131072,1x8192", help="sequences x keys, with commas")
    parser.add_argument("--pages", default="16,64", help="tokens of a page, with commas")
    parser.add_argument("--types", default="bf16,i8,f8e4m3", help="of the cache, with commas")
    parser.add_argument("--prompt", type=int, default=1, help="new tokens of a sequence")
    parser.add_argument("--eager", action="store_true", help="without a CUDA graph, the host's time included")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", help="write everything to this file")
    return parser.parse_args(arguments)


def timed(torch, run, calls):
    """A function that gives the microseconds of one of the `calls` calls that run() makes."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def measure():
        run()
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return 1e3 * start.elapsed_time(end) / calls

    return measure


def repeated(call, calls):
    def run():
        for _ in range(calls):
            call()

    return run


def graph_of(torch, call, calls):
    """A function that runs `calls` calls from one CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            call()
    return graph.replay


def copy_of(torch):
    """A function that gives the microseconds of one copy of COPY_BYTES."""
    source, target = torch.empty(2, COPY_BYTES, device="cuda", dtype=torch.uint8)
    return timed(torch, repeated(lambda: target.copy_(source), COPIES), COPIES)


class CacheCase:
    """`sequences` sequences of `keys` tokens in pages, and the call that attends to them."""

    def __init__(self, torch, rootdk, options, sequences, keys, page, dtype):
        self.name = f"{sequences} x {keys}, pages of {page}, {dtype}"
        kv_heads, head_dim = options.kv_heads, options.head_dim
        self.cache = rootdk.KvCache(
            kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, page_size=page, device="cuda",
            pages=sequences * -(-keys // page),
        )
        opened = [self.cache.open() for _ in range(sequences)]
        block = max(page, 512)
        for first in range(0, keys, block):
            tokens = min(block, keys - first)
            for sequence in opened:
                k, v = torch.randn(2, 1, kv_heads, tokens, head_dim, device="cuda", dtype=torch.bfloat16)
                sequence.append(k, v)
        rows = sequences * options.prompt
        q = torch.randn(1, options.heads, rows, head_dim, device="cuda", dtype=torch.bfloat16)
        out = torch.empty_like(q)
        steps = [(sequence, options.prompt) for sequence in opened]
        self.call = lambda: self.cache.attend(q, steps, out=out)
        self.bytes = 2 * sequences * kv_heads * keys * head_dim * (2 if dtype == "bf16" else 1)
        runs = repeated(self.call, CALLS) if options.eager else graph_of(torch, self.call, CALLS)
        self.measure = timed(torch, runs, CALLS)


def measure_all(measures, rounds):
    times = {name: [] for name in measures}
    order, generator = list(measures), random.Random(0)
    for _ in range(rounds):
        generator.shuffle(order)
        for name in order:
            times[name].append(measures[name]())
    return times


def main(arguments=None):
    options = parse(arguments)
    import torch

    if not torch.cuda.is_available():
        sys.exit("no CUDA device: nothing to measure")
    import rootdk

    copy = copy_of(torch)
    rows = []
    for case in options.cases.split(","):
        sequences, keys = map(int, case.split("x"))
        cases = [
            CacheCase(torch, rootdk, options, sequences, keys, page, dtype)
            for page in map(int, options.pages.split(","))
            for dtype in options.types.split(",")
        ]
        times = measure_all({**{c.name: c.measure for c in cases}, "copy": copy}, options.rounds)
        copy_rate = 2 * COPY_BYTES / statistics.median(times["copy"]) * 1e-6
        print(f"copy: {copy_rate:.2f} TB/s")
        for c in cases:
            median, best = statistics.median(times[c.name]), min(times[c.name])
            rate = c.bytes / median * 1e-6
            rows.append({"case": c.name, "us": median, "best_us": best, "tb_s": rate, "of_copy": rate / copy_rate})
            print(f"{c.name:36} {median:8.1f} ({best:.1f}) us  {rate:.2f} TB/s  {rate / copy_rate:.2f} of copy")
        del cases, c
        gc.collect()  # now: a graph that is freed during the capture of another one spoils it
        torch.cuda.empty_cache()
        if options.json:
            with open(options.json, "w") as file:
                json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
