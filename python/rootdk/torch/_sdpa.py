"""PyTorch's scaled_dot_product_attention, with its signature and its conventions."""

from typing import Any, Dict, Optional, Tuple

import torch
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .. import _attention, _fast
from .._arrays import kind_of
from .._params import Params
from . import _operator
from ._errors import ArgumentError, ArgumentTypeError
from ._nested import attention as nested_attention
from ._nested import is_nested
from ._operator import is_compiling
from ._shapes import NAME, Leading, from_four_dimensions, mask_dimensions, to_four_dimensions

_fast_attention: Any = _fast.binding and _fast.binding.scaled_dot_product_attention


def lower_for_autocast(*tensors: torch.Tensor) -> Tuple[torch.Tensor, ...]:
    """The tensors in the type that autocast wants for attention, or as they are where it is off."""
    lowered = _autocast_dtype(tensors[0].device.type)
    if lowered is None or tensors[0].dtype == torch.float64:
        return tensors
    return tuple(x.to(lowered) for x in tensors)


def _autocast_dtype(device: str) -> Optional[torch.dtype]:
    """The type to which autocast lowers attention, or None where autocast is off."""
    if device not in ("cpu", "cuda"):
        return None
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cuda":
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


def _contiguous_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _causal_bias(attn_mask: Any, query: torch.Tensor, key: torch.Tensor) -> str:
    """The corner of a torch.nn.attention.bias.CausalBias: "upper_left" or "lower_right"."""
    lengths, expected = (attn_mask.seq_len_q, attn_mask.seq_len_kv), (query.shape[-2], key.shape[-2])
    if lengths != expected:
        raise ArgumentError(f"{NAME}: attn_mask is a CausalBias of {lengths}, expected {expected}")
    return str(attn_mask.variant.name).lower()


def _is_causal_bias(x: Any) -> bool:
    return type(x).__name__ == "CausalBias" and hasattr(x, "variant")


