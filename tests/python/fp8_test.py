"""Attention in e4m3 from Python: compute="f8e4m3" and quantize_for_attention."""

import pickle
import sys

import numpy as np
import pytest

import rootdk

try:
    import torch
except ImportError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")


def operands(q_len=40, kv_len=200, head_dim=64, seed=0):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((2, 4, q_len, head_dim), dtype=np.float32)
    k = rng.standard_normal((2, 2, kv_len, head_dim), dtype=np.float32)
    return q, k, rng.standard_normal((2, 2, kv_len, head_dim), dtype=np.float32)


def relative(found, exact):
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def e4m3(x):
    """Nearest, ties to even, in plain NumPy."""
    x = np.asarray(x, np.float64)
    size = np.minimum(np.abs(x), 448)
    step = 2.0 ** (np.maximum(np.floor(np.log2(np.maximum(size, 2.0**-30))), -6) - 3)
    return np.sign(x) * np.minimum(np.round(size / step) * step, 448)


def test_compute_is_near_the_exact_result():
    q, k, v = operands()
    k += 3
    exact = rootdk.attention(q, k, v, causal=True, stats="lse")
    for options in ({}, {"rotate": True}):
        found = rootdk.attention(q, k, v, causal=True, compute="f8e4m3", stats="lse", **options)
        assert 0.005 < relative(found.out, exact.out) < 0.06
        assert np.abs(found.lse - exact.lse).max() < 0.2


def test_the_numbers_are_those_of_the_specification():
    """The header's formulas in NumPy."""
    q, k, v = operands()
    t = rootdk.quantize_for_attention(q, k, v)
    centred = k - k.mean(axis=2, keepdims=True)
    for block in (slice(0, 128), slice(128, 200)):
        rows = centred[:, :, block]
        amax = np.abs(rows).max(axis=(2, 3))
        np.testing.assert_allclose(t.k_scales[:, :, block.start // 128], amax / 448, rtol=1e-5)
        expected = e4m3(rows * (448 / amax)[:, :, None, None])
        found = decode(t.k)[:, :, block]
        assert np.mean(found == expected) > 0.999  # the mean has another order of sums
        assert np.abs(found - expected).max() <= 32
    np.testing.assert_allclose(t.v_scales, np.abs(v).max(axis=2) / 448, rtol=1e-6)
    np.testing.assert_array_equal(decode(t.v), e4m3(v * (np.float32(448) / np.abs(v).max(axis=2))[:, :, None]))
    np.testing.assert_allclose(t.key_mean, k.mean(axis=2), atol=1e-6)


def decode(numbers):
    """The values of e4m3 bits."""
    bits = numbers.view(np.uint8).astype(np.int64)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    return np.where(bits & 128, -value, value)


def test_quantised_once_gives_the_bits_of_compute():
    q, k, v = operands()
    t = rootdk.quantize_for_attention(q, k, v, causal=True, rotate=True)
    for target in (None, "reference"):
        direct = rootdk.attention(q, k, v, causal=True, compute="f8e4m3", rotate=True, stats=True, target=target)
        again = t.attention(stats=True, target=target)
        np.testing.assert_array_equal(direct.out, again.out)
        np.testing.assert_array_equal(direct.lse, again.lse)
        np.testing.assert_array_equal(direct.column_mass, again.column_mass)


def test_output_types():
    q, k, v = operands()
    t = rootdk.quantize_for_attention(q, k, v)
    wide, half = t.attention(), t.attention(dtype="f16")
    assert wide.dtype == np.float32 and half.dtype == np.float16
    np.testing.assert_allclose(half, wide, atol=2e-3)
    out = np.empty_like(wide)
    assert t.attention(out=out) is out
    np.testing.assert_array_equal(out, wide)


def test_a_type_that_numpy_lacks_is_named():
    t = rootdk.quantize_for_attention(*operands())
    if "ml_dtypes" not in sys.modules:
        with pytest.raises(TypeError, match="NumPy has no type bf16.*give out="):
            t.attention(dtype="bf16")
    with pytest.raises(ValueError, match="dtype is 'f16', but out is given"):
        t.attention(dtype="f16", out=np.empty_like(t.attention()))


def test_numbers_can_be_kept_in_a_file():
    t = rootdk.quantize_for_attention(*operands(), causal=True)
    again = pickle.loads(pickle.dumps(t))
    assert again.options == {"causal": True} and repr(again) == repr(t)
    np.testing.assert_array_equal(again.attention(), t.attention())


def test_packed_sequences():
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 2, 300, 32), dtype=np.float32) for _ in range(3))
    starts = [0, 130, 300]
    t = rootdk.quantize_for_attention(q, k, v, q_starts=starts, kv_starts=starts)
    packed = t.attention()
    for begin, end in zip(starts, starts[1:]):
        rows = np.s_[:, :, begin:end]
        alone = rootdk.attention(q[rows], k[rows], v[rows], compute="f8e4m3")
        np.testing.assert_array_equal(packed[rows], alone)


def test_gradient_is_near_the_exact_one():
    q, k, v = operands()
    grad = np.random.default_rng(2).standard_normal(q.shape, dtype=np.float32)
    results = []
    for options in ({}, {"compute": "f8e4m3"}):
        forward = rootdk.attention(q, k, v, stats="lse", **options)
        results.append(rootdk.attention_backward(grad, q, k, v, forward.out, forward.lse, **options))
    for name in ("q", "k", "v"):
        assert 0.001 < relative(results[1][name], results[0][name]) < 0.12


def test_explain_names_what_runs():
    q, k, v = operands()
    assert rootdk.explain(q, k, v, compute="f8e4m3").chosen == "fp8_cpu"
    assert [name for name, _ in rootdk.explain(q, k, v, compute="f8e4m3").candidates][-1] == "reference"


