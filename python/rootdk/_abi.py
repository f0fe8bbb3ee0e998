"""The C ABI of the library (include/rootdk/c_api.h): its functions, and the memory in which one call passes its structs.

Structs (_structs.py) are written by `struct.Struct` packers made from their declaration: one call into C per struct
instead of one per field.
"""

import ctypes
import ctypes.util
import os
import struct
import weakref
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple, Type

from ._errors import error_of
from ._structs import (
    MAX_RANK,
    AttendParams,
    AttendStats,
    AttentionGradients,
    AttentionParams,
    AttentionSaved,
    AttentionStats,
    AttentionUpstream,
    Execution,
    KvCacheConfig,
    KvUsage,
    Quantized,
    RopeParams,
    Tensor,
)
from ._structs import double as _double
from ._structs import int32 as _int32
from ._structs import int64 as _int64
from ._structs import pointer as _pointer
from ._structs import size as _size

_CODES = {_int32: "i", _int64: "q", ctypes.c_uint64: "Q", _double: "d", _pointer: "P", _size: "N"}


def packer(structure: Type[ctypes.Structure]) -> struct.Struct:
    """Packs the fields of a ctypes structure in their order, with the compiler's own padding."""
    result = struct.Struct("@" + "".join(_CODES[kind] for _, kind in structure._fields_))  # type: ignore[misc]
    assert result.size == ctypes.sizeof(structure), structure.__name__
    return result


TENSOR_SIZE = ctypes.sizeof(Tensor)
# One packer a rank: (memory, offset, data, dtype, device_kind, device_index, rank, *shape, *strides).
PACK_TENSOR: Tuple[Callable[..., None], ...] = tuple(
    struct.Struct("@Piiii" + 2 * f"{rank}q{8 * (MAX_RANK - rank)}x").pack_into for rank in range(MAX_RANK + 1)
)
TENSOR_SLOTS = 48


class Place:
    """The offset of a struct in every arena, after the tensors, and how it is written there."""

    _end = TENSOR_SLOTS * TENSOR_SIZE
    __slots__ = ("offset", "size", "_pack_into", "_unpack_from")

    def __init__(self, structure: Type[ctypes.Structure]) -> None:
        pack = packer(structure)
        self.offset, self.size = Place._end, pack.size
        self._pack_into, self._unpack_from = pack.pack_into, pack.unpack_from
        Place._end += pack.size

    def write(self, arena: "Arena", *fields: Any) -> int:
        """Writes the fields after struct_size and returns the address of the struct."""
        self._pack_into(arena.memory, self.offset, self.size, *fields)
        return arena.base + self.offset

    def read(self, memory: bytes) -> Tuple[Any, ...]:
        """The fields after struct_size of a struct at the beginning of the memory."""
        return self._unpack_from(memory)[1:]


PARAMS, STATS, EXECUTION = Place(AttentionParams), Place(AttentionStats), Place(Execution)
SAVED, UPSTREAM, GRADIENTS_STRUCT = Place(AttentionSaved), Place(AttentionUpstream), Place(AttentionGradients)
ATTEND_PARAMS, ATTEND_STATS, KV_CONFIG = Place(AttendParams), Place(AttendStats), Place(KvCacheConfig)
QUANTIZED_STRUCT = Place(Quantized)


class Arena:
    """The memory of one call's structs, at a fixed address: descriptions of tensors, then the structs."""

    __slots__ = ("memory", "base")

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(Place._end)
        self.base = ctypes.addressof(self.memory)


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
    for candidate in (*here.glob("lib/librootdk.so*"), here.parents[1] / "build" / "src" / "librootdk.so"):
        if candidate.exists():
            return str(candidate)
    found = ctypes.util.find_library("rootdk")
    if found:
        return found
    raise ImportError("rootdk: librootdk.so is neither in the package nor installed; set ROOTDK_LIBRARY to its path")


path = library_path()
_library = ctypes.CDLL(path)


def typed_function(library: ctypes.CDLL, path: str, name: str, result: Any, arguments: List[Any]) -> Callable[..., Any]:
    try:
        function = getattr(library, "rootdk_" + name)
    except AttributeError:
        raise ImportError(f"rootdk: {path} has no function rootdk_{name}; it belongs to another version") from None
    function.restype = result
    function.argtypes = arguments
    return function  # type: ignore[no-any-return]


