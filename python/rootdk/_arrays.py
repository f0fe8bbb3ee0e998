"""The kinds of arrays that calls take and give back: NumPy's, PyTorch's, and `Buffer` for everything else.

A kind writes the description of an array into an arena without copying, and makes new arrays of its own. Objects of no
kind (DLPack, the buffer protocol) are viewed as one on the way in, and results are handed back as what was given.
"""

import functools
import inspect
import sys
from typing import Any, Callable, Dict, Optional, Sequence, Tuple, TypeVar

from . import _buffer, _fast, _structs
from ._abi import PACK_TENSOR
from ._buffer import Buffer
from ._structs import ARRAY_TYPES, DTYPE_SIZES

Shape = Tuple[int, ...]
_INT32_RANGE = (-(2**31), 2**31 - 1)  # what is outside stays an end of it, and so too large for the library


def _padded(shape: Shape, strides: Shape, rank: int) -> Tuple[Shape, Shape]:
    """Dimensions of size 1 in front, up to the rank: [q_len, kv_len] is a mask for every batch and head."""
    missing = rank - len(shape)
    return ((1,) * missing + shape, (0,) * missing + strides) if missing > 0 else (shape, strides)


class Kind:
    """What the rest of the package asks of a kind of array. `code` is a dtype of the C ABI."""

    name = ""

    def pack(self, memory: Any, offset: int, x: Any, name: str, rank: int = 0) -> None:
        """Describes x at the offset of the memory, with at least `rank` dimensions."""
        raise NotImplementedError

    def owns(self, x: Any) -> bool:
        raise NotImplementedError

    def code(self, x: Any, name: str) -> int:
        raise NotImplementedError

    def empty(self, shape: Shape, code: int, like: Any) -> Any:
        """New memory on the device of `like`."""
        raise NotImplementedError

    def empty_like(self, x: Any, name: str) -> Any:
        """New contiguous memory of x's shape and type."""
        return self.empty(tuple(x.shape), self.code(x, name), x)

    def from_list(self, values: Sequence[Any], code: int, like: Any) -> Any:
        raise NotImplementedError

    def to_int32(self, x: Any) -> Any:
        """The same integers as i32, copied only where they are i64."""
        raise NotImplementedError

    def writable(self, x: Any) -> bool:
        return True

    def is_cuda(self, x: Any) -> bool:
        return False

    def needs_operator(self, q: Any, k: Any, v: Any, tensors: Optional[Dict[str, Any]]) -> bool:
        """Whether the call must be one that its framework sees: for a gradient, or while compiling."""
        return False

    def wants_gradient(self, x: Any) -> bool:
        return False

    def wrote(self, x: Any) -> None:
        """Tells the framework of x that the library has written to its memory."""


def small_code(code: int) -> int:
    """The type of statistics and small float tensors beside a data type: f32, or f64 beside f64."""
    return _structs.F64 if code == _structs.F64 else _structs.F32


def _bad_rank(name: str, rank: int) -> ValueError:
    return ValueError(f"rootdk: {name} has rank {rank}, expected 1 to {_structs.MAX_RANK}")


