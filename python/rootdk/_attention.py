"""attention, attention_backward, explain and merge_states over NumPy arrays, PyTorch tensors and anything like them."""

import ctypes
import functools
import json
import operator
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Literal, NamedTuple, Optional, Sequence, Tuple, Union, overload

from . import _abi, _fast, _structs
from ._abi import give_arena, take_arena
from ._arrays import Kind, kind_of, require_kind, small_code, takes_any_array
from ._cuda import run_on_stream
from ._params import ATTENTION, DIFFERENTIABLE, AttentionOptions, Pair, Params, spells_out, whole, write_execution
from ._result import AttentionResult
from ._slots import K, V, write_output, write_qkv, write_tensor
from ._stats import Asked, AskedRows, Rows, Stats, StatsRequest, write_stats
from ._typing import ArrayT

if TYPE_CHECKING:
    from typing_extensions import Unpack


# Where the ranks are wrong nothing is allocated, and the library says what is wrong.


def _new_output(kind: Kind, q: Any, v: Any) -> Any:
    shape, values = q.shape, v.shape
    if not len(shape) == len(values) == 4:
        return None
    if shape[3] == values[3]:
        return kind.empty_like(q, "q")
    return kind.empty((shape[0], shape[1], shape[2], values[3]), kind.code(q, "q"), q)


def _new_stats(request: Optional[StatsRequest], kind: Kind, q: Any, k: Any) -> Optional[Dict[str, Any]]:
    if request is None or request.is_empty or not len(q.shape) == len(k.shape) == 4:
        return None
    return request.allocate(kind, q, k)


def run_c(
    arena: _abi.Arena,
    kind: Kind,
    q: Any,
    function: Any,
    workspace: Any,
    arguments: Tuple[Any, ...],
    target: Optional[str],
    threads: Optional[int],
) -> None:
    """Calls a function of the C ABI on the device of q. `workspace` is the function that returns its scratch memory in bytes."""
    if not kind.is_cuda(q):
        status = function(*arguments, write_execution(arena, target, threads))
    else:

        def run(stream: int, scratch: int, size: int) -> int:
            return int(function(*arguments, write_execution(arena, target, threads, stream, scratch, size)))

        def needed() -> int:
            size = ctypes.c_size_t()
            _abi.check(workspace(*arguments, write_execution(arena, target, threads), ctypes.addressof(size)))
            return size.value

        status = run_on_stream(kind.torch, q.get_device(), run, needed if workspace else None)  # type: ignore
    if status:
        _abi.check(status)


def run_forward(
    kind: Kind,
    q: Any,
    k: Any,
    v: Any,
    params: Params,
    out: Any,
    stats: Optional[StatsRequest],
    target: Optional[str],
    threads: Optional[int],
) -> Tuple[Any, Optional[Dict[str, Any]]]:
    """(out, the statistics by name)."""
    arena = take_arena()
    try:
        base = arena.base
        write_qkv(arena, kind, q, k, v)
        params_at = params.write(arena, kind, q)
        given = out is not None
        if given:
            out_at = write_output(arena, kind, "out", out, "out")
        else:
            out = _new_output(kind, q, v)
            out_at = write_tensor(arena, kind, "out", out, "out")
        arrays = _new_stats(stats, kind, q, k)
        stats_at = write_stats(arena, kind, arrays, stats.stride) if stats and arrays else 0
        arguments = (base, base + K, base + V, out_at, params_at, stats_at)
        run_c(arena, kind, q, _abi.attention, _abi.attention_workspace, arguments, target, threads)
        if given:
            kind.wrote(out)
        return out, arrays
    finally:
        give_arena(arena)


@overload
def attention(
    q: ArrayT,
    k: ArrayT,
    v: ArrayT,
    *,
    out: Optional[ArrayT] = None,
    stats: Literal[False] = False,
    map_size: None = None,
    weights: Literal[False] = False,
    stats_stride: int = 1,
    target: Optional[str] = None,
    threads: Optional[int] = None,
    **options: "Unpack[AttentionOptions]",
) -> ArrayT: ...


