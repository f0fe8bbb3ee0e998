"""The operators' flat form: one list of tensors and numbers, as torch.library and autograd.Function both want it."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from .._arrays import TorchKind, kind_of
from .._attention import ROW_STATS, StatsRequest, run_backward, run_forward
from .._params import DIFFERENTIABLE, TENSORS, Params

# (schema type, name) of what follows q, k and v.
TENSOR_ARGUMENTS = [("Tensor?", name) for name in TENSORS] + [("Tensor?", "seed_tensor"), ("Tensor?", "weight_rows")]
# In the order of Params.scalars.
SCALAR_ARGUMENTS = [
    ("int", "score"), ("int", "scale_kind"), ("float", "scale"), ("float", "temperature"), ("float", "softcap"),
    ("int", "causal"), ("SymInt", "window_left"), ("SymInt", "window_right"), ("SymInt", "block_q"),
    ("SymInt", "block_kv"), ("SymInt", "max_q_len"), ("SymInt", "max_kv_len"), ("SymInt", "relative_zero"),
    ("float", "dropout"), ("int", "seed"),
]
STATS_ARGUMENTS = [("str", "stats"), ("SymInt", "map_rows"), ("SymInt", "map_columns"), ("bool", "all_weights"),
                   ("int", "stats_stride")]
RUN_ARGUMENTS = [("str", "target"), ("int", "threads")]
OUTPUTS = ("out", "lse", "entropy", "max_logit", "max_weight", "sum_p2", "column_mass", "pooled_map", "weights")
WITH_GRADIENT = ("q", "k", "v") + DIFFERENTIABLE
N_TENSORS, N_SCALARS = len(TENSOR_ARGUMENTS), len(SCALAR_ARGUMENTS)

Flat = Sequence[Any]


def flatten(params: Params, request: Optional[StatsRequest], target: Optional[str], threads: Optional[int],
            like: torch.Tensor) -> List[Any]:
    """Everything after q, k and v. lse is always computed: the gradient needs it."""
    tensors: Dict[str, Any] = dict(params.tensors or {})
    request = request or StatsRequest()
    chosen = None if isinstance(request.weights, bool) else request.weights
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor):
            tensors[name] = _as_tensor(x, torch.int32 if name in ("kv_lengths", "q_starts", "kv_starts") else None, like)
    if chosen is not None and not isinstance(chosen, torch.Tensor):
        chosen = torch.tensor(list(chosen), dtype=torch.int32, device=like.device)
    seed = params.scalars[-1]
    rows, columns = request.map_size or (0, 0)
    return [
        *(tensors.get(name) for name in TENSORS), params.seed_tensor, chosen,
        *params.scalars[:-1], seed - 2**64 if seed >= 2**63 else seed,  # the schema's integers have a sign
        ",".join(request.names), rows, columns, request.weights is True, request.stride,
        target or "", threads or 0,
    ]


def _as_tensor(x: Any, dtype: Optional[torch.dtype], like: torch.Tensor) -> torch.Tensor:
    if not isinstance(x, (list, tuple)):
        raise TypeError(f"rootdk: q is a PyTorch tensor but another argument is a {type(x).__name__}")
    small = torch.float64 if like.dtype == torch.float64 else torch.float32
    return torch.tensor(x, dtype=dtype or small, device=like.device)


def _unflatten(flat: Flat) -> Tuple[Params, Optional[torch.Tensor]]:
    tensors, scalars = flat[:N_TENSORS], flat[N_TENSORS:N_TENSORS + N_SCALARS]
    given = {name: x for name, x in zip(TENSORS, tensors) if x is not None}
    seed_tensor, weight_rows = tensors[len(TENSORS):]
    seed = (int(scalars[-1]) if seed_tensor is None else int(seed_tensor)) & 0xFFFFFFFFFFFFFFFF
    return Params.from_scalars((*scalars[:-1], seed), given), weight_rows


def _kind(q: torch.Tensor) -> TorchKind:
    kind = kind_of(q, "q")
    assert isinstance(kind, TorchKind)
    return kind


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *flat: Any) -> Tuple[torch.Tensor, ...]:
    """OUTPUTS; those not asked for are empty, each a tensor of its own, since operators may not return one twice."""
    params, weight_rows = _unflatten(flat)
    names, rows, columns, all_weights, stride, target, threads = flat[N_TENSORS + N_SCALARS:]
    wanted = tuple(dict.fromkeys(("lse", *filter(None, names.split(",")))))
    request = StatsRequest(wanted, (rows, columns) if rows else None,
                           weight_rows if weight_rows is not None else all_weights, stride)
    out, arrays = run_forward(_kind(q), q, k, v, params, None, request, target or None, threads or None)
    assert arrays is not None
    return (out, *(arrays[name] if name in arrays else q.new_empty(0) for name in OUTPUTS[1:]))


def fake_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *flat: Any) -> Tuple[torch.Tensor, ...]:
    """The shapes and types of forward()."""
    weight_rows = flat[N_TENSORS - 1]
    names, rows, columns, all_weights, _, _, _ = flat[N_TENSORS + N_SCALARS:]
    batch, heads, q_len, _ = q.shape
    kv_len, small = k.shape[2], torch.float64 if q.dtype == torch.float64 else torch.float32
    shapes: Dict[str, Any] = {name: (batch, heads, q_len) for name in ("lse", *names.split(",")) if name in ROW_STATS}
    if "column_mass" in names.split(","):
        shapes["column_mass"] = (batch, heads, kv_len)
    if not (isinstance(rows, int) and rows == 0):
        shapes["pooled_map"] = (batch, heads, rows, columns)
    if all_weights or weight_rows is not None:
        shapes["weights"] = (batch, heads, q_len if weight_rows is None else weight_rows.shape[0], kv_len)
    return (q.new_empty((batch, heads, q_len, v.shape[3])),
            *(q.new_empty(shapes[name], dtype=small) if name in shapes else q.new_empty(0) for name in OUTPUTS[1:]))


def backward(grad_out: torch.Tensor, grad_lse: Optional[torch.Tensor], grad_entropy: Optional[torch.Tensor],
             q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
             entropy: Optional[torch.Tensor], needs: Sequence[bool], *flat: Any) -> Tuple[torch.Tensor, ...]:
    """Gradients of WITH_GRADIENT; those not needed are empty."""
    params, _ = _unflatten(flat)
    target, threads = flat[N_TENSORS + N_SCALARS:]
    names = tuple(name for name, needed in zip(WITH_GRADIENT, needs) if needed)
    if grad_out.stride(-1) != 1:
        grad_out = grad_out.contiguous()  # the gradient of a sum repeats one number
    saved = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "entropy": entropy}
    upstream = {"out": grad_out, "lse": grad_lse, "entropy": grad_entropy}
    gradients = run_backward(_kind(q), saved, upstream, params, names, target or None, threads or None)
    return tuple(gradients[name] if name in gradients else q.new_empty(0) for name in WITH_GRADIENT)


def fake_backward(grad_out: torch.Tensor, grad_lse: Any, grad_entropy: Any, q: torch.Tensor, k: torch.Tensor,
                  v: torch.Tensor, out: Any, lse: Any, entropy: Any, needs: Sequence[bool],
                  *flat: Any) -> Tuple[torch.Tensor, ...]:
    sources = dict(zip(TENSORS, flat), q=q, k=k, v=v)
    return tuple(torch.empty(sources[name].shape, dtype=sources[name].dtype, device=sources[name].device)
                 if needed else q.new_empty(0) for name, needed in zip(WITH_GRADIENT, needs))
