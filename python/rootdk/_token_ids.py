"""Token ids as callers write them: lists, ranges, arrays of any kind."""

import ctypes
import operator
from typing import Any, Iterable, List, Sequence, Union

from . import _structs
from ._buffer import Buffer
from ._models_abi import c_ids
from ._typing import AnyArray

Prompt = Union[str, Sequence[int], AnyArray]  # a text, or token ids in a list or an array


def id_list(ids: Any) -> List[int]:
    """Token ids as a list, from any array or sequence of whole numbers."""
    if isinstance(ids, (bytes, bytearray)):
        raise TypeError(f"rootdk: {type(ids).__name__} are neither a text nor token ids; decode them to a str first")
    values = ids.tolist() if hasattr(ids, "tolist") else ids
    if not isinstance(values, Iterable):
        raise TypeError(f"rootdk: {ids!r} is neither a text nor a sequence of token ids")
    return [_id(value) for value in values]


def _id(value: Any) -> int:
    """One token id, from anything that is a whole number: also those of NumPy and PyTorch."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 2**31:
        raise ValueError(f"rootdk: {value!r} is not a token id (a whole number from 0 on)")
    return number


def id_array(ids: Any) -> Any:
    """Lists as an array: of NumPy where it is installed, else a buffer. Arrays as they are."""
    if not isinstance(ids, (list, tuple, range)):
        return ids
    rows: List[Any] = list(ids)
    lengths = {len(row) if isinstance(row, (list, tuple, range)) else None for row in rows}
    if len(lengths) > 1:
        raise ValueError("rootdk: the rows of ids have different lengths; pad them, and say so with mask")
    nested = None not in lengths
    flat = id_list([x for row in rows for x in row] if nested else rows)
    if not flat:
        raise ValueError("rootdk: there are no token ids")
    shape = (len(rows), len(flat) // len(rows)) if nested else (len(flat),)
    result = Buffer.empty(shape, _structs.I32)
    ctypes.memmove(result.address, c_ids(flat), 4 * len(flat))
    try:
        import numpy
    except ImportError:
        return result
    return numpy.array(result.memoryview())
