"""Gradients of several grad_out at once: is_grads_batched=True of torch.autograd.grad, which vectorised Jacobians use, and
torch.vmap around torch.autograd.grad. PyTorch hands the backward pass tensors that have a hidden first dimension."""

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch

from . import _kernels, _vmap
from ._kernels import N_TENSORS

_innermost_transform = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: None)


class _Info(NamedTuple):
    batch_size: int


_MOST_LEVELS = 64  # of PyTorch's older vmap


def _visible(x: Any, level: int) -> Tuple[Any, Optional[int]]:
    """(x with its hidden dimension in front, 0), or (x, None) where it has none at this level."""
    if not isinstance(x, torch.Tensor):
        return x, None
    whole = torch._remove_batch_dim(x, level, 0, 0)  # of size 0 where x has none
    return (whole, 0) if whole.shape[0] else (x, None)


def _has_memory(x: Any) -> bool:
    try:
        x.data_ptr()
    except RuntimeError:
        return False
    return True


def _levels(grads: Sequence[Any]) -> List[int]:
    """Of the vmap that is_grads_batched uses, PyTorch's own before torch.vmap. It numbers its calls by thread, and a backward
    pass on a GPU runs in another thread: so the tensors are asked."""
    hidden = [x for x in grads if isinstance(x, torch.Tensor) and not _has_memory(x)]
    levels = range(1, _MOST_LEVELS + 1) if hidden else ()
    return [level for level in levels if any(_visible(x, level)[1] is not None for x in hidden)]


def _at_levels(levels: Sequence[int], arguments: Sequence[Any]) -> Tuple[torch.Tensor, ...]:
    """The calls of the innermost level are one call, or a loop, of what the others see."""
    if not levels:
        with torch.no_grad():
            return _kernels.backward(*arguments)
    shown = [_visible(x, levels[-1]) for x in arguments]
    size = next(x.shape[0] for x, dim in shown if dim is not None)
    outputs, _ = _vmap.backward(
        lambda *one: _at_levels(levels[:-1], one), _Info(size), [dim for _, dim in shown], [x for x, _ in shown]
    )
    return tuple(torch._add_batch_dim(x, 0, levels[-1]) for x in outputs)


def is_batched(grads: Sequence[Any]) -> bool:
    """Whether a gradient that is handed down has a hidden dimension."""
    return _innermost_transform() is not None or bool(_levels(grads))


def backward(arguments: Sequence[Any]) -> Sequence[torch.Tensor]:
    """_kernels.backward where a gradient is batched: one of the first three arguments."""
    if _innermost_transform() is not None:
        from ._operator import backward_below

        result: List[torch.Tensor] = backward_below(*arguments)
        return result
    return _at_levels(_levels(arguments[:3]), arguments)


def flat_arguments(
    grads: Sequence[Any], saved: Sequence[Any], needs: List[bool], flat: Sequence[Any], target: Optional[str]
) -> Sequence[Any]:
    """The arguments of _kernels.backward: `grads` of out, lse and entropy, `saved` q, k, v, out, lse and entropy, `flat` as
    _kernels.flatten gives it."""
    return (*grads, *saved, needs, *flat[: N_TENSORS + 2], target or "")
