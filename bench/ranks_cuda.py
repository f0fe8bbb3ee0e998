"""Attention over ranks on one GPU: bits of ranks that share it, and the kernel time of eight emulated ranks.

    python bench/ranks_cuda.py [--len 65536] [--ranks 8]

Processes on gloo share the device, each with its rows; out, lse and gradients are compared with those of one call. A group of one
on nccl runs the same. Then one process does the work of all ranks, one after another, and the time on the device is set
against one call: forward, and backward, full, causal and packed."""

import argparse
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

import rootdk
from rootdk import _device_calls, _device_exchange, _device_ranks, distributed

HEADS, KV_HEADS, DIM = 16, 4, 128
DEVICE = "cuda"


def documents(length):
    """Starts of packed sequences of mixed lengths."""
    starts, step = [0], 0
    while starts[-1] < length:
        step += 1
        starts.append(min(length, starts[-1] + [700, 9000, 128, 2500, 17000, 64][step % 6]))
    return starts


def cases(length):
    """(name, options, layout)"""
    starts = documents(length)
    packed = dict(causal=True, q_starts=starts, kv_starts=starts)
    return [
        ("full", {}, "contiguous"),
        ("causal", dict(causal=True), "zigzag"),
        ("causal", dict(causal=True), "contiguous"),
        ("packed", packed, "documents"),
    ]


def whole(length, device):
    generator = torch.Generator(device).manual_seed(0)

    def draw(heads):
        return torch.randn(1, heads, length, DIM, device=device, generator=generator).to(torch.bfloat16)

    return draw(HEADS), draw(KV_HEADS), draw(KV_HEADS), draw(HEADS)


def shares_of(options, layout, length, ranks):
    return distributed.shares(layout, length, ranks, starts=options.get("q_starts"), causal=bool(options.get("causal")))


def on_device(options, device):
    """Options whose lists lie on the device, as kernels take them."""
    return {n: torch.tensor(x, dtype=torch.int32, device=device) if isinstance(x, list) else x for n, x in options.items()}


def compare(rank, ranks, backend, length, port):
    torch.cuda.set_device(0)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group(backend, rank=rank, world_size=ranks)
    sinks = torch.linspace(-1, 3, HEADS, device=DEVICE)
    for name, options, layout in [*cases(length), ("causal with sinks", dict(causal=True, sinks=sinks), "zigzag")]:
        q, k, v, grad_out = whole(length, DEVICE)
        shares = shares_of(options, layout, length, ranks)
        learned = [sinks.clone().requires_grad_() for _ in range(2)] if "sinks" in options else [None, None]
        own = [distributed.take(x, shares[rank]).requires_grad_() for x in (q, k, v)]
        result = distributed.attention(*own, shares=shares, stats="lse", **{**options, "sinks": learned[0]})
        (result.out * distributed.take(grad_out, shares[rank])).sum().backward()
        one = [x.requires_grad_() for x in (q, k, v)]
        expected = rootdk.attention(*one, stats="lse", **{**on_device(options, DEVICE), "sinks": learned[1]})
        (expected.out * grad_out).sum().backward()
        pairs = [("out", expected.out, result.out), ("lse", expected.lse[..., None], result.lse[..., None])]
        pairs += [("grad " + n, a.grad, b.grad) for n, a, b in zip("qkv", one, own)]
        pairs = [(what, distributed.take(a, shares[rank]), b) for what, a, b in pairs]
        pairs += [("grad sinks", learned[1].grad, learned[0].grad)] if "sinks" in options else []
        words = []
        for what, a, b in pairs:
            off = ((a.float() - b.float()).abs().max() / a.float().abs().max()).item()
            words.append(f"{what} {'same bits' if torch.equal(a, b) else f'off by {off:.1e}'}")
            assert off <= (0 if what in ("out", "lse") else 1e-2), f"{backend}, rank {rank} of {ranks}, {name}: {what} is off by {off}"
        dist.barrier()
        print(f"{backend}, rank {rank} of {ranks}, {length} tokens, {name}, {layout}: {', '.join(words)}", flush=True)
    disagree(rank, ranks)
    os._exit(0)


