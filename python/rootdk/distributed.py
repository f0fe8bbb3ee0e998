"""Attention over a sequence that is cut over the ranks of a torch.distributed group.

    >>> import torch.distributed as dist, rootdk
    >>> dist.init_process_group("gloo")
    >>> rows = rootdk.distributed.shares("zigzag", total, dist.get_world_size())[dist.get_rank()]
    >>> q, k, v = (rootdk.distributed.take(x, rows) for x in (whole_q, whole_k, whole_v))
    >>> out = rootdk.distributed.attention(q, k, v, shares="zigzag", causal=True)   # this rank's rows; has gradients

Results have the same bits for any number of ranks, any shares and any scheme (docs/scale.md). Tensors lie on the CPU; the
group is one that sends these: gloo or mpi.
"""

import ctypes
import functools
import itertools
from typing import TYPE_CHECKING, Any, Dict, List, Literal, NamedTuple, Optional, Sequence, Tuple, Union, overload

import torch
import torch.distributed as dist

from . import _abi, _structs
from ._abi import give_arena, take_arena
from ._arrays import kind_of, small_code
from ._params import ATTENTION, AttentionOptions, Params, choice, spells_out, whole, write_execution
from ._result import AttentionResult
from ._slots import K, V, write_qkv, write_tensor
from ._stats import ROW_STATS, Asked, Stats, stat_names, write_stats
from ._transport import Group, GroupTransport, transport_of
from ._typing import Integers

if TYPE_CHECKING:
    from typing_extensions import Unpack

Ranges = Sequence[Tuple[int, int]]
Shares = Sequence[Ranges]

SCHEMES = {"automatic": 0, "ring": 1, "gather": 2, "heads": 3}
LAYOUTS = {"contiguous": 0, "zigzag": 1, "documents": 2, "striped": 3}


class _Range(ctypes.Structure):
    """rootdk_row_range"""

    _fields_ = [("begin", ctypes.c_int64), ("end", ctypes.c_int64)]


class _Distributed(ctypes.Structure):
    """rootdk_distributed_params"""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("query_counts", ctypes.POINTER(ctypes.c_int64)),
        ("query_ranges", ctypes.POINTER(_Range)),
        ("key_counts", ctypes.POINTER(ctypes.c_int64)),
        ("key_ranges", ctypes.POINTER(_Range)),
        ("scheme", ctypes.c_int32),
        ("key_chunk", ctypes.c_int64),
        ("query_block", ctypes.c_int64),
        ("buffers", ctypes.c_int64),
        ("timeout_seconds", ctypes.c_double),
        ("flops", ctypes.c_double),
        ("link_bytes", ctypes.c_double),
        ("link_latency", ctypes.c_double),
        ("memory_bytes", ctypes.c_double),
    ]


_P = ctypes.c_void_p
_function = functools.partial(_abi.typed_function, _abi._library, _abi.path)
_params_init = _function("distributed_params_init", ctypes.c_int32, [_P, ctypes.c_size_t])
_shares = _function(
    "shares",
    ctypes.c_int32,
    [ctypes.c_int32, ctypes.c_int64, _P, ctypes.c_int32, ctypes.c_int32, _P, _P, ctypes.c_size_t, _P],
)
_attention = _function("distributed_attention", ctypes.c_int32, [_P] * 9)
_attention_backward = _function("distributed_attention_backward", ctypes.c_int32, [_P] * 7)
_merge_over_ranks = _function("merge_over_ranks", ctypes.c_int32, [_P, _P, _P, ctypes.c_double])


def shares(layout: str, total: int, ranks: int, *, starts: Optional[Integers] = None, causal: bool = False) -> List[List[Tuple[int, int]]]:
    """Which rows of the whole each rank holds, as ranges (begin, end) in the order of its tensors. "contiguous",
    "zigzag" and "striped" (runs of 1024) cut `total` rows; "documents" hands out packed sequences, which begin at `starts`, by their work."""
    number = choice(layout, LAYOUTS, "layout")
    arena = take_arena()
    try:
        starts_at = 0
        if starts is not None:
            starts = torch.as_tensor(starts, dtype=torch.int32, device="cpu")
            starts_at = write_tensor(arena, kind_of(starts, "starts"), "q_starts", starts, "starts")
        counts = (ctypes.c_int64 * max(ranks, 1))()
        room, needed = 2 * max(ranks, 1), ctypes.c_size_t()
        while True:
            ranges = (_Range * room)()
            _abi.check(
                _shares(
                    number,
                    whole(total, "total"),
                    starts_at,
                    int(causal),
                    whole(ranks, "ranks", 32),
                    ctypes.addressof(counts),
                    ctypes.addressof(ranges),
                    room,
                    ctypes.addressof(needed),
                )
            )
            if needed.value <= room:
                break
            room = needed.value
    finally:
        give_arena(arena)
    rest = iter([(r.begin, r.end) for r in ranges[: needed.value]])
    return [list(itertools.islice(rest, count)) for count in counts]


