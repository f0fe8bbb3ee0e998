"""The gradient of a plain call, one that nothing follows but autograd: a torch.autograd.Function over the call as it is,
which PyTorch runs much faster than the operator with its flat list of arguments."""

import struct
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from .. import _fast
from .._arrays import kind_of
from .._attention import run_backward, run_forward
from .._params import ATTENTION, DIFFERENTIABLE, TENSORS, Params
from .._stats import StatsRequest
from . import _batched
from ._kernels import WITH_GRADIENT, flatten
from ._once import differentiable_once


class Call(NamedTuple):
    """What a call is made of besides q, k and v."""

    params: Params
    request: StatsRequest
    target: Optional[str]
    threads: Optional[int]
    differentiable: Tuple[str, ...]  # the names of the tensors of params that are given to autograd
    outputs: List[str]  # the names of what forward gives, filled by it


class _Attention(torch.autograd.Function):
    """Takes the call, q, k, v and the differentiable tensors of its parameters; gives out, lse, entropy where it is
    asked for, and the other statistics, which carry no gradient."""

    @staticmethod
    def forward(ctx: Any, call: Call, q: Any, k: Any, v: Any, *tensors: Any) -> Any:  # type: ignore[override]
        out, arrays = run_forward(
            kind_of(q, "q"), q, k, v, call.params, None, call.request, call.target, call.threads
        )
        assert arrays is not None
        arrays.pop("weight_rows", None)
        lse, entropy = arrays.pop("lse"), arrays.pop("entropy", None)
        # All tensors are autograd's to keep: it notices where one was changed before the backward pass.
        kept = {**call.params.tensors, **dict(zip(call.differentiable, tensors))}
        ctx.names = tuple(kept)
        ctx.call = call._replace(params=call.params.with_tensors({}))
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*arrays.values())
        ctx.save_for_backward(q, k, v, out, lse, entropy, *kept.values())
        carrying = {"out": out, "lse": lse} if entropy is None else {"out": out, "lse": lse, "entropy": entropy}
        call.outputs[:] = (*carrying, *arrays)
        return (*carrying.values(), *arrays.values())

    @staticmethod
    def backward(ctx: Any, *grads: Optional[torch.Tensor]) -> Tuple[Optional[torch.Tensor], ...]:
        call: Call = ctx.call
        saved = ctx.saved_tensors
        params = call.params.with_tensors(dict(zip(ctx.names, saved[6:])))
        names = ("q", "k", "v", *call.differentiable)
        needed = tuple(name for name, needs in zip(names, ctx.needs_input_grad[1:]) if needs)
        gradients = _gradients(saved[:6], grads, params, needed, call.target, call.threads)
        return (None, *(gradients.get(name) for name in names))


def _batched_gradients(
    grads: Sequence[Optional[torch.Tensor]],
    saved: Sequence[Any],
    params: Params,
    needed: Tuple[str, ...],
    target: Optional[str],
    threads: Optional[int],
) -> Dict[str, Any]:
    """_gradients where those of out, lse and entropy are several at once."""
    flat = flatten(params, StatsRequest(), target, threads, saved[0])
    needs = [name in needed for name in WITH_GRADIENT]
    gradients = _batched.backward(_batched.flat_arguments(grads, saved, needs, flat, target))
    return {name: x for name, x in zip(WITH_GRADIENT, gradients) if name in needed}


def _gradients(
    saved: Sequence[Any],
    grads: Sequence[Optional[torch.Tensor]],
    params: Params,
    needed: Tuple[str, ...],
    target: Optional[str],
    threads: Optional[int],
) -> Dict[str, Any]:
    """By name. `saved` are q, k, v, out, lse and entropy, `grads` those of out, lse and entropy."""
    q, k, v, out, lse, entropy = saved
    grad_out = torch.zeros_like(out) if grads[0] is None else grads[0]
    upstream = {"out": grad_out, "lse": grads[1], "entropy": grads[2] if entropy is not None else None}
    if _batched.is_batched(grads):
        gradients = _batched_gradients(tuple(upstream.values()), saved, params, needed, target, threads)
    else:
        if grad_out.stride(-1) != 1:
            upstream["out"] = grad_out.contiguous()  # the gradient of a sum repeats one number
        by_name = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "entropy": entropy}
        gradients = run_backward(kind_of(q, "q"), by_name, upstream, params, needed, target, threads)
    if torch.is_grad_enabled():  # create_graph=True
        given = [gradients[name] for name in needed]
        sources = (*grads, q, k, v, *params.tensors.values())
        gradients = dict(zip(needed, differentiable_once(given, sources)))
    return gradients


def run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    params: Params,
    request: StatsRequest,
    target: Optional[str],
    threads: Optional[int],
) -> Dict[str, torch.Tensor]:
    """out and the statistics of the request by name; lse, which the gradient needs, among them."""
    names = request.names if "lse" in request.names else ("lse", *request.names)
    params.read_seed()
    differentiable = {
        name: x for name, x in params.tensors.items() if name in DIFFERENTIABLE and isinstance(x, torch.Tensor)
    }
    call = Call(params, request._replace(names=names), target, threads, tuple(differentiable), [])
    outputs = _Attention.apply(call, q, k, v, *differentiable.values())
    return dict(zip(call.outputs, outputs))


# --- the compiled binding ---------------------------------------------------------------------------------------------

# What follows the parameters in the numbers that the binding keeps: threads, and a bit for each of TENSORS.
_REST = struct.Struct("@iI")


def _general_backward(ctx: Any, grad_out: Optional[torch.Tensor]) -> Tuple[Any, ...]:
    """The gradients of a call that the binding ran forward, where it leaves them alone."""
    saved = ctx.saved_tensors
    threads, given = _REST.unpack_from(ctx.packed, ATTENTION.place.size)
    tensors = [name for i, name in enumerate(TENSORS) if given >> i & 1]
    params = Params.from_struct(ctx.packed, dict(zip(tensors, saved[5:])))
    names = ("q", "k", "v", *tensors)
    needed = tuple(name for name, needs in zip(names, ctx.needs_input_grad[1:]) if needs)
    gradients = _gradients((*saved[:5], None), (grad_out, None, None), params, needed, None, threads or None)
    return (None, *(gradients.get(name) for name in names))


def _once(gradients: Sequence[Any], grad_out: torch.Tensor, saved: Sequence[Any]) -> Tuple[Any, ...]:
    made = iter(differentiable_once([x for x in gradients if x is not None], (grad_out, *saved)))
    return tuple(None if x is None else next(made) for x in gradients)


_binding: Any = _fast.binding
if _binding is not None:

    class _CompiledAttention(torch.autograd.Function):
        """Takes the numbers of the call, q, k, v and the tensors among its options, and gives out."""

        forward = staticmethod(_binding.autograd_forward)
        backward = staticmethod(_binding.autograd_backward)

    # Without what PyTorch does around it for function transforms, of which there are none in a plain call.
    _base: Any = getattr(torch._C, "_FunctionBase", torch.autograd.Function)
    _apply = _base.__dict__["apply"].__get__(None, _CompiledAttention)
    _binding.learn_autograd({"apply": _apply, "backward": _general_backward, "once": _once})