@overload
def attention(
    q: ArrayT,
    k: ArrayT,
    v: ArrayT,
    *,
    out: Optional[ArrayT] = None,
    stats: Asked,
    map_size: Optional[Pair] = None,
    weights: Rows = False,
    stats_stride: int = 1,
    target: Optional[str] = None,
    threads: Optional[int] = None,
    **options: "Unpack[AttentionOptions]",
) -> AttentionResult[ArrayT]: ...


@overload
def attention(
    q: ArrayT,
    k: ArrayT,
    v: ArrayT,
    *,
    out: Optional[ArrayT] = None,
    stats: Stats = False,
    map_size: Pair,
    weights: Rows = False,
    stats_stride: int = 1,
    target: Optional[str] = None,
    threads: Optional[int] = None,
    **options: "Unpack[AttentionOptions]",
) -> AttentionResult[ArrayT]: ...


@overload
def attention(
    q: ArrayT,
    k: ArrayT,
    v: ArrayT,
    *,
    out: Optional[ArrayT] = None,
    stats: Stats = False,
    map_size: Optional[Pair] = None,
    weights: AskedRows,
    stats_stride: int = 1,
    target: Optional[str] = None,
    threads: Optional[int] = None,
    **options: "Unpack[AttentionOptions]",
) -> AttentionResult[ArrayT]: ...


@functools.partial(takes_any_array, fast=_fast.binding and _fast.binding.attention)
@spells_out(ATTENTION)
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    out: Any = None,
    stats: Stats = False,
    map_size: Optional[Pair] = None,
    weights: Any = False,
    stats_stride: int = 1,
    target: Optional[str] = None,
    threads: Optional[int] = None,
    **options: "Unpack[AttentionOptions]",
) -> Any:
    """Scaled dot-product attention, softmax(q k^T scale / temperature + bias) v, without the n x n matrix.

    q is [batch, heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim], v [batch, kv_heads, kv_len, value_dim],
    of one type (f32, bf16, f16, or f64 on the reference), with any strides and a contiguous last dimension. heads is a
    multiple of kv_heads. Nothing is copied, and the result is of the kind that q is.

    What shapes the operation:
      causal        keeps keys up to the query; query i has position i + (kv_len - q_len)
      window        how far a query sees: a number of keys to each side, or (left, right) with None for no limit
      scale         None: 1/sqrt(head_dim); a number; "none"; "inverse_head_dim"
      temperature   divides the logits; softcap c turns x into c tanh(x / c)
      score         "dot", "cosine", or "additive" (which needs additive_v [heads, head_dim])
      mask          booleans that broadcast to [batch, heads, q_len, kv_len]; True keeps
      block_mask    booleans over blocks of block_size (one number or two) queries x keys
      kv_lengths    integers [batch]: keys from there on are padding
      q_starts, kv_starts   packed sequences: where each begins, and the total at the end
      bias          added to the logits; broadcasts like mask
      relative_table, relative_zero   [heads or 1, entries]: a bias by distance; relative_zero is distance 0
      alibi_slopes  [heads]: adds -slope |distance|
      sinks         [heads]: one more logit in the denominator
      dropout, seed the same seed drops the same weights on every device; 0 unless given, so give each step its own
      compute       "f8e4m3": q, k and v are rounded to 8 bits with scales, and the products run on those (docs/fp8.md);
                    rotate=True rotates q and k first

    What comes back: `out`, or with `stats`, `map_size` or `weights` an AttentionResult.
      out           memory to write to
      stats         True for all statistics of rows and keys, or names: lse, max_logit, max_weight, entropy, sum_p2,
                    column_mass
      map_size      rows and columns of a pooled picture of the n x n weights
      weights       True for all exact weights, or the rows to give them for
      stats_stride  entropy and sum_p2 of one tile of queries in so many

    Where it runs: `target` names an implementation (see explain), `threads` sets the width of the pool. CUDA tensors
    run on PyTorch's current stream. PyTorch tensors that need a gradient go through rootdk.torch.attention.

    Raises ValueError or TypeError, with the values in the message, before anything is written."""
    kind = kind_of(q, "q")
    request = StatsRequest.make(stats, map_size, weights, stats_stride)
    params = Params(options)
    if kind.needs_operator(q, k, v, params.tensors):
        from .torch import _operator

        if out is not None:
            raise ValueError("attention: out is given, but a gradient is needed (use torch.no_grad())")
        return _operator.run(q, k, v, params, request, target, threads)
    out, arrays = run_forward(kind, q, k, v, params, out, request, target, threads)
    return out if arrays is None else AttentionResult(out, arrays)


