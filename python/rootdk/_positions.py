"""Positional encodings: those added to the input, those that rotate q and k, and those that enter the logits."""

import ctypes
from typing import Any, NamedTuple, Optional, Tuple, overload

from . import _abi, _structs
from ._arrays import Kind, kind_of, takes_any_array
from ._attention import call_with_tensors
from ._params import choice, whole
from ._typing import AnyArray, ArrayT, Integers, NumpyArray

_ROPE_LAYOUTS = {"half_split": 0, "interleaved": 1}
_ROPE_SCALINGS = {"none": 0, "linear": 1, "ntk": 2, "yarn": 3, "llama3": 4}
_SINUSOIDAL_LAYOUTS = {"interleaved": 0, "concatenated": 1}


class RopeParams(NamedTuple):
    """How RoPE rotates; rootdk/positions.h has the meaning of each field."""

    layout: str = "half_split"  # pairs (d, d + rotary_dim / 2); "interleaved": pairs (2 d, 2 d + 1)
    rotary_dim: int = 0  # leading dimensions that are rotated; 0: all
    base: float = 10000.0
    scaling: str = "none"  # "linear", "ntk", "yarn", "llama3"
    factor: float = 1.0
    original_max_position: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 0.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    offset: int = 0  # position of the first row where no positions are given

    def to_c(self) -> _structs.RopeParams:
        values = self._asdict()
        values["layout"] = choice(self.layout, _ROPE_LAYOUTS, "layout")
        values["scaling"] = choice(self.scaling, _ROPE_SCALINGS, "scaling")
        return _structs.RopeParams(struct_size=ctypes.sizeof(_structs.RopeParams), **values)


def _shape(x: Any) -> Tuple[int, ...]:
    return tuple(x.shape)


def _positions(kind: Kind, positions: Any, like: Any) -> Any:
    """[batch, len]; a list or one row applies to every batch entry."""
    if positions is None:
        return None
    if isinstance(positions, (list, tuple, range)):
        positions = kind.from_list(list(positions), _structs.I64, like)
    return positions


def run_rope(function: Any, x: Any, params: RopeParams, positions: Any, out: Any) -> Any:
    kind = kind_of(x, "x")
    c_params = params.to_c()
    positions = _positions(kind, positions, x)
    if out is None:
        out = kind.empty_like(x, "x")
    if not kind.writable(out):
        raise ValueError("rope: out is read-only")
    # A row of positions serves every batch: described with a first dimension of size 1.
    row = positions is not None and len(positions.shape) == 1

    def call(x_at: int, out_at: int, positions_at: int) -> int:
        return int(function(x_at, out_at, ctypes.addressof(c_params), positions_at))

    call_with_tensors(kind, call, ranks={"positions": 2} if row else {}, x=x, out=out, positions=positions)
    return out


@takes_any_array
def rope(
    x: ArrayT, *, positions: Optional[Integers] = None, out: Optional[ArrayT] = None, **params: Any
) -> ArrayT:
    """Rotary position embedding of x [batch, heads, len, head_dim]. `positions` holds integers [batch, len] or [len];
    not given: offset, offset + 1, ... The other arguments are the fields of RopeParams. `out` may be x itself."""
    kind = kind_of(x, "x")
    needs_operator = kind.needs_operator(x, x, x, None)
    if needs_operator or kind.is_cuda(x):
        from . import torch

        if needs_operator and out is not None:
            raise ValueError("rope: out is given, but a gradient is needed (use torch.no_grad())")
        tensor: Any = x
        rotated: Any = torch.rope(tensor, positions=positions, **params)
        into: Any = out
        return rotated if into is None else into.copy_(rotated)  # type: ignore[no-any-return]
    return run_rope(_abi.rope, x, RopeParams(**params), positions, out)


@takes_any_array
def rope_backward(
    grad_out: ArrayT, *, positions: Optional[Integers] = None, out: Optional[ArrayT] = None, **params: Any
) -> ArrayT:
    """The gradient of rope: the transposed rotation."""
    return run_rope(_abi.rope_backward, grad_out, RopeParams(**params), positions, out)


class Frequencies(NamedTuple):
    frequencies: AnyArray  # [rotary_dim / 2]
    attention_factor: float  # on cos and sin; 1 except for yarn


