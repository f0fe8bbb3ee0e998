"""The compiled binding: plain calls give the bits of the general way, and everything else is left to it."""

import os
import subprocess
import sys

import numpy
import pytest
from conftest import random_arrays

import rootdk
from rootdk import _fast

binding = _fast.binding
general = rootdk.attention.__wrapped__  # what a call runs where the binding leaves it alone

needs_binding = pytest.mark.skipif(binding is None, reason="the binding was not built: Python's headers are missing")


def options(kind):
    """Sets of options that the binding takes, as arrays of a kind."""
    generator = numpy.random.default_rng(3)
    bias = generator.standard_normal((4, 7, 9)).astype(numpy.float32)
    mask = generator.random((2, 1, 7, 9)) < 0.7
    small = generator.standard_normal(4).astype(numpy.float32)
    lengths = numpy.array([9, 4], numpy.int32)
    return [
        {},
        {"causal": True, "scale": 0.3},
        {"window": (3, None), "softcap": 2.0},
        {"window": 2, "temperature": 2},
        {"bias": kind(bias), "mask": kind(mask), "sinks": kind(small)},
        {"kv_lengths": kind(lengths), "alibi_slopes": kind(abs(small)), "threads": 2},
        {"dropout": 0.25, "seed": 2**63 + 5, "stats": False, "map_size": None, "weights": False, "target": None},
        {"block_mask": kind(numpy.array([[True, False], [True, True]])), "block_size": (4, 5)},
        {"relative_table": kind(small.reshape(4, 1).repeat(5, 1)), "relative_zero": 2},
    ]


def kinds():
    yield "numpy", lambda x: x
    try:
        import torch
    except ImportError:
        return
    yield "torch", torch.from_numpy


@needs_binding
@pytest.mark.parametrize("kind", [pytest.param(make, id=name) for name, make in kinds()])
def test_plain_calls_give_the_bits_of_the_general_way(kind):
    given = tuple(map(kind, random_arrays()))
    rootdk.attention(*given)  # the kind is known from here on
    for params in options(kind):
        names = {name: x for name, x in params.items() if x is not None}
        fast = binding.attention(given, names)
        assert fast is not NotImplemented, params
        assert numpy.array_equal(fast, general(*given, **params)), params
        assert numpy.array_equal(fast, rootdk.attention(*given, **params)), params
    turned = tuple(kind(numpy.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)) for x in random_arrays())
    assert numpy.array_equal(binding.attention(turned, {}), general(*given))
    out = kind(numpy.zeros((2, 4, 7, 12), numpy.float32))
    assert binding.attention(given, {"out": out}) is out and numpy.array_equal(out, general(*given))


@needs_binding
def test_what_is_not_plain_is_left_to_the_general_way():
    q, k, v = random_arrays()
    rootdk.attention(q, k, v)
    frozen = numpy.zeros((2, 4, 7, 12), numpy.float32)
    frozen.flags.writeable = False
    for named in (
        {"stats": True},
        {"stats": "lse"},
        {"weights": [0]},
        {"map_size": 4},
        {"target": "reference"},
        {"scale": "none"},
        {"score": "cosine"},
        {"kv_lengths": [9, 4]},
        {"kv_lengths": numpy.array([9, 4])},  # i64
        {"window": [1, 2]},
        {"out": frozen},
        {"unknown": 1},
        {"dropout": 1.5},
        {"causal": 2},
    ):
        assert binding.attention((q, k, v), named) is NotImplemented, named
    for given in ((q, k), (q, k, v, q), (q, k, v.tolist()), (q, k, memoryview(v)), (q[0], k, v), (q, k[..., :3], v)):
        assert binding.attention(given, {}) is NotImplemented
    swapped = q.astype(">f4")
    assert binding.attention((swapped, k, v), {}) is NotImplemented
    with pytest.raises(ValueError, match="head_dim"):
        rootdk.attention(q, k[..., :3], v)


@needs_binding
def test_what_pytorch_follows_is_left_to_the_general_way():
    torch = pytest.importorskip("torch")
    from rootdk import torch as operators

    q, k, v = map(torch.from_numpy, random_arrays(kv_heads=4))
    run = binding.scaled_dot_product_attention
    plain = (None, 0.0, False, None, False)
    assert operators.scaled_dot_product_attention(q, k, v).shape == run(q, k, v, *plain).shape
    leaf = q.clone().requires_grad_()
    assert binding.attention((leaf, k, v), {}) is NotImplemented and run(leaf, k, v, *plain) is NotImplemented
    with torch.no_grad():
        assert binding.attention((leaf, k, v), {}) is not NotImplemented
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert run(q, k, v, *plain) is NotImplemented
    with torch.autograd.forward_ad.dual_level():
        assert binding.attention((q, k, v), {}) is NotImplemented
    assert run(q.to("meta"), k, v, *plain) is NotImplemented
    assert run(q.to_sparse(), k, v, *plain) is NotImplemented
    assert run(q, k, v, None, 0.5, False, None, False) is NotImplemented
    if hasattr(torch, "vmap"):

        def inside(q, k, v):
            assert binding.attention((q, k, v), {}) is NotImplemented
            return q

        torch.vmap(inside)(q[:, None], k[:, None], v[:, None])


def test_the_package_works_without_the_binding():
    program = (
        "import numpy, rootdk; from rootdk import _fast; assert _fast.binding is None\n"
        "q = numpy.ones((1, 2, 3, 4), numpy.float32)\n"
        "assert rootdk.attention(q, q, q, causal=True).shape == q.shape"
    )
    environment = dict(os.environ, ROOTDK_BINDING="0")
    assert subprocess.run([sys.executable, "-c", program], env=environment).returncode == 0
