"""How many floating-point operations the operators take, for torch.utils.flop_counter: as PyTorch counts its own attention,
all keys for every query, whatever a mask leaves."""

from typing import Any

import torch


def _pairs(q: Any, k: Any) -> int:
    """batch x heads x q_len x kv_len."""
    return int(q[0] * q[1] * q[2] * k[2])


def forward(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return 2 * _pairs(q, k) * (q[3] + v[3])


def backward(grad_out: Any, grad_lse: Any, grad_entropy: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    """The logits again, then the gradients of weights and v, and of q and k."""
    return 2 * _pairs(q, k) * (3 * q[3] + 2 * v[3])


def register() -> None:
    """Where this PyTorch has a counter that can be told."""
    try:
        from torch.utils.flop_counter import register_flop_formula
    except ImportError:
        return
    register_flop_formula(torch.ops.rootdk.attention)(forward)
    register_flop_formula(torch.ops.rootdk.attention_backward)(backward)
    register_flop_formula([torch.ops.rootdk.attend, torch.ops.rootdk.attend_with_lse])(forward)
    register_flop_formula(torch.ops.rootdk.attend_backward)(lambda grad_out, *rest, **_: backward(grad_out, 0, 0, *rest))
