"""PyTorch's shapes, [..., len, dim] with any dimensions in front that broadcast, as [batch, heads, len, dim] and back."""

import math
from typing import NamedTuple, Tuple

import torch

from ._errors import ArgumentError

NAME = "scaled_dot_product_attention"


class Leading(NamedTuple):
    """The dimensions of the result before len."""

    batch: Tuple[int, ...]  # before heads
    rank: int  # of the result


def _heads(x: torch.Tensor) -> int:
    return int(x.shape[-3]) if x.dim() > 2 else 1


def _with_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[..., heads, len, dim], each head of x repeated: without a copy where x has one."""
    if x.dim() == 2:
        x = x.unsqueeze(0)
    if x.shape[-3] == heads:
        return x
    if x.shape[-3] == 1:
        return x.expand(*x.shape[:-3], heads, *x.shape[-2:])
    return x.repeat_interleave(heads // int(x.shape[-3]), -3)


def _shared_heads(q: int, k: int, v: int, enable_gqa: bool) -> Tuple[int, int]:
    """(heads, kv_heads) to which the head counts are brought. Without enable_gqa they broadcast."""
    if enable_gqa:
        if not k or not v or q % k or q % v:
            raise ArgumentError(f"{NAME}: query has {q} heads, not a multiple of key's {k} and value's {v}")
        return q, math.lcm(k, v)
    heads = q if q != 1 else k if k != 1 else v
    if any(count not in (1, heads) for count in (k, v)):
        raise ArgumentError(
            f"{NAME}: query has {q} heads and key {k} and value {v} (enable_gqa=True lets query heads share them)"
        )
    return heads, k if k == v else heads


def to_four_dimensions(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, enable_gqa: bool
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, Leading]:
    heads, kv_heads = _shared_heads(_heads(q), _heads(k), _heads(v), enable_gqa)
    rank = max(q.dim(), k.dim(), v.dim())
    q, k, v = _with_heads(q, heads), _with_heads(k, kv_heads), _with_heads(v, kv_heads)
    try:
        batch = tuple(torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3]))
    except RuntimeError:
        shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in (("query", q), ("key", k), ("value", v)))
        raise ArgumentError(f"{NAME}: the dimensions in front do not broadcast: {shapes}") from None
    return (*(_one_batch(x, batch) for x in (q, k, v)), Leading(batch, rank))  # type: ignore[return-value]


def _one_batch(x: torch.Tensor, batch: Tuple[int, ...]) -> torch.Tensor:
    """[*batch, ...] as [batch, ...]."""
    own = x.shape[-3:]
    if len(batch) == 1 and x.dim() == 4:
        return x.expand(*batch, *own)
    return x.expand(*batch, *own).reshape(math.prod(batch), *own)


def mask_dimensions(mask: torch.Tensor, leading: Leading) -> torch.Tensor:
    """A mask as something that broadcasts to [batch, heads, q_len, kv_len]."""
    if mask.dim() > leading.rank:
        raise ArgumentError(f"{NAME}: attn_mask {list(mask.shape)} has more dimensions than the result, {leading.rank}")
    if mask.dim() <= 3 or (mask.dim() == 4 and len(leading.batch) == 1):
        return mask
    return mask.expand(*leading.batch, *mask.shape[-3:]).reshape(-1, *mask.shape[-3:])


def from_four_dimensions(out: torch.Tensor, leading: Leading) -> torch.Tensor:
    if leading.rank == 2:
        return out[0, 0]
    return out[0] if leading.rank == 3 else out.reshape(*leading.batch, *out.shape[1:])