def disagree(rank, ranks):
    """Ranks that ask for different calls, or one of which asks for what is not served, all get an error."""
    q = torch.zeros(1, 2, 64, 64, device=DEVICE, dtype=torch.bfloat16)
    last = rank == ranks - 1
    for options in (dict(scale=0.5 if last else 0.25), dict(dropout=0.1) if last else {}):
        try:
            distributed.attention(q, q, q, **options)
            words = "no error"
        except (ValueError, NotImplementedError) as error:
            words = str(error)
        print(f"rank {rank} of {ranks} with {options}: {words}", flush=True)
        assert ranks == 1 or words != "no error"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def seconds(body, repeat=5):
    """Median time on the device: it sleeps until the host has queued the work."""
    body()
    times = []
    for _ in range(repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)
        begin.record()
        body()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return sorted(times)[repeat // 2]


WAYS = {  # name: streams, keys of a run that is packed with its neighbours
    "streams": (4, 2048),
    "in turn": (1, 2048),
    "packed": (1, 1 << 30),
}


def exchange_seconds(cut, gradients, k):
    """Packing what goes to the others, and adding up what comes."""
    plan, like = cut.sum_plan(1, k.device), distributed.take(k, cut.keys[cut.rank])
    received = torch.zeros(sum(plan.receive_counts), KV_HEADS * DIM, dtype=k.dtype, device=k.device)
    packing = seconds(lambda: [_device_exchange.pack(parts, plan, like) for parts in (gradients.k, gradients.v)])
    return packing + seconds(lambda: [_device_exchange.add_rows(received, plan, like) for _ in "kv"])


def emulate(length, ranks, way):
    _device_calls.STREAMS, _device_calls.SHORT_KEYS = WAYS[way]
    print(f"{ranks} emulated ranks, {length} tokens, {HEADS} heads over {KV_HEADS}, head_dim {DIM}, bf16, {way}; summed time / one call:")
    for name, options, layout in cases(length):
        q, k, v, grad_out = whole(length, DEVICE)
        device_options = on_device(options, DEVICE)
        one = rootdk.attention(q, k, v, stats="lse", **device_options)
        single = seconds(lambda: rootdk.attention(q, k, v, stats="lse", **device_options))
        backward = seconds(lambda: rootdk.attention_backward(grad_out, q, k, v, one.out, one.lse, **device_options))
        shares = shares_of(options, layout, length, ranks)
        total = total_backward = exchange = 0.0
        most = 0
        for rank in range(ranks):
            cut, rows = _device_ranks.make_cut(None, rank, shares, None, options), shares[rank]
            own = {n: distributed.take(x, rows) for n, x in dict(q=q, out=one.out, g=grad_out).items()}
            lse = distributed.take(one.lse, rows)
            parts = cut.parts(rank)
            most = max(most, len(_device_calls.calls_of(parts, 1)))
            total += seconds(lambda: _device_ranks.attend_parts(own["q"], k, v, parts, cut.options, ("lse",)))
            saved = dict(q=own["q"], k=k, v=v, out=own["out"], lse=lse)
            gradients = _device_ranks.backward_parts(saved, dict(out=own["g"]), parts, cut.options)
            total_backward += seconds(lambda: _device_ranks.backward_parts(saved, dict(out=own["g"]), parts, cut.options))
            exchange += exchange_seconds(cut, gradients, k)
        print(
            f"  {name}, {layout}, at most {most} calls: forward {total * 1e3:.2f} / {single * 1e3:.2f} ms = {total / single:.3f}; backward "
            f"{total_backward * 1e3:.2f} / {backward * 1e3:.2f} ms = {total_backward / backward:.3f}, packing and adding {exchange * 1e3:.2f} ms",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--len", type=int, default=65536)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--check-len", type=int, default=8192)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS)[:1])
    parser.add_argument("--groups", nargs="*", default=["nccl:1", "gloo:2", "gloo:4", "nccl:2"], help="backend:ranks, which share the device")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        return
    for way in options.ways:
        emulate(options.len, options.ranks, way)
    for backend, ranks in [(words.split(":")[0], int(words.split(":")[1])) for words in options.groups]:
        try:
            processes.spawn(compare, (ranks, backend, options.check_len, free_port()), nprocs=ranks)
        except Exception as error:  # two ranks of nccl on one device: newer versions refuse that
            print(f"{backend} with {ranks} ranks on one device: {str(error).strip().splitlines()[-1][:200]}", flush=True)


if __name__ == "__main__":
    main()
