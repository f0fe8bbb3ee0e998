"""What the tests share: arrays, the operation written out in NumPy, and the devices there are."""

import math

import numpy
import pytest

import rootdk


def softmax_attention(
    q,
    k,
    v,
    *,
    causal=False,
    window=(None, None),
    scale=None,
    softcap=0.0,
    bias=None,
    mask=None,
    sinks=None,
    kv_lengths=None,
):
    """The operation in float64, with the n x n matrix: (out, weights, logits)."""
    q, k, v = (numpy.asarray(x, numpy.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
    logits = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap:
        logits = softcap * numpy.tanh(logits / softcap)
    if bias is not None:
        logits = logits + bias
    position = numpy.arange(q.shape[2])[:, None] + (k.shape[2] - q.shape[2])
    key = numpy.arange(k.shape[2])[None, :]
    keep = numpy.ones(logits.shape, bool)
    if causal:
        keep &= key <= position
    if window[0] is not None:
        keep &= key >= position - window[0]
    if window[1] is not None:
        keep &= key <= position + window[1]
    if mask is not None:
        keep &= mask
    if kv_lengths is not None:
        keep &= key[None, None] < numpy.asarray(kv_lengths)[:, None, None, None]
    logits = numpy.where(keep, logits, -numpy.inf)
    top = numpy.maximum(logits.max(-1, keepdims=True, initial=-1e30), -1e30)
    power = numpy.exp(logits - top)
    total = power.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + numpy.exp(numpy.asarray(sinks)[None, :, None, None] - top)
    weights = numpy.divide(power, total, out=numpy.zeros_like(power), where=total > 0)
    return weights @ v, weights, logits


def random_arrays(
    batch=2, heads=4, kv_heads=2, q_len=7, kv_len=9, head_dim=16, value_dim=12, dtype=numpy.float32, seed=0
):
    generator = numpy.random.default_rng(seed)
    return tuple(
        generator.standard_normal(shape).astype(dtype)
        for shape in (
            (batch, heads, q_len, head_dim),
            (batch, kv_heads, kv_len, head_dim),
            (batch, kv_heads, kv_len, value_dim),
        )
    )


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    """Every device of PyTorch that the library can use."""
    torch = pytest.importorskip("torch")
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device: PyTorch sees none")
        q = torch.zeros(1, 1, 64, 64, dtype=torch.bfloat16, device="cuda")
        if not rootdk.explain(q, q, q).chosen:
            pytest.skip("no CUDA kernels: the library was built without them, or they do not run on this GPU")
    return request.param


def skip_where_refused(q, k, v, **params):
    """A device need not have a kernel for everything; what it has must be right."""
    explanation = rootdk.explain(q, k, v, **params)
    if not explanation.chosen and q.device.type == "cuda":
        pytest.skip("refused on CUDA: " + explanation.error.splitlines()[-1].strip())


def pytest_sessionfinish(session, exitstatus):
    """A file that skips as a whole, since a package is missing, has no tests: that is no failure."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and reporter and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.OK
