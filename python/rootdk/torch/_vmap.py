"""The batching rules (torch.vmap): the new dimension joins batch where it can, else a loop runs the calls
one by one."""

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from ._kernels import N_TENSORS, TENSOR_ARGUMENTS

_NAMES = [name for _, name in TENSOR_ARGUMENTS]
_FOLDED = ("mask", "bias", "kv_lengths", "seed_tensor")  # what can be given for each batch entry
_BY_BATCH = ("mask", "bias")
_DROPOUT = -1  # the last of the factors


def _in_front(x: Any, dim: Optional[int], size: int) -> torch.Tensor:
    """[size, ...], with a dimension of stride 0 where there was none."""
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _fold(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, *x.shape[2:])


def _can_fold(tensors: Sequence[Any], dims: Sequence[Any], dropout: float) -> bool:
    """Whether the calls are one call with more batch entries. Dropout draws by batch entry: seeds that differ between the
    calls may as well be one seed, but one seed for all of them means the same weights in each."""
    for name, x, dim in zip(_NAMES, tensors, dims):
        if x is not None and name not in _FOLDED:
            return False
    seed = _NAMES.index("seed_tensor")
    return not dropout or (tensors[seed] is not None and dims[seed] is not None)


def _folded_option(name: str, x: Any, dim: Optional[int], size: int, batch: int) -> Any:
    if x is None:
        return None
    if name == "seed_tensor":
        return x if dim is None else x.movedim(dim, 0)[0]
    own_rank = x.dim() - (dim is not None)
    if name in _BY_BATCH and dim is None and (own_rank < 4 or x.shape[0] == 1):
        return x  # the same for every batch entry
    x = _in_front(x, dim, size)
    if name in _BY_BATCH:
        x = x.reshape(size, *([1] * (4 - own_rank)), *x.shape[1:])
        x = x.expand(size, batch, *x.shape[2:])
    return _fold(x)


def _loop(function: Callable[..., Any], size: int, dims: Sequence[Any], arguments: Sequence[Any]) -> Tuple[Any, Any]:
    calls = [
        function(*(x if dim is None else x.select(dim, i) for x, dim in zip(arguments, dims))) for i in range(size)
    ]
    outputs = tuple(torch.stack(parts) for parts in zip(*calls))
    return outputs, (0,) * len(outputs)


def _flat_dims(dims: Sequence[Any]) -> List[Optional[int]]:
    """Lists of numbers come with a list of None."""
    return [None if isinstance(dim, (list, tuple)) else dim for dim in dims]


def _run(function: Callable[..., Any], info: Any, dims: Sequence[Any], arguments: Sequence[Any], first: int) -> Any:
    """`first` is where the optional tensors begin; what is before them, but numbers, is [batch, ...]."""
    size, dims = info.batch_size, _flat_dims(dims)
    options, option_dims = arguments[first : first + N_TENSORS], dims[first : first + N_TENSORS]
    dropout = arguments[first + N_TENSORS + 1][_DROPOUT]
    if size == 0 or not _can_fold(options, option_dims, dropout):
        if size == 0:
            raise RuntimeError("rootdk: vmap over a dimension of size 0")
        return _loop(function, size, dims, arguments)
    folded: List[Any] = [
        _fold(_in_front(x, dim, size)) if isinstance(x, torch.Tensor) else x
        for x, dim in zip(arguments[:first], dims[:first])
    ]
    batch = folded[0].shape[0] // size
    folded += [
        _folded_option(name, x, dim, size, batch) for name, x, dim in zip(_NAMES, options, option_dims)
    ]
    outputs = function(*folded, *arguments[first + N_TENSORS :])
    # An output that was not asked for is empty.
    parts = tuple(x.reshape(size, -1, *x.shape[1:]) if x.dim() > 1 else x.expand(size, *x.shape) for x in outputs)
    return parts, (0,) * len(parts)


def forward(function: Callable[..., Any], info: Any, dims: Sequence[Any], arguments: Sequence[Any]) -> Any:
    return _run(function, info, dims, arguments, 3)


def backward(function: Callable[..., Any], info: Any, dims: Sequence[Any], arguments: Sequence[Any]) -> Any:
    needs = arguments[9]
    if any(needs[3:]):  # the gradient of a bias is a sum over its batch
        return _loop(function, info.batch_size, _flat_dims(dims), arguments)
    return _run(function, info, dims, arguments, 10)
