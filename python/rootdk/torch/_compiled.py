"""The operators of a compiled graph for plain calls: few arguments, one output or two, and bodies in the compiled binding. The
operator with every option and statistic (_operator.py) costs a call in a compiled function several times as much."""

from typing import Any, List, Optional, Sequence, Tuple

import torch

from .. import _fast
from .._arrays import kind_of
from .._attention import run_backward, run_forward
from .._params import ATTENTION, TENSORS, Params
from .._stats import StatsRequest

# Dynamo follows an autograd.Function with tensors that may be None from this version on.
_FIRST_VERSION = (2, 6)
_SERVED = ("mask", "bias")
_NUMBERS = ("scale_kind", "scale", "causal", "window_left", "window_right")
_PLACES = tuple(ATTENTION.index[name] for name in _NUMBERS)
_FIXED = tuple(i for name, i in ATTENTION.index.items() if name not in _NUMBERS and name not in TENSORS)
_BY_ROOT, _BY_VALUE = 0, 3  # kinds of scale
_LSE = StatsRequest(names=("lse",))

_OPTIONS = "Tensor? mask, Tensor? bias, bool causal, SymInt[] window, float? scale"
_SCHEMAS = {
    "attend": f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> Tensor",
    "attend_with_lse": f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)",
    "attend_backward": f"(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_OPTIONS}, bool[] needs)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
}


def _params(mask: Any, bias: Any, causal: bool, window: Sequence[int], scale: Optional[float]) -> Params:
    options = dict(mask=mask, bias=bias, causal=causal, scale=scale)
    params = Params({name: x for name, x in options.items() if x is not None})
    for name, side in zip(("window_left", "window_right"), window):
        params.values[ATTENTION.index[name]] = side
    return params


def _attend(q: Any, k: Any, v: Any, *options: Any) -> Any:
    return run_forward(kind_of(q, "q"), q, k, v, _params(*options), None, None, None, None)[0]


def _attend_with_lse(q: Any, k: Any, v: Any, *options: Any) -> Tuple[Any, Any]:
    out, arrays = run_forward(kind_of(q, "q"), q, k, v, _params(*options), None, _LSE, None, None)
    assert arrays is not None
    return out, arrays["lse"]


def _attend_backward(grad_out: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *rest: Any) -> Tuple[Any, ...]:
    *options, needs = rest
    if grad_out.stride(-1) != 1:
        grad_out = grad_out.contiguous()
    saved = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "entropy": None}
    upstream = {"out": grad_out, "lse": None, "entropy": None}
    names = tuple(name for name, needed in zip(("q", "k", "v", "bias"), needs) if needed)
    gradients = run_backward(kind_of(q, "q"), saved, upstream, _params(*options), names, None, None)
    return tuple(gradients[name] if name in gradients else q.new_empty(0) for name in ("q", "k", "v", "bias"))


def _fake_attend(q: Any, k: Any, v: Any, *_: Any) -> Any:
    return q.new_empty((*q.shape[:3], v.shape[3]))


def _fake_attend_with_lse(q: Any, k: Any, v: Any, *_: Any) -> Tuple[Any, Any]:
    small = torch.float64 if q.dtype == torch.float64 else torch.float32
    return _fake_attend(q, k, v), q.new_empty(q.shape[:3], dtype=small)


def _fake_attend_backward(
    grad_out: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, mask: Any, bias: Any, *rest: Any
) -> Tuple[Any, ...]:
    needs = rest[-1]
    return tuple(
        torch.empty(x.shape, dtype=x.dtype, device=x.device) if needed else q.new_empty(0)
        for x, needed in zip((q, k, v, bias), needs)
    )


def register(library: Any) -> None:
    bodies = {"attend": _attend, "attend_with_lse": _attend_with_lse, "attend_backward": _attend_backward}
    fakes = (_fake_attend, _fake_attend_with_lse, _fake_attend_backward)
    if _fast.binding is not None:
        _fast.binding.learn_operators(bodies)
        bodies = {name: getattr(_fast.binding, name) for name in bodies}
    for (name, schema), fake in zip(_SCHEMAS.items(), fakes):
        library.define(name + schema)
        for device in ("CPU", "CUDA"):
            library.impl(name, bodies[name], device)
        torch.library.register_fake("rootdk::" + name, fake, lib=library)


def _version() -> Tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


IS_SERVED = _version() >= _FIRST_VERSION


def serves(params: Params) -> bool:
    """Whether a call, without statistics, is one of these operators."""
    for name, x in params.tensors.items():
        if name not in _SERVED or not isinstance(x, torch.Tensor):
            return False
    if params.seed_tensor is not None or params.values[_PLACES[0]] not in (_BY_ROOT, _BY_VALUE):
        return False
    for i in _FIXED:
        if params.values[i] != ATTENTION.defaults[i]:
            return False
    return True


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, q: Any, k: Any, v: Any, mask: Any, bias: Any, causal: bool, left: int, right: int, scale: Any
    ) -> Any:
        out, lse = torch.ops.rootdk.attend_with_lse(q, k, v, mask, bias, causal, [left, right], scale)
        ctx.save_for_backward(q, k, v, out, lse, mask, bias)
        ctx.rest = (causal, [left, right], scale)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Any) -> Any:  # type: ignore[override]
        q, k, v, out, lse, mask, bias = ctx.saved_tensors
        needs = ctx.needs_input_grad
        wanted: List[bool] = [needs[0], needs[1], needs[2], needs[4]]
        gradients = torch.ops.rootdk.attend_backward(grad_out, q, k, v, out, lse, mask, bias, *ctx.rest, wanted)
        grad_q, grad_k, grad_v, grad_bias = (x if needed else None for x, needed in zip(gradients, wanted))
        return grad_q, grad_k, grad_v, None, grad_bias, None, None, None, None


def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, params: Params) -> torch.Tensor:
    """The call as dynamo follows it. The operators have no gradient of their own: its Python would run in every call."""
    kind, scale, causal, left, right = (params.values[i] for i in _PLACES)
    mask, bias = params.tensors.get("mask"), params.tensors.get("bias")
    factor = scale if kind == _BY_VALUE else None
    sources = [x for x in (q, k, v, bias) if x is not None]
    if torch.is_grad_enabled() and any(x.requires_grad for x in sources):
        return _Attend.apply(q, k, v, mask, bias, bool(causal), left, right, factor)  # type: ignore[no-any-return]
    return torch.ops.rootdk.attend(q, k, v, mask, bias, bool(causal), [left, right], factor)  # type: ignore
