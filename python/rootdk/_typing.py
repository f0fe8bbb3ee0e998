"""What checkers of static types see of arrays. At run time everything here is Any: NumPy and PyTorch need not be there."""

from typing import TYPE_CHECKING, Any, Protocol, Sequence, Tuple, TypeVar, Union


class SupportsDLPack(Protocol):
    """An array of another library that hands out its memory by DLPack."""

    @property
    def shape(self) -> Tuple[int, ...]: ...

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> Tuple[Any, Any]: ...


if TYPE_CHECKING:
    import numpy
    import torch

    from ._buffer import Buffer

    NumpyArray = numpy.ndarray[Any, numpy.dtype[Any]]
    AnyArray = Union[NumpyArray, torch.Tensor, Buffer, memoryview[Any], SupportsDLPack]
else:
    NumpyArray = AnyArray = Any

# Arrays of one call are of one kind, and so are its results.
ArrayT = TypeVar("ArrayT", bound=AnyArray)
Integers = Union[AnyArray, Sequence[int]]
Floats = Union[AnyArray, Sequence[float]]
