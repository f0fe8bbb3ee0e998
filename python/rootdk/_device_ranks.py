"""Attention over ranks whose tensors lie on GPUs: keys and values are gathered, and a rank's rows are ordinary calls.

Each run of rows that a rank holds is one call over the keys that it sees, or all runs are one call of packed sequences; so is
the backward pass, whose gradients of k and v are added up over the ranks in f32. A group on nccl sends from device to device, others
through the memory of the host."""

import functools

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from ._attention import attention as attend
from ._attention import attention_backward
from ._distributed_calls import Ranges, Shares

OPTIONS = ("causal", "window", "scale", "temperature", "softcap", "sinks", "q_starts", "kv_starts")
_ALIGNED = 1024  # a run of keys begins at a tile of the kernels
TOGETHER = True  # for measurements: False makes a call of each run


class Document(NamedTuple):
    """Queries and keys that attend to each other, as rows of the whole."""

    q_begin: int
    q_end: int
    k_begin: int
    k_end: int

    @property
    def offset(self) -> int:
        """Position of a query minus its number in the document."""
        return (self.k_end - self.k_begin) - (self.q_end - self.q_begin)


class Window(NamedTuple):
    """Which keys a query sees: None is no limit."""

    left: Optional[int]
    right: Optional[int]  # 0: causal

    def options(self) -> Dict[str, Any]:
        if self.right == 0:
            return {"causal": True} if self.left is None else {"causal": True, "window": (self.left, None)}
        return {} if self == (None, None) else {"window": tuple(self)}


class Part(NamedTuple):
    """One call: rows of the whole, and the window that makes their positions those of the whole."""

    q_begin: int
    q_end: int
    k_begin: int
    k_end: int
    window: Window


def _window(options: Dict[str, Any]) -> Window:
    window = options.get("window")
    left, right = window if isinstance(window, (tuple, list)) else (window, window)
    left, right = (None if side == -1 else side for side in (left, right))  # -1: no limit
    return Window(left, 0 if options.get("causal") else right)


def _documents(options: Dict[str, Any], q_len: int, kv_len: int) -> List[Document]:
    if (options.get("q_starts") is None) != (options.get("kv_starts") is None):
        raise ValueError("rootdk: q_starts and kv_starts come together")
    if options.get("q_starts") is None:
        return [Document(0, q_len, 0, kv_len)]
    q, k = (torch.as_tensor(options[name]).tolist() for name in ("q_starts", "kv_starts"))
    for name, starts, total in (("q_starts", q, q_len), ("kv_starts", k, kv_len)):
        if not starts or starts[0] != 0 or starts[-1] != total:
            raise ValueError(f"rootdk: {name} go from {starts[:1]} to {starts[-1:]}, expected 0 to {total}, the rows of all ranks")
    return [Document(*bounds) for bounds in zip(q, q[1:], k, k[1:])]


def _meet(rows: Ranges, begin: int, end: int) -> Iterator[Tuple[int, int]]:
    """The rows of a share in [begin, end)."""
    for first, last in rows:
        if max(first, begin) < min(last, end):
            yield max(first, begin), min(last, end)


def query_parts(rows: Ranges, documents: Sequence[Document], window: Window) -> List[Part]:
    """One for each run of queries of a share, over the keys that they see."""
    parts = []
    for first, last in rows:
        for doc in documents:
            for begin, end in _meet([(first, last)], doc.q_begin, doc.q_end):
                position = begin - doc.q_begin + doc.offset  # of the first query; that of the last:
                after = end - doc.q_begin + doc.offset
                length = doc.k_end - doc.k_begin
                k_end = length if window.right is None else min(length, after + window.right)
                k_begin = 0 if window.left is None else max(0, position - window.left) // _ALIGNED * _ALIGNED
                shift = k_end - after  # the last query of a call is at its last key
                part = Window(
                    None if window.left is None else window.left + shift,
                    None if window.right is None else window.right - shift,
                )
                parts.append(Part(begin, end, doc.k_begin + k_begin, doc.k_begin + k_end, part))
    return parts


