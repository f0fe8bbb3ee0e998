"""RoPE as PyTorch operations, for every device and with gradients; the frequencies are the library's."""

from typing import Any, Optional, Tuple

import torch

from .._positions import RopeParams, rope_frequencies
from .._typing import Integers


def _frequencies(head_dim: int, params: RopeParams) -> Tuple[torch.Tensor, float]:
    rotary = params.rotary_dim or head_dim
    frequencies = torch.empty(rotary // 2, dtype=torch.float64)
    result = rope_frequencies(head_dim, out=frequencies, **params._asdict())
    return frequencies, result.attention_factor


def rope(x: torch.Tensor, *, positions: Optional[Integers] = None, **params: Any) -> torch.Tensor:
    """rootdk.rope for tensors on any device, with a gradient: x [batch, heads, len, head_dim], positions [batch, len]
    or [len]. Rotates in f32, or in f64 where x is f64."""
    if x.dim() != 4:
        raise ValueError(f"rope: x has rank {x.dim()}, expected 4 (it is {x.dtype} {list(x.shape)})")
    values = RopeParams(**params)
    frequencies, factor = _frequencies(x.shape[-1], values)
    if positions is None:
        positions = torch.arange(x.shape[2], device=x.device) + values.offset
    elif not isinstance(positions, torch.Tensor):
        positions = torch.tensor(positions, device=x.device)
    if positions.dim() not in (1, 2) or positions.shape[-1] != x.shape[2]:
        raise ValueError(
            f"rope: positions is {list(positions.shape)}, which does not broadcast to {[x.shape[0], x.shape[2]]}"
        )
    # Angles in double: positions reach far beyond what f32 keeps apart.
    angles = positions.to(torch.float64).unsqueeze(-1) * frequencies.to(x.device)
    if angles.dim() == 3:
        angles = angles.unsqueeze(1)  # [batch, 1, len, rotary_dim / 2]: the same for every head
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    cos, sin = (angles.cos() * factor).to(wide), (angles.sin() * factor).to(wide)
    rotary = 2 * frequencies.shape[0]
    rotated, rest = x[..., :rotary].to(wide), x[..., rotary:]
    if values.layout == "interleaved":
        a, b = rotated[..., 0::2], rotated[..., 1::2]
        turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    else:
        a, b = rotated.chunk(2, dim=-1)
        turned = torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
    return torch.cat((turned.to(x.dtype), rest), dim=-1)
