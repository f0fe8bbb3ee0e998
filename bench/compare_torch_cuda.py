#!/usr/bin/env python3
"""rootdk beside PyTorch's attention on the same CUDA tensors: cuDNN, FlashAttention-2 and ours, timed in turn.

    python3 bench/compare_torch.py --device cuda --library build/src/librootdk.so [--dims 64,128] [--lengths 2048,16384] [--sections ...]

Rounds go over the contenders in turn, each in a new order, so that clock and temperature drift hit all of them alike; the
figure is the median.
Batch times length is 16384 and heads times head_dim 2048 throughout. Errors are relative to float64 on a slice of rows.
"""
import argparse
import ctypes
import json
import statistics
import sys
from random import Random

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

MAX_RANK = 6


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("device_kind", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_RANK),
        ("strides", ctypes.c_int64 * MAX_RANK),
    ]


POINTER = ctypes.POINTER(Tensor)


class Params(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("score", ctypes.c_int32),
        ("scale_kind", ctypes.c_int32),
        ("scale", ctypes.c_double),
        ("temperature", ctypes.c_double),
        ("softcap", ctypes.c_double),
        ("causal", ctypes.c_int32),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        ("kv_lengths", POINTER),
        ("mask", POINTER),
        ("block_mask", POINTER),
        ("block_q", ctypes.c_int64),
        ("block_kv", ctypes.c_int64),
        ("q_starts", POINTER),
        ("kv_starts", POINTER),
        ("max_q_len", ctypes.c_int64),
        ("max_kv_len", ctypes.c_int64),
        ("bias", POINTER),
        ("relative_table", POINTER),
        ("relative_zero", ctypes.c_int64),
        ("alibi_slopes", POINTER),
        ("sinks", POINTER),
        ("additive_v", POINTER),
        ("dropout", ctypes.c_double),
        ("seed", ctypes.c_uint64),
    ]


class Stats(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t)] + [
        (name, POINTER)
        for name in ("lse max_logit max_weight entropy sum_p2 column_mass pooled_map weights weight_rows").split()
    ]
    _fields_ += [("stride", ctypes.c_int64)]


class Execution(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("threads", ctypes.c_int32),
        ("parallel_for", ctypes.c_void_p),
        ("parallel_user", ctypes.c_void_p),
        ("parallel_threads", ctypes.c_int32),
        ("target", ctypes.c_char_p),
        ("workspace_limit", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_size_t),
    ]


DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int32: 4, torch.bool: 6}


def view(tensor):
    shape = list(tensor.shape) + [0] * (MAX_RANK - tensor.dim())
    strides = list(tensor.stride()) + [0] * (MAX_RANK - tensor.dim())
    return Tensor(
        tensor.data_ptr(), DTYPES[tensor.dtype], 1, tensor.device.index or 0, tensor.dim(),
        (ctypes.c_int64 * MAX_RANK)(*shape), (ctypes.c_int64 * MAX_RANK)(*strides),
    )  # fmt: skip


class Rootdk:
    """A prepared call: run() does nothing but the library's own call."""

    def __init__(self, library, q, k, v, params=None, stats=(), stride=1, target=None):
        self.library = library
        self.kept = [q, k, v]
        self.out = torch.full((*q.shape[:3], v.shape[3]), float("nan"), device=q.device, dtype=q.dtype)
        self.views = [view(t) for t in (q, k, v, self.out)]
        self.params, self.stats, self.execution = Params(), Stats(), Execution()
        library.rootdk_attention_params_init(ctypes.byref(self.params))
        library.rootdk_attention_stats_init(ctypes.byref(self.stats))
        library.rootdk_execution_init(ctypes.byref(self.execution))
        for name, value in (params or {}).items():
            setattr(self.params, name, self.tensor(value) if torch.is_tensor(value) else value)
        self.rows = {name: torch.full(q.shape[:3], float("nan"), device=q.device) for name in stats}
        for name, tensor in self.rows.items():
            setattr(self.stats, name, self.tensor(tensor))
        self.stats.stride = stride
        if target:
            self.execution.target = target.encode()
        self.execution.stream = torch.cuda.current_stream().cuda_stream
        size = ctypes.c_size_t()
        self.check(library.rootdk_attention_workspace(*self.tensors(), self.at(self.params), self.at(self.stats), ctypes.byref(size)))
        self.workspace = torch.empty(max(size.value, 1), device=q.device, dtype=torch.uint8)
        self.execution.workspace = self.workspace.data_ptr()
        self.execution.workspace_bytes = size.value

    def tensor(self, value):
        held = view(value)
        self.kept += [value, held]
        return ctypes.pointer(held)

    @staticmethod
    def at(struct):
        return ctypes.byref(struct)

    def tensors(self):
        return [ctypes.byref(x) for x in self.views]

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.library.rootdk_last_error().decode())

    def run(self):
        self.check(self.library.rootdk_attention(*self.tensors(), self.at(self.params), self.at(self.stats), self.at(self.execution)))
        return self.out


