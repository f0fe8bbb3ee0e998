"""PyTorch's scaled_dot_product_attention, with its signature and its conventions."""

from typing import Any, Dict, Optional, Tuple

import torch

from .. import _attention
from .._arrays import kind_of
from .._params import Params
from . import _operator


def lower_for_autocast(*tensors: torch.Tensor) -> Tuple[torch.Tensor, ...]:
    """The tensors in the type that autocast wants for attention, or as they are where it is off."""
    lowered = _autocast_dtype(tensors[0].device.type)
    if lowered is None or tensors[0].dtype == torch.float64:
        return tensors
    return tuple(x.to(lowered) for x in tensors)


def _autocast_dtype(device: str) -> Optional[torch.dtype]:
    """The type to which autocast lowers attention, or None where autocast is off."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cuda":
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


def _contiguous_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _four_dimensions(x: torch.Tensor, leading: Tuple[int, ...]) -> torch.Tensor:
    """[..., len, dim] as [batch, heads, len, dim], where `leading` are the dimensions before heads."""
    while x.dim() < 3:
        x = x.unsqueeze(0)
    if x.dim() != 4 or tuple(x.shape[:-3]) != leading:
        x = x.expand(*leading, *x.shape[-3:]).reshape(-1, *x.shape[-3:])
    return x


def _mask_dimensions(mask: torch.Tensor, leading: Tuple[int, ...]) -> torch.Tensor:
    """A mask as something that broadcasts to [batch, heads, q_len, kv_len]."""
    if mask.dim() <= 3 or (mask.dim() == 4 and len(leading) == 1):
        return mask
    return mask.expand(*leading, *mask.shape[-3:]).reshape(-1, *mask.shape[-3:])


def _common_leading(*tensors: torch.Tensor) -> Tuple[int, ...]:
    """The dimensions before heads, broadcast."""
    return tuple(torch.broadcast_shapes(*(tuple(x.shape[:-3]) for x in tensors))) or (1,)


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Optional[torch.Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """A drop-in for torch.nn.functional.scaled_dot_product_attention.

    As there, is_causal is aligned to the top left: query i sees the keys up to i, also where q_len and kv_len differ
    (rootdk.attention aligns to the bottom right). A row with no key left gives zeros. The dropout seed is drawn from
    PyTorch's generator. k and v are not repeated for grouped queries, and the mask may have a gradient."""
    if not isinstance(query, torch.Tensor) or query.dim() < 2:
        raise TypeError(
            f"scaled_dot_product_attention: query is {query!r}, expected a tensor of two dimensions or more"
        )
    if is_causal and attn_mask is not None:
        raise ValueError("scaled_dot_product_attention: attn_mask is given together with is_causal=True")
    q, k, v = lower_for_autocast(query, key, value)
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape  # each read makes an object
    # Nearly every call is [batch, heads, len, dim] with the same batch.
    plain = len(q_shape) == len(k_shape) == len(v_shape) == 4 and q_shape[0] == k_shape[0] == v_shape[0]
    leading = (q_shape[0],) if plain else _common_leading(q, k, v)
    if not plain:
        q, k, v = (_four_dimensions(x, leading) for x in (q, k, v))
        q_shape, k_shape = q.shape, k.shape
    if not q.stride(-1) == k.stride(-1) == v.stride(-1) == 1:
        q, k, v = _contiguous_rows(q), _contiguous_rows(k), _contiguous_rows(v)
    _, heads, q_len, _ = q_shape
    _, kv_heads, kv_len, _ = k_shape
    if heads != kv_heads and not enable_gqa and kv_heads != 1:
        raise ValueError(
            f"scaled_dot_product_attention: query has {heads} heads and key {kv_heads} "
            "(enable_gqa=True lets query heads share them)"
        )
    options: Dict[str, Any] = {"causal": is_causal}
    if is_causal and q_len < kv_len:
        k, v = k[:, :, :q_len], v[:, :, :q_len]  # no query sees a later key, and the corners meet
    elif is_causal and q_len > kv_len:
        options = {"window": (None, q_len - kv_len)}  # key j <= i, counted from the bottom right
    if scale is not None:
        options["scale"] = scale
    if attn_mask is not None:
        attn_mask = _mask_dimensions(attn_mask, leading)
        if attn_mask.dtype == torch.bool:
            options["mask"] = attn_mask
        elif not attn_mask.dtype.is_floating_point:
            raise TypeError(f"scaled_dot_product_attention: attn_mask is {attn_mask.dtype}, expected bool or floats")
        else:
            fits = attn_mask.dtype in (torch.float32, q.dtype) and q.dtype != torch.float64
            options["bias"] = attn_mask if fits else attn_mask.to(q.dtype)
    if dropout_p:
        options["dropout"], options["seed"] = dropout_p, torch.randint(2**62, ())
    params = Params(options)
    kind = kind_of(q, "query")
    if kind.needs_operator(q, k, v, params.tensors):
        out = _operator.run(q, k, v, params, None, None, None)
    else:
        out = _attention.run_forward(kind, q, k, v, params, None, None, None, None)[0]
    assert isinstance(out, torch.Tensor)
    if plain:
        return out
    rank = query.dim()
    return out.reshape(*(leading if rank > 3 else ()), *out.shape[-min(rank, 3) :]) if rank >= 3 else out[0, 0]
