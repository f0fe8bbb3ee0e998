"""The operators' flat form: one list of tensors and numbers, as torch.library and autograd.Function both want it."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from .._arrays import TorchKind, kind_of
from .._attention import run_backward, run_forward
from .._params import ATTENTION, BOOLEAN_TENSORS, DIFFERENTIABLE, INTEGER_TENSORS, TENSORS, Params
from .._stats import ROW_STATS, StatsRequest

# (schema type, name) of what follows q, k and v. Numbers travel in two lists: PyTorch's bookkeeping grows with the
# square of the number of arguments.
TENSOR_ARGUMENTS = [("Tensor?", name) for name in TENSORS] + [("Tensor?", "seed_tensor"), ("Tensor?", "weight_rows")]
NUMBER_ARGUMENTS = [("SymInt[]", "integers"), ("float[]", "factors")]
TEXT_ARGUMENTS = [("str", "stats"), ("str", "target")]
# `integers` begins with Params.integers and ends with map_rows, map_columns, all_weights, stats_stride, threads.
N_OWN_INTEGERS = 5
_SEED = ATTENTION.integers.index(ATTENTION.index["seed"])
OUTPUTS = ("out", "lse", "entropy", "max_logit", "max_weight", "sum_p2", "column_mass", "pooled_map", "weights")
WITH_GRADIENT = ("q", "k", "v") + DIFFERENTIABLE
N_TENSORS = len(TENSOR_ARGUMENTS)
# What a list becomes; a type beside q's where nothing is said.
_LIST_TYPES = {**dict.fromkeys(INTEGER_TENSORS, torch.int32), **dict.fromkeys(BOOLEAN_TENSORS, torch.bool)}

Flat = Sequence[Any]


def flatten(
    params: Params, request: StatsRequest, target: Optional[str], threads: Optional[int], like: torch.Tensor
) -> List[Any]:
    """Everything after q, k and v."""
    tensors: Dict[str, Any] = dict(params.tensors)
    chosen = None if isinstance(request.weights, bool) else request.weights
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor):
            tensors[name] = _as_tensor(x, _LIST_TYPES.get(name), like)
    integers = params.integers
    if integers[_SEED] >= 2**63:
        integers[_SEED] -= 2**64  # the schema's integers have a sign
    rows, columns = request.map_size or (0, 0)
    return [
        *(tensors.get(name) for name in TENSORS),
        params.seed_tensor,
        chosen,
        [
            *integers,
            rows,
            columns,
            int(request.weights is True),
            request.stride,
            threads or 0,
        ],
        params.factors,
        ",".join(request.names),
        target or "",
    ]


def _as_tensor(x: Any, dtype: Optional[torch.dtype], like: torch.Tensor) -> torch.Tensor:
    if not isinstance(x, (list, tuple)):
        raise TypeError(f"rootdk: q is a PyTorch tensor but another argument is a {type(x).__name__}")
    small = torch.float64 if like.dtype == torch.float64 else torch.float32
    return torch.tensor(x, dtype=dtype or small, device=like.device)


def _unflatten(flat: Flat) -> Tuple[Params, Optional[torch.Tensor], Sequence[int]]:
    """(params, weight_rows, the integers that are not of Params)."""
    tensors, integers, factors = flat[:N_TENSORS], flat[N_TENSORS], flat[N_TENSORS + 1]
    given = {name: x for name, x in zip(TENSORS, tensors) if x is not None}
    seed_tensor, weight_rows = tensors[len(TENSORS) :]
    numbers = list(integers[:-N_OWN_INTEGERS])
    numbers[_SEED] = (numbers[_SEED] if seed_tensor is None else int(seed_tensor)) & 0xFFFFFFFFFFFFFFFF
    return Params.from_numbers(numbers, factors, given), weight_rows, integers[-N_OWN_INTEGERS:]


def _kind(q: torch.Tensor) -> TorchKind:
    kind = kind_of(q, "q")
    assert isinstance(kind, TorchKind)
    return kind


def compute(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *flat: Any) -> Dict[str, torch.Tensor]:
    """out and what is asked for, by name."""
    params, weight_rows, (rows, columns, all_weights, stride, threads) = _unflatten(flat)
    names, target = flat[N_TENSORS + 2 :]
    wanted = tuple(filter(None, names.split(",")))
    request = StatsRequest(
        wanted, (rows, columns) if rows else None, weight_rows if weight_rows is not None else bool(all_weights), stride
    )
    out, arrays = run_forward(_kind(q), q, k, v, params, None, request, target or None, threads or None)
    return {**(arrays or {}), "out": out}


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *flat: Any) -> Tuple[torch.Tensor, ...]:
    """OUTPUTS; those not asked for are empty, and distinct, since an operator may not return one tensor twice."""
    arrays = compute(q, k, v, *flat)
    return tuple(arrays[name] if name in arrays else q.new_empty(0) for name in OUTPUTS)


def wanted_outputs(request: StatsRequest) -> Tuple[str, ...]:
    """The names of what compute() gives, in the order of OUTPUTS."""
    wanted = {"out", *request.names}
    if request.map_size is not None:
        wanted.add("pooled_map")
    if request.weights is not False:
        wanted.add("weights")
    return tuple(name for name in OUTPUTS if name in wanted)


def require_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """For tensors without memory, which the library does not see."""
    shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v)))
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(f"attention: expected [batch, heads, len, dim], have {shapes}")
    for name, x in (("k", k), ("v", v)):
        if x.device != q.device:
            raise ValueError(f"attention: {name} lies on {x.device} but q lies on {q.device}")
        if x.dtype != q.dtype:
            raise ValueError(f"attention: {name} is {x.dtype} but q is {q.dtype}")
    heads, kv_heads = q.shape[1], k.shape[1]
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3] or heads % max(kv_heads, 1):
        raise ValueError(f"attention: the shapes do not fit together: {shapes}")


def fake_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *flat: Any) -> Tuple[torch.Tensor, ...]:
    """The shapes and types of forward()."""
    weight_rows = flat[N_TENSORS - 1]
    rows, columns, all_weights, _, _ = flat[N_TENSORS][-N_OWN_INTEGERS:]
    names = flat[N_TENSORS + 2]
    batch, heads, q_len, _ = q.shape
    kv_len, small = k.shape[2], torch.float64 if q.dtype == torch.float64 else torch.float32
    shapes: Dict[str, Any] = {name: (batch, heads, q_len) for name in names.split(",") if name in ROW_STATS}
    if "column_mass" in names.split(","):
        shapes["column_mass"] = (batch, heads, kv_len)
    if not (isinstance(rows, int) and rows == 0):
        shapes["pooled_map"] = (batch, heads, rows, columns)
    if all_weights or weight_rows is not None:
        shapes["weights"] = (batch, heads, q_len if weight_rows is None else weight_rows.shape[0], kv_len)
    return (
        q.new_empty((batch, heads, q_len, v.shape[3])),
        *(q.new_empty(shapes[name], dtype=small) if name in shapes else q.new_empty(0) for name in OUTPUTS[1:]),
    )


def backward(
    grad_out: torch.Tensor,
    grad_lse: Optional[torch.Tensor],
    grad_entropy: Optional[torch.Tensor],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    entropy: Optional[torch.Tensor],
    needs: Sequence[bool],
    *flat: Any,
) -> Tuple[torch.Tensor, ...]:
    """Gradients of WITH_GRADIENT; those not needed are empty."""
    if lse.dim() != 3:
        raise RuntimeError("rootdk: attention ran without lse, which its backward pass needs")
    params, _, own = _unflatten(flat)
    target, threads = flat[N_TENSORS + 2], own[-1]
    names = tuple(name for name, needed in zip(WITH_GRADIENT, needs) if needed)
    if grad_out.stride(-1) != 1:
        grad_out = grad_out.contiguous()  # the gradient of a sum repeats one number
    saved = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "entropy": entropy}
    upstream = {"out": grad_out, "lse": grad_lse, "entropy": grad_entropy}
    gradients = run_backward(_kind(q), saved, upstream, params, names, target or None, threads or None)
    return tuple(gradients[name] if name in gradients else q.new_empty(0) for name in WITH_GRADIENT)


def fake_backward(
    grad_out: torch.Tensor,
    grad_lse: Any,
    grad_entropy: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: Any,
    lse: Any,
    entropy: Any,
    needs: Sequence[bool],
    *flat: Any,
) -> Tuple[torch.Tensor, ...]:
    sources = dict(zip(TENSORS, flat), q=q, k=k, v=v)
    return tuple(
        (
            torch.empty(sources[name].shape, dtype=sources[name].dtype, device=sources[name].device)
            if needed
            else q.new_empty(0)
        )
        for name, needed in zip(WITH_GRADIENT, needs)
    )
