"""What PyTorch promises of scaled_dot_product_attention, held by the drop-in: shapes, masks, transforms, tracing, errors."""

import itertools
import math
import os

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import rootdk  # noqa: E402
import rootdk.torch  # noqa: E402

from torch_test import tensors, written_out  # noqa: E402

sdpa = rootdk.torch.scaled_dot_product_attention
HAS_OPERATORS = rootdk.torch._operator.HAS_OPERATORS
HAS_VMAP = HAS_OPERATORS and hasattr(torch, "vmap")


def needs(feature, reason):
    return pytest.mark.skipif(not feature, reason=f"PyTorch {torch.__version__} has no {reason}")


def near(ours, right, tolerance=2e-6):
    assert ours.shape == right.shape
    torch.testing.assert_close(ours, right, rtol=0, atol=tolerance)


# --- shapes that broadcast ----------------------------------------------------------------------------------------

LEADING = [(), (3,), (1, 3), (2, 1), (2, 3), (4, 2, 3), (4, 1, 1)]


@pytest.mark.parametrize("q_leading, k_leading, v_leading", list(itertools.product(LEADING, repeat=3)), ids=str)
def test_dimensions_in_front_broadcast(q_leading, k_leading, v_leading):
    q, k, v = tensors((*q_leading, 4, 8), (*k_leading, 5, 8), (*v_leading, 5, 6))
    near(sdpa(q, k, v), written_out(q, k, v))