def take(x: torch.Tensor, rows: Ranges, dim: int = 2) -> torch.Tensor:
    """The rows of a share, in its order."""
    return torch.cat([x.narrow(dim, begin, end - begin) for begin, end in rows], dim)


def put(parts: Sequence[torch.Tensor], shares: Shares, dim: int = 2) -> torch.Tensor:
    """The whole, from the rows of all ranks."""
    total = sum(end - begin for rows in shares for begin, end in rows)
    shape = list(parts[0].shape)
    shape[dim] = total
    result = parts[0].new_empty(shape)
    for part, rows in zip(parts, shares):
        at = 0
        for begin, end in rows:
            result.narrow(dim, begin, end - begin).copy_(part.narrow(dim, at, end - begin))
            at += end - begin
    return result


class _Cut(NamedTuple):
    """How a call is cut, and what carries its messages."""

    transport: GroupTransport
    queries: Shares
    keys: Optional[Shares]
    scheme: int
    key_chunk: int
    query_block: int
    timeout: float

    def structure(self) -> Tuple[_Distributed, List[Any]]:
        """The struct, and the memory that it points to."""
        result = _Distributed()
        _abi.check(_params_init(ctypes.addressof(result), ctypes.sizeof(result)))
        kept: List[Any] = []
        for name, held in (("query", self.queries), ("key", self.keys)):
            if held is None:
                continue
            counts = (ctypes.c_int64 * len(held))(*[len(rows) for rows in held])
            flat = [_Range(begin, end) for rows in held for begin, end in rows]
            ranges = (_Range * max(1, len(flat)))(*flat)
            kept += [counts, ranges]
            setattr(result, name + "_counts", counts)
            setattr(result, name + "_ranges", ranges)
        result.scheme, result.key_chunk, result.query_block = self.scheme, self.key_chunk, self.query_block
        result.timeout_seconds = self.timeout
        return result, kept


def _forward(
    cut: _Cut, q: Any, k: Any, v: Any, params: Params, names: Tuple[str, ...], threads: Optional[int]
) -> Tuple[Any, Dict[str, Any]]:
    kind = kind_of(q, "q")
    small = small_code(kind.code(q, "q"))
    out = kind.empty((*q.shape[:3], v.shape[3]), kind.code(q, "q"), q)
    arrays = {
        name: kind.empty((*q.shape[:2], k.shape[2] if name == "column_mass" else q.shape[2]), small, q) for name in names
    }
    structure, _kept = cut.structure()
    arena = take_arena()
    try:
        write_qkv(arena, kind, q, k, v)
        status = _attention(
            cut.transport.address,
            arena.base,
            arena.base + K,
            arena.base + V,
            write_tensor(arena, kind, "out", out, "out"),
            ctypes.addressof(structure),
            params.write(arena, kind, q),
            write_stats(arena, kind, arrays, 1) if arrays else 0,
            write_execution(arena, None, threads),
        )
        _abi.check(status)
    finally:
        give_arena(arena)
    return out, arrays


