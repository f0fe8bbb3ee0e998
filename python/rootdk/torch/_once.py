"""Gradients that say so when they are differentiated again: attention has no second derivative here, and a gradient that
came back without its history would make a gradient penalty silently wrong."""

from typing import Any, Sequence, Tuple

import torch

MESSAGE = (
    "rootdk: the gradient of attention cannot be differentiated again (create_graph=True): there is no second derivative. "
    "torch.nn.attention.sdpa_kernel(SDPBackend.MATH) around PyTorch's own function gives one"
)


def refuse(ctx: Any, *grads: Any) -> Any:
    raise RuntimeError(MESSAGE)


class _Once(torch.autograd.Function):
    """Gives gradients back as they are, with a history that refuses to be followed."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> Tuple[torch.Tensor, ...]:  # type: ignore[override]
        return tuple(x.view_as(x) for x in tensors[:count])

    backward = staticmethod(refuse)


def differentiable_once(gradients: Sequence[torch.Tensor], sources: Sequence[Any]) -> Sequence[torch.Tensor]:
    """The gradients, attached to the tensors they depend on where a graph of the backward pass is made."""
    if not torch.is_grad_enabled() or not any(isinstance(x, torch.Tensor) and x.requires_grad for x in sources):
        return gradients
    result: Tuple[torch.Tensor, ...] = _Once.apply(len(gradients), *gradients, *sources)
    return result