def torch_attention(backend, q, k, v, causal):
    with sdpa_kernel(backend):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def reference_rows(q, k, v, causal, rows):
    """The last `rows` rows of the first head in float64."""
    qd, kd, vd = (t[:1, :1].double() for t in (q[:, :, -rows:], k, v))
    logits = qd @ kd.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        position = torch.arange(q.shape[2] - rows, q.shape[2], device=q.device) + k.shape[2] - q.shape[2]
        logits.masked_fill_(torch.arange(k.shape[2], device=q.device)[None, :] > position[:, None], float("-inf"))
    return torch.softmax(logits, -1) @ vd


def error(out, truth):
    rows = truth.shape[2]
    return ((out[:1, :1, -rows:].double() - truth).norm() / truth.norm()).item()


def interleaved(contenders, rounds=7, inner=5):
    """Median milliseconds of each contender, in a new order every round: nobody always follows the same other one."""
    order, generator = list(contenders), Random(0)
    times = {name: [] for name in contenders}
    for name, call in contenders.items():
        call(), call()
    for _ in range(rounds):
        generator.shuffle(order)
        for name in order:
            call = contenders[name]
            call()
            events = [torch.cuda.Event(enable_timing=True) for _ in range(inner + 1)]
            events[0].record()
            for event in events[1:]:
                call()
                event.record()
            torch.cuda.synchronize()
            times[name] += [a.elapsed_time(b) for a, b in zip(events, events[1:])]
    return {name: statistics.median(values) for name, values in times.items()}


def attended_pairs(n, causal, window=None):
    """Pairs of query and key that take part."""
    if not causal:
        return n * n
    if window is None or window >= n:
        return n * (n + 1) // 2
    return (window + 1) * n - window * (window + 1) // 2


class Report:
    def __init__(self, path):
        self.rows, self.path = [], path

    def add(self, **row):
        self.rows.append(row)
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
        if self.path:
            with open(self.path, "w") as file:
                json.dump(self.rows, file, indent=1)


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def section_forward(library, args, report):
    """Plain and causal against cuDNN and FlashAttention-2."""
    for dim in args.dims:
        for causal in (False, True):
            for n in args.lengths:
                b, h = 16384 // n, 2048 // dim
                q, k, v = (random(b, h, n, dim) for _ in range(3))
                ours = Rootdk(library, q, k, v, {"causal": int(causal)}, stats=("lse", "max_logit", "max_weight"))
                contenders = {"ours": ours.run}
                for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash2", SDPBackend.FLASH_ATTENTION)):
                    try:
                        torch_attention(backend, q, k, v, causal)
                        contenders[name] = lambda backend=backend: torch_attention(backend, q, k, v, causal)
                    except RuntimeError:
                        pass
                truth = reference_rows(q, k, v, causal, 64)
                errors = {name: error(call(), truth) for name, call in contenders.items()}
                ms = interleaved(contenders)
                flops = 4.0 * b * h * dim * (n * n * (0.5 if causal else 1.0))
                row = {"dim": dim, "causal": int(causal), "n": n}
                row |= {f"{name}_tflops": flops / t * 1e-9 for name, t in ms.items()}
                row |= {f"over_{name}": ms[name] / ms["ours"] for name in ms if name != "ours"}
                row |= {f"error_{name}": e for name, e in errors.items()}
                report.add(**row)


def feature_turns(cases):
    """The slow ones take turns of their own with plain causal: they would leave the others a cooler card."""
    slow = ("relative table", "dropout 0.1")
    return [name for name in cases if name not in slow], ["causal", *slow]