@pytest.mark.parametrize("kv_heads", [(8, 8), (1, 8), (8, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("heads", [1, 8])
def test_one_head_beside_eight(heads, kv_heads):
    q, k, v = tensors((2, heads, 4, 8), (2, kv_heads[0], 5, 8), (2, kv_heads[1], 5, 8), grad=True)
    ours, right = sdpa(q, k, v), written_out(q, k, v)
    near(ours, right)
    for a, b in zip(*(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (ours, right))):
        near(a, b, 1e-5)


@pytest.mark.parametrize("kv_heads", [(2, 4), (4, 2), (2, 3), (1, 6), (12, 3)], ids=str)
def test_keys_and_values_with_different_head_counts(kv_heads):
    q, k, v = tensors((2, 12, 4, 8), (2, kv_heads[0], 5, 8), (2, kv_heads[1], 5, 8))
    near(sdpa(q, k, v, enable_gqa=True), written_out(q, k, v, enable_gqa=True))


@pytest.mark.parametrize("sizes", [(0, 6), (8, 0), (0, 0)], ids=str)
def test_no_dimensions(sizes):
    q, k, v = tensors((2, 3, 4, sizes[0]), (2, 3, 5, sizes[0]), (2, 3, 5, sizes[1]), grad=True)
    ours = sdpa(q, k, v)
    near(ours, written_out(q, k, v, scale=1.0))
    ours.sum().backward()
    assert q.grad.shape == q.shape


@pytest.mark.parametrize("lengths", [(0, 5), (4, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_no_queries_or_keys(lengths, causal):
    q, k, v = tensors((2, 3, lengths[0], 8), (2, 3, lengths[1], 8), (2, 3, lengths[1], 6))
    near(sdpa(q, k, v, is_causal=causal), torch.zeros(2, 3, lengths[0], 6))


@pytest.mark.parametrize(
    "leading, mask",
    [((2, 3), (4, 5)), ((2, 3), (1, 5)), ((2, 3), (3, 4, 5)), ((2, 3), (2, 1, 1, 5)), ((4, 2, 3), (2, 3, 4, 5))]
    + [((4, 2, 3), (4, 1, 3, 4, 5)), ((3,), (3, 4, 5)), ((), (4, 5))],
    ids=str,
)
def test_masks_broadcast(leading, mask):
    q, k, v, bias = tensors((*leading, 4, 8), (*leading, 5, 8), (*leading, 5, 6), mask)
    near(sdpa(q, k, v, bias), written_out(q, k, v, bias))
    keep = bias > -0.5
    keep[..., 0] = True
    near(sdpa(q, k, v, keep), written_out(q, k, v, keep))


# --- causal biases ------------------------------------------------------------------------------------------------

try:
    from torch.nn.attention import bias as causal_biases
except ImportError:
    causal_biases = None


@needs(causal_biases is not None, "torch.nn.attention.bias")
@pytest.mark.parametrize("lengths", [(6, 6), (4, 9), (9, 4), (1, 7)], ids=str)
@pytest.mark.parametrize("corner", ["causal_upper_left", "causal_lower_right"])
def test_causal_biases(corner, lengths):
    q, k, v = tensors((2, 3, lengths[0], 8), (2, 3, lengths[1], 8), (2, 3, lengths[1], 8), grad=True)
    bias = getattr(causal_biases, corner)(*lengths)
    shift = 0 if corner == "causal_upper_left" else lengths[1] - lengths[0]
    keep = torch.ones(lengths, dtype=torch.bool).tril(shift)
    right = written_out(q, k, v, keep)
    right = torch.where(torch.isnan(right), torch.zeros(()), right)  # a row with no key
    near(sdpa(q, k, v, bias), right)
    with pytest.raises(ValueError, match="CausalBias of .2, 2., expected"):
        sdpa(q, k, v, getattr(causal_biases, corner)(2, 2))
    with pytest.raises(RuntimeError, match="together with is_causal"):
        sdpa(q, k, v, bias, is_causal=True)


@needs(causal_biases is not None, "torch.nn.attention.bias")
def test_a_causal_bias_is_never_read_as_its_bare_tensor():
    q, k, v = tensors((1, 1, 4, 8), (1, 1, 4, 8), (1, 1, 4, 8))
    for name in ("bias", "mask"):
        with pytest.raises(TypeError, match=f"{name} is a CausalBias"):
            rootdk.attention(q, k, v, **{name: causal_biases.causal_upper_left(4, 4)})


# --- gradients ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [rootdk.attention, rootdk.torch.attention, sdpa])
def test_second_derivatives_are_refused_not_lost(function):
    q, k, v = tensors((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8), grad=True)
    first = torch.autograd.grad(function(q, k, v).sum(), (q, k, v), create_graph=True)
    plain = torch.autograd.grad(function(q, k, v).sum(), (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(first, plain))
    assert all(x.requires_grad for x in first) and not any(x.requires_grad for x in plain)
    with pytest.raises(RuntimeError, match="no second derivative"):
        first[0].square().sum().backward()
    penalty = torch.autograd.grad(function(q, k, v).square().sum(), q, create_graph=True)[0].square().sum()
    with pytest.raises(RuntimeError, match="no second derivative"):
        (function(q, k, v).sum() + penalty).backward()


@needs(HAS_OPERATORS, "operators with gradients")
def test_second_derivatives_of_the_operator_are_refused():
    q, k, v = tensors((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8))
    loss = lambda q: rootdk.attention(q, k, v).sum()  # noqa: E731
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.func.grad(lambda q: torch.func.grad(loss)(q).sum())(q)


def test_dropout_of_everything():
    q, k, v = tensors((1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 5, 6), grad=True)
    out = sdpa(q, k, v, dropout_p=1.0)
    assert torch.equal(out, torch.zeros(1, 2, 4, 6))
    out.sum().backward()
    assert all(torch.equal(x.grad, torch.zeros_like(x)) for x in (q, k, v))
    for probability in (-0.1, 1.5, math.nan):
        with pytest.raises(RuntimeError, match="dropout"):
            sdpa(q, k, v, dropout_p=probability)


# --- transforms ---------------------------------------------------------------------------------------------------


@needs(HAS_VMAP, "torch.vmap over operators")
@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, None), (1, 0, None), (-1, 2, 3)], ids=str)
def test_vmap(in_dims):
    shapes = ((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 6))
    given = tensors(*(shape if dim is None else (7, *shape) for shape, dim in zip(shapes, in_dims)))
    moved = [x if dim is None else x.movedim(0, dim) for x, dim in zip(given, in_dims)]
    near(torch.vmap(sdpa, in_dims)(*moved), torch.vmap(written_out, in_dims)(*moved))


@needs(HAS_VMAP, "torch.vmap over operators")
@pytest.mark.parametrize("options", ["bias", "own bias", "mask", "sinks", "kv_lengths"])
def test_vmap_over_options(options):
    q, k, v, bias, sinks = tensors((7, 2, 3, 4, 8), (7, 2, 3, 5, 8), (7, 2, 3, 5, 6), (7, 3, 4, 5), (7, 3))
    name, x = {
        "bias": ("bias", bias[0]),
        "own bias": ("bias", bias),
        "mask": ("mask", bias > 0),
        "sinks": ("sinks", sinks),
        "kv_lengths": ("kv_lengths", torch.arange(14).reshape(7, 2) % 6),
    }[options]
    dims = (0, 0, 0, None if options == "bias" else 0)
    ours = torch.vmap(lambda q, k, v, x: rootdk.attention(q, k, v, **{name: x}), dims)(q, k, v, x)
    one_by_one = [
        rootdk.attention(q[i], k[i], v[i], **{name: x if options == "bias" else x[i]}) for i in range(7)
    ]
    near(ours, torch.stack(one_by_one), 1e-6)


@needs(HAS_VMAP, "torch.vmap over operators")
@pytest.mark.parametrize("with_bias", [False, True])
def test_gradients_of_each_sample(with_bias):
    q, k, v, bias = tensors((7, 2, 3, 4, 8), (2, 3, 5, 8), (7, 2, 3, 5, 6), (7, 1, 1, 4, 5))
    x = bias if with_bias else bias * 0

    def loss(function):
        return lambda q, k, v, x: function(q, k, v, x if with_bias else None).square().sum()

    places = (0, 1, 2, 3) if with_bias else (0, 1, 2)
    for order in ("vmap(grad)", "grad(vmap)"):
        results = []
        for function in (sdpa, written_out):
            if order == "vmap(grad)":
                run = torch.vmap(torch.func.grad(loss(function), places), (0, None, 0, 0))
            else:
                run = torch.func.grad(
                    lambda *given: torch.vmap(loss(function), (0, None, 0, 0))(*given).sum(), places  # noqa: B023
                )
            results.append(run(q, k, v, x))
        for a, b in zip(*results):
            near(a, b, 2e-5)


@needs(HAS_VMAP, "torch.vmap over operators")
def test_vmap_draws_dropout_as_it_is_told():
    q, k, v = tensors((2, 3, 16, 8), (2, 3, 16, 8), (2, 3, 16, 8))
    many = q.expand(5, *q.shape)

    def run(q):
        return sdpa(q, k, v, dropout_p=0.5)

    same = torch.vmap(run, randomness="same")(many)
    assert all(torch.equal(same[0], x) for x in same)
    different = torch.vmap(run, randomness="different")(many)
    assert not any(torch.equal(different[0], x) for x in different[1:])
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(run)(many)


# --- tensors without memory, tracing, counting --------------------------------------------------------------------


@pytest.mark.parametrize("function", [rootdk.attention, rootdk.torch.attention, sdpa])
def test_meta_tensors(function):
    q, k, v = (x.to("meta") for x in tensors((2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 7)))
    out = function(q, k, v)
    assert out.shape == (2, 4, 5, 7) and out.device.type == "meta" and out.dtype == torch.float32
    with pytest.raises(ValueError, match="do not fit together"):
        function(q, k[..., :5], v)


def test_statistics_of_meta_tensors():
    q, k, v = (x.to("meta") for x in tensors((2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 7)))
    result = rootdk.attention(q, k, v, stats=True, map_size=3)
    assert result.lse.shape == (2, 4, 5) and result.column_mass.shape == (2, 4, 6)
    assert result.pooled_map.shape == (2, 4, 3, 3)


@needs(hasattr(torch, "fx"), "torch.fx")
@pytest.mark.parametrize("function", [rootdk.attention, rootdk.torch.attention, sdpa])
def test_symbolic_trace(function):
    q, k, v = tensors((2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 7))

    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return function(q * 2, k, v, scale=0.5) + 1

    traced = torch.fx.symbolic_trace(Module())
    assert sum(node.op == "call_function" for node in traced.graph.nodes) == 3
    assert torch.equal(traced(q, k, v), Module()(q, k, v))


class Watched(torch.Tensor):
    """A subclass that keeps its type, as PyTorch's functions let it."""


@pytest.mark.parametrize("function", [rootdk.attention, rootdk.torch.attention, sdpa])
def test_subclasses_keep_their_type(function):
    q, k, v = tensors((2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 7))
    out = function(q.as_subclass(Watched), k, v)
    assert type(out) is Watched and torch.equal(out.as_subclass(torch.Tensor), function(q, k, v))


@needs(HAS_OPERATORS, "torch.utils.flop_counter with formulas")
@pytest.mark.parametrize("grad", [False, True])
def test_flops_are_counted(grad):
    from torch.utils.flop_counter import FlopCounterMode

    q, k, v = tensors((2, 4, 16, 8), (2, 4, 32, 8), (2, 4, 32, 8), grad=grad)

    def count(function):
        with FlopCounterMode(display=False) as counter:
            out = function(q, k, v)
            if grad:
                out.sum().backward()
        return counter.get_total_flops()

    forward = 4 * 2 * 4 * 16 * 32 * 8
    assert count(sdpa) == forward + (forward * 5 // 2 if grad else 0)
    theirs = count(torch.nn.functional.scaled_dot_product_attention)
    assert theirs in (0, count(sdpa))  # older versions do not count their own kernel for the CPU


# --- nested tensors -----------------------------------------------------------------------------------------------

HAS_JAGGED = HAS_OPERATORS and hasattr(torch, "nested") and hasattr(torch.nested, "nested_tensor_from_jagged")


def jagged(lengths, heads, dim, seed=0):
    """([batch, heads, len, dim], its parts)."""
    parts = [x.requires_grad_() for x in tensors(*((n, heads, dim) for n in lengths), seed=seed)]
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged).transpose(1, 2), parts


@needs(HAS_JAGGED, "nested tensors of the jagged layout")
@pytest.mark.parametrize("causal", [False, True])
def test_nested_tensors_are_packed_sequences(causal):
    lengths = (3, 7, 1, 5)
    (q, q_parts), (k, k_parts), (v, v_parts) = (jagged(lengths, 4, 8, seed) for seed in (1, 2, 3))
    v = torch.nested.nested_tensor_from_jagged(v.transpose(1, 2).values(), q.offsets()).transpose(1, 2)
    k = torch.nested.nested_tensor_from_jagged(k.transpose(1, 2).values(), q.offsets()).transpose(1, 2)
    out = sdpa(q, k, v, is_causal=causal)
    assert out.is_nested and out.shape[2] == q.shape[2]
    rows = [
        written_out(*(x.transpose(0, 1) for x in parts), is_causal=causal) for parts in zip(q_parts, k_parts, v_parts)
    ]
    for ours, right in zip(out.unbind(), rows):
        near(ours, right)
    leaves = (*q_parts, *k_parts, *v_parts)
    ours = torch.autograd.grad(out.values().square().sum(), leaves)
    right = torch.autograd.grad(sum(row.square().sum() for row in rows), leaves)
    for a, b in zip(ours, right):
        near(a, b, 1e-5)


@needs(HAS_JAGGED, "nested tensors of the jagged layout")
def test_nested_tensors_of_other_lengths_and_what_is_refused():
    q, q_parts = jagged((3, 7, 2), 4, 8)
    k, k_parts = jagged((5, 1, 6), 4, 8)
    for ours, a, b in zip(sdpa(q, k, k).unbind(), q_parts, k_parts):
        near(ours, written_out(a.transpose(0, 1), b.transpose(0, 1), b.transpose(0, 1)))
    refused = {
        "is_causal with nested tensors": lambda: sdpa(q, k, k, is_causal=True),
        "together with nested": lambda: sdpa(q, k, k, torch.ones(1, dtype=torch.bool)),
        "different lengths": lambda: sdpa(q, k, q),
        "is no nested tensor": lambda: sdpa(q, torch.ones(3, 4, 5, 8), k),
        "transpose.1, 2. it": lambda: sdpa(q.transpose(1, 2), k, k),
    }
    for message, call in refused.items():
        with pytest.raises(RuntimeError, match=message):
            call()


# --- errors -------------------------------------------------------------------------------------------------------


def test_errors_are_those_of_pytorch_and_of_python():
    q, k, v = tensors((1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    wrong = {
        "head_dim": lambda: sdpa(q, k[..., :4], v),
        "v is bf16 but q is f32": lambda: sdpa(q, k, v.bfloat16()),
        "together with is_causal": lambda: sdpa(q, k, v, torch.ones(4, 5, dtype=torch.bool), is_causal=True),
        "broadcast": lambda: sdpa(q, k, v, torch.ones(3, 5)),
        "do not broadcast": lambda: sdpa(torch.ones(2, 2, 4, 8), torch.ones(3, 2, 5, 8), torch.ones(3, 2, 5, 8)),
        "not a multiple": lambda: sdpa(torch.ones(1, 3, 4, 8), k, v, enable_gqa=True),
        "rank 1": lambda: sdpa(q[0, 0, 0], k, v),
    }
    for message, call in wrong.items():
        with pytest.raises(ValueError, match=message) as caught:
            call()
        assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("bad", [None, [[1.0]], 3.0, "text"], ids=str)
def test_what_is_no_tensor_is_named(bad):
    q, k, v = tensors((1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    for function in (rootdk.attention, rootdk.torch.attention, sdpa):
        for place in range(3):
            given = [q, k, v]
            given[place] = bad
            with pytest.raises(TypeError, match=f"{'qkv'[place]}.* is a .*{type(bad).__name__}"):
                function(*given)
            given[(place + 1) % 3].requires_grad_()
            with pytest.raises(TypeError, match=f"{'qkv'[place]}.* is a .*{type(bad).__name__}"):
                function(*given)
    if bad is not None:
        with pytest.raises(TypeError, match="attn_mask is a"):
            sdpa(q, k, v, bad)


def test_an_interrupt_comes_through_and_leaves_calls_whole():
    program = """
import os, signal, sys, threading, time
import torch, rootdk.torch
q = torch.randn(1, 8, 2048, 64, generator=torch.Generator().manual_seed(0))
right = rootdk.torch.scaled_dot_product_attention(q, q, q)
threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    while True:
        rootdk.torch.scaled_dot_product_attention(q, q, q)
except KeyboardInterrupt:
    print("interrupted", torch.equal(right, rootdk.torch.scaled_dot_product_attention(q, q, q)))
"""
    environment = dict(os.environ, PYTHONUNBUFFERED="1")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.stdout == "interrupted True\n", done.stderr
