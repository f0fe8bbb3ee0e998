"""Attention as PyTorch sees it: torch.library operators from 2.4 on, a torch.autograd.Function before and beside."""

from typing import TYPE_CHECKING, Any, Callable, List, Literal, Optional, Sequence, Tuple, Union, overload

import torch
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .. import _fast
from .._arrays import kind_of
from .._params import ATTENTION, AttentionOptions, Pair, Params, spells_out
from .._result import AttentionResult
from .._stats import Asked, AskedRows, Rows, Stats, StatsRequest
from . import _compiled, _flops, _kernels, _once, _plain, _vmap
from ._kernels import N_TENSORS, NUMBER_ARGUMENTS, OUTPUTS, TENSOR_ARGUMENTS, TEXT_ARGUMENTS, WITH_GRADIENT

if TYPE_CHECKING:
    from typing_extensions import Unpack

kind_of(torch.empty(0), "")  # the binding knows PyTorch from here on
_fast_attention: Any = _fast.binding and _fast.binding.attention
is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
HAS_OPERATORS = hasattr(torch, "library") and hasattr(torch.library, "register_autograd")
# The index of each differentiable tensor among the arguments.
_NAMES = ["q", "k", "v"] + [name for _, name in TENSOR_ARGUMENTS]
_PLACES = [_NAMES.index(name) for name in WITH_GRADIENT]
_N_ARGUMENTS = 3 + N_TENSORS + len(NUMBER_ARGUMENTS) + len(TEXT_ARGUMENTS)


def _setup_context(ctx: Any, inputs: Sequence[Any], output: Sequence[torch.Tensor]) -> None:
    """Keeps what backward needs. lse and entropy, where they are asked for, carry gradients; the rest does not."""
    integers, factors, stats, target = inputs[3 + N_TENSORS :]
    has_entropy = "entropy" in stats.split(",")
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[3 if has_entropy else 2 :])
    out, lse, entropy = output[0], output[1], output[2] if has_entropy else None
    ctx.save_for_backward(*inputs[:3], out, lse, entropy, *inputs[3 : 3 + N_TENSORS])
    ctx.rest = (integers, factors, target)


def _backward_arguments(ctx: Any, grads: Sequence[Optional[torch.Tensor]]) -> Tuple[Any, ...]:
    q, k, v, out, lse, entropy, *tensors = ctx.saved_tensors
    grad_out, grad_lse = grads[:2]
    grad_entropy = grads[2] if entropy is not None else None
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    needs = [bool(ctx.needs_input_grad[place]) for place in _PLACES]
    return (grad_out, grad_lse, grad_entropy, q, k, v, out, lse, entropy, needs, *tensors, *ctx.rest)


def _place(gradients: Sequence[torch.Tensor], needs: Sequence[bool]) -> Tuple[Optional[torch.Tensor], ...]:
    """One gradient, or None, for each argument."""
    result: List[Optional[torch.Tensor]] = [None] * _N_ARGUMENTS
    for place, gradient, needed in zip(_PLACES, gradients, needs):
        if needed:
            result[place] = gradient
    return tuple(result)


_innermost_transform = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: None)


class TransformedAttention(torch.autograd.Function):
    """The operator inside function transforms (torch.func.grad, torch.vmap), which know functions of this kind alone."""

    forward = staticmethod(_kernels.forward)
    setup_context = staticmethod(_setup_context)

    @staticmethod
    def backward(ctx: Any, *grads: Optional[torch.Tensor]) -> Tuple[Optional[torch.Tensor], ...]:
        arguments = _backward_arguments(ctx, grads)
        if not HAS_OPERATORS:
            with torch.no_grad():
                gradients = _kernels.backward(*arguments)
            return _place(_once.differentiable_once(gradients, arguments), arguments[9])
        return _place(backward_below(*arguments), arguments[9])

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _vmap.forward(forward_below, info, in_dims, arguments)


class TransformedBackward(torch.autograd.Function):
    """The gradients of the same."""

    forward = staticmethod(_kernels.backward)
    backward = staticmethod(_once.refuse)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _vmap.backward(backward_below, info, in_dims, arguments)