@takes_any_array
@spells_out(ATTENTION)
def attention_backward(
    grad_out: ArrayT,
    q: ArrayT,
    k: ArrayT,
    v: ArrayT,
    out: ArrayT,
    lse: ArrayT,
    *,
    entropy: Optional[ArrayT] = None,
    grad_lse: Optional[ArrayT] = None,
    grad_entropy: Optional[ArrayT] = None,
    gradients: Union[str, Sequence[str]] = ("q", "k", "v"),
    target: Optional[str] = None,
    threads: Optional[int] = None,
    **options: "Unpack[AttentionOptions]",
) -> Dict[str, ArrayT]:
    """The gradients of attention: a dict with an array for each name in `gradients`, out of q, k, v, bias,
    relative_table, alibi_slopes, sinks, additive_v and column_mass (the forward statistic as a by-product).

    out and lse come from the forward call (stats="lse"), options are those of the forward call. grad_lse and
    grad_entropy are the gradients of the loss for these statistics; the latter needs entropy."""
    kind = kind_of(q, "q")
    gradients = (gradients,) if isinstance(gradients, str) else gradients
    for name in gradients:
        if name not in _structs.GRADIENTS:
            raise ValueError(f"rootdk: gradients has {name!r}, expected some of {', '.join(_structs.GRADIENTS)}")
    saved = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "entropy": entropy}
    upstream = {"out": grad_out, "lse": grad_lse, "entropy": grad_entropy}
    return run_backward(kind, saved, upstream, Params(options), tuple(gradients), target, threads)


def run_backward(
    kind: Kind,
    saved: Dict[str, Any],
    upstream: Dict[str, Any],
    params: Params,
    names: Tuple[str, ...],
    target: Optional[str],
    threads: Optional[int],
) -> Dict[str, Any]:
    q, k = saved["q"], saved["k"]
    arena = take_arena()
    try:
        base = arena.base
        write_qkv(arena, kind, q, k, saved["v"])
        saved_at = [base, base + K, base + V]
        saved_at += [write_tensor(arena, kind, name, saved[name], name) for name in ("out", "lse", "entropy")]
        upstream_at = [
            write_tensor(arena, kind, "upstream." + name, upstream[name], "grad_" + name)
            for name in ("out", "lse", "entropy")
        ]
        params_at = params.write(arena, kind, q)
        results = _allocate_gradients(kind, saved, params, names)
        gradients_at = [
            write_tensor(arena, kind, "grad." + name, results.get(name), name, 4 if name == "bias" else 0)
            for name in _structs.GRADIENTS
        ]
        arguments = (
            _abi.SAVED.write(arena, *saved_at),
            _abi.UPSTREAM.write(arena, *upstream_at),
            _abi.GRADIENTS_STRUCT.write(arena, *gradients_at),
            params_at,
        )
        workspace = _abi.attention_backward_workspace
        run_c(arena, kind, q, _abi.attention_backward, workspace, arguments, target, threads)
        return results
    finally:
        give_arena(arena)


def _allocate_gradients(kind: Kind, saved: Dict[str, Any], params: Params, names: Tuple[str, ...]) -> Dict[str, Any]:
    results = {}
    for name in names:
        if name == "column_mass":
            q, k = saved["q"], saved["k"]
            kv_len = k.shape[2] if len(k.shape) == 4 else 0
            results[name] = kind.empty((*q.shape[:2], kv_len), small_code(kind.code(q, "q")), q)
            continue
        source = params.tensors.get(name) if name in DIFFERENTIABLE else saved[name]
        if source is None:
            raise ValueError(f"attention_backward: a gradient of {name} is asked for, but {name} is not given")
        results[name] = kind.empty_like(source, name)
    return results


