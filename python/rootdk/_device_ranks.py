"""Attention over ranks whose tensors lie on GPUs: which rows see which keys, and autograd.

Keys and values are gathered, and the rows of a rank are ordinary calls over the keys that they see (_device_calls.py). So is the
backward pass, whose gradients of k and v go to the ranks that hold the keys and are added up there (_device_exchange.py)."""

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ._device_calls import Part, Window, attend_parts, backward_parts, calls_of
from ._device_exchange import SumPlan, add_up, gather, sum_over_ranks, sum_plan
from ._distributed_calls import Ranges, Shares

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


class DeviceCut(NamedTuple):
    """How a call is cut over the ranks of a group, and its options."""

    group: Any
    rank: int
    queries: Shares
    keys: Shares
    window: Window
    documents: List[Document]
    options: Dict[str, Any]  # that every part has

    def parts(self, rank: int) -> List[Part]:
        return query_parts(self.queries[rank], self.documents, self.window)

    def sum_plan(self, batch: int, device: torch.device) -> SumPlan:
        """How gradients of k and v come back."""
        calls = [calls_of(self.parts(rank), batch) for rank in range(len(self.queries))]
        keys = tuple(tuple(tuple(call.keys) for call in of_rank) for of_rank in calls)
        return sum_plan(keys, tuple(tuple(tuple(rows) for rows in held) for held in self.keys), self.rank, device)  # type: ignore


class DeviceAttention(torch.autograd.Function):
    """out and the statistics of rows; lse and entropy carry gradients, the others do not."""

    @staticmethod
    def forward(ctx: Any, cut: DeviceCut, names: Tuple[str, ...], q: Any, k: Any, v: Any, sinks: Any = None) -> Any:  # type: ignore[override]
        all_k, all_v = (gather(x, cut.keys, cut.group) for x in (k, v))
        options = cut.options if sinks is None else {**cut.options, "sinks": sinks}
        results = attend_parts(q, all_k, all_v, cut.parts(cut.rank), options, names)
        ctx.cut, ctx.names = cut, names
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(results[name] for name in names if name not in ("lse", "entropy")))
        ctx.save_for_backward(q, k, v, results["out"], results["lse"], results.get("entropy"), sinks)
        return tuple(results.values())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Any, *grads: Any) -> Any:
        cut = ctx.cut
        q, k, v, out, lse, entropy, sinks = ctx.saved_tensors
        given = dict(zip(ctx.names, grads))
        saved = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
        upstream = {"out": torch.zeros_like(out) if grad_out is None else grad_out.contiguous()}
        # Every rank asks for the same: a statistic without a gradient here may have one on another rank.
        upstream["lse"] = torch.zeros_like(lse) if given.get("lse") is None else given["lse"]
        if entropy is not None:
            saved["entropy"] = entropy
            upstream["entropy"] = torch.zeros_like(lse) if given["entropy"] is None else given["entropy"]
        options = cut.options if sinks is None else {**cut.options, "sinks": sinks}
        of_sinks = sinks is not None and ctx.needs_input_grad[5]  # the same on every rank: description()
        all_keys = {**saved, **{name: gather(saved[name], cut.keys, cut.group) for name in ("k", "v")}}
        found = backward_parts(all_keys, upstream, cut.parts(cut.rank), options, of_sinks)
        plan = cut.sum_plan(q.shape[0], q.device)
        grad_k, grad_v = (add_up(parts, plan, cut.group, like) for parts, like in ((found.k, k), (found.v, v)))
        grad_sinks = sum_over_ranks(found.sinks, cut.group) if found.sinks is not None else None
        return (None, None, found.q, grad_k, grad_v, grad_sinks)


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
    rest = {name: x for name, x in options.items() if name not in ("causal", "window", "q_starts", "kv_starts", "sinks")}
    return DeviceCut(group, rank, queries, keys, window, documents, rest)


def check_rows(cut: DeviceCut, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    for name, x, shares in (("q", q, cut.queries), ("k", k, cut.keys), ("v", v, cut.keys)):
        rows = sum(end - begin for begin, end in shares[cut.rank])
        if x.shape[2] != rows:
            raise ValueError(f"rootdk: {name} has {x.shape[2]} rows on rank {cut.rank}, whose share has {rows}")
        if x.device != q.device or x.dtype != q.dtype or x.shape[0] != q.shape[0]:
            raise ValueError(
                f"rootdk: {name} is {x.dtype} on {x.device} with batch {x.shape[0]}, but q {q.dtype} on {q.device} with batch {q.shape[0]}"
            )


def description(cut: DeviceCut, names: Tuple[str, ...], q: Any, k: Any, v: Any, sinks: Any) -> Dict[str, Any]:
    """What all ranks must ask for alike, by name."""
    needs = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    return {
        "dtype": q.dtype,
        "batch": q.shape[0],
        "heads": q.shape[1],
        "kv_heads": k.shape[1],
        "head_dim": q.shape[3],
        "value_dim": v.shape[3],
        "shares of the queries": cut.queries,
        "shares of the keys": cut.keys,
        "window": tuple(cut.window),
        "documents": [tuple(document) for document in cut.documents],
        **cut.options,
        "sinks": None if sinks is None else tuple(sinks.shape),
        "stats": names,
        "a gradient is needed": needs,
        "a gradient of sinks is needed": torch.is_grad_enabled() and sinks is not None and sinks.requires_grad,
    }