def forward_below(*arguments: Any) -> Any:
    """The call as the next transform sees it; below the last one, the operator."""
    if _innermost_transform() is not None:
        return TransformedAttention.apply(*arguments)
    return torch.ops.rootdk.attention(*arguments)


def backward_below(*arguments: Any) -> Any:
    if _innermost_transform() is not None:
        return TransformedBackward.apply(*arguments)
    return torch.ops.rootdk.attention_backward(*arguments)


def _schema(arguments: Sequence[Tuple[str, str]], outputs: int) -> str:
    return (
        "(" + ", ".join(f"{kind} {name}" for kind, name in arguments) + ") -> (" + ", ".join(["Tensor"] * outputs) + ")"
    )


def _register() -> Any:
    """torch.ops.rootdk.attention and attention_backward: schema, kernels, shapes for tracing, and the gradient."""
    library = torch.library.Library("rootdk", "DEF")
    data = [("Tensor", "q"), ("Tensor", "k"), ("Tensor", "v")]
    common = TENSOR_ARGUMENTS + NUMBER_ARGUMENTS
    library.define("attention" + _schema(data + common + TEXT_ARGUMENTS, len(OUTPUTS)))
    upstream = [("Tensor", "grad_out"), ("Tensor?", "grad_lse"), ("Tensor?", "grad_entropy")]
    saved = data + [("Tensor", "out"), ("Tensor", "lse"), ("Tensor?", "entropy"), ("bool[]", "needs")]
    library.define("attention_backward" + _schema(upstream + saved + common + [("str", "target")], len(WITH_GRADIENT)))
    for device in ("CPU", "CUDA"):
        library.impl("attention", _kernels.forward, device)
        library.impl("attention_backward", _kernels.backward, device)
    torch.library.register_fake("rootdk::attention", _kernels.fake_forward, lib=library)
    torch.library.register_fake("rootdk::attention_backward", _kernels.fake_backward, lib=library)

    def backward(ctx: Any, *grads: Optional[torch.Tensor]) -> Tuple[Optional[torch.Tensor], ...]:
        arguments = _backward_arguments(ctx, grads)
        return _place(torch.ops.rootdk.attention_backward(*arguments), arguments[9])

    def setup_context(ctx: Any, inputs: Sequence[Any], output: Sequence[torch.Tensor]) -> None:
        _setup_context(ctx, inputs, output)

    torch.library.register_autograd("rootdk::attention", backward, setup_context=setup_context, lib=library)
    torch.library.register_autograd("rootdk::attention_backward", _once.refuse, lib=library)
    _compiled.register(library)
    _flops.register()
    return library


