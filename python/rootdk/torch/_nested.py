"""Nested tensors of the jagged layout: their memory is what packed sequences are, one after another."""

from typing import Any, Optional

import torch

from ._errors import ArgumentError, ArgumentTypeError
from ._shapes import NAME


def is_nested(*tensors: Any) -> bool:
    return any(isinstance(x, torch.Tensor) and x.is_nested for x in tensors)


def _require_jagged(x: Any, name: str) -> None:
    if not getattr(x, "is_nested", False):
        raise ArgumentTypeError(f"{NAME}: {name} is no nested tensor, but query, key or value is")
    if x.layout != torch.jagged:
        raise ArgumentTypeError(f"{NAME}: {name} is a nested tensor of layout {x.layout}, expected torch.jagged")
    if x.dim() != 4 or x._ragged_idx not in (1, 2):
        raise ArgumentError(f"{NAME}: {name} is a nested tensor of rank {x.dim()}, expected [batch, heads, len, dim]")
    if x.lengths() is not None:
        raise ArgumentError(f"{NAME}: {name} is a nested tensor with holes between its sequences; use contiguous()")


def _packed(x: Any) -> torch.Tensor:
    """[1, heads, total, dim] of [batch, heads, len, dim] with its ragged len at 2."""
    values: torch.Tensor = x.values()  # [heads, total, dim] where the ragged dimension is 2
    if x._ragged_idx != 2:
        raise ArgumentError(f"{NAME}: a nested tensor is [batch, len, heads, dim]; transpose(1, 2) it")
    return values.unsqueeze(0)


def attention(
    query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, is_causal: bool, scale: Optional[float], gqa: bool
) -> Any:
    from .. import _attention

    for x, name in ((query, "query"), (key, "key"), (value, "value")):
        _require_jagged(x, name)
    if attn_mask is not None:
        raise ArgumentError(f"{NAME}: attn_mask is given together with nested tensors")
    q_starts, kv_starts = query.offsets(), key.offsets()
    if value.offsets() is not kv_starts and not torch.equal(value.offsets(), kv_starts):
        raise ArgumentError(f"{NAME}: key and value are nested tensors of different lengths")
    if is_causal and q_starts is not kv_starts and not torch.equal(q_starts, kv_starts):
        raise ArgumentError(f"{NAME}: is_causal with nested tensors needs query and key of the same lengths")
    q, k, v = _packed(query), _packed(key), _packed(value)
    if q.shape[1] != k.shape[1] and not gqa:
        raise ArgumentError(f"{NAME}: query has {q.shape[1]} heads and key {k.shape[1]} (enable_gqa=True shares them)")
    options: Any = {"dropout": dropout_p, "seed": torch.randint(2**62, ())} if dropout_p else {}
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    out = _attention.attention(
        q, k, v, causal=is_causal, scale=scale, q_starts=q_starts, kv_starts=kv_starts, **options
    )
    # The same offsets: PyTorch knows lengths that vary by them.
    values = out[0].transpose(0, 1)  # [total, heads, dim]
    return torch.nested.nested_tensor_from_jagged(values, q_starts).transpose(1, 2)