def rope_frequencies(head_dim: int, *, out: Optional[AnyArray] = None, **params: Any) -> Frequencies:
    """The angular frequency of each rotated pair, scaling applied, as f64 numbers in a NumPy array, or in `out`."""
    values = RopeParams(**params)
    c_params = values.to_c()
    factor = ctypes.c_double()
    out = _new((max(0, (values.rotary_dim or head_dim) // 2),), out)
    call_with_tensors(
        kind_of(out, "out"),
        lambda at: _abi.rope_frequencies(at, head_dim, ctypes.addressof(c_params), ctypes.byref(factor)),
        out=out,
    )
    return Frequencies(out, factor.value)


def _new(shape: Tuple[int, ...], out: Any, dtype: str = "float64") -> Any:
    """`out`, or a new NumPy array."""
    if out is not None:
        return out
    import numpy

    return numpy.empty(shape, dtype)


@overload
def sinusoidal_positions(
    length: int, dim: int, *, layout: str = "interleaved", base: float = 10000.0, offset: int = 0, out: None = None
) -> NumpyArray: ...


@overload
def sinusoidal_positions(
    length: int, dim: int, *, layout: str = "interleaved", base: float = 10000.0, offset: int = 0, out: ArrayT
) -> ArrayT: ...


def sinusoidal_positions(
    length: int, dim: int, *, layout: str = "interleaved", base: float = 10000.0, offset: int = 0, out: Any = None
) -> Any:
    """The encoding of "Attention is all you need" [length, dim]: a new f32 NumPy array, or `out`."""
    out = _new((length, dim), out, "float32")
    call_with_tensors(
        kind_of(out, "out"),
        _abi.sinusoidal_positions,
        choice(layout, _SINUSOIDAL_LAYOUTS, "layout"),
        float(base),
        int(offset),
        out=out,
    )
    return out


@takes_any_array
def add_learned_positions(
    x: ArrayT, table: ArrayT, *, positions: Optional[Integers] = None, offset: int = 0
) -> ArrayT:
    """x [batch, len, dim] += table[positions], in place; table is [max_len, dim], positions integers [batch, len]."""
    kind = kind_of(x, "x")
    if not kind.writable(x):
        raise ValueError("add_learned_positions: x is read-only")
    call_with_tensors(
        kind, _abi.add_learned_positions, int(offset), x=x, table=table, positions=_positions(kind, positions, x)
    )
    return x


@takes_any_array
def add_learned_positions_backward(
    grad_x: ArrayT, max_len: int, *, positions: Optional[Integers] = None, offset: int = 0
) -> ArrayT:
    """The gradient for the table [max_len, dim]."""
    kind = kind_of(grad_x, "grad_x")
    table = kind.empty((max_len, _shape(grad_x)[-1]), kind.code(grad_x, "grad_x"), grad_x)
    call_with_tensors(
        kind,
        _abi.add_learned_positions_backward,
        int(offset),
        grad_x=grad_x,
        grad_table=table,
        positions=_positions(kind, positions, grad_x),
    )
    return table


def t5_bucket(distance: int, *, bidirectional: bool = True, buckets: int = 32, max_distance: int = 128) -> int:
    """T5's bucket of the distance (query position - key position)."""
    bucket = ctypes.c_int64()
    numbers = (
        whole(distance, "distance"),
        bool(bidirectional),
        whole(buckets, "buckets"),
        whole(max_distance, "max_distance"),
    )
    _abi.check(_abi.t5_bucket(*numbers, ctypes.byref(bucket)))
    return bucket.value


@takes_any_array
def t5_relative_table(weights: ArrayT, *, bidirectional: bool = True, max_distance: int = 128) -> ArrayT:
    """T5's weights [buckets, heads] spread into a table [heads, 2 max_distance + 1]: the relative_table of attention,
    with relative_zero = max_distance."""
    kind = kind_of(weights, "weights")
    shape = _shape(weights)
    if len(shape) != 2:
        raise ValueError(f"t5_relative_table: weights has rank {len(shape)}, expected 2 [buckets, heads]")
    buckets, heads = shape
    table = kind.empty((heads, 2 * max_distance + 1), kind.code(weights, "weights"), weights)
    call_with_tensors(
        kind, _abi.t5_relative_table, int(bidirectional), buckets, max_distance, weights=weights, table=table
    )
    return table


@takes_any_array
def t5_relative_table_backward(
    grad_table: ArrayT, buckets: int, *, bidirectional: bool = True, max_distance: int = 128
) -> ArrayT:
    """The gradient for the weights [buckets, heads]."""
    kind = kind_of(grad_table, "grad_table")
    weights = kind.empty((buckets, _shape(grad_table)[0]), kind.code(grad_table, "grad_table"), grad_table)
    call_with_tensors(
        kind,
        _abi.t5_relative_table_backward,
        int(bidirectional),
        buckets,
        max_distance,
        grad_table=grad_table,
        grad_weights=weights,
    )
    return weights


@overload
def alibi_slopes(heads: int, *, out: None = None) -> NumpyArray: ...


@overload
def alibi_slopes(heads: int, *, out: ArrayT) -> ArrayT: ...


def alibi_slopes(heads: int, *, out: Any = None) -> Any:
    """The slopes of "Train short, test long" [heads]: a new f32 NumPy array, or `out`."""
    out = _new((heads,), out, "float32")
    call_with_tensors(kind_of(out, "out"), _abi.alibi_slopes, out=out)
    return out


@takes_any_array
def transformer_xl_bias(
    q: ArrayT, v_bias: ArrayT, r: ArrayT, kv_len: int, *, scale: float = 1.0, zero: int = 0
) -> ArrayT:
    """Transformer-XL's second term, ((q + v_bias) . r[distance]) scale, as a bias [batch, heads, q_len, kv_len] for
    attention; v_bias is [heads, head_dim], r [heads, distances, head_dim] with entry `zero` for distance 0."""
    kind = kind_of(q, "q")
    bias = kind.empty((*_shape(q)[:3], kv_len), kind.code(q, "q"), q)
    call_with_tensors(kind, _abi.transformer_xl_bias, float(scale), int(zero), q=q, v_bias=v_bias, r=r, bias=bias)
    return bias


@takes_any_array
def transformer_xl_bias_backward(
    grad_bias: ArrayT, q: ArrayT, v_bias: ArrayT, r: ArrayT, *, scale: float = 1.0, zero: int = 0
) -> Tuple[ArrayT, ArrayT, ArrayT]:
    """(grad_q, grad_v_bias, grad_r)."""
    kind = kind_of(q, "q")
    grad_q, grad_v, grad_r = (
        kind.empty_like(x, name) for x, name in ((q, "q"), (v_bias, "v_bias"), (r, "r"))
    )
    call_with_tensors(
        kind,
        _abi.transformer_xl_bias_backward,
        float(scale),
        int(zero),
        q=q,
        v_bias=v_bias,
        r=r,
        grad_bias=grad_bias,
        grad_q=grad_q,
        grad_v_bias=grad_v,
        grad_r=grad_r,
    )
    return grad_q, grad_v, grad_r
