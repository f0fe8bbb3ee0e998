"""The distributed calls of the C ABI: how a call is cut, forward and backward."""

import ctypes
import functools
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _abi, _structs
from ._abi import give_arena, take_arena
from ._arrays import kind_of, small_code
from ._params import Params, write_execution
from ._slots import K, V, write_qkv, write_tensor
from ._stats import StatsRequest, write_stats
from ._transport import GroupTransport

Ranges = Sequence[Tuple[int, int]]
Shares = Sequence[Ranges]


class Range(ctypes.Structure):
    """rootdk_row_range"""

    _fields_ = [("begin", ctypes.c_int64), ("end", ctypes.c_int64)]


class Distributed(ctypes.Structure):
    """rootdk_distributed_params"""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("query_counts", ctypes.POINTER(ctypes.c_int64)),
        ("query_ranges", ctypes.POINTER(Range)),
        ("key_counts", ctypes.POINTER(ctypes.c_int64)),
        ("key_ranges", ctypes.POINTER(Range)),
        ("scheme", ctypes.c_int32),
        ("key_chunk", ctypes.c_int64),
        ("query_block", ctypes.c_int64),
        ("buffers", ctypes.c_int64),
        ("timeout_seconds", ctypes.c_double),
        ("flops", ctypes.c_double),
        ("link_bytes", ctypes.c_double),
        ("link_latency", ctypes.c_double),
        ("memory_bytes", ctypes.c_double),
        ("head_ranks", ctypes.c_int64),
    ]


_P = ctypes.c_void_p
_function = functools.partial(_abi.typed_function, _abi._library, _abi.path)
params_init = _function("distributed_params_init", ctypes.c_int32, [_P, ctypes.c_size_t])
c_shares = _function(
    "shares",
    ctypes.c_int32,
    [ctypes.c_int32, ctypes.c_int64, _P, ctypes.c_int32, ctypes.c_int32, _P, _P, ctypes.c_size_t, _P],
)
c_attention = _function("distributed_attention", ctypes.c_int32, [_P] * 9)
c_attention_backward = _function("distributed_attention_backward", ctypes.c_int32, [_P] * 7)
c_merge_over_ranks = _function("merge_over_ranks", ctypes.c_int32, [_P, _P, _P, ctypes.c_double])


class Cut(NamedTuple):
    """How a call is cut, and what carries its messages."""

    transport: GroupTransport
    queries: Shares
    keys: Optional[Shares]
    scheme: int
    key_chunk: int
    query_block: int
    timeout: float
    head_ranks: int

    @property
    def total_keys(self) -> int:
        held = self.queries if self.keys is None else self.keys
        return sum(end - begin for rows in held for begin, end in rows)

    def structure(self) -> Tuple[Distributed, List[Any]]:
        """The struct, and the memory that it points to."""
        result = Distributed()
        _abi.check(params_init(ctypes.addressof(result), ctypes.sizeof(result)))
        kept: List[Any] = []
        for name, held in (("query", self.queries), ("key", self.keys)):
            if held is None:
                continue
            counts = (ctypes.c_int64 * len(held))(*[len(rows) for rows in held])
            flat = [Range(begin, end) for rows in held for begin, end in rows]
            ranges = (Range * max(1, len(flat)))(*flat)
            kept += [counts, ranges]
            setattr(result, name + "_counts", counts)
            setattr(result, name + "_ranges", ranges)
        result.scheme, result.key_chunk, result.query_block = self.scheme, self.key_chunk, self.query_block
        result.timeout_seconds, result.head_ranks = self.timeout, self.head_ranks
        return result, kept


def forward(
    cut: Cut, q: Any, k: Any, v: Any, params: Params, request: StatsRequest, threads: Optional[int]
) -> Tuple[Any, Dict[str, Any]]:
    """out and the statistics, by name."""
    kind = kind_of(q, "q")
    out = kind.empty((*q.shape[:3], v.shape[3]), kind.code(q, "q"), q)
    arrays = request.allocate(kind, q, k)
    if "weights" in arrays:  # of this rank's rows over all keys
        shape = (*arrays["weights"].shape[:3], cut.total_keys)
        arrays["weights"] = kind.empty(shape, small_code(kind.code(q, "q")), q)
    structure, _kept = cut.structure()
    arena = take_arena()
    try:
        write_qkv(arena, kind, q, k, v)
        status = c_attention(
            cut.transport.address,
            arena.base,
            arena.base + K,
            arena.base + V,
            write_tensor(arena, kind, "out", out, "out"),
            ctypes.addressof(structure),
            params.write(arena, kind, q),
            write_stats(arena, kind, arrays, 1),
            write_execution(arena, None, threads),
        )
        _abi.check(status)
    finally:
        give_arena(arena)
    return out, arrays


def backward(
    cut: Cut,
    saved: Dict[str, Any],
    upstream: Dict[str, Any],
    params: Params,
    names: Sequence[str],
    threads: Optional[int],
) -> Dict[str, Any]:
    q = saved["q"]
    kind = kind_of(q, "q")
    sources = {**saved, **params.tensors}
    results = {name: kind.empty_like(sources[name], name) for name in names}
    structure, _kept = cut.structure()
    arena = take_arena()
    try:
        base = arena.base
        write_qkv(arena, kind, q, saved["k"], saved["v"])
        saved_at = [base, base + K, base + V]
        saved_at += [write_tensor(arena, kind, name, saved[name], name) for name in ("out", "lse", "entropy")]
        upstream_at = [
            write_tensor(arena, kind, "upstream." + name, upstream[name], "grad_" + name)
            for name in ("out", "lse", "entropy")
        ]
        params_at = params.write(arena, kind, q)
        gradients_at = [
            write_tensor(arena, kind, "grad." + name, results.get(name), name, 4 if name == "bias" else 0)
            for name in _structs.GRADIENTS
        ]
        status = c_attention_backward(
            cut.transport.address,
            _abi.SAVED.write(arena, *saved_at),
            _abi.UPSTREAM.write(arena, *upstream_at),
            _abi.GRADIENTS_STRUCT.write(arena, *gradients_at),
            ctypes.addressof(structure),
            params_at,
            write_execution(arena, None, threads),
        )
        _abi.check(status)
    finally:
        give_arena(arena)
    return results
