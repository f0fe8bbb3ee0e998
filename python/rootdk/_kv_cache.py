"""KvCache: keys and values kept between calls, and attention of new tokens over them."""

import ctypes
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Literal, NamedTuple, Optional, Sequence, Tuple, Union, overload

from . import _abi, _structs
from ._abi import give_arena, take_arena
from ._arrays import Kind, kind_of, require_kind, small_code, takes_any_array
from ._attention import run_c
from ._kv_storage import LAYOUTS, Storage, dtype_code
from ._params import ATTEND, AttendOptions, Params, choice, spells_out, whole
from ._positions import RopeParams
from ._result import AttentionResult
from ._slots import K, write_output, write_tensor
from ._stats import ROW_STATS, Asked, Stats, stat_names
from ._typing import ArrayT

if TYPE_CHECKING:
    import numpy
    import torch
    from typing_extensions import Unpack


class KvUsage(NamedTuple):
    """What a cache holds."""

    sequences: int  # open
    pages: int  # in the pool
    free_pages: int  # of these
    shared_pages: int  # held by more than one sequence
    bytes: int  # of keys, values and scales


# A sequence that takes all rows of a call, or for each sequence in turn: itself (one row), (sequence, rows), or
# (sequence, rows, position of the first).
Step = Union["KvSequence", Tuple["KvSequence", int], Tuple["KvSequence", int, int]]
Steps = Union["KvSequence", Sequence[Step]]


_caches: "weakref.WeakSet[KvCache]" = weakref.WeakSet()
_one_fork = threading.Lock()  # held by the thread that forks, with the locks of these caches
_forking: List["KvCache"] = []


def _before_fork() -> None:
    """Waits for calls that are under way in other threads: the child has none of these, and would find a cache whose
    tables are half changed, and locked for ever."""
    _one_fork.acquire()
    for cache in list(_caches):
        cache._lock.acquire()
        _forking.append(cache)


def _after_fork() -> None:
    while _forking:
        _forking.pop()._lock.release()
    _one_fork.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


class KvCache:
    """Keys and values of many sequences, in one type, for `layers` layers.

        cache = rootdk.KvCache(kv_heads=2, head_dim=64, pages=256)
        sequence = cache.open()
        sequence.append(k, v)         # [1, kv_heads, tokens, head_dim]: a prompt, or one token
        out = sequence.attend(q)      # [1, heads, tokens, head_dim]: the last tokens, over everything before them

    Paged, the memory is `pages` pages of page_size tokens, shared by all sequences; contiguous, it is max_sequences
    blocks of max_len tokens. dtype is "f32", "bf16", "f16", or with a scale for each token and head "i8" or "f8e4m3";
    k, v and q may have any type. The memory is the cache's own, or PyTorch's where `device` names a CUDA device.

    `append` and `attend` of the cache serve many sequences in one call. Calls from several threads take turns."""

    def __init__(
        self,
        *,
        kv_heads: int,
        head_dim: int,
        value_dim: Optional[int] = None,
        layers: int = 1,
        dtype: Union[str, "torch.dtype", "numpy.dtype[Any]"] = "bf16",
        layout: str = "paged",
        pages: int = 0,
        page_size: int = 64,
        max_sequences: int = 0,
        max_len: int = 0,
        device: Union[str, "torch.device"] = "cpu",
    ) -> None:
        config = _structs.KvCacheConfig()
        _abi.kv_cache_config_init(ctypes.byref(config))
        config.layout, config.dtype = choice(layout, LAYOUTS, "layout"), dtype_code(dtype)
        sizes = dict(layers=layers, kv_heads=kv_heads, head_dim=head_dim, value_dim=value_dim or 0, pages=pages)
        sizes.update(max_sequences=max_sequences, max_len=max_len)
        if layout == "paged":
            sizes["page_size"] = page_size
        for name, size in sizes.items():
            setattr(config, name, whole(size, name))
        self.value_dim = value_dim or head_dim
        self._lock = threading.Lock()
        _caches.add(self)
        storage = Storage(config, device)
        handle = ctypes.c_void_p()
        _abi.check(_abi.kv_cache_create(ctypes.addressof(config), ctypes.byref(handle)))
        self._handle = _abi.own(handle, _abi.kv_cache_destroy, storage)
        self._text = f"{layout} {_structs.DTYPE_NAMES[config.dtype]}"

    def open(self) -> "KvSequence":
        """An empty sequence. It takes no page before its first token."""
        return KvSequence(self, self._number(_abi.kv_open))

    @property
    def usage(self) -> KvUsage:
        usage = _structs.KvUsage()
        self._call(_abi.kv_usage_of, ctypes.byref(usage))
        return KvUsage(*(getattr(usage, name) for name in KvUsage._fields))

    def append(
        self,
        k: ArrayT,
        v: ArrayT,
        steps: Steps,
        *,
        layer: int = 0,
        rope: Optional[RopeParams] = None,
        target: Optional[str] = None,
        threads: Optional[int] = None,
    ) -> None:
        """Adds tokens: k [1, kv_heads, tokens, head_dim] and v [1, kv_heads, tokens, value_dim] hold the rows of the
        sequences one after another. `steps` is one sequence, or a list with (sequence, rows) or a sequence alone (one
        row) for each. `rope` rotates k at its positions on the way in."""
        _append(k, v, self, steps, layer, rope, target, threads)

    @overload
    def attend(
        self,
        q: ArrayT,
        steps: Steps,
        *,
        rope: Optional[RopeParams] = None,
        out: Optional[ArrayT] = None,
        stats: Literal[False] = False,
        target: Optional[str] = None,
        threads: Optional[int] = None,
        **options: "Unpack[AttendOptions]",
    ) -> ArrayT: ...

    @overload
    def attend(
        self,
        q: ArrayT,
        steps: Steps,
        *,
        rope: Optional[RopeParams] = None,
        out: Optional[ArrayT] = None,
        stats: Asked,
        target: Optional[str] = None,
        threads: Optional[int] = None,
        **options: "Unpack[AttendOptions]",
    ) -> AttentionResult[ArrayT]: ...

    @spells_out(ATTEND)
    def attend(
        self,
        q: Any,
        steps: Steps,
        *,
        rope: Optional[RopeParams] = None,
        out: Any = None,
        stats: Stats = False,
        target: Optional[str] = None,
        threads: Optional[int] = None,
        **options: "Unpack[AttendOptions]",
    ) -> Any:
        """Attention of q [1, heads, tokens, head_dim] over what the cache holds; the rows of the sequences follow one
        another, and `steps` is as in append, the rows being the last tokens of a sequence unless (sequence, rows,
        position) gives the position of the first. A query at position i attends to the keys up to i that were not
        evicted.

          layer               which layer's keys and values
          window              how many keys before its own a query sees; None: no limit
          window_keeps_first  so many first keys stay in sight whatever the window
          scale, temperature, softcap, relative_table, relative_zero, alibi_slopes, sinks   as in rootdk.attention
          rope                rotates q at its positions

        Gives an array of the kind and type of q, or with `stats` (True, or names out of lse, max_logit, max_weight,
        entropy, sum_p2) an AttentionResult. Gradients do not flow through a cache."""
        names = stat_names(stats, ROW_STATS)
        return _attend(q, self, steps, rope, names, target, threads, out=out, **options)

    def _call(self, function: Callable[..., int], *arguments: Any) -> None:
        with self._lock:
            _abi.check(function(self._handle, *arguments))

    def _number(self, function: Callable[..., int], *arguments: Any) -> int:
        number = ctypes.c_int64()
        self._call(function, *arguments, ctypes.byref(number))
        return number.value

    def __repr__(self) -> str:
        usage = self.usage
        return (
            f"rootdk.KvCache({self._text}: {usage.sequences} sequences, {usage.pages - usage.free_pages} of "
            f"{usage.pages} pages, {usage.bytes / 2**20:.1f} MiB)"
        )


