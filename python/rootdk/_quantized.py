"""quantize_for_attention, and attention over what it gives: e4m3 numbers with scales (docs/fp8.md)."""

import struct
from typing import TYPE_CHECKING, Any, Dict, Mapping, NamedTuple, Optional, Tuple

from . import _abi, _structs
from ._abi import give_arena, take_arena
from ._arrays import Kind, kind_of, takes_any_array
from ._attention import run_c
from ._params import ATTENTION, AttentionOptions, Params, spells_out
from ._result import AttentionResult
from ._slots import K, OFFSETS, OUT, V, write_output, write_qkv, write_tensor
from ._stats import Stats, StatsRequest, write_stats

if TYPE_CHECKING:
    from typing_extensions import Unpack

BLOCK = 128  # rows of q, and keys, that share a scale
_DTYPE_OFFSET = _structs.Tensor.dtype.offset
_OUTPUT_TYPES = {"f32": _structs.F32, "bf16": _structs.BF16, "f16": _structs.F16}


def _write_numbers(arena: _abi.Arena, kind: Kind, offset: int, x: Any, name: str) -> int:
    """Describes an array of bytes as e4m3."""
    kind.pack(arena.memory, offset, x, name)
    struct.pack_into("@i", arena.memory, offset + _DTYPE_OFFSET, _structs.F8E4M3)
    return arena.base + offset


_DECIDE_NUMBERS = ("kv_lengths", "q_starts", "kv_starts", "softcap", "sinks", "rotate")


class Quantized(NamedTuple):
    """q, k and v as e4m3 numbers, in arrays of int8 that hold their bits, with the scales that belong to them.

    Row i of q is q[..., i, :] * q_scales[..., i // 128], keys likewise, and channel d of v is v[..., d] * v_scales[..., d].
    key_mean was taken off the keys before they were rounded, and q_shift is q . key_mean."""

    q: Any  # [batch, heads, q_len, head_dim]
    k: Any
    v: Any
    q_scales: Any  # [batch, heads, blocks of 128 rows]
    k_scales: Any
    v_scales: Any  # [batch or sequences, kv_heads, value_dim]
    q_shift: Any  # [batch, heads, q_len]
    key_mean: Any  # [batch or sequences, kv_heads, head_dim]
    options: Mapping[str, Any]  # of the call that made them

    @property
    def kind(self) -> Kind:
        return kind_of(self.q, "q")

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in (("q", self.q), ("k", self.k), ("v", self.v)))
        return f"Quantized({shapes}, options {dict(self.options)})"

    def attention(
        self,
        *,
        out: Any = None,
        dtype: Optional[str] = None,
        stats: Stats = False,
        target: Optional[str] = None,
        threads: Optional[int] = None,
        **options: Any,
    ) -> Any:
        """rootdk.attention over these numbers: of the type that `dtype` names ("f32", "bf16", "f16"; f32 unless given),
        or in the memory `out`. Options are those of quantize_for_attention and what is given here. No gradient."""
        kind = self.kind
        request = StatsRequest.make(stats, None, False, 1)
        for name in _DECIDE_NUMBERS:
            if options.get(name) is not None and options[name] is not self.options.get(name):
                raise ValueError(f"rootdk: {name} decides how numbers are made: give it to quantize_for_attention")
        kept = {name: value for name, value in self.options.items() if name not in ("compute", "rotate")}
        params = Params({**kept, **options})
        if dtype is not None and dtype not in _OUTPUT_TYPES:
            raise ValueError(f"rootdk: dtype is {dtype!r}, expected one of {', '.join(_OUTPUT_TYPES)}")
        given = out is not None
        if given and dtype is not None:
            raise ValueError(f"rootdk: dtype is {dtype!r}, but out is given, which has a type")
        arena = take_arena()
        try:
            base = arena.base
            _write_numbers(arena, kind, 0, self.q, "q")
            _write_numbers(arena, kind, K, self.k, "k")
            _write_numbers(arena, kind, V, self.v, "v")
            if not given:
                shape = (*self.q.shape[:3], self.v.shape[3])
                out = kind.empty(shape, _OUTPUT_TYPES[dtype or "f32"], self.q_shift)
            write_output(arena, kind, "out", out, "out")
            arrays = self._new_stats(request) if request is not None and not request.is_empty else None
            stats_at = write_stats(arena, kind, arrays, 1) if arrays else 0
            for name in ("q_scales", "k_scales", "v_scales", "q_shift"):
                index = ATTENTION.index[name]
                params.values[index] = write_tensor(arena, kind, name, getattr(self, name), name)
            arguments = (base, base + K, base + V, base + OUT, params.write(arena, kind, self.q_shift), stats_at)
            run_c(arena, kind, self.q, _abi.attention, _abi.attention_workspace, arguments, target, threads)
            if given:
                kind.wrote(out)
        finally:
            give_arena(arena)
        return out if arrays is None else AttentionResult(out, arrays)

    def _new_stats(self, request: StatsRequest) -> Dict[str, Any]:
        batch, heads, rows = self.q.shape[:3]
        lengths = {name: self.k.shape[2] if name == "column_mass" else rows for name in request.names}
        return {name: self.kind.empty((batch, heads, n), _structs.F32, self.q_shift) for name, n in lengths.items()}