class Explanation(NamedTuple):
    """Which implementation a call would use here, and why not the others."""

    chosen: str  # empty: none
    error: str  # what the call would raise; empty: nothing
    candidates: List[Tuple[str, str]]  # (name, refusal), in the order in which they are asked

    def __repr__(self) -> str:
        lines = [f"runs on {self.chosen}" if self.chosen else f"fails: {self.error}"]
        lines += [f"  {name}: {refusal or 'accepts'}" for name, refusal in self.candidates]
        return "\n".join(lines)


@takes_any_array
@spells_out(ATTENTION)
def explain(
    q: ArrayT,
    k: ArrayT,
    v: ArrayT,
    *,
    stats: Stats = False,
    map_size: Optional[Pair] = None,
    weights: Rows = False,
    stats_stride: int = 1,
    target: Optional[str] = None,
    threads: Optional[int] = None,
    **options: "Unpack[AttentionOptions]",
) -> Explanation:
    """Which implementation attention(q, k, v, ...) would use, and why not the others. Bad arguments are no error here:
    the explanation then says what the call would say."""
    kind = kind_of(q, "q")
    params = Params(options)
    arena = take_arena()
    try:
        base = arena.base
        write_qkv(arena, kind, q, k, v)
        params_at = params.write(arena, kind, q)
        request = StatsRequest.make(stats, map_size, weights, stats_stride)
        out = _new_output(kind, q, v)
        out_at = write_tensor(arena, kind, "out", out, "out")
        arrays = _new_stats(request, kind, q, k)
        stats_at = write_stats(arena, kind, arrays, request.stride) if request and arrays else 0
        text = _abi.explain(
            base, base + K, base + V, out_at, params_at, stats_at, write_execution(arena, target, threads)
        )
    finally:
        give_arena(arena)
    answer = json.loads(text.decode())
    return Explanation(
        answer["chosen"],
        answer["error"],
        [(candidate["name"], candidate["refusal"]) for candidate in answer["candidates"]],
    )


@takes_any_array
def merge_states(out: ArrayT, lse: ArrayT) -> Tuple[ArrayT, ArrayT]:
    """Combines attention over disjoint sets of keys into attention over their union: out [parts, batch, heads, q_len,
    value_dim] and lse [parts, batch, heads, q_len] into (out, lse) without the first dimension."""
    kind = kind_of(out, "out")
    require_kind(kind, lse, "lse", "out")
    merged_out, merged_lse = (
        kind.empty(tuple(x.shape[1:]), kind.code(x, name), x) for name, x in _named(out=out, lse=lse)
    )
    call_with_tensors(kind, _abi.merge_states, out=out, lse=lse, merged_out=merged_out, merged_lse=merged_lse)
    return merged_out, merged_lse


def _named(**arrays: Any) -> Iterable[Tuple[str, Any]]:
    return arrays.items()


def call_with_tensors(
    kind: Kind, function: Any, *numbers: Any, ranks: Optional[Dict[str, int]] = None, **tensors: Any
) -> None:
    """Calls a function of the C ABI that takes tensors first, then numbers. None is a null pointer; `ranks` names
    tensors that get dimensions of size 1 in front."""
    arena = take_arena()
    try:
        addresses = []
        first = next(iter(tensors))
        for i, (name, x) in enumerate(tensors.items()):
            if x is None:
                addresses.append(0)
                continue
            require_kind(kind, x, name, first)
            if kind.wants_gradient(x):
                raise ValueError(
                    f"rootdk: {name} needs a gradient, which does not flow through this function (use torch.no_grad() "
                    "or detach; the functions named ..._backward give gradients)"
                )
            kind.pack(arena.memory, i * _abi.TENSOR_SIZE, x, name, (ranks or {}).get(name, 0))
            addresses.append(arena.base + i * _abi.TENSOR_SIZE)
        _abi.check(function(*addresses, *numbers))
        if tensors.get("out") is not None:
            kind.wrote(tensors["out"])
    finally:
        give_arena(arena)


def dropout_keeps(probability: float, seed: int, batch: int, head: int, i: int, j: int) -> bool:
    """Whether the weight of query i for key j survives dropout: a pure function of its arguments."""
    places = (whole(place, name) for place, name in ((batch, "batch"), (head, "head"), (i, "i"), (j, "j")))
    return bool(_abi.dropout_keeps(float(probability), operator.index(seed), *places))