@functools.lru_cache(maxsize=256)
def _starts(lengths: Tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Kept, since a copy to the device waits for it."""
    return torch.tensor([sum(lengths[:i]) for i in range(len(lengths) + 1)], dtype=torch.int32, device=device)


def _rows(x: torch.Tensor, ranges: Sequence[Tuple[int, int]]) -> torch.Tensor:
    if len(ranges) == 1:
        return x[:, :, ranges[0][0] : ranges[0][1]]
    return torch.cat([x[:, :, begin:end] for begin, end in ranges], 2)


def _together(parts: List[Part], batch: int) -> bool:
    """Whether one call of packed sequences can be all of them."""
    return TOGETHER and batch == 1 and len(parts) > 1 and all(part.window == parts[0].window for part in parts)


class Packing(NamedTuple):
    """The parts of one call: their rows, counted in what the rank holds, and their keys."""

    rows: Tuple[Tuple[int, int], ...]
    keys: Tuple[Tuple[int, int], ...]
    options: Dict[str, Any]


def _packings(parts: List[Part], q: torch.Tensor) -> List[Packing]:
    """The calls that compute the parts, whose rows follow one another in q: one, or one for each part."""
    ends = [sum(p.q_end - p.q_begin for p in parts[: i + 1]) for i in range(len(parts))]
    rows = [(end - (p.q_end - p.q_begin), end) for p, end in zip(parts, ends)]
    keys = [(p.k_begin, p.k_end) for p in parts]
    if not _together(parts, q.shape[0]):
        return [Packing((r,), (k,), part.window.options()) for r, k, part in zip(rows, keys, parts)]
    lengths = [tuple(end - begin for begin, end in ranges) for ranges in (rows, keys)]
    options: Dict[str, Any] = {"q_starts": _starts(lengths[0], q.device), "kv_starts": _starts(lengths[1], q.device)}
    options.update(max_q_len=max(lengths[0]), max_kv_len=max(lengths[1]), **parts[0].window.options())
    return [Packing(tuple(rows), tuple(keys), options)]


def attend_parts(q: Any, k: Any, v: Any, parts: List[Part], options: Dict[str, Any], names: Tuple[str, ...]) -> Dict[str, Any]:
    """out and statistics of the parts, one after another. q has their rows one after another, k and v all."""
    if not parts:  # this rank has no rows
        out = q.new_empty((*q.shape[:3], v.shape[3]))
        return {"out": out, **{name: q.new_empty(q.shape[:3], dtype=torch.float32) for name in names}}
    results = []
    for one in _packings(parts, q):
        rows = q[:, :, one.rows[0][0] : one.rows[-1][1]]
        results.append(attend(rows, _rows(k, one.keys), _rows(v, one.keys), stats=names, **one.options, **options))
    if len(results) == 1:
        return {name: getattr(results[0], name) for name in ("out", *names)}
    return {name: torch.cat([getattr(result, name) for result in results], 2) for name in ("out", *names)}


def backward_parts(saved: Dict[str, Any], upstream: Dict[str, Any], parts: List[Part], options: Dict[str, Any]) -> Dict[str, Any]:
    """The gradient of q of the parts, one after another, and what they add to those of all keys and values, in f32."""
    result = {name: torch.zeros(saved[name].shape, dtype=torch.float32, device=saved[name].device) for name in ("k", "v")}
    of_q = []
    for one in _packings(parts, saved["q"]):
        begin, end = one.rows[0][0], one.rows[-1][1]
        tensors: Dict[str, Any] = {name: x[:, :, begin:end] for name, x in saved.items() if name not in ("k", "v")}
        q, out, lse = (tensors.pop(name) for name in ("q", "out", "lse"))
        k, v = (_rows(saved[name], one.keys) for name in ("k", "v"))
        above: Dict[str, Any] = {"grad_" + name: x[:, :, begin:end] for name, x in upstream.items()}
        found = attention_backward(above.pop("grad_out"), q, k, v, out, lse, **tensors, **above, **one.options, **options)
        of_q.append(found["q"])
        at = 0
        for first, last in one.keys:
            for name in ("k", "v"):
                result[name][:, :, first:last] += found[name][:, :, at : at + last - first]
            at += last - first
    result["q"] = torch.cat(of_q, 2) if len(of_q) > 1 else of_q[0] if of_q else torch.zeros_like(saved["q"])
    return result


def add_up(x: torch.Tensor, rows: Ranges, group: Any) -> torch.Tensor:
    """The sum over all ranks, of it this rank's rows."""
    if str(dist.get_backend(group)) != "nccl":
        total = x.cpu()
        dist.all_reduce(total, group=group)
        x = total.to(x.device)
    else:
        dist.all_reduce(x, group=group)
    return torch.cat([x[:, :, begin:end] for begin, end in rows] or [x[:, :, :0]], 2)


def gather(x: torch.Tensor, shares: Shares, group: Any) -> torch.Tensor:
    """The rows of all ranks, in their order in the whole."""
    counts = [sum(end - begin for begin, end in rows) for rows in shares]
    shape = list(x.shape)
    whole = x.new_empty([*shape[:2], sum(counts), *shape[3:]])
    shape[2] = max(counts)
    on_host = str(dist.get_backend(group)) != "nccl"
    own = torch.zeros(shape, dtype=x.dtype, device="cpu" if on_host else x.device)
    own[:, :, : x.shape[2]].copy_(x)
    parts = [torch.empty_like(own) for _ in counts] if len(counts) > 1 else [own]
    if len(counts) > 1 or not on_host:
        dist.all_gather(parts, own, group=group)
    for part, rows in zip(parts, shares):
        at = 0
        for begin, end in rows:
            whole[:, :, begin:end].copy_(part[:, :, at : at + end - begin])
            at += end - begin
    return whole


class DeviceAttention(torch.autograd.Function):
    """out and the statistics of rows; lse and entropy carry gradients, the others do not."""

    @staticmethod
    def forward(ctx: Any, cut: "DeviceCut", names: Tuple[str, ...], q: Any, k: Any, v: Any) -> Any:  # type: ignore[override]
        for name, x, shares in (("q", q, cut.queries), ("k", k, cut.keys), ("v", v, cut.keys)):
            rows = sum(end - begin for begin, end in shares[cut.rank])
            if x.shape[2] != rows:
                raise ValueError(f"rootdk: {name} has {x.shape[2]} rows on rank {cut.rank}, whose share has {rows}")
        all_k, all_v = (gather(x, cut.keys, cut.group) for x in (k, v))
        results = attend_parts(q, all_k, all_v, cut.query_parts(), cut.options, names)
        ctx.cut, ctx.names = cut, names
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(results[name] for name in names if name not in ("lse", "entropy")))
        ctx.save_for_backward(q, k, v, results["out"], results["lse"], results.get("entropy"))
        return tuple(results.values())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Any, *grads: Any) -> Any:
        cut = ctx.cut
        q, k, v, out, lse, entropy = ctx.saved_tensors
        given = dict(zip(ctx.names, grads))
        saved = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
        upstream = {"out": torch.zeros_like(out) if grad_out is None else grad_out.contiguous()}
        # Every rank asks for the same: a statistic without a gradient here may have one on another rank.
        upstream["lse"] = torch.zeros_like(lse) if given.get("lse") is None else given["lse"]
        if entropy is not None:
            saved["entropy"] = entropy
            upstream["entropy"] = torch.zeros_like(lse) if given["entropy"] is None else given["entropy"]
        all_keys = {**saved, **{name: gather(saved[name], cut.keys, cut.group) for name in ("k", "v")}}
        found = backward_parts(all_keys, upstream, cut.query_parts(), cut.options)
        keys = [add_up(found[n], cut.keys[cut.rank], cut.group).to(saved[n].dtype) for n in ("k", "v")]
        return (None, None, found["q"], *keys)


