"""The cost model against measurements: rootdk plan beside mpirun rootdk bench distributed, on this machine.

    python bench/ranks_plan.py [--build build] [--ranks 2 4] [--len 16384]

The model gets two numbers: the rate of a rank, from full attention over contiguous shares with as many ranks, and the rate of the link that
the bench prints. What it then says of causal attention, by shares and scheme, is set against what is measured."""

import argparse
import json
import os
import subprocess

CASES = [
    ("contiguous", "ring", ["--causal"]),
    ("zigzag", "ring", ["--causal"]),
    ("zigzag", "gather", ["--causal"]),
    ("striped", "ring", ["--causal"]),
    ("contiguous", "ring", ["--causal", "--window", "2048"]),
]
HEADS, DIM = 2, 64


def run(words):
    return json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def measure(options, ranks, shares, scheme, more):
    mpirun = ["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", str(ranks)]
    mpirun += ["--mca", "btl", "self,vader,tcp", "--mca", "btl_vader_single_copy_mechanism", "none"]
    bench = [f"{options.build}/rootdk", "bench", "distributed", "--len", str(options.len), "--heads", str(HEADS), "--kv-heads", str(HEADS)]
    return run(mpirun + bench + ["--shares", shares, "--scheme", scheme, "--repeat", "3", "--threads", "1", "--json", *more])


def plan(options, ranks, rate, link, shares, more):
    words = [f"{options.build}/rootdk", "plan", "--ranks", str(ranks), "--len", str(options.len), "--heads", str(HEADS)]
    words += ["--kv-heads", str(HEADS), "--head-dim", str(DIM), "--element-bytes", "4", "--tflops", repr(rate / 1e12)]
    return run(words + ["--link", repr(link / 1e9), "--latency", "20", "--shares", shares, "--json", *more])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--len", type=int, default=16384)
    options = parser.parse_args()
    os.environ["LD_LIBRARY_PATH"] = f"{options.build}/src:" + os.environ.get("LD_LIBRARY_PATH", "")
    print("| ranks | shares | scheme | | predicted | measured | measured / predicted |\n| --- | --- | --- | --- | ---: | ---: | ---: |")
    for ranks in options.ranks:
        full = measure(options, ranks, "contiguous", "ring", [])
        rate = full["gflops"] * 1e9 / ranks
        for shares, scheme, more in CASES:
            real = measure(options, ranks, shares, scheme, more)
            costs = plan(options, ranks, rate, real["link_bytes_per_second"], shares, more)["schemes"]
            cost = next(c for c in costs if c["scheme"] == scheme)["total_seconds"]
            what = " ".join(more).replace("--", "")
            print(f"| {ranks} | {shares} | {scheme} | {what} | {cost:.3f} s | {real['seconds']:.3f} s | {real['seconds'] / cost:.2f} |", flush=True)


if __name__ == "__main__":
    main()
