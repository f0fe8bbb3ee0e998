"""The calls that compute the rows of a rank on a GPU.

Each run of rows is a call over the keys that it sees, without a copy of anything. Calls of several runs go to several streams, those with the
most keys first: the multiprocessors that one call leaves idle at its end work on the next. Short runs side by side are one call of packed
sequences, since a launch would take longer than they do."""

import contextlib
import functools
from typing import Any, ContextManager, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ._attention import attention as attend
from ._attention import attention_backward

SHORT_KEYS = 2048  # runs of so few keys are packed
FEW_ROWS = 16  # and so are these: a call of so few queries alone goes to the kernels of decoding, whose sums have another order
_WIDE = 192  # the widest head_dim whose gradients of packed sequences run at full speed
STREAMS = 4  # 1: calls one after another


class Window(NamedTuple):
    """Which keys a query sees: None is no limit."""

    left: Optional[int]
    right: Optional[int]  # 0: causal

    def options(self) -> Dict[str, Any]:
        if self.right == 0:
            return {"causal": True} if self.left is None else {"causal": True, "window": (self.left, None)}
        return {} if self == (None, None) else {"window": tuple(self)}


class Part(NamedTuple):
    """A run of queries and the keys that they see, as rows of the whole, and the window that makes their positions those of the whole."""

    q_begin: int
    q_end: int
    k_begin: int
    k_end: int
    window: Window

    @property
    def rows(self) -> int:
        return self.q_end - self.q_begin

    @property
    def keys(self) -> int:
        return self.k_end - self.k_begin

    @property
    def is_short(self) -> bool:
        return self.keys <= SHORT_KEYS or self.rows <= FEW_ROWS


class Call(NamedTuple):
    """One call: where its rows lie in what the rank holds, and its parts, whose rows follow one another."""

    begin: int
    parts: Tuple[Part, ...]

    @property
    def rows(self) -> slice:
        return slice(self.begin, self.begin + sum(part.rows for part in self.parts))

    @property
    def keys(self) -> List[Tuple[int, int]]:
        """The ranges of keys, one after another. Those that touch are one, so that nothing is copied."""
        ranges: List[Tuple[int, int]] = []
        for part in self.parts:
            if ranges and ranges[-1][1] == part.k_begin:
                ranges[-1] = (ranges[-1][0], part.k_end)
            else:
                ranges.append((part.k_begin, part.k_end))
        return ranges

    def options(self, device: torch.device, packed: bool = False) -> Dict[str, Any]:
        """packed: also where there is only one part."""
        window = self.parts[0].window.options()
        if len(self.parts) == 1 and self.parts[0].rows > FEW_ROWS and not packed:
            return window
        rows, keys = tuple(part.rows for part in self.parts), tuple(part.keys for part in self.parts)
        starts = {"q_starts": _starts(rows, device), "kv_starts": _starts(keys, device)}
        return {**starts, "max_q_len": max(rows), "max_kv_len": max(keys), **window}


def calls_of(parts: Sequence[Part], batch: int) -> List[Call]:
    """The calls that compute the parts, whose rows follow one another: those with the most keys first."""
    calls: List[Call] = []
    begin = 0
    for part in parts:
        last = calls[-1] if calls else None
        together = last and part.is_short and last.parts[-1].is_short and last.parts[0].window == part.window
        if last and together and batch == 1:  # packed sequences have no batch
            calls[-1] = Call(last.begin, (*last.parts, part))
        else:
            calls.append(Call(begin, (part,)))
        begin += part.rows
    return sorted(calls, key=lambda call: -max(part.keys for part in call.parts))


