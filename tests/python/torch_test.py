"""rootdk.torch against PyTorch: values, gradients, conventions, and torch.compile where PyTorch has it."""

import functools
import math
import subprocess
import sys
import threading

import pytest
from conftest import skip_where_refused

torch = pytest.importorskip("torch")
import torch.utils.checkpoint  # noqa: E402

import rootdk  # noqa: E402
import rootdk.torch  # noqa: E402

HAS_SDPA = hasattr(torch.nn.functional, "scaled_dot_product_attention")
HAS_OPERATORS = rootdk.torch._operator.HAS_OPERATORS


def tensors(*shapes, dtype=torch.float32, device="cpu", grad=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype) for shape in shapes]
    return [x.requires_grad_(grad) for x in made]


def written_out(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """PyTorch's definition of scaled_dot_product_attention, without dropout."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    logits = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None:
        logits = logits.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else logits + attn_mask
    return logits.softmax(-1) @ value


DTYPES = [(torch.float32, 2e-6), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)]


@pytest.mark.parametrize("dtype, tolerance", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_forward_agrees_with_pytorch(device, dtype, tolerance, causal):
    q, k, v = tensors((2, 4, 70, 64), (2, 2, 70, 64), (2, 2, 70, 64), dtype=dtype, device=device)
    skip_where_refused(q, k, v, causal=causal)
    out = rootdk.attention(q, k, v, causal=causal)
    assert out.dtype == dtype and out.device == q.device
    expected = written_out(q.double(), k.double(), v.double(), is_causal=causal, enable_gqa=True)
    assert (out.double() - expected).abs().max() < tolerance


def test_tensors_without_plain_memory_are_named():
    q, k, v = tensors((1, 1, 3, 4), (1, 1, 3, 4), (1, 1, 3, 4))
    with pytest.raises(TypeError, match="k has the layout torch.sparse_coo, expected torch.strided"):
        rootdk.attention(q, k.to_sparse(), v)
    with pytest.raises(ValueError, match="k lies on cpu but q lies on meta"):
        rootdk.attention(q.to("meta"), k, v)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 6e-2)], ids=str)
def test_backward_agrees_with_pytorch(device, dtype, tolerance):
    leaves = tensors((2, 4, 33, 64), (2, 2, 33, 64), (2, 2, 33, 64), dtype=dtype, device=device, grad=True)
    skip_where_refused(*leaves, causal=True, stats="lse")
    rootdk.attention(*leaves, causal=True).square().sum().backward()
    exact = [x.detach().double().requires_grad_() for x in leaves]
    written_out(*exact, is_causal=True, enable_gqa=True).square().sum().backward()
    for ours, right in zip(leaves, exact):
        scale = right.grad.abs().max()
        assert (ours.grad.double() - right.grad).abs().max() / scale < tolerance


FEATURES = {
    "window": {"window": (9, 3)},
    "softcap": {"softcap": 2.0, "temperature": 1.5},
    "bias": {"bias": (4, 40, 48)},
    "mask": {"mask": (2, 1, 40, 48)},
    "lengths": {"kv_lengths": [48, 17]},
    "relative table": {"relative_table": (4, 9), "relative_zero": 4},
    "alibi and sinks": {"alibi_slopes": (4,), "sinks": (4,)},
    "dropout": {"dropout": 0.3, "seed": 2**40 + 1},
    "cosine": {"score": "cosine", "scale": 4.0},
}


@pytest.mark.parametrize("name", FEATURES)
def test_features_agree_with_the_reference(device, name):
    """Values, statistics and gradients of each feature in f32, against the reference in f64."""
    q, k, v = tensors((2, 4, 40, 64), (2, 2, 48, 64), (2, 2, 48, 64), dtype=torch.float64, seed=5)
    params = {}
    for key, value in FEATURES[name].items():
        is_shape = isinstance(value, tuple) and key != "window"
        params[key] = tensors(value, dtype=torch.float64, seed=6)[0] if is_shape else value
    if "mask" in params:
        params["mask"] = params["mask"] > -0.5

    def run(dtype, device, **how):
        def move(x):
            return x.to(device, x.dtype if x.dtype == torch.bool else dtype) if isinstance(x, torch.Tensor) else x

        leaves = [move(x).requires_grad_() for x in (q, k, v)]
        moved = {key: move(x) for key, x in params.items()}
        skip_where_refused(*leaves, stats=True, **moved)
        result = rootdk.attention(*leaves, stats=True, **moved, **how)
        loss = result.out.square().sum() + result.lse.sum() + result.entropy.sum()
        return [result.out, *result.stats().values(), *torch.autograd.grad(loss, leaves)]

    for ours, right in zip(run(torch.float32, device), run(torch.float64, "cpu", target="reference")):
        torch.testing.assert_close(ours.double().cpu(), right, rtol=2e-4, atol=2e-4)


def test_gradcheck_of_every_differentiable_input():
    shapes = {
        "q": (1, 4, 3, 4),
        "k": (1, 2, 5, 4),
        "v": (1, 2, 5, 3),
        "bias": (4, 3, 5),
        "relative_table": (4, 5),
        "alibi_slopes": (4,),
        "sinks": (4,),
    }
    leaves = dict(zip(shapes, tensors(*shapes.values(), dtype=torch.float64, grad=True)))

    def run(*values):
        named = dict(zip(shapes, values))
        result = rootdk.attention(
            named.pop("q"),
            named.pop("k"),
            named.pop("v"),
            causal=True,
            softcap=3.0,
            relative_zero=2,
            dropout=0.25,
            seed=2**63 + 9,
            stats=("lse", "entropy"),
            **named,
        )
        return result.out, result.lse, result.entropy

    assert torch.autograd.gradcheck(run, tuple(leaves.values()))


def test_gradcheck_of_the_additive_score():
    q, k, v, a = tensors((1, 2, 3, 4), (1, 2, 4, 4), (1, 2, 4, 4), (2, 4), dtype=torch.float64, grad=True)
    assert torch.autograd.gradcheck(
        lambda q, k, v, a: rootdk.attention(q, k, v, score="additive", additive_v=a, scale="none"), (q, k, v, a)
    )


def test_only_the_gradients_that_are_needed():
    q, k, v = tensors((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4))
    k.requires_grad_()
    rootdk.attention(q, k, v).sum().backward()  # the gradient of a sum has stride 0
    assert k.grad is not None and q.grad is None and v.grad is None
    with torch.no_grad():
        assert not rootdk.attention(q, k, v).requires_grad
    result = rootdk.attention(q, k, v, stats=True)
    assert result.entropy.requires_grad and not result.max_logit.requires_grad and not result.sum_p2.requires_grad


def test_out_and_gradients_exclude_each_other():
    q, k, v = tensors((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), grad=True)
    with pytest.raises(ValueError, match="out is given, but a gradient is needed"):
        rootdk.attention(q, k, v, out=torch.empty(1, 2, 3, 4))


def writers():
    """Functions that write to the memory `out`, by name: through the binding, through ctypes, and beside attention."""
    q, k, v = tensors((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4))
    numbers = rootdk.quantize_for_attention(q, k, v)
    return {
        "the binding": lambda out: rootdk.attention(q, k, v, out=out),
        "ctypes": lambda out: rootdk.attention(q, k, v, out=out, stats="lse"),
        "numbers": lambda out: numbers.attention(out=out),
        "rope": lambda out: rootdk.rope(q, out=out),
    }


@pytest.mark.parametrize("name", writers())
def test_out_that_requires_a_gradient_is_refused(name):
    """As functions of PyTorch with out= refuse it."""
    write = writers()[name]
    leaf = torch.full((1, 2, 3, 4), 7.0, requires_grad=True)
    with pytest.raises(ValueError, match="out .*(requires|needs) a gradient"):
        write(leaf)
    assert leaf.detach().eq(7).all() and leaf._version == 0
    with torch.no_grad():
        write(leaf)
    assert not leaf.detach().eq(7).any() and leaf.requires_grad and leaf._version > 0


@pytest.mark.parametrize("name", writers())
def test_autograd_notices_out_that_was_written_over(name):
    out = torch.ones(1, 2, 3, 4)
    factor = torch.ones(1, 2, 3, 4, requires_grad=True)
    loss = (factor * out).sum()  # keeps out for the gradient of factor
    writers()[name](out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    view = torch.ones(2, 2, 3, 4)
    loss = (factor * view[:1]).sum()
    writers()[name](view[1:])  # of the same memory, as PyTorch counts
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        writers()[name](torch.empty(1, 2, 3, 4))


@pytest.mark.parametrize("options", [{}, {"causal": True, "softcap": 2.0}, {"dropout": 0.5, "seed": 3}], ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_gradients_of_several_outputs_at_once(options, with_bias):
    """is_grads_batched=True, which vectorised Jacobians use."""
    q, k, v = tensors((1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 5, 8), grad=True)
    inputs = [q, k, v]
    if with_bias:
        inputs.append(torch.randn(4, 5, generator=torch.Generator().manual_seed(1)).requires_grad_())
        if "softcap" not in options:
            options = {**options, "bias": inputs[3]}
        else:
            inputs.pop()
    for stats in (False, "lse"):
        result = rootdk.attention(q, k, v, stats=stats, **options)
        out = result.out if stats else result
        grads = torch.randn(3, *out.shape, generator=torch.Generator().manual_seed(2))
        together = torch.autograd.grad(out, inputs, grads, is_grads_batched=True, retain_graph=True)
        alone = [torch.autograd.grad(out, inputs, grad, retain_graph=True) for grad in grads]
        for i, gradient in enumerate(together):
            torch.testing.assert_close(gradient, torch.stack([one[i] for one in alone]))
        if hasattr(torch, "func"):
            each = torch.vmap(lambda grad: torch.autograd.grad(out, inputs, grad, retain_graph=True))(grads)
            assert all(torch.equal(a, b) for a, b in zip(each, together))
    # The backward pass may run in a thread that knows nothing of it, as it does on a GPU.
    level = torch._C._vmapmode_increment_nesting()
    batched = torch._add_batch_dim(grads, 0, level)
    torch._C._vmapmode_decrement_nesting()
    elsewhere = torch.autograd.grad(out, inputs, batched, retain_graph=True)
    assert all(torch.equal(torch._remove_batch_dim(a, level, 3, 0), b) for a, b in zip(elsewhere, together))
    jacobian = functools.partial(torch.autograd.functional.jacobian, lambda q: rootdk.attention(q, k, v, **options), q)
    torch.testing.assert_close(jacobian(vectorize=True), jacobian())


@pytest.mark.parametrize("lengths", [(6, 6), (4, 9), (9, 4), (1, 7)], ids=str)
@pytest.mark.parametrize("grad", [False, True])
def test_drop_in_is_causal_from_the_top_left(lengths, grad):
    q, k, v = tensors((2, 3, lengths[0], 8), (2, 3, lengths[1], 8), (2, 3, lengths[1], 5), grad=grad)
    ours = rootdk.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
    right = written_out(q, k, v, is_causal=True)
    torch.testing.assert_close(ours, right, rtol=0, atol=2e-6)
    if HAS_SDPA:
        torch.testing.assert_close(
            ours, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), rtol=0, atol=2e-6
        )
    if grad:
        ours_grad = torch.autograd.grad(ours.square().sum(), (q, k, v))
        right_grad = torch.autograd.grad(right.square().sum(), (q, k, v))
        for a, b in zip(ours_grad, right_grad):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 2, 3)], ids=str)
def test_drop_in_takes_every_rank(leading):
    q, k, v = tensors((*leading, 5, 8), (*leading, 6, 8), (*leading, 6, 4))
    for mask in (None, torch.rand(5, 6) < 0.8, torch.randn(*leading, 5, 6)):
        ours = rootdk.torch.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        right = written_out(q, k, v, attn_mask=mask)
        assert ours.shape == right.shape
        right = torch.where(torch.isnan(right), torch.zeros(()), right)  # a row with no key
        torch.testing.assert_close(ours, right, rtol=0, atol=2e-6)


def test_drop_in_masks_scale_and_groups():
    q, k, v = tensors((2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 8))
    keep = torch.rand(2, 1, 5, 6) < 0.7
    keep[..., 0] = True
    run = rootdk.torch.scaled_dot_product_attention
    torch.testing.assert_close(
        run(q, k, v, keep, scale=0.2, enable_gqa=True),
        written_out(q, k, v, keep, scale=0.2, enable_gqa=True),
        rtol=0,
        atol=2e-6,
    )
    with pytest.raises(ValueError, match="4 heads and key 2"):
        run(q, k, v)
    with pytest.raises(ValueError, match="together with is_causal"):
        run(q, q, q, attn_mask=torch.ones(5, 5, dtype=torch.bool), is_causal=True)
    turned = [x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in (q, q, q)]  # last dimension not contiguous
    torch.testing.assert_close(run(*turned), run(q, q, q))


def test_drop_in_gives_masks_a_gradient():
    q, k, v, bias = tensors((2, 2, 5, 8), (2, 2, 6, 8), (2, 2, 6, 8), (5, 6), dtype=torch.float64)
    bias.requires_grad_()
    rootdk.torch.scaled_dot_product_attention(q, k, v, attn_mask=bias).square().sum().backward()
    right = bias.detach().clone().requires_grad_()
    written_out(q, k, v, attn_mask=right).square().sum().backward()
    torch.testing.assert_close(bias.grad, right.grad)


def test_drop_in_draws_its_dropout_from_pytorch():
    q, k, v = tensors((2, 2, 40, 8), (2, 2, 40, 8), (2, 2, 40, 8))
    run = rootdk.torch.scaled_dot_product_attention
    torch.manual_seed(3)
    first, second = run(q, k, v, dropout_p=0.5), run(q, k, v, dropout_p=0.5)
    torch.manual_seed(3)
    assert torch.equal(first, run(q, k, v, dropout_p=0.5)) and not torch.equal(first, second)
    mean = torch.stack([run(q, k, v, dropout_p=0.5) for _ in range(300)]).mean(0)
    assert (mean - run(q, k, v)).abs().mean() < 0.02


def test_drop_in_follows_autocast():
    q, k, v = tensors((1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert rootdk.torch.scaled_dot_product_attention(q, k, v).dtype == torch.bfloat16


def test_strided_and_transposed(device):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v = tensors((2, 70, 4, 64), (2, 70, 4, 64), (2, 70, 4, 64), dtype=dtype, device=device)
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    skip_where_refused(*turned)
    assert torch.equal(rootdk.attention(*turned), rootdk.attention(*(x.contiguous() for x in turned)))


def test_wrong_devices_types_and_layouts():
    q, k, v = tensors((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4))
    with pytest.raises(TypeError, match="k has the type torch.complex64"):
        rootdk.attention(q, k.to(torch.complex64), v)
    with pytest.raises(ValueError, match="v is bf16 but q is f32"):
        rootdk.attention(q, k, v.bfloat16())
    with pytest.raises(TypeError, match="layout"):
        rootdk.attention(q.to_sparse(), k, v)
    with pytest.raises(ValueError, match="q has rank 3"):
        rootdk.attention(q[0].requires_grad_(), k, v)


def test_devices_do_not_mix(device):
    if device == "cpu":
        pytest.skip("needs two devices")
    q, k, v = tensors((1, 2, 64, 64), (1, 2, 64, 64), (1, 2, 64, 64), dtype=torch.bfloat16, device=device)
    with pytest.raises(ValueError, match="k lies on cpu but q lies on cuda:0"):
        rootdk.attention(q, k.cpu(), v)


def test_current_stream_is_respected(device):
    if device == "cpu":
        pytest.skip("the CPU has no streams")
    q, k, v = tensors((4, 8, 1024, 64), (4, 8, 1024, 64), (4, 8, 1024, 64), dtype=torch.bfloat16, device=device)
    expected = rootdk.attention(q, k, v)
    stream, late = torch.cuda.Stream(), torch.zeros_like(q)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # a call on another stream would read the zeros
        late.copy_(q)
        out = rootdk.attention(late, k, v)
    stream.synchronize()
    assert torch.equal(out, expected)


def test_zero_sizes():
    for shape in ((0, 2, 3, 4), (2, 2, 0, 4)):
        (q,) = tensors(shape, grad=True)
        out = rootdk.attention(q, q, q)
        assert out.shape == shape
        out.sum().backward()
        assert q.grad.shape == shape


def test_rope_is_the_librarys_and_has_a_gradient(device):
    (x,) = tensors((2, 3, 5, 8), dtype=torch.float64, device=device)
    for params in (
        {},
        {"layout": "interleaved"},
        {"rotary_dim": 4, "offset": 3},
        {"positions": [4, 0, 2, 9, 1]},
        {"scaling": "yarn", "factor": 8.0, "original_max_position": 64},
    ):
        torch.testing.assert_close(rootdk.torch.rope(x, **params).cpu(), rootdk.rope(x.cpu(), **params))
    inside = x.clone()
    assert rootdk.rope(inside, out=inside) is inside and torch.equal(inside, rootdk.rope(x))
    leaf = x.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: rootdk.rope(x, rotary_dim=4), (leaf,))


def test_training_from_several_threads():
    def work(seed, results):
        q, k, v = tensors((1, 2, 17, 8), (1, 2, 17, 8), (1, 2, 17, 8), seed=seed, grad=True)
        for _ in range(10):
            grads = torch.autograd.grad(rootdk.attention(q, k, v, causal=True).square().sum(), (q, k, v))
        results[seed] = grads

    alone, together = {}, {}
    for seed in range(6):
        work(seed, alone)
    threads = [threading.Thread(target=work, args=(seed, together)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(a, b) for seed in range(6) for a, b in zip(alone[seed], together[seed]))


@pytest.mark.skipif(not hasattr(torch, "func"), reason=f"PyTorch {torch.__version__} has no torch.func")
def test_function_transforms_and_checkpoints():
    q, k, v = tensors((1, 2, 5, 4), (1, 2, 5, 4), (1, 2, 5, 4))

    def loss(q):
        return rootdk.attention(q, k, v, causal=True).square().sum()

    leaf = q.clone().requires_grad_()
    (right,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(q), right)
    again = torch.utils.checkpoint.checkpoint(loss, leaf, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(again, leaf)[0], right)


needs_operators = pytest.mark.skipif(
    not HAS_OPERATORS,
    reason=f"PyTorch {torch.__version__} is older than 2.4: it has no "
    "torch.library.register_autograd, and torch.compile is not tested",
)


@needs_operators
def test_operator_passes_pytorchs_own_checks():
    from rootdk._params import Params
    from rootdk._stats import StatsRequest
    from rootdk.torch import _kernels

    q, k, v, bias = tensors((1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8), (1, 1, 5, 5), grad=True)
    for request in (StatsRequest(("lse",)), StatsRequest(("lse", "entropy", "column_mass"), (2, 3), True)):
        flat = _kernels.flatten(Params({"causal": True, "bias": bias}), request, None, None, q)
        torch.library.opcheck(torch.ops.rootdk.attention.default, (q, k, v, *flat))


@needs_operators
def test_compile_keeps_one_graph(device):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    leaves = tensors((2, 4, 64, 64), (2, 4, 64, 64), (2, 4, 64, 64), dtype=dtype, device=device, grad=True)
    skip_where_refused(*leaves, causal=True, stats=("lse", "entropy"))

    def model(q, k, v):
        result = rootdk.attention(q * 0.5, k, v, causal=True, stats="entropy")
        return rootdk.torch.scaled_dot_product_attention(result.out, k, v, is_causal=True) + result.entropy.unsqueeze(
            -1
        )

    compiled = torch.compile(model, backend="inductor" if device == "cuda" else "aot_eager", fullgraph=True)
    plain, fused = model(*leaves), compiled(*leaves)
    tolerance = 1e-5 if device == "cpu" else 3e-2
    torch.testing.assert_close(plain, fused, rtol=tolerance, atol=tolerance)
    for a, b in zip(*(torch.autograd.grad(out.float().square().mean(), leaves) for out in (plain, fused))):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


needs_lean_operators = pytest.mark.skipif(
    not (HAS_OPERATORS and rootdk.torch._operator._compiled.IS_SERVED),
    reason=f"dynamo of PyTorch {torch.__version__} gets the operator with all options",
)


@needs_lean_operators
def test_lean_operators_pass_pytorchs_own_checks():
    q, k, v, bias = tensors((1, 4, 5, 8), (1, 2, 7, 8), (1, 2, 7, 6), (1, 1, 5, 7))
    mask = torch.rand(5, 7) < 0.8
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")  # no gradient of their own
    for options in ((None, None, True, [-1, -1], None), (mask, bias, False, [3, 2], 0.4)):
        torch.library.opcheck(torch.ops.rootdk.attend.default, (q, k, v, *options), test_utils=checks)
        torch.library.opcheck(torch.ops.rootdk.attend_with_lse.default, (q, k, v, *options), test_utils=checks)
        out, lse = torch.ops.rootdk.attend_with_lse(q, k, v, *options)
        for needs in ([True] * 3 + [options[1] is not None], [False, True, False, False]):
            arguments = (torch.randn_like(out), q, k, v, out, lse, *options, needs)
            torch.library.opcheck(torch.ops.rootdk.attend_backward.default, arguments, test_utils=checks)


@needs_lean_operators
def test_lean_operators_are_one_node_with_the_results_of_a_plain_call():
    found = []

    def note(graph, example):
        found.extend(str(node.target) for node in graph.graph.nodes if "rootdk" in str(node.target))
        return make_boxed_func(graph.forward)

    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    bias = torch.randn(1, 4, 9, 5).requires_grad_()
    mask = torch.rand(9, 5) < 0.8
    for lengths, options in (
        ((6, 6), {}),
        ((6, 6), {"is_causal": True, "scale": 0.3}),
        ((6, 8), {"is_causal": True}),
        ((9, 5), {"is_causal": True}),
        ((9, 5), {"attn_mask": mask}),
        ((9, 5), {"attn_mask": bias}),
    ):
        for kv_heads in (4, 2):
            shapes = ((2, 4, lengths[0], 8), (2, kv_heads, lengths[1], 8), (2, kv_heads, lengths[1], 8))
            leaves = tensors(*shapes, grad=True)
            sources = (*leaves, bias) if options.get("attn_mask") is bias else leaves
            call = functools.partial(rootdk.torch.scaled_dot_product_attention, **options, enable_gqa=kv_heads == 2)
            found.clear()
            torch._dynamo.reset()
            compiled = torch.compile(lambda q, k, v: call(q, k, v), backend=aot_autograd(fw_compiler=note), fullgraph=True)
            with torch.no_grad():
                assert torch.equal(compiled(*leaves), call(*leaves))
            assert found == ["rootdk.attend.default"]
            found.clear()
            results, expected = compiled(*leaves), call(*leaves)
            assert torch.equal(results, expected)
            grad = torch.randn_like(results)
            for a, b in zip(*(torch.autograd.grad(x, sources, grad) for x in (results, expected))):
                assert torch.equal(a, b)
            assert found == ["rootdk.attend_with_lse.default", "rootdk.attend_backward.default"]


@needs_operators
def test_compile_draws_a_new_seed_each_call():
    q, k, v = tensors((1, 2, 16, 8), (1, 2, 16, 8), (1, 2, 16, 8))
    compiled = torch.compile(
        lambda q, k, v: rootdk.torch.scaled_dot_product_attention(q, k, v, dropout_p=0.5),
        backend="aot_eager",
        fullgraph=True,
    )
    assert not torch.equal(compiled(q, k, v), compiled(q, k, v))


def test_lists_beside_tensors_with_a_gradient():
    q, k, v = tensors((1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 5, 8), grad=True)
    options = {"alibi_slopes": [0.5, 0.25], "sinks": [0.1, 0.2], "mask": [[True] * 4 + [False]] * 4}
    rootdk.torch.attention(q, k, v, **options).sum().backward()
    listed, q.grad = q.grad, None
    rootdk.torch.attention(q, k, v, **{name: torch.tensor(x) for name, x in options.items()}).sum().backward()
    assert torch.equal(q.grad, listed)


@pytest.mark.parametrize("name, shape, dtype", [("mask", (4, 5), torch.bool), ("kv_lengths", (1,), torch.int32)])
def test_a_tensor_changed_before_the_backward_pass_is_noticed(name, shape, dtype):
    given = torch.ones(shape, dtype=dtype)
    out = rootdk.torch.attention(*tensors((1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 5, 8), grad=True), **{name: given})
    given.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_the_backward_pass_drops_what_the_forward_pass_dropped():
    q, k, v = tensors((1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 5, 8), grad=True)
    rootdk.torch.attention(q, k, v, dropout=0.5, seed=3).sum().backward()
    expected, v.grad = v.grad, None
    seed = torch.tensor(3)
    out = rootdk.torch.attention(q, k, v, dropout=0.5, seed=seed)
    seed.fill_(9)
    out.sum().backward()
    assert torch.equal(v.grad, expected)


def test_functions_without_a_gradient_refuse_tensors_that_need_one():
    (weights,) = tensors((32, 2), grad=True)
    with pytest.raises(ValueError, match="weights needs a gradient"):
        rootdk.t5_relative_table(weights)
    with torch.no_grad():
        assert rootdk.t5_relative_table(weights).shape == (2, 257)


def test_rope_with_a_gradient_refuses_what_it_refuses_without():
    x, flat = tensors((1, 2, 4, 8), (2, 4, 8), grad=True)
    with pytest.raises(ValueError, match="x has rank 3, expected 4"):
        rootdk.rope(flat)
    with pytest.raises(ValueError, match="positions is .3., which does not broadcast"):
        rootdk.rope(x, positions=[1, 2, 3])


def test_the_drop_in_refuses_masks_of_integers():
    q, k, v = tensors((1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    for dtype in (torch.int64, torch.uint8):
        with pytest.raises(TypeError, match="attn_mask is torch.u?int"):
            rootdk.torch.scaled_dot_product_attention(q, k, v, torch.ones(4, 5, dtype=dtype))
    with pytest.raises(TypeError, match="query is a ndarray, expected a tensor"):
        rootdk.torch.scaled_dot_product_attention(q.numpy(), k, v)


def test_the_package_has_its_parts_without_an_import():
    program = "import rootdk; rootdk.torch.scaled_dot_product_attention; rootdk.huggingface.use"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'jax'"):
        rootdk.jax


def test_forward_derivatives_are_refused_not_lost():
    q, k, v = tensors((1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        for function in (rootdk.attention, rootdk.torch.scaled_dot_product_attention):
            with pytest.raises((RuntimeError, NotImplementedError), match="jvp|forward"):
                function(dual, k, v)


def test_traces_are_refused_not_empty():
    q, k, v = tensors((1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    with pytest.raises(RuntimeError, match="use torch.compile"):
        torch.jit.trace(lambda q, k, v: rootdk.attention(q, k, v), (q, k, v))


def test_negated_views_are_refused_by_name():
    q = torch.randn(1, 2, 4, 8)
    bias = torch.randn(1, 2, 4, 4, dtype=torch.complex64).conj().imag
    assert bias.is_neg()
    with pytest.raises(ValueError, match="resolve_neg"):
        rootdk.torch.attention(q, q, q, bias=bias)
    with pytest.raises(ValueError, match="resolve_neg"):
        rootdk.torch.attention(torch._neg_view(q), q, q)
    expected = torch.softmax(q @ q.transpose(-1, -2) / math.sqrt(8) + bias, -1) @ q
    assert torch.allclose(rootdk.torch.attention(q, q, q, bias=bias.resolve_neg()), expected, atol=1e-5)