class DeviceCut(NamedTuple):
    """How a call is cut over the ranks of a group, and its options."""

    group: Any
    rank: int
    queries: Shares
    keys: Shares
    window: Window
    documents: List[Document]
    options: Dict[str, Any]  # that every part has

    def query_parts(self) -> List[Part]:
        return query_parts(self.queries[self.rank], self.documents, self.window)


def make_cut(group: Any, rank: int, queries: Shares, keys: Optional[Shares], options: Dict[str, Any]) -> DeviceCut:
    options = {name: x for name, x in options.items() if x is not None and x is not False}
    for name in options:
        if name not in OPTIONS:
            raise NotImplementedError(f"rootdk: {name} is not served across ranks on a GPU; there are {', '.join(OPTIONS)}")
    if torch.is_grad_enabled() and getattr(options.get("sinks"), "requires_grad", False):
        raise NotImplementedError("rootdk: the gradient of sinks is not served across ranks on a GPU (detach them)")
    keys = queries if keys is None else keys
    q_len, kv_len = (max((end for rows in held for _, end in rows), default=0) for held in (queries, keys))
    documents, window = _documents(options, q_len, kv_len), _window(options)
    if window != (None, None) and any(doc.offset < 0 for doc in documents):
        raise NotImplementedError("rootdk: a window or causal with fewer keys than queries is not served across ranks on a GPU")
    rest = {name: x for name, x in options.items() if name not in ("causal", "window", "q_starts", "kv_starts")}
    return DeviceCut(group, rank, queries, keys, window, documents, rest)
