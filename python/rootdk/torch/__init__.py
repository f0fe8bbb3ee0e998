"""rootdk for PyTorch: attention as an operator with gradients, and PyTorch's own function as a drop-in.

    import rootdk.torch
    out = rootdk.torch.scaled_dot_product_attention(q, k, v, is_causal=True)

From PyTorch 2.4 on the operators are registered with torch.library (torch.ops.rootdk.attention), so that torch.compile
keeps them in one graph; older versions get a torch.autograd.Function.
"""

from ._operator import attention
from ._rope import rope
from ._sdpa import scaled_dot_product_attention

__all__ = ["attention", "rope", "scaled_dot_product_attention"]