def test_errors_name_the_values():
    q, k, v = operands()
    with pytest.raises(ValueError, match="compute is 'f4'.*f8e4m3"):
        rootdk.attention(q, k, v, compute="f4")
    with pytest.raises(ValueError, match="rotate needs compute f8e4m3"):
        rootdk.attention(q, k, v, rotate=True)
    with pytest.raises(rootdk.UnsupportedError, match="the score is cosine"):
        rootdk.attention(q, k, v, score="cosine", compute="f8e4m3")
    with pytest.raises(ValueError, match="it is f64"):
        rootdk.attention(q.astype("f8"), k.astype("f8"), v.astype("f8"), compute="f8e4m3")
    with pytest.raises(ValueError, match=r"expected \[batch, heads, len, dim\]"):
        rootdk.quantize_for_attention(q[0], k[0], v[0])
    with pytest.raises(ValueError, match="dtype is 'f64'"):
        rootdk.quantize_for_attention(q, k, v).attention(dtype="f64")


@needs_torch
def test_torch_trains_through_it():
    """Straight through: a small regression gets as close as it does in f32."""
    losses = {}
    for compute in (None, "f8e4m3"):
        torch.manual_seed(0)
        x, goal = torch.randn(1, 2, 64, 32), torch.randn(1, 2, 64, 32) * 0.1
        weights = [torch.nn.Parameter(torch.randn(32, 32) / 6) for _ in range(3)]
        optimiser = torch.optim.Adam(weights, lr=0.02)
        for _ in range(60):
            q, k, v = (x @ w for w in weights)
            loss = ((rootdk.torch.attention(q, k, v, compute=compute) - goal) ** 2).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        losses[compute] = loss.item()
    assert losses["f8e4m3"] < losses[None] * 1.05


@needs_torch
def test_torch_bf16_and_large_seeds():
    q, k, v = (torch.from_numpy(x).to(torch.bfloat16).requires_grad_() for x in operands())
    out = rootdk.torch.attention(q, k, v, compute="f8e4m3", dropout=0.1, seed=2**64 - 5)
    again = rootdk.torch.attention(q, k, v, compute="f8e4m3", dropout=0.1, seed=2**64 - 5)
    assert out.dtype == torch.bfloat16 and torch.equal(out, again)
    out.float().pow(2).sum().backward()
    assert torch.isfinite(q.grad.float()).all() and q.grad.dtype == torch.bfloat16
    t = rootdk.quantize_for_attention(q.detach(), k.detach(), v.detach())
    assert t.q.dtype == torch.int8 and t.attention(dtype="bf16").dtype == torch.bfloat16


def random_call(rng):
    """(q, k, v, options) of some random configuration."""
    heads, kv_heads = ((4, 2), (3, 1), (2, 2))[rng.integers(3)]
    q_len, kv_len, head_dim, value_dim = (int(n) for n in (*rng.integers(1, 300, 2), *rng.integers(1, 80, 2)))
    packed = rng.random() < 0.25
    batch = 1 if packed else int(rng.integers(1, 3))
    size = 10.0 ** rng.uniform(-3, 1)

    def normal(*shape):
        return (size * rng.standard_normal(shape)).astype(np.float32)

    q, k = normal(batch, heads, q_len, head_dim), normal(batch, kv_heads, kv_len, head_dim)
    options = {"causal": bool(rng.random() < 0.5), "rotate": bool(rng.random() < 0.3), "scale": 0.3 / size / size}
    if rng.random() < 0.3:
        options["window"] = (int(rng.integers(0, 100)), int(rng.integers(0, 100)))
    if rng.random() < 0.3:
        options["softcap"] = 5.0
    if rng.random() < 0.3:
        options["sinks"] = rng.standard_normal(heads).astype(np.float32)
    if rng.random() < 0.3:
        options["dropout"], options["seed"] = 0.3, int(rng.integers(2**62))
    if packed:
        for name, total in (("q_starts", q_len), ("kv_starts", kv_len)):
            options[name] = [0, *sorted(int(n) for n in rng.integers(0, total + 1, 2)), total]
    else:
        if rng.random() < 0.3:
            options["kv_lengths"] = [int(n) for n in rng.integers(0, kv_len + 1, batch)]
        if rng.random() < 0.3:
            options["mask"] = rng.random((batch, 1, q_len, kv_len)) < 0.8
        if rng.random() < 0.3:
            options["bias"] = rng.standard_normal((1, heads, q_len, kv_len)).astype(np.float32)
    return q, k + normal(1, 1, 1, head_dim) * 3, normal(batch, kv_heads, kv_len, value_dim), options


@pytest.mark.parametrize("seed", range(60))
def test_random_calls_agree_with_the_reference(seed):
    q, k, v, options = random_call(np.random.default_rng(seed))
    found, expected = (
        rootdk.attention(q, k, v, compute="f8e4m3", stats=True, target=target, **options) for target in (None, "reference")
    )
    keep = 1 / (1 - options.get("dropout", 0))
    assert np.abs(found.out - expected.out).max() <= 0.126 * np.abs(v).max() * keep
    for name in ("lse", "max_logit", "max_weight", "entropy", "sum_p2", "column_mass"):
        a, b = getattr(found, name), getattr(expected, name)
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
        real = np.isfinite(b)
        np.testing.assert_allclose(a[real], b[real], atol=2e-4 * max(1, np.abs(b[real]).max(initial=0)), err_msg=name)


def test_numbers_print_as_shapes():
    q = np.ones((1, 2, 3, 8), np.float32)
    text = repr(rootdk.quantize_for_attention(q, q, q, causal=True))
    assert text == "Quantized(q [1, 2, 3, 8], k [1, 2, 3, 8], v [1, 2, 3, 8], options {'causal': True})"
