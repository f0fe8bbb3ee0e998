"""How much of the transfer between two ranks is hidden behind computing. Needs root, ip and tc (Debian: iproute2) and PyTorch.

    sudo python bench/ranks_overlap.py [--len 16384] [--ratios 0.5 2]

Two network namespaces, each with one rank, are joined by a veth pair whose rate tc limits, so that the transfer alone takes
`ratio` times as long as computing alone. Each rank has half of the queries and keys; the times are medians of interleaved repeats:
    computing    its queries over all keys, which it has
    transfer     its keys and values to the other rank, chunk by chunk, in both directions at once
    both         rootdk.distributed.attention, a ring
hidden = (computing + transfer - both) / transfer. Other work on the machine spoils all of them."""

import argparse
import json
import os
import subprocess
import sys
import time

SPACES = ("rootdk-rank0", "rootdk-rank1")
ADDRESSES = ("10.213.77.1", "10.213.77.2")
DIM = 64


def run(*words):
    subprocess.run(words, check=True)


def make_link():
    drop_link()
    for space in SPACES:
        run("ip", "netns", "add", space)
    run("ip", "link", "add", "name", "rdk0", "type", "veth", "peer", "name", "rdk1")
    for i, space in enumerate(SPACES):
        run("ip", "link", "set", f"rdk{i}", "netns", space)
        run("ip", "-n", space, "addr", "add", ADDRESSES[i] + "/24", "dev", f"rdk{i}")
        run("ip", "-n", space, "link", "set", f"rdk{i}", "up")
        run("ip", "-n", space, "link", "set", "lo", "up")


def drop_link():
    for space in SPACES:
        subprocess.run(["ip", "netns", "del", space], stderr=subprocess.DEVNULL, check=False)


def limit(bytes_per_second):
    for i, space in enumerate(SPACES):
        # A burst smaller than the 64 KiB that TCP hands over at once would be cut into packets by the processor.
        rate, burst = int(bytes_per_second * 8), max(1 << 17, int(bytes_per_second / 200))
        run("ip", "netns", "exec", space, "tc", "qdisc", "replace", "dev", f"rdk{i}", "root", "tbf", "rate", f"{rate}bit",
            "burst", str(burst), "latency", "100ms")  # fmt: skip


def start_ranks(options, port, phase):
    """What rank 0 reports, and rank 1."""
    words = [sys.executable, __file__, "--len", str(options.len), "--heads", str(options.heads), "--key-chunk", str(options.key_chunk)]
    words += ["--repeat", str(options.repeat), "--phase", phase, "--port", str(port), "--scheme", options.scheme]
    ranks = []
    for i, space in enumerate(SPACES):
        environment = dict(os.environ, GLOO_SOCKET_IFNAME=f"rdk{i}", ROOTDK_THREADS="1", OMP_NUM_THREADS="1")
        # One core each, where there are two.
        cores = sorted(os.sched_getaffinity(0))
        pinned = ["taskset", "-c", str(cores[i % len(cores)])] if options.pin else []
        ranks.append(
            subprocess.Popen(["ip", "netns", "exec", space, *pinned, *words, "--rank", str(i)], env=environment, stdout=subprocess.PIPE)
        )
    return [json.loads(rank.communicate()[0].decode().splitlines()[-1]) for rank in ranks]


def drive(options):
    if os.geteuid() != 0:
        sys.exit("bench/ranks_overlap.py makes network namespaces, which needs root")
    make_link()
    try:
        port = 29500
        computing = max(report["computing"] for report in start_ranks(options, port, "computing"))
        bytes_sent = options.len // 2 * options.heads * DIM * 4 * 2
        for ratio in options.ratios:
            port += 1
            limit(bytes_sent / (ratio * computing))
            reports = start_ranks(options, port, "all")
            times = {name: max(report[name] for report in reports) for name in ("computing", "transfer", "both")}
            hidden = (times["computing"] + times["transfer"] - times["both"]) / min(times["transfer"], times["computing"])
            print(
                f"link {bytes_sent / (ratio * computing) / 1e6:.1f} MB/s: computing {times['computing']:.2f} s, transfer "
                f"{times['transfer']:.2f} s ({times['transfer'] / times['computing']:.2f} of it), both {times['both']:.2f} s: "
                f"{hidden:.2f} of the shorter hidden, {times['both'] / max(times['transfer'], times['computing']):.2f} of the longer",
                flush=True,
            )
    finally:
        drop_link()


def transfer(torch, dist, rank, k, v, chunk):
    """Chunks of k and v to the other rank while as many come back, three at a time."""
    open_transfers = []
    for begin in range(0, k.shape[2], chunk):
        sent = torch.cat([k[:, :, begin : begin + chunk].flatten(), v[:, :, begin : begin + chunk].flatten()])
        pair = [dist.irecv(torch.empty_like(sent), 1 - rank), dist.isend(sent, 1 - rank)]
        open_transfers.append((pair, sent))
        if len(open_transfers) > 3:
            for one in open_transfers.pop(0)[0]:
                one.wait()
    for pair, _ in open_transfers:
        for one in pair:
            one.wait()


def measure(options):
    import torch
    import torch.distributed as dist

    import rootdk

    torch.set_num_threads(1)
    meet = f"tcp://{ADDRESSES[0]}:{options.port}"
    dist.init_process_group("gloo", init_method=meet, rank=options.rank, world_size=2)
    alone = [dist.new_group([r]) for r in range(2)][options.rank]
    half = options.len // 2
    q, k, v = (torch.randn(1, options.heads, half, DIM) for _ in range(3))
    all_k, all_v = (torch.cat([x, x], 2) for x in (k, v))
    cut = dict(key_chunk=options.key_chunk, threads=1, scheme=options.scheme)
    striped = [[(b, min(b + options.key_chunk, options.len)) for b in range(r * options.key_chunk, options.len, 2 * options.key_chunk)] for r in range(2)]
    bodies = {
        "computing": lambda: rootdk.distributed.attention(
            q, all_k, all_v, group=alone, shares=[[(0, half)]], kv_shares=[[(0, options.len)]], **cut
        ),
        "transfer": lambda: transfer(torch, dist, options.rank, k, v, options.key_chunk),
        "both": lambda: rootdk.distributed.attention(q, k, v, shares=striped, timeout=3600.0, **cut),
    }
    if options.phase == "computing":
        bodies = {"computing": bodies["computing"]}
    times = {name: [] for name in bodies}
    for _ in range(options.repeat):
        for name, body in bodies.items():
            dist.barrier()
            start = time.monotonic()
            body()
            times[name].append(time.monotonic() - start)
    dist.barrier()
    print(json.dumps({name: sorted(all_times)[len(all_times) // 2] for name, all_times in times.items()}), flush=True)
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--len", type=int, default=16384)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--key-chunk", type=int, default=512)
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.5, 2.0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--scheme", default="ring")
    parser.add_argument("--pin", action="store_true", help="rank i on core i alone")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--phase", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    drive(options) if options.rank is None else measure(options)


if __name__ == "__main__":
    main()
