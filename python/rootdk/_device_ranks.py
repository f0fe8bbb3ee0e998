"""Attention over ranks whose tensors lie on GPUs: keys and values are gathered, and a rank's rows are ordinary calls.

Each run of rows that a rank holds is one call over the keys that it sees, or all runs are one call of packed sequences. The
backward pass has two: keys and values with this rank's queries give the gradient of q; queries with this rank's keys give those of k
and v. A group on nccl sends from device to device, others through the memory of the host."""

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from ._attention import attention as attend
from ._attention import attention_backward
from ._distributed_calls import Ranges, Shares

ROW_STATS = ("lse", "max_logit", "max_weight", "entropy", "sum_p2")
OPTIONS = ("causal", "window", "scale", "temperature", "softcap", "sinks", "q_starts", "kv_starts")
_ALIGNED = 1024  # a run of keys begins at a tile of the kernels


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
    return Window(left, 0 if options.get("causal") else right)


def _documents(options: Dict[str, Any], q_len: int, kv_len: int) -> List[Document]:
    if options.get("q_starts") is None:
        return [Document(0, q_len, 0, kv_len)]
    q, k = (torch.as_tensor(options[name]).tolist() for name in ("q_starts", "kv_starts"))
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


def key_parts(rows: Ranges, documents: Sequence[Document], window: Window) -> List[Part]:
    """One for each run of keys of a share, with the queries that see them."""
    parts = []
    for first, last in rows:
        for doc in documents:
            for begin, end in _meet([(first, last)], doc.k_begin, doc.k_end):
                key, after = begin - doc.k_begin, end - doc.k_begin
                q_begin, q_end = 0, doc.q_end - doc.q_begin
                if window.right is not None:
                    q_begin = min(q_end, max(0, key - window.right - doc.offset) // _ALIGNED * _ALIGNED)
                if window.left is not None:
                    q_end = max(q_begin, min(q_end, after + window.left - doc.offset))
                shift = after - q_end - doc.offset
                part = Window(
                    None if window.left is None else window.left + shift,
                    None if window.right is None else window.right - shift,
                )
                parts.append(Part(doc.q_begin + q_begin, doc.q_begin + q_end, begin, end, part))
    return parts


def _starts(lengths: List[int], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor([sum(lengths[:i]) for i in range(len(lengths) + 1)], dtype=torch.int32, device=like.device)


def _rows(x: torch.Tensor, ranges: List[Tuple[int, int]]) -> torch.Tensor:
    if len(ranges) == 1:
        return x[:, :, ranges[0][0] : ranges[0][1]]
    return torch.cat([x[:, :, begin:end] for begin, end in ranges], 2)


def _together(parts: List[Part], batch: int) -> bool:
    """Whether one call of packed sequences can be all of them."""
    return batch == 1 and len(parts) > 1 and all(part.window == parts[0].window for part in parts)


def attend_parts(q: Any, k: Any, v: Any, parts: List[Part], options: Dict[str, Any], names: Tuple[str, ...]) -> Dict[str, Any]:
    """out and statistics of the parts, one after another. q has their rows one after another, k and v all."""
    lengths, keys = [p.q_end - p.q_begin for p in parts], [(p.k_begin, p.k_end) for p in parts]
    if not parts:  # this rank has no rows
        out = q.new_empty((*q.shape[:3], v.shape[3]))
        return {"out": out, **{name: q.new_empty(q.shape[:3], dtype=torch.float32) for name in names}}
    if _together(parts, q.shape[0]):
        starts = dict(q_starts=_starts(lengths, q), kv_starts=_starts([end - begin for begin, end in keys], q))
        bounds = dict(max_q_len=max(lengths), max_kv_len=max(end - begin for begin, end in keys))
        result = attend(q, _rows(k, keys), _rows(v, keys), stats=names, **starts, **bounds, **parts[0].window.options(), **options)
        return {"out": result.out, **{name: getattr(result, name) for name in names}}
    results: List[Any] = []
    at = 0
    for part, length in zip(parts, lengths):
        rows = [(part.k_begin, part.k_end)]
        results.append(
            attend(q[:, :, at : at + length], _rows(k, rows), _rows(v, rows), stats=names, **part.window.options(), **options)
        )
        at += length
    return {name: torch.cat([getattr(result, name) for result in results], 2) for name in ("out", *names)}


def backward_parts(
    saved: Dict[str, Any], upstream: Dict[str, Any], parts: List[Part], options: Dict[str, Any], names: Tuple[str, ...]
) -> Dict[str, Any]:
    """The gradients of q, or of k and v, of the parts, one after another. The tensors of the other side are the whole."""
    of_queries = names == ("q",)
    if not parts:
        return {name: torch.zeros_like(saved[name]) for name in names}
    q_rows, k_rows = [(p.q_begin, p.q_end) for p in parts], [(p.k_begin, p.k_end) for p in parts]

    def one(q_range: List[Tuple[int, int]], k_range: List[Tuple[int, int]], at: int, more: Dict[str, Any]) -> Dict[str, Any]:
        count = sum(end - begin for begin, end in (q_range if of_queries else k_range))
        here = [(at, at + count)]
        queries, keys = (here, k_range) if of_queries else (q_range, here)
        tensors = {name: _rows(x, keys if name in ("k", "v") else queries) for name, x in saved.items()}
        above = {name: _rows(x, queries) for name, x in upstream.items()}
        return attention_backward(
            above.pop("out"), *(tensors.pop(name) for name in ("q", "k", "v", "out", "lse")), gradients=names,
            **tensors, **{"grad_" + name: x for name, x in above.items()}, **more, **options,
        )  # fmt: skip

    if _together(parts, saved["q"].shape[0]):
        q_lengths, k_lengths = ([end - begin for begin, end in rows] for rows in (q_rows, k_rows))
        more = dict(
            q_starts=_starts(q_lengths, saved["q"]), kv_starts=_starts(k_lengths, saved["q"]),
            max_q_len=max(q_lengths), max_kv_len=max(k_lengths), **parts[0].window.options(),
        )  # fmt: skip
        return one(q_rows, k_rows, 0, more)
    results, at = [], 0
    for part, q_range, k_range in zip(parts, q_rows, k_rows):
        results.append(one([q_range], [k_range], at, part.window.options()))
        at += (q_range[1] - q_range[0]) if of_queries else (k_range[1] - k_range[0])
    return {name: torch.cat([result[name] for result in results], 2) for name in names}


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
        found = backward_parts(all_keys, upstream, cut.query_parts(), cut.options, ("q",))
        del all_keys
        all_queries = {n: x if n in ("k", "v") else gather(x, cut.queries, cut.group) for n, x in saved.items()}
        all_above = {name: gather(x, cut.queries, cut.group) for name, x in upstream.items()}
        found.update(backward_parts(all_queries, all_above, cut.key_parts(), cut.options, ("k", "v")))
        return (None, None, found["q"], found["k"], found["v"])


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

    def key_parts(self) -> List[Part]:
        return key_parts(self.keys[self.rank], self.documents, self.window)


def make_cut(group: Any, rank: int, queries: Shares, keys: Optional[Shares], options: Dict[str, Any]) -> DeviceCut:
    options = {name: x for name, x in options.items() if x is not None and x is not False}
    for name in options:
        if name not in OPTIONS:
            raise NotImplementedError(f"rootdk: {name} is not served across ranks on a GPU; there are {', '.join(OPTIONS)}")
    keys = queries if keys is None else keys
    q_len, kv_len = (max((end for rows in held for _, end in rows), default=0) for held in (queries, keys))
    documents, window = _documents(options, q_len, kv_len), _window(options)
    if window != (None, None) and any(doc.offset < 0 for doc in documents):
        raise NotImplementedError("rootdk: a window or causal with fewer keys than queries is not served across ranks on a GPU")
    rest = {name: x for name, x in options.items() if name not in ("causal", "window", "q_starts", "kv_starts")}
    return DeviceCut(group, rank, queries, keys, window, documents, rest)
