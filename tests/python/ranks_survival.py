"""Kills one rank of a gloo group at a random moment, again and again: every other rank ends with an error.

    python tests/python/ranks_survival.py --times 50

A rank that hangs keeps the program waiting: the time-out of each wait is the transport's own."""

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as processes
except ImportError:
    print("skipped: PyTorch is not installed")
    sys.exit(77)
if not dist.is_available() or not dist.is_gloo_available():
    print("skipped: this PyTorch has no torch.distributed with gloo")
    sys.exit(77)

import rootdk

LENGTH = 3000
ENDED, WENT_ON = 10, 11


def work(rank, ranks, victim, delay, timeout, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, "meet"), rank=rank, world_size=ranks)
    torch.manual_seed(rank)
    rows = sum(end - begin for begin, end in rootdk.distributed.shares("zigzag", LENGTH, ranks)[rank])
    q, k, v = (torch.randn(1, 2, rows, 32, requires_grad=True) for _ in range(3))
    dist.barrier()
    if rank == victim:
        threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    start = time.monotonic()
    try:
        for _ in range(10**6):
            out = rootdk.distributed.attention(q, k, v, shares="zigzag", scheme="ring", causal=True, timeout=timeout, threads=1)
            out.sum().backward()
    except (rootdk.DeviceError, RuntimeError) as error:
        with open(os.path.join(folder, f"{rank}.error"), "w") as file:
            file.write(f"{time.monotonic() - start:.1f} {error}")
        os._exit(ENDED)  # no goodbye: other ranks have ended
    os._exit(WENT_ON)


class Group:
    """Four ranks, of which one is killed."""

    def __init__(self, ranks, timeout):
        self.folder = tempfile.TemporaryDirectory()
        self.victim = random.randrange(ranks)
        arguments = (ranks, self.victim, random.random() * 0.5, timeout, self.folder.name)
        context = processes.get_context("spawn")
        self.ranks = [context.Process(target=work, args=(rank, *arguments)) for rank in range(ranks)]
        for one in self.ranks:
            one.start()

    def end(self):
        """How each rank but the victim ended: seconds, or None where it had no error."""
        for one in self.ranks:
            one.join()
        seconds = []
        for rank, one in enumerate(self.ranks):
            if rank == self.victim:
                continue
            path = os.path.join(self.folder.name, f"{rank}.error")
            ended = one.exitcode == ENDED and os.path.exists(path)
            seconds.append(float(open(path).read().split()[0]) if ended else None)
        self.folder.cleanup()
        return seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=5.0)
    parser.add_argument("--at-once", type=int, default=3)
    options = parser.parse_args()
    ends = []
    for first in range(0, options.times, options.at_once):
        groups = [Group(options.ranks, options.timeout) for _ in range(first, min(first + options.at_once, options.times))]
        ends += [group.end() for group in groups]
    good = sum(all(seconds is not None for seconds in group) for group in ends)
    times = sorted(seconds for group in ends for seconds in group if seconds is not None)
    print(
        f"{options.times} ranks killed of {options.ranks} each, time-out {options.timeout} s: {good} times every other rank ended "
        f"with an error, {times[0]} to {times[-1]} s after it began"
    )
    return 0 if good == options.times else 1


if __name__ == "__main__":
    sys.exit(main())
