"""Gradients of several grad_out at once: is_grads_batched=True of torch.autograd.grad, which vectorised Jacobians use, and
torch.vmap around torch.autograd.grad. PyTorch hands the backward pass tensors that have a hidden first dimension."""

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch

from . import _kernels, _vmap
from ._kernels import N_TENSORS

_innermost_transform = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: None)


class _Info(NamedTuple):
    batch_size: int


def _older_level() -> int:
    """How many calls of the vmap that is_grads_batched uses are under way: PyTorch's own before torch.vmap."""
    increment = getattr(torch._C, "_vmapmode_increment_nesting", None)
    if increment is None:
        return 0
    level: int = increment() - 1
    torch._C._vmapmode_decrement_nesting()
    return level


def _visible(x: Any, level: int) -> Tuple[Any, Optional[int]]:
    """(x with its hidden dimension in front, 0), or (x, None) where it has none at this level."""
    if not isinstance(x, torch.Tensor):
        return x, None
    whole = torch._remove_batch_dim(x, level, 0, 0)  # of size 0 where x has none
    return (whole, 0) if whole.shape[0] else (x, None)


def _at_level(level: int, arguments: Sequence[Any]) -> Tuple[torch.Tensor, ...]:
    if level == 0:
        with torch.no_grad():
            return _kernels.backward(*arguments)
    shown = [_visible(x, level) for x in arguments]
    sizes = [x.shape[0] for x, dim in shown if dim is not None]
    if not sizes:
        return _at_level(level - 1, arguments)
    outputs, _ = _vmap.backward(
        lambda *one: _at_level(level - 1, one), _Info(sizes[0]), [dim for _, dim in shown], [x for x, _ in shown]
    )
    return tuple(torch._add_batch_dim(x, 0, level) for x in outputs)


def is_batched(grads: Sequence[Any]) -> bool:
    """Whether a gradient that is handed down has a hidden dimension."""
    if _innermost_transform() is not None:
        return True
    level = _older_level()
    return any(_visible(x, i)[1] is not None for x in grads for i in range(1, level + 1))


def backward(arguments: Sequence[Any]) -> Sequence[torch.Tensor]:
    """_kernels.backward where a gradient is batched."""
    if _innermost_transform() is not None:
        from ._operator import backward_below

        result: List[torch.Tensor] = backward_below(*arguments)
        return result
    return _at_level(_older_level(), arguments)


def flat_arguments(
    grads: Sequence[Any], saved: Sequence[Any], needs: List[bool], flat: Sequence[Any], target: Optional[str]
) -> Sequence[Any]:
    """The arguments of _kernels.backward: `grads` of out, lse and entropy, `saved` q, k, v, out, lse and entropy, `flat` as
    _kernels.flatten gives it."""
    return (*grads, *saved, needs, *flat[: N_TENSORS + 2], target or "")
