"""The C ABI of the library (include/rootdk/c_api.h): structs, functions, and the memory one call passes them in.

Structs are declared once, as ctypes structures, and written by `struct.Struct` packers made from the declaration: one
call into C per struct instead of one per field.
"""

import ctypes
import ctypes.util
import os
import struct
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple, Type

F32, BF16, F16, F64, I32, I64, BOOL, I8 = range(8)
DTYPE_NAMES = ("f32", "bf16", "f16", "f64", "i32", "i64", "bool", "i8")
DTYPE_SIZES = (4, 2, 2, 8, 4, 8, 1, 1)
CPU, CUDA = 0, 1
SCORES = {"dot": 0, "cosine": 1, "additive": 2}
MAX_RANK = 6

_pointer = ctypes.c_void_p
_int32 = ctypes.c_int32
_int64 = ctypes.c_int64
_double = ctypes.c_double
_size = ctypes.c_size_t


class Tensor(ctypes.Structure):
    """rootdk_tensor"""

    _fields_ = [
        ("data", _pointer),
        ("dtype", _int32),
        ("device_kind", _int32),
        ("device_index", _int32),
        ("rank", _int32),
        ("shape", _int64 * MAX_RANK),
        ("strides", _int64 * MAX_RANK),
    ]


class AttentionParams(ctypes.Structure):
    """rootdk_attention_params"""

    _fields_ = [
        ("struct_size", _size),
        ("score", _int32),
        ("scale_kind", _int32),
        ("scale", _double),
        ("temperature", _double),
        ("softcap", _double),
        ("causal", _int32),
        ("window_left", _int64),
        ("window_right", _int64),
        ("kv_lengths", _pointer),
        ("mask", _pointer),
        ("block_mask", _pointer),
        ("block_q", _int64),
        ("block_kv", _int64),
        ("q_starts", _pointer),
        ("kv_starts", _pointer),
        ("max_q_len", _int64),
        ("max_kv_len", _int64),
        ("bias", _pointer),
        ("relative_table", _pointer),
        ("relative_zero", _int64),
        ("alibi_slopes", _pointer),
        ("sinks", _pointer),
        ("additive_v", _pointer),
        ("dropout", _double),
        ("seed", ctypes.c_uint64),
    ]


class AttentionStats(ctypes.Structure):
    """rootdk_attention_stats"""

    _fields_ = [
        ("struct_size", _size),
        ("lse", _pointer),
        ("max_logit", _pointer),
        ("max_weight", _pointer),
        ("entropy", _pointer),
        ("sum_p2", _pointer),
        ("column_mass", _pointer),
        ("pooled_map", _pointer),
        ("weights", _pointer),
        ("weight_rows", _pointer),
        ("stride", _int64),
    ]


class Execution(ctypes.Structure):
    """rootdk_execution"""

    _fields_ = [
        ("struct_size", _size),
        ("threads", _int32),
        ("parallel_for", _pointer),
        ("parallel_user", _pointer),
        ("parallel_threads", _int32),
        ("target", _pointer),
        ("workspace_limit", _size),
        ("stream", _pointer),
        ("workspace", _pointer),
        ("workspace_bytes", _size),
    ]


class AttentionSaved(ctypes.Structure):
    """rootdk_attention_saved"""

    _fields_ = [("struct_size", _size)] + [(name, _pointer) for name in ("q", "k", "v", "out", "lse", "entropy")]


class AttentionUpstream(ctypes.Structure):
    """rootdk_attention_upstream"""

    _fields_ = [("struct_size", _size)] + [(name, _pointer) for name in ("out", "lse", "entropy")]


GRADIENTS = ("q", "k", "v", "bias", "relative_table", "alibi_slopes", "sinks", "additive_v", "column_mass")


class AttentionGradients(ctypes.Structure):
    """rootdk_attention_gradients"""

    _fields_ = [("struct_size", _size)] + [(name, _pointer) for name in GRADIENTS]


class RopeParams(ctypes.Structure):
    """rootdk_rope_params"""

    _fields_ = [
        ("struct_size", _size),
        ("layout", _int32),
        ("rotary_dim", _int64),
        ("base", _double),
        ("scaling", _int32),
        ("factor", _double),
        ("original_max_position", _int64),
        ("beta_fast", _double),
        ("beta_slow", _double),
        ("truncate", _int32),
        ("attention_factor", _double),
        ("low_freq_factor", _double),
        ("high_freq_factor", _double),
        ("offset", _int64),
    ]


_CODES = {_int32: "i", _int64: "q", ctypes.c_uint64: "Q", _double: "d", _pointer: "P", _size: "N"}


def packer(structure: Type[ctypes.Structure]) -> struct.Struct:
    """Packs the fields of a ctypes structure in their order, with the compiler's own padding."""
    result = struct.Struct("@" + "".join(_CODES[kind] for _, kind in structure._fields_))  # type: ignore[misc]
    assert result.size == ctypes.sizeof(structure), structure.__name__
    return result


PARAMS, STATS, EXECUTION = packer(AttentionParams), packer(AttentionStats), packer(Execution)
SAVED, UPSTREAM, GRADIENTS_STRUCT = packer(AttentionSaved), packer(AttentionUpstream), packer(AttentionGradients)
TENSOR_SIZE = ctypes.sizeof(Tensor)
# One packer a rank: (memory, offset, data, dtype, device_kind, device_index, rank, *shape, *strides).
PACK_TENSOR: Tuple[Callable[..., None], ...] = tuple(
    struct.Struct("@Piiii" + 2 * f"{rank}q{8 * (MAX_RANK - rank)}x").pack_into for rank in range(MAX_RANK + 1)
)