def _function(name: str, result: Any, arguments: List[Any]) -> Callable[..., Any]:
    return typed_function(_library, path, name, result, arguments)


def _status_function(name: str, *arguments: Any) -> Callable[..., int]:
    return _function(name, _int32, list(arguments))


version = _function("version", ctypes.c_char_p, [])
last_error = _function("last_error", ctypes.c_char_p, [])
# Struct arguments are addresses: ints into an arena, 0 for null.
attention = _status_function("attention", *[_pointer] * 7)
attention_backward = _status_function("attention_backward", *[_pointer] * 5)
attention_workspace = _status_function("attention_workspace_on", *[_pointer] * 8)
attention_backward_workspace = _status_function("attention_backward_workspace_on", *[_pointer] * 6)
quantize_for_attention = _status_function("quantize_for_attention", *[_pointer] * 6)
quantize_for_attention_workspace = _status_function("quantize_for_attention_workspace", *[_pointer] * 7)
explain = _function("explain", ctypes.c_char_p, [_pointer] * 7)
explain_backward = _function("explain_backward", ctypes.c_char_p, [_pointer] * 5)
struct_init = _status_function("struct_init", _pointer, _int32, _size)


def attention_params_init(params: Any) -> None:
    """The defaults of the whole struct: the function of this name knows the struct of version 0.1."""
    check(struct_init(params, 0, ctypes.sizeof(AttentionParams)))


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
kv_cache_config_init = _function("kv_cache_config_init", None, [ctypes.POINTER(KvCacheConfig)])
attend_params_init = _function("attend_params_init", None, [ctypes.POINTER(AttendParams)])
kv_cache_create = _status_function("kv_cache_create", _pointer, ctypes.POINTER(_pointer))
kv_cache_destroy = _function("kv_cache_destroy", None, [_pointer])
kv_usage_of = _status_function("kv_usage_of", _pointer, ctypes.POINTER(KvUsage))
kv_open = _status_function("kv_open", _pointer, ctypes.POINTER(_int64))
kv_fork = _status_function("kv_fork", _pointer, _int64, _int64, ctypes.POINTER(_int64))
kv_close = _status_function("kv_close", _pointer, _int64)
kv_length = _status_function("kv_length", _pointer, _int64, _int64, ctypes.POINTER(_int64))
kv_trim = _status_function("kv_trim", _pointer, _int64, _int64)
kv_evict = _status_function("kv_evict", _pointer, _int64, _int64, _int64)
kv_append = _status_function("kv_append", *[_pointer] * 4, _size, _int64, _pointer, _pointer)
kv_attend = _status_function("kv_attend", *[_pointer] * 4, _size, *[_pointer] * 3)
kv_attend_workspace = _status_function("kv_attend_workspace_on", *[_pointer] * 4, _size, *[_pointer] * 4)
kv_explain_attend = _function("kv_explain_attend", ctypes.c_char_p, [*[_pointer] * 4, _size, *[_pointer] * 3])

def check(status: int) -> None:
    """Raises what the library said, as the exception of its kind (_errors.py)."""
    if status:
        raise error_of(status, last_error().decode("utf-8", "replace"))


def own(handle: ctypes.c_void_p, destroy: Callable[[int], None], *needed: Any) -> ctypes.c_void_p:
    """The handle, which destroys what it names when it dies: not with its first holder, since copies of that share it,
    and not at exit, where other threads may still work with it. `needed` lives at least as long."""

    def end(address: Any, *_: Any) -> None:
        destroy(address)

    weakref.finalize(handle, end, handle.value, *needed).atexit = False
    return handle


_targets: Dict[str, Any] = {}


def target_address(name: str) -> int:
    """The address of a target's name as C text; it stays valid, since there are only a few names."""
    if not isinstance(name, str):
        raise TypeError(f"rootdk: target is {name!r}, expected the name of an implementation")
    text = _targets.get(name)
    if text is None:
        text = _targets.setdefault(name, ctypes.create_string_buffer(name.encode()))
    return ctypes.addressof(text)