class NumpyKind(Kind):
    name = "a NumPy array"

    def __init__(self, numpy: Any) -> None:
        self.numpy = numpy
        types = {
            "float32": _structs.F32,
            "float16": _structs.F16,
            "float64": _structs.F64,
            "int32": _structs.I32,
            "int64": _structs.I64,
            "bool": _structs.BOOL,
            "int8": _structs.I8,
        }
        self._codes: Dict[Any, int] = {numpy.dtype(name): code for name, code in types.items()}
        _fast.learn_numpy(numpy)
        self._types = {code: dtype for dtype, code in self._codes.items()}

    def owns(self, x: Any) -> bool:
        return isinstance(x, self.numpy.ndarray) and not isinstance(x, self.numpy.ma.MaskedArray)

    def code(self, x: Any, name: str) -> int:
        code = self._codes.get(x.dtype)
        if code is not None:
            return code
        if x.dtype.name == "bfloat16" and x.dtype.itemsize == 2:  # ml_dtypes and those who speak like it
            self._types.setdefault(_structs.BF16, x.dtype)
            return self._codes.setdefault(x.dtype, _structs.BF16)
        raise TypeError(f"rootdk: {name} has the type {x.dtype}, which is none of {ARRAY_TYPES}")

    def pack(self, memory: Any, offset: int, x: Any, name: str, rank: int = 0) -> None:
        code = self._codes.get(x.dtype)
        if code is None:
            code = self.code(x, name)
        size = DTYPE_SIZES[code]
        address = x.__array_interface__["data"][0]
        shape, strides = x.shape, []
        for stride in x.strides:
            if stride % size:
                raise ValueError(f"rootdk: {name} has a stride of {stride} bytes, not whole {size}-byte elements")
            strides.append(stride // size)
        if address % size:
            raise ValueError(f"rootdk: {name} is not aligned to its {size}-byte elements")
        if rank > len(shape):
            shape, strides = _padded(shape, tuple(strides), rank)  # type: ignore[assignment]
        count = len(shape)
        if not 0 < count <= _structs.MAX_RANK:
            raise _bad_rank(name, count)
        PACK_TENSOR[count](memory, offset, address, code, 0, 0, count, *shape, *strides)

    def empty(self, shape: Shape, code: int, like: Any) -> Any:
        if code not in self._types:
            name = _structs.DTYPE_NAMES[code]
            raise TypeError(
                f"rootdk: NumPy has no type {name}, and no array of the type of another package (ml_dtypes) has been seen; "
                f"give out=, an array of the type {name}"
            )
        return self.numpy.empty(shape, self._types[code])

    def from_list(self, values: Sequence[Any], code: int, like: Any) -> Any:
        return self.numpy.asarray(values, self._types[code])

    def to_int32(self, x: Any) -> Any:
        if x.dtype != self.numpy.int64:
            return x
        return self.numpy.asarray(x.clip(*_INT32_RANGE), self.numpy.int32)

    def writable(self, x: Any) -> bool:
        return bool(x.flags.writeable)


def _change_nothing(x: Any) -> None:
    """A change in place of no elements, which PyTorch counts: for versions without increment_version."""
    x.detach()[:0].zero_()


class TorchKind(Kind):
    name = "a PyTorch tensor"

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self._codes = {
            torch.float32: _structs.F32,
            torch.bfloat16: _structs.BF16,
            torch.float16: _structs.F16,
            torch.float64: _structs.F64,
            torch.int32: _structs.I32,
            torch.int64: _structs.I64,
            torch.bool: _structs.BOOL,
            torch.int8: _structs.I8,
        }
        self._types = {code: dtype for dtype, code in self._codes.items()}
        self._increment = getattr(torch.autograd.graph, "increment_version", _change_nothing)
        _fast.learn_torch(torch, {_structs.DTYPE_NAMES[code]: dtype for dtype, code in self._codes.items()}, self.wrote)
        self.plain = (torch.Tensor, torch.nn.Parameter)
        # Private to PyTorch: where a version has no such name, nothing is noticed.
        self._forward_ad = torch.autograd.forward_ad
        self._tracing_state = getattr(torch._C, "_get_tracing_state", lambda: None)
        global is_compiling
        compiler = getattr(torch, "compiler", None)
        is_compiling = getattr(compiler, "is_compiling", _never)
        self._is_compiling = is_compiling
        self._dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
        functorch = getattr(torch._C, "_functorch", None)
        self._transform: Callable[[], Any] = getattr(functorch, "peek_interpreter_stack", lambda: None)

    def owns(self, x: Any) -> bool:
        return isinstance(x, self.torch.Tensor)

    def code(self, x: Any, name: str) -> int:
        code = self._codes.get(x.dtype)
        if code is None:
            raise TypeError(f"rootdk: {name} has the type {x.dtype}, which is none of {ARRAY_TYPES}")
        return code

    def pack(self, memory: Any, offset: int, x: Any, name: str, rank: int = 0) -> None:
        code = self._codes.get(x.dtype)
        if code is None:
            code = self.code(x, name)
        kind = index = 0
        if not x.is_cpu:
            if not x.is_cuda:
                raise TypeError(f"rootdk: {name} lies on {x.device}, neither on the CPU nor on CUDA")
            kind, index = _structs.CUDA, x.get_device()
        if x.is_neg():
            raise ValueError(f"rootdk: {name} is a view that PyTorch negates when it reads it: use {name}.resolve_neg()")
        try:
            address, shape, strides = x.data_ptr(), x.shape, x.stride()
        except RuntimeError:
            if x.layout is self.torch.strided:
                raise
            raise TypeError(f"rootdk: {name} has the layout {x.layout}, expected {self.torch.strided}") from None
        if rank > len(shape):
            shape, strides = _padded(tuple(shape), strides, rank)
        count = len(shape)
        if not 0 < count <= _structs.MAX_RANK:
            raise _bad_rank(name, count)
        PACK_TENSOR[count](memory, offset, address, code, kind, index, count, *shape, *strides)

    def empty(self, shape: Shape, code: int, like: Any) -> Any:
        return like.new_empty(shape, dtype=self._types[code])

    def empty_like(self, x: Any, name: str) -> Any:
        self.code(x, name)
        return self.torch.empty_like(x, memory_format=self.torch.contiguous_format)

    def from_list(self, values: Sequence[Any], code: int, like: Any) -> Any:
        return self.torch.tensor(values, dtype=self._types[code], device=like.device)

    def to_int32(self, x: Any) -> Any:
        return x.clamp(*_INT32_RANGE).to(self.torch.int32) if x.dtype == self.torch.int64 else x

    def is_cuda(self, x: Any) -> bool:
        return bool(x.is_cuda)

    def needs_operator(self, q: Any, k: Any, v: Any, tensors: Optional[Dict[str, Any]]) -> bool:
        if self._is_compiling() or self._transform() is not None or self._dispatch_modes():
            return True
        if not (q.is_cpu or q.is_cuda) or self._is_subclass(q) or self._is_subclass(k) or self._is_subclass(v):
            return True
        # Autograd tells that there is no forward derivative.
        if getattr(self._forward_ad, "_current_level", -1) >= 0:
            return True
        if self._tracing_state() is not None:
            raise RuntimeError("rootdk: torch.jit.trace would record the memory of the result alone; use torch.compile")
        # Arrays of another kind need none, and are refused with a message later.
        needed = q.requires_grad or getattr(k, "requires_grad", False) or getattr(v, "requires_grad", False)
        for x in tensors.values() if tensors else ():
            if self._is_subclass(x):
                return True
            needed = needed or getattr(x, "requires_grad", False)
        return bool(needed and self.torch.is_grad_enabled())

    def _is_subclass(self, x: Any) -> bool:
        """Whether x is a tensor that sees what it is used for."""
        return type(x) not in self.plain and isinstance(x, self.torch.Tensor)

    def wants_gradient(self, x: Any) -> bool:
        return bool(x.requires_grad and self.torch.is_grad_enabled())

    def wrote(self, x: Any) -> None:
        # Autograd then notices a tensor that it saved and that was written over. Those of inference mode have no count.
        if not x.is_inference():
            self._increment(x)


class BufferKind(Kind):
    name = "a buffer"

    def owns(self, x: Any) -> bool:
        return isinstance(x, Buffer)

    def code(self, x: Any, name: str) -> int:
        return int(x.code)

    def pack(self, memory: Any, offset: int, x: Any, name: str, rank: int = 0) -> None:
        shape, strides = _padded(x.shape, x.strides, rank)
        count = len(shape)
        if not 0 < count <= _structs.MAX_RANK:
            raise _bad_rank(name, count)
        PACK_TENSOR[count](memory, offset, x.address, x.code, 0, 0, count, *shape, *strides)

    def empty(self, shape: Shape, code: int, like: Any) -> Any:
        return Buffer.empty(tuple(shape), code)

    def from_list(self, values: Sequence[Any], code: int, like: Any) -> Any:
        result = Buffer.empty((len(values),), code)
        view = result.memoryview()
        for i, value in enumerate(values):
            view[i] = value
        return result

    def to_int32(self, x: Any) -> Any:
        return self.from_list(_nested_list(x), _structs.I32, x) if x.code == _structs.I64 else x

    def writable(self, x: Any) -> bool:
        return bool(x.writable)


def _nested_list(x: Buffer) -> Any:
    return x.memoryview().tolist()


_kinds: Dict[type, Kind] = {Buffer: BufferKind()}
_numpy_kind: Optional[NumpyKind] = None
_torch_kind: Optional[TorchKind] = None


def native_kind(x: Any) -> Optional[Kind]:
    """The kind that describes x itself, or None. NumPy and PyTorch are looked for only where they are already imported:
    otherwise x cannot be theirs."""
    global _numpy_kind, _torch_kind
    kind = _kinds.get(type(x))
    if kind is not None:
        return kind
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(x, numpy.ndarray):
        if isinstance(x, numpy.ma.MaskedArray):
            raise TypeError("rootdk: the mask of a masked array would be lost; give x.data, and mask= or kv_lengths=")
        kind = _numpy_kind = _numpy_kind or NumpyKind(numpy)
    elif torch is not None and isinstance(x, torch.Tensor):
        kind = _torch_kind = _torch_kind or TorchKind(torch)
        if type(x) not in kind.plain:
            return kind
    else:
        return None
    return _kinds.setdefault(type(x), kind)


def kind_of(x: Any, name: str) -> Kind:
    kind = _kinds.get(type(x)) or native_kind(x)
    if kind is None:
        raise TypeError(
            f"rootdk: {name} is a {type(x).__name__}, expected a NumPy array, a PyTorch tensor, or an object "
            "with __dlpack__ or the buffer protocol"
        )
    return kind


def require_kind(kind: Kind, x: Any, name: str, other: str = "q") -> None:
    if _kinds.get(type(x)) is not kind and not kind.owns(x):
        raise TypeError(f"rootdk: {other} is {kind.name} but {name} is a {type(x).__module__}.{type(x).__name__}")


# --- objects of no kind -------------------------------------------------------------------------------------------


def _is_foreign(x: Any) -> bool:
    return native_kind(x) is None and (_speaks_dlpack(x) or _has_buffer(x))


# What has no dimensions is a number, whatever else it can do: NumPy's numbers have the buffer protocol.


def _speaks_dlpack(x: Any) -> bool:
    return hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__") and getattr(x, "shape", None) != ()


def _has_buffer(x: Any) -> bool:
    if isinstance(x, (bytes, bytearray, str)):
        return False
    try:
        return memoryview(x).ndim > 0
    except TypeError:
        return False


def _import(x: Any, name: str) -> Any:
    """x as an array of a kind, without a copy."""
    if not hasattr(x, "__dlpack__"):
        return _buffer.from_buffer(x, name)
    device_type = x.__dlpack_device__()[0]
    if device_type in (_buffer.DLPACK_CPU, _buffer.DLPACK_CUDA_HOST):
        return _buffer.from_dlpack(x, name)
    if device_type == _buffer.DLPACK_CUDA:
        # Scratch memory and streams on the GPU are PyTorch's affair.
        try:
            import torch
        except ImportError:
            raise TypeError(f"rootdk: {name} lies on a CUDA device; without PyTorch only CPU memory is taken") from None
        return torch.utils.dlpack.from_dlpack(x)
    raise TypeError(f"rootdk: {name} lies on a device of DLPack type {device_type}, neither CPU (1) nor CUDA (2)")


def _exporter(x: Any) -> Callable[[Any], Any]:
    """How a result goes back to whoever gave x: its own from_dlpack, a memoryview, or NumPy."""
    if not hasattr(x, "__dlpack__"):
        return lambda result: result.memoryview()
    namespace = x.__array_namespace__() if hasattr(x, "__array_namespace__") else None
    root = sys.modules.get(type(x).__module__.partition(".")[0])
    for owner in (namespace, root):
        if hasattr(owner, "from_dlpack"):
            return owner.from_dlpack  # type: ignore[union-attr, no-any-return]
    return _to_numpy


def _to_numpy(result: Any) -> Any:
    """For objects whose library is unknown: a NumPy array where NumPy is there and has the type, else the result itself,
    which speaks DLPack."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(result, Buffer) or result.code == _structs.BF16:
        return result
    if 0 in result.shape:
        return numpy.from_dlpack(result)
    array = numpy.asarray(result.memoryview())  # through DLPack it would be read-only
    return array.view(numpy.float16) if result.code == _structs.F16 else array


Function = TypeVar("Function", bound=Callable[..., Any])


def _never() -> bool:
    return False


# Whether torch.compile follows the call, which must then stay in Python. PyTorch's own function once it is there.
is_compiling: Callable[[], bool] = _never


def takes_any_array(function: Function, fast: Optional[Callable[..., Any]] = None) -> Function:
    """Lets a function of native arrays take foreign ones: the first argument decides what comes back. `fast` is asked
    first; it takes the arguments as they are, and gives NotImplemented where they are not for it."""

    names = tuple(inspect.signature(function).parameters)
    name_of_first = names[0]

    @functools.wraps(function)
    def call(*given_in_order: Any, **named: Any) -> Any:
        if fast is not None and not is_compiling():
            result = fast(given_in_order, named)
            if result is not NotImplemented:
                return result
        first = given_in_order[0] if given_in_order else named.get(name_of_first)
        if type(first) in _kinds:
            return function(*given_in_order, **named)
        if hasattr(type(first), "__torch_function__"):  # a subclass of Tensor, or what torch.fx traces with
            overrides = sys.modules["torch"].overrides
            arguments = (*given_in_order, *named.values())
            if overrides.has_torch_function(arguments):
                return overrides.handle_torch_function(call, arguments, *given_in_order, **named)
        if not _is_foreign(first):
            return function(*given_in_order, **named)
        export = _exporter(first)
        given: Dict[int, Any] = {}  # the view of each object, so that out= comes back as the object itself

        def view(x: Any, name: str) -> Any:
            if not _is_foreign(x):
                return x
            result = _import(x, name)
            given[id(result)] = x
            return result

        def back(result: Any) -> Any:
            if native_kind(result) is None:
                return result
            return given[id(result)] if id(result) in given else export(result)

        viewed = [view(x, name) for x, name in zip(given_in_order, names)]
        viewed += given_in_order[len(names) :]  # too many: the function says so
        result = function(*viewed, **{name: view(x, name) for name, x in named.items()})
        return map_arrays(back, result)

    return call  # type: ignore[return-value]


def map_arrays(change: Callable[[Any], Any], result: Any) -> Any:
    """A result with every array in it changed: an array, a tuple, a dict, or an object with `map_arrays`."""
    if type(result) is tuple:  # a NamedTuple holds no arrays
        return tuple(map_arrays(change, part) for part in result)
    if isinstance(result, dict):
        return {name: map_arrays(change, part) for name, part in result.items()}
    if hasattr(result, "map_arrays"):
        return result.map_arrays(change)
    return change(result)