class Arena:
    """The memory of one call's structs, at a fixed address: slots for tensors, then one place for each struct."""

    SLOTS = 40
    __slots__ = ("memory", "base", "params", "stats", "execution", "saved", "upstream", "gradients")

    def __init__(self) -> None:
        sizes = (PARAMS.size, STATS.size, EXECUTION.size, SAVED.size, UPSTREAM.size, GRADIENTS_STRUCT.size)
        self.memory = ctypes.create_string_buffer(self.SLOTS * TENSOR_SIZE + sum(sizes))
        self.base = ctypes.addressof(self.memory)
        offset = self.SLOTS * TENSOR_SIZE
        offsets = []
        for size in sizes:
            offsets.append(offset)
            offset += size
        self.params, self.stats, self.execution, self.saved, self.upstream, self.gradients = offsets


_arenas: List[Arena] = []


def take_arena() -> Arena:
    """An arena that no other call uses: calls run at the same time, since ctypes releases the interpreter lock."""
    try:
        return _arenas.pop()
    except IndexError:
        return Arena()


give_arena = _arenas.append


def library_path() -> str:
    """ROOTDK_LIBRARY, the copy in the wheel, the build of the source tree around this file, or the system's."""
    named = os.environ.get("ROOTDK_LIBRARY")
    if named:
        return named
    here = Path(__file__).resolve().parent
    for candidate in (here / "lib" / "librootdk.so", here.parents[1] / "build" / "src" / "librootdk.so"):
        if candidate.exists():
            return str(candidate)
    found = ctypes.util.find_library("rootdk")
    if found:
        return found
    raise ImportError("rootdk: librootdk.so is neither in the package nor installed; set ROOTDK_LIBRARY to its path")


_path = library_path()
_library = ctypes.CDLL(_path)


def _function(name: str, result: Any, arguments: List[Any]) -> Callable[..., Any]:
    try:
        function = getattr(_library, "rootdk_" + name)
    except AttributeError:
        raise ImportError(f"rootdk: {_path} has no function rootdk_{name}; it belongs to another version") from None
    function.restype = result
    function.argtypes = arguments
    return function  # type: ignore[no-any-return]


def _status_function(name: str, *arguments: Any) -> Callable[..., int]:
    return _function(name, _int32, list(arguments))


version = _function("version", ctypes.c_char_p, [])
last_error = _function("last_error", ctypes.c_char_p, [])
# Struct arguments are addresses: ints into an arena, 0 for null.
attention = _status_function("attention", *[_pointer] * 7)
attention_backward = _status_function("attention_backward", *[_pointer] * 5)
attention_workspace = _status_function("attention_workspace", *[_pointer] * 7)
attention_backward_workspace = _status_function("attention_backward_workspace", *[_pointer] * 5)
explain = _function("explain", ctypes.c_char_p, [_pointer] * 7)
explain_backward = _function("explain_backward", ctypes.c_char_p, [_pointer] * 5)
merge_states = _status_function("merge_states", *[_pointer] * 4)
dropout_keeps = _function("dropout_keeps", _int32, [_double, ctypes.c_uint64] + [ctypes.c_uint32] * 4)
rope_params_init = _function("rope_params_init", None, [ctypes.POINTER(RopeParams)])
rope = _status_function("rope", *[_pointer] * 4)
rope_backward = _status_function("rope_backward", *[_pointer] * 4)
rope_frequencies = _status_function("rope_frequencies", _pointer, _int64, _pointer, ctypes.POINTER(_double))
sinusoidal_positions = _status_function("sinusoidal_positions", _pointer, _int32, _double, _int64)
add_learned_positions = _status_function("add_learned_positions", *[_pointer] * 3, _int64)
add_learned_positions_backward = _status_function("add_learned_positions_backward", *[_pointer] * 3, _int64)
t5_bucket = _status_function("t5_bucket", _int64, _int32, _int64, _int64, ctypes.POINTER(_int64))
t5_relative_table = _status_function("t5_relative_table", _pointer, _pointer, _int32, _int64, _int64)
t5_relative_table_backward = _status_function("t5_relative_table_backward", _pointer, _pointer, _int32, _int64, _int64)
alibi_slopes = _status_function("alibi_slopes", _pointer)
transformer_xl_bias = _status_function("transformer_xl_bias", *[_pointer] * 4, _double, _int64)
transformer_xl_bias_backward = _status_function("transformer_xl_bias_backward", *[_pointer] * 7, _double, _int64)

_ERRORS: Dict[int, type] = {1: ValueError, 2: MemoryError, 3: RuntimeError}


def check(status: int) -> None:
    """Raises what the library said: ValueError for bad arguments, MemoryError, RuntimeError."""
    if status:
        raise _ERRORS.get(status, RuntimeError)(last_error().decode("utf-8", "replace"))


_targets: Dict[str, Any] = {}


def target_address(name: str) -> int:
    """The address of a target's name as C text; it stays valid, since there are only a few names."""
    text = _targets.get(name)
    if text is None:
        text = _targets.setdefault(name, ctypes.create_string_buffer(name.encode()))
    return ctypes.addressof(text)