def _blocks(rows: int, sequences: Optional[int]) -> int:
    return -(-rows // BLOCK) if sequences is None else rows // BLOCK + sequences


def _allocate(kind: Kind, q: Any, k: Any, v: Any, sequences: Optional[int]) -> Dict[str, Any]:
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        given = ", ".join(f"{name} {list(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v)))
        raise ValueError(f"quantize_for_attention: expected [batch, heads, len, dim], have {given}")
    batch = q.shape[0] if sequences is None else sequences
    numbers = {name: kind.empty(tuple(x.shape), _structs.I8, x) for name, x in (("q", q), ("k", k), ("v", v))}
    shapes: Dict[str, Tuple[int, ...]] = {
        "q_scales": (*q.shape[:2], _blocks(q.shape[2], sequences)),
        "k_scales": (*k.shape[:2], _blocks(k.shape[2], sequences)),
        "v_scales": (batch, k.shape[1], v.shape[3]),
        "q_shift": tuple(q.shape[:3]),
        "key_mean": (batch, k.shape[1], k.shape[3]),
    }
    return {**numbers, **{name: kind.empty(shape, _structs.F32, q) for name, shape in shapes.items()}}


@takes_any_array
@spells_out(ATTENTION)
def quantize_for_attention(
    q: Any, k: Any, v: Any, *, threads: Optional[int] = None, **options: "Unpack[AttentionOptions]"
) -> Quantized:
    """q, k and v as e4m3 numbers with scales, for calls of Quantized.attention: quantise once, attend often.

    q, k and v are f32, bf16 or f16, of the shapes of rootdk.attention. Of its options, kv_lengths, q_starts, kv_starts,
    softcap, sinks and rotate decide how numbers are made; all of them are kept for Quantized.attention."""
    kind = kind_of(q, "q")
    params = Params(options)
    starts = params.tensors.get("q_starts")
    sequences = None if starts is None else len(starts) - 1
    for name, x in (("q", q), ("k", k), ("v", v)):
        if kind.wants_gradient(x):
            raise ValueError(f"rootdk: {name} needs a gradient, which does not flow through numbers (detach, or attention(compute=))")
    arena = take_arena()
    try:
        base = arena.base
        write_qkv(arena, kind, q, k, v)
        arrays = _allocate(kind, q, k, v, sequences)
        params_at = params.write(arena, kind, q)
        fields = [_write_numbers(arena, kind, OFFSETS["to." + name], arrays[name], name) for name in ("q", "k", "v")]
        fields += [write_tensor(arena, kind, name, arrays[name], name) for name in _structs.QUANTIZED[3:]]
        arguments = (base, base + K, base + V, _abi.QUANTIZED_STRUCT.write(arena, *fields), params_at)
        workspace = _abi.quantize_for_attention_workspace
        run_c(arena, kind, q, _abi.quantize_for_attention, workspace, arguments, None, threads)
    finally:
        give_arena(arena)
    return Quantized(**arrays, options=dict(options))
