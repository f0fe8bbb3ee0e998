"""Attention over a sequence that is cut over the ranks of a torch.distributed group.

    >>> import torch.distributed as dist, rootdk
    >>> dist.init_process_group("gloo")
    >>> rows = rootdk.distributed.shares("zigzag", total, dist.get_world_size())[dist.get_rank()]
    >>> q, k, v = (rootdk.distributed.take(x, rows) for x in (whole_q, whole_k, whole_v))
    >>> out = rootdk.distributed.attention(q, k, v, shares="zigzag", causal=True)   # this rank's rows; has gradients

Results have the same bits for any number of ranks, any shares and any scheme (docs/scale.md). Tensors lie on the CPU, with a
group on gloo or mpi, or on GPUs, with one on nccl (or gloo, through the memory of the host) and fewer options.
"""

import ctypes
import itertools
from typing import TYPE_CHECKING, Any, Dict, List, Literal, NamedTuple, Optional, Sequence, Tuple, Union, overload

import torch
import torch.distributed as dist

from . import _abi
from ._abi import give_arena, take_arena
from ._arrays import kind_of
from ._device_exchange import agree
from ._device_ranks import DeviceAttention, DeviceCut, check_rows, description, make_cut
from ._distributed_calls import Cut, Range, Ranges, Shares, backward, c_merge_over_ranks, c_shares, forward
from ._params import ATTENTION, DIFFERENTIABLE, AttentionOptions, Pair, Params, choice, spells_out, whole
from ._result import AttentionResult
from ._slots import write_output, write_tensor
from ._stats import ROW_STATS, Asked, AskedRows, Rows, Stats, StatsRequest, stat_names
from ._transport import Group, require_reach, transport_of
from ._typing import Integers

if TYPE_CHECKING:
    from typing_extensions import Unpack

