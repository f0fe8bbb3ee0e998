#!/usr/bin/env python3
"""Attention in e4m3 beside cuDNN's, and beside bf16, on the same CUDA tensors.

    PYTHONPATH=python ROOTDK_LIBRARY=build/src/librootdk.so python3 bench/compare_torch.py --device cuda --fp8
        [--dims 64,128,256] [--lengths 2048,4096,8192,16384] [--rounds 9] [--json]

cuDNN is called through its frontend (nvidia-cudnn-frontend on PyPI); without it its columns are empty. It gets e4m3 tensors with
one scale each and writes e4m3. rootdk's call takes bf16 tensors and prepares them itself: means, scales, rounding.
Calls are medians of interleaved rounds. Kernels alone are means of the profiler's times in the same rounds' order.
Batch times length is 16384, heads times head_dim 2048.
"""
import argparse
import json
import math
import statistics
from random import Random

import torch

import rootdk.torch

try:
    import cudnn
except ImportError:
    cudnn = None

TOKENS, WIDTH = 16384, 2048


def cudnn_call(q, k, v, causal):
    """A prepared call of cuDNN's e4m3 attention with one scale a tensor."""
    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    e4m3, f32 = cudnn.data_type.FP8_E4M3, cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=e4m3, intermediate_data_type=f32, compute_data_type=f32, handle=handle)
    numbers = [t.to(torch.float8_e4m3fn) for t in (q, k, v)]
    inputs = [graph.tensor(dim=list(t.shape), stride=list(t.stride()), data_type=e4m3) for t in numbers]
    scale_names = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
    scales = {name: graph.tensor(dim=[1] * 4, stride=[1] * 4, data_type=f32) for name in scale_names}
    results = graph.sdpa_fp8(
        q=inputs[0], k=inputs[1], v=inputs[2], **scales, generate_stats=False, attn_scale=1 / math.sqrt(q.shape[3]),
        use_causal_mask=causal,
    )  # fmt: skip
    out = torch.empty_like(numbers[0])
    results[0].set_output(True).set_dim(list(out.shape)).set_stride(list(out.stride())).set_data_type(e4m3)
    for largest in results[2:]:
        largest.set_output(True).set_dim([1] * 4).set_stride([1] * 4).set_data_type(f32)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A])
    graph.check_support()
    graph.build_plans()
    workspace = torch.empty(max(1, graph.get_workspace_size()), device="cuda", dtype=torch.uint8)
    values = dict(zip(scale_names, (1, 1, 1, 1 / 256, 256, 1)))
    tensors = dict(zip(inputs, numbers))
    tensors |= {scales[name]: torch.full((1,) * 4, float(values[name]), device="cuda") for name in scale_names}
    tensors[results[0]] = out
    tensors |= {largest: torch.zeros((1,) * 4, device="cuda") for largest in results[2:]}
    return lambda: graph.execute(tensors, workspace, handle=handle)


def median_times(contenders, rounds, calls=4):
    """Milliseconds of each contender: the median over rounds that go over all of them in a new order."""
    order, times, random = list(contenders), {name: [] for name in contenders}, Random(1)
    for name in order:
        contenders[name]()
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            events = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
            contenders[name]()
            events[0].record()
            for event in events[1:]:
                contenders[name]()
                event.record()
            torch.cuda.synchronize()
            times[name] += [a.elapsed_time(b) for a, b in zip(events, events[1:])]
    return {name: statistics.median(found) for name, found in times.items()}


def kernel_times(contender, calls=6):
    """Microseconds of a call's kernels by name."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(calls):
            contender()
        torch.cuda.synchronize()
    return {event.key: event.self_device_time_total / calls for event in profile.key_averages()}


def measure(head_dim, length, causal, rounds):
    batch, heads = TOKENS // length, WIDTH // head_dim
    q, k, v = (torch.randn(batch, heads, length, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    contenders = {
        "e4m3": lambda: rootdk.torch.attention(q, k, v, causal=causal, compute="f8e4m3"),
        "bf16": lambda: rootdk.torch.attention(q, k, v, causal=causal),
    }
    if cudnn:
        contenders["cuDNN e4m3"] = cudnn_call(q, k, v, causal)
    flops = 4 * batch * heads * length**2 * head_dim / (2 if causal else 1)
    row = {"head_dim": head_dim, "length": length, "causal": causal}
    with torch.no_grad():
        row |= {name: flops / time / 1e9 for name, time in median_times(contenders, rounds).items()}
        ours = kernel_times(contenders["e4m3"])
        attention = max(ours.values())
        row["kernel"] = flops / attention / 1e6
        row["preparation us"] = sum(ours.values()) - attention
        row["preparation"] = sorted((round(time), name[:60]) for name, time in ours.items())[:-1]
        if cudnn:
            row["cuDNN kernel"] = flops / max(kernel_times(contenders["cuDNN e4m3"]).values()) / 1e6
    return row


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--dims", default="64,128,256")
    options.add_argument("--lengths", default="2048,4096,8192,16384")
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--json", action="store_true", help="a JSON object a line, with the times of the preparation")
    args = options.parse_args()
    columns = ["e4m3", "bf16", "cuDNN e4m3", "kernel", "cuDNN kernel"]
    if not args.json:
        print("TFLOP/s;", torch.cuda.get_device_name(), "PyTorch", torch.__version__)
        print("head_dim length mask  ", *(f"{name:>12}" for name in columns), "  preparation, us")
    for head_dim in map(int, args.dims.split(",")):
        for length in map(int, args.lengths.split(",")):
            for causal in (False, True):
                row = measure(head_dim, length, causal, args.rounds)
                if args.json:
                    print(json.dumps(row), flush=True)
                    continue
                figures = (f"{row[name]:12.0f}" if name in row else " " * 12 for name in columns)
                print(f"{head_dim:8} {length:6} {'causal' if causal else 'full':6}", *figures, f"{row['preparation us']:12.0f}",
                      flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