def _require_tensors(**arguments: Any) -> None:
    for name, x in arguments.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{NAME}: {name} is a {type(x).__name__}, expected a tensor")
        if x.dim() < 2:
            raise ArgumentError(f"{NAME}: {name} has rank {x.dim()}, expected two dimensions or more")


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

    As there, is_causal is aligned to the top left: query i attends to the keys up to i, also where q_len and kv_len
    differ (rootdk.attention aligns to the bottom right); attn_mask may be a CausalBias, dimensions in front broadcast, and
    nested tensors of the jagged layout are served. A row with no key left gives zeros. The dropout seed is drawn from
    PyTorch's generator. k and v are not repeated for grouped queries, and the mask may have a gradient. What is refused
    raises an error that is a RuntimeError, as in PyTorch, and a ValueError or TypeError."""
    if _fast_attention is not None and not is_compiling():
        result = _fast_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if result is not NotImplemented:
            return result  # type: ignore[no-any-return]
    if has_torch_function_variadic(query, key, value, attn_mask) or is_nested(query, key, value):
        return _overridden(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    causal = "upper_left" if is_causal else None
    return _attend(query, key, value, attn_mask, dropout_p, causal, scale, enable_gqa)


def _overridden(
    query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, is_causal: bool, scale: Any, gqa: bool
) -> Any:
    """A call whose arguments have their own say: nested tensors, a CausalBias, subclasses of Tensor, torch.fx."""
    if is_nested(query, key, value):
        return nested_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, gqa)
    if not _is_causal_bias(attn_mask):
        arguments = (query, key, value, attn_mask)
        return handle_torch_function(
            scaled_dot_product_attention, arguments, *arguments, dropout_p, is_causal, scale, gqa
        )
    if is_causal:
        raise ArgumentError(f"{NAME}: attn_mask is a CausalBias together with is_causal=True")
    _require_tensors(query=query, key=key, value=value)
    corner = _causal_bias(attn_mask, query, key)
    if corner == "upper_left" or query.shape[-2] == key.shape[-2]:
        return scaled_dot_product_attention(query, key, value, None, dropout_p, True, scale, gqa)
    return _attend(query, key, value, None, dropout_p, corner, scale, gqa)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Optional[torch.Tensor],
    dropout_p: float,
    causal: Optional[str],
    scale: Optional[float],
    enable_gqa: bool,
) -> torch.Tensor:
    try:
        q, k, v = lower_for_autocast(query, key, value)
        q_shape, k_shape, v_shape = q.shape, k.shape, v.shape  # each read makes an object
        # Nearly every call is [batch, heads, len, dim] with the same batch and heads.
        plain = len(q_shape) == len(k_shape) == len(v_shape) == 4 and q_shape[:2] == k_shape[:2] == v_shape[:2]
    except AttributeError:
        _require_tensors(query=query, key=key, value=value)
        raise
    leading = None
    if not plain:
        _require_tensors(query=query, key=key, value=value)
        q, k, v, leading = to_four_dimensions(q, k, v, enable_gqa)
        q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    if not q.stride(-1) == k.stride(-1) == v.stride(-1) == 1:
        q, k, v = _contiguous_rows(q), _contiguous_rows(k), _contiguous_rows(v)
    options: Dict[str, Any] = {}
    if causal is not None:
        if attn_mask is not None:
            raise ArgumentError(f"{NAME}: attn_mask is given together with is_causal=True")
        q_len, kv_len = q_shape[2], k_shape[2]
        options["causal"] = True
        if causal == "upper_left" and q_len < kv_len:
            k, v = k[:, :, :q_len], v[:, :, :q_len]  # no query attends to a later key, and the corners meet
        elif causal == "upper_left" and q_len > kv_len:
            options = {"window": (None, q_len - kv_len)}  # key j <= i, counted from the bottom right
    if scale is not None:
        options["scale"] = scale
    if attn_mask is not None:
        _set_mask(options, attn_mask, q, leading)
    if dropout_p:
        options["dropout"], options["seed"] = dropout_p, torch.randint(2**62, ())
    if q_shape[3] == 0 or v_shape[3] == 0 or dropout_p == 1.0:
        out = _degenerate(q, k, v, options)
    elif is_compiling():
        out = _run(q, k, v, options)
    else:
        try:
            out = _run(q, k, v, options)
        except ValueError as error:
            if isinstance(error, RuntimeError):
                raise
            raise ArgumentError(*error.args) from error
    return out if leading is None else from_four_dimensions(out, leading)


def _set_mask(options: Dict[str, Any], mask: torch.Tensor, q: torch.Tensor, leading: Optional[Leading]) -> None:
    if not isinstance(mask, torch.Tensor):
        raise TypeError(f"{NAME}: attn_mask is a {type(mask).__name__}, expected a tensor or None")
    if leading is not None:
        mask = mask_dimensions(mask, leading)
    if mask.dtype == torch.bool:
        options["mask"] = mask
    elif not mask.dtype.is_floating_point:
        raise ArgumentTypeError(f"{NAME}: attn_mask is {mask.dtype}, expected bool or floats")
    else:
        fits = mask.dtype in (torch.float32, q.dtype) and q.dtype != torch.float64
        options["bias"] = mask if fits else mask.to(q.dtype)


def _run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Dict[str, Any]) -> torch.Tensor:
    params = Params(options)
    kind = kind_of(q, "query")
    if kind.needs_operator(q, k, v, params.tensors):
        out = _operator.run(q, k, v, params, None, None, None)
    else:
        out = _attention.run_forward(kind, q, k, v, params, None, None, None, None)[0]
    assert isinstance(out, torch.Tensor)
    return out


def _degenerate(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Dict[str, Any]) -> torch.Tensor:
    """What PyTorch allows and the library does not: no dimensions (all logits are 0, or there is no value), and dropout
    that leaves nothing."""
    value_dim = v.shape[3]
    if q.shape[3] == 0:
        q, k = torch.nn.functional.pad(q, (0, 1)), torch.nn.functional.pad(k, (0, 1))
        options["scale"] = 1.0
    if value_dim == 0:
        v = torch.nn.functional.pad(v, (0, 1))
    drops_all = options.get("dropout") == 1.0
    if drops_all:
        del options["dropout"], options["seed"]
    out = _run(q, k, v, options)[..., :value_dim]
    return torch.nn.functional.dropout(out, 1.0) if drops_all else out