class KvSequence:
    """One sequence of a cache, made by KvCache.open and fork. len() is the number of its tokens, evicted ones included:
    the position of the next. In a `with` statement it is closed at the end."""

    __slots__ = ("cache", "id")

    def __init__(self, cache: KvCache, id: int) -> None:
        self.cache = cache
        self.id = id

    def append(
        self,
        k: ArrayT,
        v: ArrayT,
        *,
        layer: int = 0,
        rope: Optional[RopeParams] = None,
        target: Optional[str] = None,
        threads: Optional[int] = None,
    ) -> None:
        """KvCache.append of all rows to this sequence."""
        self.cache.append(k, v, self, layer=layer, rope=rope, target=target, threads=threads)

    @overload
    def attend(
        self,
        q: ArrayT,
        *,
        rope: Optional[RopeParams] = None,
        out: Optional[ArrayT] = None,
        stats: Literal[False] = False,
        target: Optional[str] = None,
        threads: Optional[int] = None,
        **options: "Unpack[AttendOptions]",
    ) -> ArrayT: ...

    @overload
    def attend(
        self,
        q: ArrayT,
        *,
        rope: Optional[RopeParams] = None,
        out: Optional[ArrayT] = None,
        stats: Asked,
        target: Optional[str] = None,
        threads: Optional[int] = None,
        **options: "Unpack[AttendOptions]",
    ) -> AttentionResult[ArrayT]: ...

    def attend(self, q: Any, **options: Any) -> Any:
        """KvCache.attend of all rows as the last tokens of this sequence."""
        return self.cache.attend(q, self, **options)

    def fork(self, length: Optional[int] = None) -> "KvSequence":
        """A sequence that begins with the first `length` tokens of this one, or all. Pages are shared, and copied only
        when one of the sequences writes into a page that the other holds too."""
        kept = -1 if length is None else whole(length, "length")
        return KvSequence(self.cache, self.cache._number(_abi.kv_fork, self.id, kept))

    def trim(self, length: int) -> None:
        """Forgets the tokens from `length` on, in every layer."""
        self.cache._call(_abi.kv_trim, self.id, whole(length, "length"))

    def evict(self, *, keep_first: int = 0, keep_last: int) -> None:
        """Never attends again to the tokens between the first keep_first and the last keep_last; pages that hold
        nothing else are freed, and positions stay what they were."""
        kept = whole(keep_first, "keep_first"), whole(keep_last, "keep_last")
        self.cache._call(_abi.kv_evict, self.id, *kept)

    def length(self, layer: int = 0) -> int:
        return self.cache._number(_abi.kv_length, self.id, whole(layer, "layer"))

    def close(self) -> None:
        """Frees what no other sequence holds. The sequence cannot be used any more."""
        self.cache._call(_abi.kv_close, self.id)

    def __len__(self) -> int:
        return self.length()

    def __enter__(self) -> "KvSequence":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"rootdk.KvSequence({self.id} of {self.cache!r})"