def section_features(library, args, report):
    """Rate on the work left, relative to plain causal at the same n."""
    dim, n = 128, 8192
    b, h = 16384 // n, 2048 // dim
    q, k, v = (random(b, h, n, dim) for _ in range(3))
    slopes = torch.tensor([2.0 ** (-8 * (i + 1) / h) for i in range(h)], device="cuda")
    lengths = [1500, 700, 3000, 260, 5000, 1800, 2500, 1624]
    starts = torch.tensor([sum(lengths[:i]) for i in range(len(lengths) + 1)], device="cuda", dtype=torch.int32)
    pq, pk, pv = (random(1, h, sum(lengths), dim) for _ in range(3))
    gq, gk, gv = random(b, 32, n, dim), random(b, 8, n, dim), random(b, 8, n, dim)
    table = random(h, 257, dtype=torch.float32)
    causal = {"causal": 1}
    cases = {
        "causal": (Rootdk(library, q, k, v, causal), b * h * attended_pairs(n, True)),
        "gqa 32/8": (Rootdk(library, gq, gk, gv, causal), b * 32 * attended_pairs(n, True)),
        "packed": (
            Rootdk(library, pq, pk, pv, causal | {"q_starts": starts, "kv_starts": starts, "max_q_len": max(lengths), "max_kv_len": max(lengths)}),
            h * sum(attended_pairs(length, True) for length in lengths),
        ),
        "window 1024": (Rootdk(library, q, k, v, causal | {"window_left": 1024}), b * h * attended_pairs(n, True, 1024)),
        "softcap 50": (Rootdk(library, q, k, v, causal | {"softcap": 50.0}), b * h * attended_pairs(n, True)),
        "alibi": (Rootdk(library, q, k, v, causal | {"alibi_slopes": slopes}), b * h * attended_pairs(n, True)),
        "relative table": (Rootdk(library, q, k, v, causal | {"relative_table": table, "relative_zero": 128}), b * h * attended_pairs(n, True)),
        "dropout 0.1": (Rootdk(library, q, k, v, causal | {"dropout": 0.1}), b * h * attended_pairs(n, True)),
    }  # fmt: skip
    for names in feature_turns(cases):
        ms = interleaved({name: cases[name][0].run for name in names}, rounds=14)
        rate = {name: 4.0 * dim * cases[name][1] / ms[name] * 1e-9 for name in names}
        for name in names:
            report.add(feature=name, tflops=rate[name], of_causal=rate[name] / rate["causal"])


def section_statistics(library, args, report):
    rows, all_rows = ("lse", "max_logit", "max_weight"), ("lse", "max_logit", "max_weight", "entropy", "sum_p2")
    for dim in (64, 128):
        for causal in (False, True):
            n = 8192
            q, k, v = (random(2, 2048 // dim, n, dim) for _ in range(3))
            params = {"causal": int(causal)}
            calls = {
                "none": Rootdk(library, q, k, v, params),
                "rows": Rootdk(library, q, k, v, params, rows),
                "entropy": Rootdk(library, q, k, v, params, all_rows),
                "entropy 1/16": Rootdk(library, q, k, v, params, all_rows, stride=16),
            }
            ms = interleaved({name: call.run for name, call in calls.items()}, rounds=5)
            report.add(statistics=f"dim {dim} causal {int(causal)}", **{name: ms[name] / ms["none"] for name in ms})


def section_decode(library, args, report):
    source = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    copy_ms = interleaved({"copy": lambda: target.copy_(source)})["copy"]
    copy = 2 * source.numel() / copy_ms * 1e-9  # TB/s
    report.add(copy_tb_s=copy)
    for b, n in ((16, 8192), (64, 4096), (1, 131072), (1, 8192)):
        q, k, v = random(b, 32, 1, 128), random(b, 8, n, 128), random(b, 8, n, 128)
        ours = Rootdk(library, q, k, v)
        contenders = {"ours": ours.run}
        try:
            torch_attention(SDPBackend.CUDNN_ATTENTION, q, k, v, False)
            contenders["cudnn"] = lambda: torch_attention(SDPBackend.CUDNN_ATTENTION, q, k, v, False)
        except RuntimeError:
            pass
        truth = reference_rows(q, k, v, False, 1)
        errors = {name: error(call(), truth) for name, call in contenders.items()}
        ms = interleaved(contenders)
        moved = 2 * k.numel() * 2
        row = {"decode_batch": b, "keys": n, "of_copy": moved / ms["ours"] * 1e-9 / copy}
        row |= {f"{name}_tb_s": moved / t * 1e-9 for name, t in ms.items()}
        report.add(**row, **{f"error_{name}": e for name, e in errors.items()})


SECTIONS = {
    "forward": section_forward,
    "features": section_features,
    "statistics": section_statistics,
    "decode": section_decode,
}


def main(description=__doc__, sections=SECTIONS, dims="64,96,128,192,256", lengths="512,2048,4096,8192,16384"):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/src/librootdk.so")
    parser.add_argument("--dims", default=dims)
    parser.add_argument("--lengths", default=lengths)
    parser.add_argument("--sections", default=",".join(sections))
    parser.add_argument("--json", help="write every row to this file")
    args = parser.parse_args()
    args.dims = [int(x) for x in args.dims.split(",")]
    args.lengths = [int(x) for x in args.lengths.split(",")]
    if not torch.cuda.is_available():
        sys.exit("no CUDA device: nothing to compare")
    library = ctypes.CDLL(args.library)
    library.rootdk_last_error.restype = ctypes.c_char_p
    report = Report(args.json)
    with torch.no_grad():
        for name in args.sections.split(","):
            sections[name](library, args, report)


if __name__ == "__main__":
    main()