_library = _register() if HAS_OPERATORS else None  # unregisters its operators when it dies
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _is_watched(*tensors: torch.Tensor) -> bool:
    """Whether somebody follows the call: a compiler, a dispatch mode, a tensor subclass, a device without memory."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return True
    return any(type(x) not in _PLAIN or x.is_meta for x in tensors)


def _require_tensors(q: Any, k: Any, v: Any) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"rootdk: {name} is a {type(x).__module__}.{type(x).__name__}, expected a PyTorch tensor")
        if x.layout is not torch.strided:
            raise TypeError(f"rootdk: {name} has the layout {x.layout}, expected {torch.strided}")
        if x.device.type not in ("cpu", "cuda", "meta"):
            raise TypeError(f"rootdk: {name} lies on {x.device}, neither on the CPU nor on CUDA")


def run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    params: Params,
    request: Optional[StatsRequest],
    target: Optional[str],
    threads: Optional[int],
) -> Union[torch.Tensor, "AttentionResult[torch.Tensor]"]:
    """The operator, or where nobody follows the call a function that PyTorch calls much faster."""
    _require_tensors(q, k, v)
    # A compiler sees one operator. What it follows transforms with is not asked for.
    compiled = HAS_OPERATORS and torch.compiler.is_compiling()
    if compiled and request is None and not target and not threads and _compiled.IS_SERVED and _compiled.serves(params):
        return _compiled.run(q, k, v, params)
    asked = request or StatsRequest()
    if not isinstance(asked.weights, (bool, torch.Tensor)):
        asked = asked._replace(weights=torch.tensor(list(asked.weights), dtype=torch.int32, device=q.device))
    for name, x in params.tensors.items():
        if type(x).__name__ == "CausalBias":
            raise TypeError(f"rootdk: {name} is a CausalBias, which holds no numbers; causal=True does what it says")
    tensors = [x for x in params.tensors.values() if isinstance(x, torch.Tensor)]
    transformed = not compiled and _innermost_transform() is not None
    watched = HAS_OPERATORS and not transformed and _is_watched(q, k, v, *tensors)
    if watched or transformed or q.is_meta:
        needs_lse = transformed or (torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, *tensors)))
        computed = asked._replace(names=("lse", *asked.names)) if needs_lse and "lse" not in asked.names else asked
        flat = _kernels.flatten(params, computed, target, threads, q)
        function = torch.ops.rootdk.attention if watched else TransformedAttention.apply
        if q.is_meta:
            _kernels.require_shapes(q, k, v)
            function = function if watched else _kernels.fake_forward
        outputs = dict(zip(OUTPUTS, function(q, k, v, *flat)))
    else:
        outputs = _plain.run(q, k, v, params, asked, target, threads)
    if request is None:
        return outputs["out"]
    arrays = {name: outputs[name] for name in _kernels.wanted_outputs(asked)}
    out = arrays.pop("out")
    if isinstance(asked.weights, torch.Tensor):
        arrays["weight_rows"] = asked.weights
    return AttentionResult(out, arrays)


@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    stats: Literal[False] = False,
    map_size: None = None,
    weights: Literal[False] = False,
    stats_stride: int = 1,
    target: Optional[str] = None,
    threads: Optional[int] = None,
    **options: "Unpack[AttentionOptions]",
) -> torch.Tensor: ...


@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    stats: Asked,
    map_size: Optional[Pair] = None,
    weights: Rows = False,
    stats_stride: int = 1,
    target: Optional[str] = None,
    threads: Optional[int] = None,
    **options: "Unpack[AttentionOptions]",
) -> AttentionResult[torch.Tensor]: ...


@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    stats: Stats = False,
    map_size: Pair,
    weights: Rows = False,
    stats_stride: int = 1,
    target: Optional[str] = None,
    threads: Optional[int] = None,
    **options: "Unpack[AttentionOptions]",
) -> AttentionResult[torch.Tensor]: ...


@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    stats: Stats = False,
    map_size: Optional[Pair] = None,
    weights: AskedRows,
    stats_stride: int = 1,
    target: Optional[str] = None,
    threads: Optional[int] = None,
    **options: "Unpack[AttentionOptions]",
) -> AttentionResult[torch.Tensor]: ...


@spells_out(ATTENTION)
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    stats: Stats = False,
    map_size: Optional[Pair] = None,
    weights: Any = False,
    stats_stride: int = 1,
    target: Optional[str] = None,
    threads: Optional[int] = None,
    **options: Any,
) -> Union[torch.Tensor, "AttentionResult[torch.Tensor]"]:
    """rootdk.attention as an operator of PyTorch: the same arguments, with gradients for q, k, v, bias, relative_table,
    alibi_slopes, sinks and additive_v, and through the statistics lse and entropy. `seed` may be a tensor of one
    integer, so that a compiled function draws a new one in each call."""
    if has_torch_function_variadic(q, k, v):
        named = dict(stats=stats, map_size=map_size, weights=weights, stats_stride=stats_stride)
        named.update(target=target, threads=threads, **options)
        itself: Any = attention
        return handle_torch_function(itself, (q, k, v), q, k, v, **named)  # type: ignore[no-any-return]
    request = StatsRequest.make(stats, map_size, weights, stats_stride)
    if request is None and target is None and threads is None and _fast_attention is not None and "out" not in options and not is_compiling():
        result = _fast_attention((q, k, v), options)
        if result is not NotImplemented:
            return result  # type: ignore[no-any-return]
    return run(q, k, v, Params(options), request, target, threads)