def _backward(
    cut: _Cut,
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
            write_tensor(arena, kind, "grad." + name, results.get(name), name) for name in _structs.GRADIENTS
        ]
        status = _attention_backward(
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


class _Attention(torch.autograd.Function):
    """out and the statistics; lse and entropy carry gradients, the others do not."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, cut: _Cut, params: Params, names: Tuple[str, ...], threads: Optional[int], q: Any, k: Any, v: Any, sinks: Any
    ) -> Any:
        out, arrays = _forward(cut, q, k, v, params, names, threads)
        ctx.cut, ctx.params, ctx.names, ctx.threads = cut, params, names, threads
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(x for name, x in arrays.items() if name not in ("lse", "entropy")))
        ctx.save_for_backward(q, k, v, sinks, out, arrays["lse"], arrays.get("entropy"))
        return (out, *arrays.values())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Any, *grads: Any) -> Any:
        q, k, v, sinks, out, lse, entropy = ctx.saved_tensors
        given = dict(zip(ctx.names, grads))
        grad_out = torch.zeros_like(out) if grad_out is None else grad_out
        if grad_out.stride(-1) != 1:
            grad_out = grad_out.contiguous()
        saved = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "entropy": entropy}
        # Every rank asks for the same: a statistic without a gradient here may have one on another rank.
        zero = torch.zeros_like(lse)
        upstream = {"out": grad_out, "lse": zero if given.get("lse") is None else given["lse"], "entropy": None}
        if entropy is not None:
            upstream["entropy"] = zero if given["entropy"] is None else given["entropy"]
        needed = [name for name, needs in zip(("q", "k", "v", "sinks"), ctx.needs_input_grad[4:]) if needs]
        gradients = _backward(ctx.cut, saved, upstream, ctx.params, needed, ctx.threads)
        return (None, None, None, None, *(gradients.get(name) for name in ("q", "k", "v", "sinks")))


def _total(rows: int, transport: GroupTransport) -> int:
    total = torch.tensor([rows])
    dist.all_reduce(total, group=transport.group)
    return int(total)


def _resolve(layout: Union[str, Shares], rows: int, starts: Any, causal: bool, transport: GroupTransport) -> Shares:
    if not isinstance(layout, str):
        return layout
    if layout == "documents" and starts is None:
        raise ValueError('rootdk: shares="documents" needs q_starts')
    total = _total(rows, transport) if layout != "documents" else 0
    return shares(layout, total, transport.size, starts=starts, causal=causal)


@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    group: Group = None,
    shares: Union[str, Shares] = "contiguous",
    kv_shares: Union[None, str, Shares] = None,
    scheme: str = "automatic",
    key_chunk: int = 1024,
    query_block: int = 256,
    timeout: float = 300.0,
    stats: Literal[False] = False,
    threads: Optional[int] = None,
    **options: "Unpack[AttentionOptions]",
) -> torch.Tensor: ...


@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    group: Group = None,
    shares: Union[str, Shares] = "contiguous",
    kv_shares: Union[None, str, Shares] = None,
    scheme: str = "automatic",
    key_chunk: int = 1024,
    query_block: int = 256,
    timeout: float = 300.0,
    stats: Asked,
    threads: Optional[int] = None,
    **options: "Unpack[AttentionOptions]",
) -> AttentionResult[torch.Tensor]: ...


@spells_out(ATTENTION)
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    group: Group = None,
    shares: Union[str, Shares] = "contiguous",
    kv_shares: Union[None, str, Shares] = None,
    scheme: str = "automatic",
    key_chunk: int = 1024,
    query_block: int = 256,
    timeout: float = 300.0,
    stats: Stats = False,
    threads: Optional[int] = None,
    **options: Any,
) -> Union[torch.Tensor, AttentionResult[torch.Tensor]]:
    """rootdk.attention over a sequence whose rows are cut over the ranks of `group` (None: all). q, k and v are this
    rank's rows; so is `out`, which carries gradients. Every rank makes the same call.

      shares      which rows each rank has: "contiguous", "zigzag" and "striped" (causal), "documents" (packed sequences, with q_starts
                  of the whole), or a list of ranges for each rank (shares())
      kv_shares   those of k and v, where they differ
      scheme      "automatic", "ring", "gather" or "heads"; results are the same
      key_chunk, query_block   where sums are cut; results depend on these in their last bits
      timeout     seconds of each wait for another rank, after which every rank gets an error
      stats       True or names: lse, max_logit, max_weight, entropy, sum_p2, column_mass (of this rank's keys)

    The other options are those of rootdk.attention; kv_lengths, q_starts and kv_starts describe the whole, mask and bias
    have this rank's rows and all keys."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"rootdk: {name} is a {type(x).__name__}, expected a PyTorch tensor")
        if x.dim() != 4:
            raise ValueError(f"rootdk: {name} has the shape {tuple(x.shape)}, expected four dimensions")
    transport = transport_of(group)
    params = Params(options)
    params.read_seed()
    causal = bool(options.get("causal"))
    queries = _resolve(shares, q.shape[2], options.get("q_starts"), causal, transport)
    if kv_shares is None and isinstance(shares, str) and shares != "documents":
        keys: Optional[Shares] = _resolve(shares, k.shape[2], None, causal, transport)
    else:
        keys = None if kv_shares is None else _resolve(kv_shares, k.shape[2], options.get("kv_starts"), causal, transport)
    cut = _Cut(
        transport,
        queries,
        keys,
        choice(scheme, SCHEMES, "scheme"),
        whole(key_chunk, "key_chunk"),
        whole(query_block, "query_block"),
        float(timeout),
    )
    asked = stat_names(stats, ROW_STATS + ("column_mass",))
    names = asked if "lse" in asked else ("lse", *asked)
    sinks = params.tensors.get("sinks")
    results = _Attention.apply(cut, params, names, threads, q, k, v, sinks)
    if not asked:
        return results[0]
    arrays = dict(zip(names, results[1:]))
    return AttentionResult(results[0], {name: arrays[name] for name in asked})


def merge_over_ranks(out: torch.Tensor, lse: torch.Tensor, *, group: Group = None, timeout: float = 300.0) -> None:
    """Decoding over a cache that is cut over ranks: out [batch, heads, q_len, value_dim] and lse [batch, heads, q_len] of
    attention over this rank's keys become those over the keys of all ranks, in place, the same on every rank."""
    transport = transport_of(group)
    kind = kind_of(out, "out")
    arena = take_arena()
    try:
        out_at = write_tensor(arena, kind, "out", out, "out")
        _abi.check(_merge_over_ranks(transport.address, out_at, write_tensor(arena, kind, "lse", lse, "lse"), timeout))
    finally:
        give_arena(arena)
