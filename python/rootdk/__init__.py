"""rootdk: scaled dot-product attention, exact and fused, with statistics of its softmax.

    >>> import numpy as np, rootdk
    >>> q = k = v = np.random.default_rng(0).standard_normal((1, 4, 128, 64), dtype=np.float32)
    >>> out = rootdk.attention(q, k, v, causal=True)
    >>> rootdk.attention(q, k, v, causal=True, stats=True, map_size=32).plot("heads.svg")

    >>> print(rootdk.load("builtin").generate("ROMEO:", max_new=40, temperature=0.8))
    >>> rootdk.inspect("builtin", "To be, or not to be")

Takes NumPy arrays, PyTorch tensors (CPU and CUDA), objects with `__dlpack__`, and the buffer protocol, without copies,
and gives back the kind it was given. `rootdk.torch` has PyTorch operators with gradients, and
`rootdk.huggingface` switches a transformers model over.
"""

import importlib as _importlib
import types as _types

from ._abi import version as _version
from ._attention import Explanation, attention, attention_backward, dropout_keeps, explain, merge_states
from ._buffer import Buffer
from ._errors import DeviceError, FileError, UnsupportedError
from ._generation import Beam, Generation, Token
from ._inspection import HeadProfile, Inspection, LabelScore, inspect
from ._kv_cache import KvCache, KvSequence, KvUsage
from ._models import Model, load
from ._positions import (
    RopeParams,
    add_learned_positions,
    add_learned_positions_backward,
    alibi_slopes,
    rope,
    rope_backward,
    rope_frequencies,
    sinusoidal_positions,
    t5_bucket,
    t5_relative_table,
    t5_relative_table_backward,
    transformer_xl_bias,
    transformer_xl_bias_backward,
)
from ._quantized import Quantized, quantize_for_attention
from ._result import AttentionResult, HeadSummary

__version__: str = _version().decode()



def __getattr__(name: str) -> "_types.ModuleType":
    """rootdk.torch, rootdk.huggingface and rootdk.distributed need no import; their dependencies are imported on first use."""
    if name in ("torch", "huggingface", "distributed"):
        return _importlib.import_module("." + name, __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AttentionResult",
    "Beam",
    "Buffer",
    "DeviceError",
    "Explanation",
    "FileError",
    "Generation",
    "HeadProfile",
    "HeadSummary",
    "Inspection",
    "KvCache",
    "KvSequence",
    "KvUsage",
    "LabelScore",
    "Model",
    "Quantized",
    "RopeParams",
    "Token",
    "UnsupportedError",
    "add_learned_positions",
    "add_learned_positions_backward",
    "alibi_slopes",
    "attention",
    "attention_backward",
    "dropout_keeps",
    "explain",
    "inspect",
    "load",
    "merge_states",
    "quantize_for_attention",
    "rope",
    "rope_backward",
    "rope_frequencies",
    "sinusoidal_positions",
    "t5_bucket",
    "t5_relative_table",
    "t5_relative_table_backward",
    "transformer_xl_bias",
    "transformer_xl_bias_backward",
]