def _c_steps(cache: KvCache, steps: Steps, rows: int) -> Any:
    """An array of rootdk_kv_step."""
    if isinstance(steps, KvSequence):
        steps = [(steps, rows)]
    described = []
    for step in steps:
        given = step if isinstance(step, tuple) else (step,)
        sequence, tokens, position = given + (None, 1, -1)[len(given) :]
        if not isinstance(sequence, KvSequence):
            raise TypeError(f"rootdk: a step begins with a {type(sequence).__name__}, expected a KvSequence")
        if sequence.cache is not cache:
            raise ValueError(f"rootdk: sequence {sequence.id} belongs to another cache")
        described.append(_structs.KvStep(sequence.id, tokens, position))
    return (_structs.KvStep * len(described))(*described)


def _rows(x: Any) -> int:
    """The rows of [1, heads, rows, dim]; a tensor of another rank is the library's to refuse."""
    return int(x.shape[2]) if len(x.shape) == 4 else 1


def _refuse_gradient(kind: Kind, operation: str, x: Any, y: Any, tensors: Optional[Dict[str, Any]] = None) -> None:
    if kind.needs_operator(x, y, y, tensors):
        raise ValueError(f"{operation}: gradients do not flow through a cache (use torch.no_grad(), or detach)")


def _c_rope(rope: Optional[RopeParams]) -> Any:
    if rope is not None and not isinstance(rope, RopeParams):
        raise TypeError(f"rootdk: rope is a {type(rope).__name__}, expected rootdk.RopeParams(...)")
    return rope.to_c() if rope is not None else None


def _address(rope: Any) -> int:
    return ctypes.addressof(rope) if rope is not None else 0


@takes_any_array
def _append(
    k: Any,
    v: Any,
    cache: KvCache,
    steps: Steps,
    layer: int,
    rope: Optional[RopeParams],
    target: Optional[str],
    threads: Optional[int],
) -> None:
    kind = kind_of(k, "k")
    require_kind(kind, v, "v", "k")
    _refuse_gradient(kind, "append", k, v)
    c_steps, c_rope, layer = _c_steps(cache, steps, _rows(k)), _c_rope(rope), whole(layer, "layer")
    arena = take_arena()
    try:
        kind.pack(arena.memory, 0, k, "k")
        kind.pack(arena.memory, K, v, "v")
        arguments = (arena.base, arena.base + K, ctypes.addressof(c_steps), len(c_steps), layer, _address(c_rope))
        with cache._lock:
            run_c(arena, kind, k, _abi.kv_append, None, (cache._handle, *arguments), target, threads)
    finally:
        give_arena(arena)


@takes_any_array
def _attend(
    q: Any,
    cache: KvCache,
    steps: Steps,
    rope: Optional[RopeParams],
    stats: Tuple[str, ...],
    target: Optional[str],
    threads: Optional[int],
    out: Any,
    **options: Any,
) -> Any:
    kind, params = kind_of(q, "q"), Params(options, ATTEND)
    _refuse_gradient(kind, "attend", q, q, params.tensors)
    c_steps, c_rope = _c_steps(cache, steps, _rows(q)), _c_rope(rope)
    params.values[ATTEND.index["rope"]] = _address(c_rope)
    arrays: Dict[str, Any] = {}
    given = out is not None
    arena = take_arena()
    try:
        kind.pack(arena.memory, 0, q, "q")
        params_at, out_at, stats_at = params.write(arena, kind, q), 0, 0
        if len(q.shape) == 4:
            if out is None:
                out = kind.empty((*q.shape[:3], cache.value_dim), kind.code(q, "q"), q)
            out_at = write_output(arena, kind, "out", out, "out")
            if stats:
                arrays = {name: kind.empty(tuple(q.shape[:3]), small_code(kind.code(q, "q")), q) for name in stats}
                stats_at = _abi.ATTEND_STATS.write(
                    arena, *(write_tensor(arena, kind, name, arrays.get(name), name) for name in ROW_STATS)
                )
        arguments = (arena.base, out_at, ctypes.addressof(c_steps), len(c_steps), params_at, stats_at)
        with cache._lock:
            held = (cache._handle, *arguments)
            run_c(arena, kind, q, _abi.kv_attend, _abi.kv_attend_workspace, held, target, threads)
        if given:
            kind.wrote(out)
    finally:
        give_arena(arena)
    return AttentionResult(out, arrays) if stats else out
