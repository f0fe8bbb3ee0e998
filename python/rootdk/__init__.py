"""rootdk: scaled dot-product attention, exact and fused, that tells what happened inside the softmax.

    >>> import numpy as np, rootdk
    >>> q = k = v = np.random.default_rng(0).standard_normal((1, 4, 128, 64), dtype=np.float32)
    >>> out = rootdk.attention(q, k, v, causal=True)
    >>> rootdk.attention(q, k, v, causal=True, stats=True, map_size=32).plot("heads.svg")

Takes NumPy arrays, PyTorch tensors (CPU and CUDA), objects with `__dlpack__`, and the buffer protocol, without copies,
and gives back the kind it was given. `rootdk.torch` has PyTorch operators with gradients, and
`rootdk.huggingface` switches a transformers model over.
"""

from ._abi import version as _version
from ._attention import Explanation, attention, attention_backward, dropout_keeps, explain, merge_states
from ._buffer import Buffer
from ._kv_cache import KvCache, KvSequence, KvUsage
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
from ._result import AttentionResult, HeadSummary

__version__: str = _version().decode()

__all__ = [
    "AttentionResult",
    "Buffer",
    "Explanation",
    "HeadSummary",
    "KvCache",
    "KvSequence",
    "KvUsage",
    "RopeParams",
    "add_learned_positions",
    "add_learned_positions_backward",
    "alibi_slopes",
    "attention",
    "attention_backward",
    "dropout_keeps",
    "explain",
    "merge_states",
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
