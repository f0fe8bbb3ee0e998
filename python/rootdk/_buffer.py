"""Memory that is neither NumPy's nor PyTorch's: objects with `__dlpack__` or the buffer protocol, in and out."""

import ctypes
from typing import Any, Dict, Optional, Tuple

from . import _structs


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),  # null: contiguous
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


DLPACK_CPU, DLPACK_CUDA, DLPACK_CUDA_HOST = 1, 2, 3
_CAPSULE_NAME = b"dltensor"
# (type code, bits) of DLPack for each dtype of ours: float 2, bfloat 4, int 0, bool 6.
_DLPACK_TYPES = {
    _structs.F32: (2, 32),
    _structs.BF16: (4, 16),
    _structs.F16: (2, 16),
    _structs.F64: (2, 64),
    _structs.I32: (0, 32),
    _structs.I64: (0, 64),
    _structs.BOOL: (6, 8),
    _structs.I8: (0, 8),
}
_FROM_DLPACK = {value: key for key, value in _DLPACK_TYPES.items()}
_FORMATS = {
    _structs.F32: "f",
    _structs.F64: "d",
    _structs.I32: "i",
    _structs.I64: "q",
    _structs.BOOL: "?",
    _structs.I8: "b",
}
_FROM_FORMAT = {value: key for key, value in _FORMATS.items()}
_FROM_FORMAT.update({"e": _structs.F16, "l": _structs.I64})


def contiguous_strides(shape: Tuple[int, ...]) -> Tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class Buffer:
    """A typed, strided view of CPU memory that speaks DLPack."""

    __slots__ = ("address", "code", "shape", "strides", "writable", "_owner")

    def __init__(
        self,
        address: int,
        code: int,
        shape: Tuple[int, ...],
        strides: Tuple[int, ...],
        owner: Any,
        writable: bool = True,
    ) -> None:
        self.address = address
        self.code = code
        self.shape = shape
        self.strides = strides  # in elements
        self.writable = writable
        self._owner = owner

    @classmethod
    def empty(cls, shape: Tuple[int, ...], code: int) -> "Buffer":
        """New zeroed memory, contiguous, aligned to 64 bytes."""
        count = 1
        for size in shape:
            count *= size
        memory = ctypes.create_string_buffer(max(1, count * _structs.DTYPE_SIZES[code]) + 63)
        address = (ctypes.addressof(memory) + 63) & ~63
        return cls(address, code, shape, contiguous_strides(shape), memory)

    def without_batch(self) -> "Buffer":
        """[1, ...] as [...], of the same memory."""
        return Buffer(self.address, self.code, self.shape[1:], self.strides[1:], self._owner, self.writable)

    @property
    def dtype(self) -> str:
        return _structs.DTYPE_NAMES[self.code]

    def __repr__(self) -> str:
        return f"rootdk.Buffer({self.dtype} {list(self.shape)})"

    def __reduce__(self) -> Tuple[Any, ...]:
        """Copies and pickles own their memory."""
        memory = self.memoryview() if 0 not in self.shape else b""
        return _filled, (self.shape, self.code, bytes(memory))

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (DLPACK_CPU, 0)

    def __dlpack__(self, stream: Any = None, **_: Any) -> Any:
        return _export(self)

    def memoryview(self) -> "memoryview[Any]":
        """The memory as a memoryview of the same shape; bf16 and f16 come as 16-bit patterns ('H')."""
        count = 1
        for size in self.shape:
            count *= size
        if self.strides != contiguous_strides(self.shape):
            raise ValueError(f"rootdk: a view with the strides {list(self.strides)} is not contiguous")
        size = _structs.DTYPE_SIZES[self.code]
        memory = (ctypes.c_char * (count * size)).from_address(self.address)
        memory._owner = self  # type: ignore[attr-defined]
        format: Any = _FORMATS.get(self.code, "H")
        return memoryview(memory).cast("B").cast(format, list(self.shape))


def _filled(shape: Tuple[int, ...], code: int, data: bytes) -> Buffer:
    buffer = Buffer.empty(shape, code)
    ctypes.memmove(buffer.address, data, len(data))
    return buffer


# --- from others --------------------------------------------------------------------------------------------------

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _aligned(address: int, code: int, name: str) -> int:
    size = _structs.DTYPE_SIZES[code]
    if address % size:
        raise ValueError(f"rootdk: {name} is not aligned to its {size}-byte elements")
    return address