SCHEMES = {"automatic": 0, "ring": 1, "gather": 2, "heads": 3, "both": 4}
LAYOUTS = {"contiguous": 0, "zigzag": 1, "documents": 2, "striped": 3}


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
            ranges = (Range * room)()
            _abi.check(
                c_shares(
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
    return torch.cat([x.narrow(dim, begin, end - begin) for begin, end in rows] or [x.narrow(dim, 0, 0)], dim)


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


class _Attention(torch.autograd.Function):
    """out and the statistics; lse and entropy carry gradients, the others do not."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, cut: Cut, params: Params, request: StatsRequest, threads: Optional[int], q: Any, k: Any, v: Any, *parameters: Any
    ) -> Any:
        out, arrays = forward(cut, q, k, v, params, request, threads)
        options = params.tensors  # saved through autograd, which notices where one is changed in place
        ctx.cut, ctx.params, ctx.names, ctx.threads = cut, params.with_tensors({}), tuple(arrays), threads
        ctx.option_names = tuple(options)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(x for name, x in arrays.items() if name not in ("lse", "entropy")))
        ctx.save_for_backward(q, k, v, out, arrays["lse"], arrays.get("entropy"), *options.values())
        return (out, *arrays.values())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Any, *grads: Any) -> Any:
        q, k, v, out, lse, entropy, *options = ctx.saved_tensors
        params = ctx.params.with_tensors(dict(zip(ctx.option_names, options)))
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
        names = ("q", "k", "v", *DIFFERENTIABLE)
        needed = [name for name, needs in zip(names, ctx.needs_input_grad[4:]) if needs]
        gradients = backward(ctx.cut, saved, upstream, params, needed, ctx.threads)
        return (None, None, None, None, *(gradients.get(name) for name in names))


class _Ranks(NamedTuple):
    """The group of a call, and where its tensors lie."""

    group: Group
    rank: int
    size: int
    device: torch.device

    @classmethod
    def of(cls, group: Group, q: torch.Tensor) -> "_Ranks":
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError("rootdk: torch.distributed has no process group here (init_process_group)")
        require_reach(group, q.device)
        return cls(group, dist.get_rank(group), dist.get_world_size(group), q.device)

    def totals(self, q: torch.Tensor, k: torch.Tensor) -> Tuple[int, int]:
        """How many queries and keys all ranks have together."""
        on_device = str(dist.get_backend(self.group)) == "nccl"
        rows = torch.tensor([q.shape[2], k.shape[2]], device=self.device if on_device else "cpu")
        dist.all_reduce(rows, group=self.group)
        return int(rows[0]), int(rows[1])


def _require_tensors(q: Any, k: Any, v: Any) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"rootdk: {name} is a {type(x).__name__}, expected a PyTorch tensor")
        if x.dim() != 4:
            raise ValueError(f"rootdk: {name} has the shape {tuple(x.shape)}, expected four dimensions")


Layout = Union[str, Shares]


def _require_layouts(queries: Layout, keys: Optional[Layout], options: Dict[str, Any]) -> None:
    for name, layout, starts in (("shares", queries, "q_starts"), ("kv_shares", keys, "kv_starts")):
        if isinstance(layout, str):
            choice(layout, LAYOUTS, "layout")
            if layout == "documents" and options.get(starts) is None:
                raise ValueError(f'rootdk: {name}="documents" needs {starts}')


def _resolve(
    queries: Layout, keys: Optional[Layout], totals: Tuple[int, int], ranks: int, options: Dict[str, Any]
) -> Tuple[Shares, Optional[Shares]]:
    """The ranges of queries and keys of each rank; None: the keys lie as the queries do."""
    causal = bool(options.get("causal"))

    def ranges(layout: Layout, total: int, starts: Any) -> Shares:
        return shares(layout, total, ranks, starts=starts, causal=causal) if isinstance(layout, str) else layout

    starts = options.get("q_starts") if queries == "documents" else None
    if keys is None:
        of_keys = ranges(queries, totals[1], None) if isinstance(queries, str) and queries != "documents" else None
    else:
        of_keys = ranges(keys, totals[1], options.get("kv_starts") if keys == "documents" else None)
    return ranges(queries, totals[0], starts), of_keys


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
    head_ranks: int = 0,
    key_chunk: int = 1024,
    query_block: int = 256,
    timeout: float = 300.0,
    stats: Literal[False] = False,
    map_size: None = None,
    weights: Literal[False] = False,
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
    head_ranks: int = 0,
    key_chunk: int = 1024,
    query_block: int = 256,
    timeout: float = 300.0,
    stats: Asked,
    map_size: Optional[Pair] = None,
    weights: Rows = False,
    threads: Optional[int] = None,
    **options: "Unpack[AttentionOptions]",
) -> AttentionResult[torch.Tensor]: ...


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
    head_ranks: int = 0,
    key_chunk: int = 1024,
    query_block: int = 256,
    timeout: float = 300.0,
    stats: Stats = False,
    map_size: Pair,
    weights: Rows = False,
    threads: Optional[int] = None,
    **options: "Unpack[AttentionOptions]",
) -> AttentionResult[torch.Tensor]: ...


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
    head_ranks: int = 0,
    key_chunk: int = 1024,
    query_block: int = 256,
    timeout: float = 300.0,
    stats: Stats = False,
    map_size: Optional[Pair] = None,
    weights: AskedRows,
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
    head_ranks: int = 0,
    key_chunk: int = 1024,
    query_block: int = 256,
    timeout: float = 300.0,
    stats: Stats = False,
    map_size: Optional[Pair] = None,
    weights: Rows = False,
    threads: Optional[int] = None,
    **options: Any,
) -> Union[torch.Tensor, AttentionResult[torch.Tensor]]:
    """rootdk.attention over a sequence whose rows are cut over the ranks of `group` (None: all). q, k and v are this
    rank's rows; so is `out`, which carries gradients. Every rank makes the same call.

      shares      which rows each rank has: "contiguous", "zigzag" and "striped" (causal), "documents" (packed sequences, with q_starts
                  of the whole), or a list of ranges for each rank (shares())
      kv_shares   those of k and v, where they differ
      scheme      "automatic", "ring", "gather", "heads" or "both"; results are the same
      head_ranks  of "both": how many ranks, one after another, exchange heads; 0: by cost
      key_chunk, query_block   where sums are cut; results depend on these in their last bits
      timeout     seconds of each wait for another rank, after which every rank gets an error
      stats       True or names: lse, max_logit, max_weight, entropy, sum_p2, column_mass (of this rank's keys)
      map_size    rows and columns of a pooled picture of the n x n weights of the whole, the same on every rank
      weights     True: the weights of this rank's rows over all keys; or some of its rows, by number

    The other options are those of rootdk.attention; kv_lengths, q_starts, kv_starts and block_mask describe the whole, mask
    and bias have this rank's rows and all keys. Gradients of bias are those of its rows here; of a bias with one row for
    all queries, and of relative_table, alibi_slopes, sinks and additive_v, those of the whole on every rank."""
    if isinstance(q, torch.Tensor) and q.is_cuda:
        _require_tensors(q, k, v)
        maps = map_size is not None or weights is not False
        return _on_device(_Ranks.of(group, q), shares, kv_shares, stats, maps, q, k, v, options)
    transport, rows = transport_of(group), (0, 0)
    failure: Optional[Exception] = None  # of this rank, which the others are told of
    try:
        _require_tensors(q, k, v)
        rows = (q.shape[2], k.shape[2])
        params = Params(options)
        params.read_seed()
        numbers = whole(key_chunk, "key_chunk"), whole(query_block, "query_block"), float(timeout), whole(head_ranks, "head_ranks")
        scheme_number = choice(scheme, SCHEMES, "scheme")
        request = StatsRequest.make(stats, map_size, weights, 1)
        _require_layouts(shares, kv_shares, options)
    except Exception as error:
        failure = error
    totals = transport.rows_of_all(rows, failure, timeout if isinstance(timeout, (int, float)) else 0.0)
    queries, keys = _resolve(shares, kv_shares, totals, transport.size, options)
    cut = Cut(transport, queries, keys, scheme_number, *numbers)
    asked = () if request is None else request.names
    request = (request or StatsRequest())._replace(names=asked if "lse" in asked else ("lse", *asked))
    results = _Attention.apply(cut, params, request, threads, q, k, v, *(params.tensors.get(n) for n in DIFFERENTIABLE))
    arrays = dict(zip(_names(request), results[1:]))
    if not asked:
        arrays.pop("lse")
    if not arrays:
        return results[0]
    return AttentionResult(results[0], {name: x for name, x in arrays.items() if name != "lse" or name in asked})


def _on_device(
    ranks: _Ranks, layout: Layout, kv_layout: Optional[Layout], stats: Stats, maps: bool, q: Any, k: Any, v: Any, options: Dict[str, Any]
) -> Any:
    """The same where tensors lie on a GPU."""
    sinks = options.get("sinks")
    _require_layouts(layout, kv_layout, options)
    named = isinstance(layout, str) or isinstance(kv_layout, str)
    queries, keys = _resolve(layout, kv_layout, ranks.totals(q, k) if named else (0, 0), ranks.size, options)

    def prepare() -> Tuple[Tuple[DeviceCut, Tuple[str, ...]], Dict[str, Any]]:
        if maps:
            raise NotImplementedError("rootdk: map_size and weights are not served across ranks on a GPU")
        asked = stat_names(stats, ROW_STATS)
        cut = make_cut(ranks.group, ranks.rank, queries, keys, options)
        check_rows(cut, q, k, v)
        return (cut, asked), description(cut, asked, q, k, v, sinks)

    cut, asked = agree(prepare, ranks.group, q.device)
    names = asked if "lse" in asked else ("lse", *asked)
    results = DeviceAttention.apply(cut, names, q, k, v, sinks)
    arrays = dict(zip(names, results[1:]))
    return AttentionResult(results[0], {name: arrays[name] for name in asked}) if asked else results[0]


def _names(request: StatsRequest) -> Tuple[str, ...]:
    """The arrays that a request allocates, in order."""
    names = request.names
    if request.map_size is not None:
        names += ("pooled_map",)
    if request.weights is not False:
        names += ("weights",) if request.weights is True else ("weight_rows", "weights")
    return names


def merge_over_ranks(out: torch.Tensor, lse: torch.Tensor, *, group: Group = None, timeout: float = 300.0) -> None:
    """Decoding over a cache that is cut over ranks: out [batch, heads, q_len, value_dim] and lse [batch, heads, q_len] of
    attention over this rank's keys become those over the keys of all ranks, in place, the same on every rank."""
    transport = transport_of(group)
    kind = kind_of(out, "out")
    arena = take_arena()
    try:
        out_at = write_output(arena, kind, "out", out, "out")
        _abi.check(c_merge_over_ranks(transport.address, out_at, write_output(arena, kind, "lse", lse, "lse"), timeout))
        kind.wrote(out)
        kind.wrote(lse)
    finally:
        give_arena(arena)