@functools.lru_cache(maxsize=1024)
def _starts(lengths: Tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Kept, since a copy to the device waits for it."""
    return torch.tensor([sum(lengths[:i]) for i in range(len(lengths) + 1)], dtype=torch.int32, device=device)


def rows_of(x: torch.Tensor, ranges: Sequence[Tuple[int, int]]) -> torch.Tensor:
    if len(ranges) == 1:
        return x[:, :, ranges[0][0] : ranges[0][1]]
    return torch.cat([x[:, :, begin:end] for begin, end in ranges], 2)


@functools.lru_cache(maxsize=64)
def _streams(device: torch.device, count: int) -> List[Any]:
    return [torch.cuda.Stream(device) for _ in range(count)]


class _Fork:
    """The streams of a few calls. They begin after the work of the current stream so far, which goes on when they have ended."""

    def __init__(self, device: torch.device, calls: int) -> None:
        count = min(calls, STREAMS) if device.type == "cuda" else 1
        self.streams: List[Any] = _streams(device, count) if count > 1 else []
        self.current = torch.cuda.current_stream(device) if self.streams else None

    def __enter__(self) -> "_Fork":
        for stream in self.streams:
            stream.wait_stream(self.current)
        return self

    def __exit__(self, *_: Any) -> None:
        for stream in self.streams:
            self.current.wait_stream(stream)  # type: ignore

    def of(self, call: int) -> ContextManager[Any]:
        return torch.cuda.stream(self.streams[call % len(self.streams)]) if self.streams else contextlib.nullcontext()

    def hand_over(self, *tensors: Any) -> None:
        """What a call allocated is used by the current stream from now on."""
        for x in tensors if self.streams else ():
            x.record_stream(self.current)


def attend_parts(q: Any, k: Any, v: Any, parts: Sequence[Part], options: Dict[str, Any], names: Tuple[str, ...]) -> Dict[str, Any]:
    """out and statistics of the parts, one after another. q has their rows one after another, k and v all."""
    out = q.new_empty((*q.shape[:3], v.shape[3]))
    calls = calls_of(parts, q.shape[0])
    found: Dict[int, Dict[str, Any]] = {}
    with _Fork(q.device, len(calls)) as fork:
        for number, call in enumerate(calls):
            with fork.of(number):
                keys, rows = call.keys, call.rows
                result = attend(
                    q[:, :, rows], rows_of(k, keys), rows_of(v, keys), out=out[:, :, rows], stats=names, **call.options(q.device), **options
                )
                found[call.begin] = {name: getattr(result, name) for name in names}
                fork.hand_over(*found[call.begin].values())
    in_order = [found[begin] for begin in sorted(found)] or [{name: q.new_empty(q.shape[:3], dtype=torch.float32) for name in names}]
    stats = {name: torch.cat([one[name] for one in in_order], 2) if len(in_order) > 1 else in_order[0][name] for name in names}
    return {"out": out, **stats}


class PartGradients(NamedTuple):
    q: torch.Tensor
    k: List[torch.Tensor]  # what each of calls_of() adds to the gradient of its keys
    v: List[torch.Tensor]
    sinks: Optional[torch.Tensor]  # f32


def backward_parts(
    saved: Dict[str, Any], upstream: Dict[str, Any], parts: Sequence[Part], options: Dict[str, Any], of_sinks: bool = False
) -> PartGradients:
    """The gradients of the parts: that of q one after another, and what they add to those of k, v and sinks."""
    q = saved["q"]
    names = ("q", "k", "v", "sinks") if of_sinks else ("q", "k", "v")
    calls = calls_of(parts, q.shape[0])
    # The order of sums of a packed sequence needs no block of its call to wait for the last one, so that a call begins while another ends.
    # The kernels of wide heads have another one.
    packed = len(calls) > 1 and q.shape[0] == 1 and max(q.shape[3], saved["v"].shape[3]) <= _WIDE
    of_q: Dict[int, torch.Tensor] = {}
    of_k: List[torch.Tensor] = []
    of_v: List[torch.Tensor] = []
    sinks: List[torch.Tensor] = []
    with _Fork(q.device, len(calls)) as fork:
        for number, call in enumerate(calls):
            with fork.of(number):
                tensors: Dict[str, Any] = {name: x[:, :, call.rows] for name, x in saved.items() if name not in ("k", "v")}
                own, out, lse = (tensors.pop(name) for name in ("q", "out", "lse"))
                k, v = (rows_of(saved[name], call.keys) for name in ("k", "v"))
                above: Dict[str, Any] = {"grad_" + name: x[:, :, call.rows] for name, x in upstream.items()}
                found = attention_backward(
                    above.pop("grad_out"), own, k, v, out, lse, gradients=names, **tensors, **above, **call.options(q.device, packed), **options
                )
                fork.hand_over(*found.values())
                of_q[call.begin] = found["q"]
                of_k.append(found["k"])
                of_v.append(found["v"])
                sinks += [found["sinks"]] if of_sinks else []
    in_order = [of_q[begin] for begin in sorted(of_q)]
    of_all = torch.cat(in_order, 2) if len(in_order) > 1 else in_order[0] if in_order else torch.zeros_like(q)
    total = torch.stack(sinks).sum(0) if sinks else torch.zeros_like(options["sinks"]) if of_sinks else None
    return PartGradients(of_all, of_k, of_v, total)