def from_dlpack(x: Any, name: str) -> Buffer:
    """A view of an object with __dlpack__ on the CPU; the view holds the capsule, and so the memory."""
    try:
        capsule = x.__dlpack__()
    except BufferError as error:
        raise ValueError(f"rootdk: {name} does not hand out its memory: {error}") from None
    tensor = _DLManagedTensor.from_address(_capsule_pointer(capsule, _CAPSULE_NAME)).tensor
    code = _FROM_DLPACK.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if code is None:
        raise TypeError(
            f"rootdk: {name} has the DLPack type (code {tensor.code}, {tensor.bits} bits, {tensor.lanes} "
            "lanes), which is none of " + _structs.ARRAY_TYPES
        )
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else contiguous_strides(shape)
    return Buffer(_aligned((tensor.data or 0) + tensor.byte_offset, code, name), code, shape, strides, capsule)


class _PyBuffer(ctypes.Structure):
    """Py_buffer"""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


class _Pinned:
    """Holds the buffer of an object, as PyObject_GetBuffer gives it, until it dies."""

    def __init__(self, x: Any) -> None:
        self.view = _PyBuffer()
        strided = 0x10 | 0x08  # PyBUF_STRIDES
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(x), ctypes.byref(self.view), strided)

    def __del__(self) -> None:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(self.view))


def from_buffer(x: Any, name: str) -> Buffer:
    """A view of an object with the buffer protocol (memoryview, array.array)."""
    described: Any = memoryview(x)
    code = _FROM_FORMAT.get(described.format.lstrip("@=<"))
    # The size too: "l" has 8 bytes, "<l" has 4.
    if code is None or described.itemsize != _structs.DTYPE_SIZES[code]:
        raise TypeError(
            f"rootdk: {name} has the buffer format {described.format!r}, expected one of "
            + ", ".join(sorted(_FROM_FORMAT))
        )
    for stride in described.strides:
        if stride % described.itemsize:
            raise ValueError(
                f"rootdk: {name} has a stride of {stride} bytes, not whole {described.itemsize}-byte elements"
            )
    pinned = _Pinned(x)
    strides = tuple(stride // described.itemsize for stride in described.strides)
    address = _aligned(pinned.view.buf or 0, code, name)
    return Buffer(address, code, tuple(described.shape), strides, pinned, not described.readonly)


# --- to others ----------------------------------------------------------------------------------------------------

_exported: Dict[int, Tuple[Any, ...]] = {}  # what an exported tensor needs to stay alive, by its address


# Tensors that are held at exit are given back when Python has already taken this module apart. The two functions called
# then are never freed (_keep_forever), and find what they need in their defaults, since the globals are gone.


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete(address: Optional[int], exported: Dict[int, Any] = _exported) -> None:
    exported.pop(address, None)  # type: ignore[arg-type]


_capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is_valid.restype, _capsule_is_valid.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]
_dying_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)  # an address: a reference would revive the dying capsule
def _capsule_dies(
    capsule: int,
    is_valid: Any = _capsule_is_valid,
    pointer: Any = _dying_capsule_pointer,
    name: bytes = _CAPSULE_NAME,
    exported: Dict[int, Any] = _exported,
) -> None:
    if is_valid(capsule, name):  # no consumer took the tensor over
        exported.pop(pointer(capsule, name), None)


def _keep_forever(x: Any) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(x))


_keep_forever(_delete)
_keep_forever(_capsule_dies)


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def _export(buffer: Buffer) -> Any:
    rank = len(buffer.shape)
    shape, strides = (ctypes.c_int64 * rank)(*buffer.shape), (ctypes.c_int64 * rank)(*buffer.strides)
    code, bits = _DLPACK_TYPES[buffer.code]
    as_pointer = ctypes.POINTER(ctypes.c_int64)
    tensor = _DLTensor(
        buffer.address,
        DLPACK_CPU,
        0,
        rank,
        code,
        bits,
        1,
        ctypes.cast(shape, as_pointer),
        ctypes.cast(strides, as_pointer),
        0,
    )
    managed = _DLManagedTensor(tensor, None, ctypes.cast(_delete, ctypes.c_void_p))
    address = ctypes.addressof(managed)
    _exported[address] = (managed, shape, strides, buffer)
    return _new_capsule(address, _CAPSULE_NAME, ctypes.cast(_capsule_dies, ctypes.c_void_p))
