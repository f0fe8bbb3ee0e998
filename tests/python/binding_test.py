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
    assert binding.attention((leaf, k, v), {"out": torch.empty_like(v)}) is NotImplemented
    with torch.no_grad():
        assert binding.attention((leaf, k, v), {}) is not NotImplemented
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert run(q, k, v, *plain) is NotImplemented
        low = [x.bfloat16() for x in (q, k, v)]
        assert torch.equal(run(*low, *plain), operators.scaled_dot_product_attention(*low))
    with torch.autograd.forward_ad.dual_level():
        assert binding.attention((q, k, v), {}) is NotImplemented
    assert run(q.to("meta"), k, v, *plain) is NotImplemented
    assert run(q.to_sparse(), k, v, *plain) is NotImplemented
    assert run(q, k, v, None, 1.0, False, None, False) is NotImplemented
    if hasattr(torch, "vmap"):

        def inside(q, k, v):
            assert binding.attention((q, k, v), {}) is NotImplemented
            return q

        torch.vmap(inside)(q[:, None], k[:, None], v[:, None])


def differentiable_options(torch):
    """Options that the binding takes, and the names of those that need a gradient."""
    torch.manual_seed(2)
    mask = torch.rand(2, 1, 7, 9) < 0.8
    return [
        ({}, ()),
        ({"causal": True, "scale": 0.3, "threads": 2}, ()),
        ({"window": (3, 2), "softcap": 2.0, "dropout": 0.25, "seed": 2**63 + 5}, ()),
        ({"mask": mask, "kv_lengths": torch.tensor([9, 4], dtype=torch.int32)}, ()),
        ({"bias": torch.randn(4, 7, 9), "mask": mask}, ("bias",)),
        ({"sinks": torch.randn(4), "alibi_slopes": torch.rand(4), "bias": torch.randn(7, 9)}, ("sinks", "alibi_slopes")),
        ({"relative_table": torch.randn(4, 5), "relative_zero": 2}, ("relative_table",)),
        ({"block_mask": torch.tensor([[True, False], [True, True]]), "block_size": (4, 5)}, ()),
    ]


def leaves_of(inputs, options, wanted):
    leaves = [x.clone().requires_grad_() for x in inputs]
    tensors = {name: options[name].clone().requires_grad_() for name in wanted}
    return leaves, {**options, **tensors}, (*leaves, *tensors.values())


@needs_binding
def test_gradients_are_those_of_the_general_way():
    torch = pytest.importorskip("torch")
    import rootdk.torch  # from here on the binding knows autograd

    inputs = tuple(map(torch.from_numpy, random_arrays()))
    for options, wanted in differentiable_options(torch):
        (q, k, v), named, sources = leaves_of(inputs, options, wanted)
        fast = binding.attention((q, k, v), named)
        assert "CompiledAttention" in type(fast.grad_fn).__name__, options
        slow = general(q, k, v, **named)
        assert torch.equal(fast, slow) and "CompiledAttention" not in type(slow.grad_fn).__name__
        for grad in (torch.randn_like(fast), torch.ones(()).expand_as(fast)):  # the second as sum() gives it
            got, expected = (torch.autograd.grad(x, sources, grad, retain_graph=True) for x in (fast, slow))
            for a, b in zip(got, expected):
                assert a.shape == b.shape and torch.equal(a, b), options
        (some,) = torch.autograd.grad(fast, (sources[-1],), torch.ones_like(fast))
        assert torch.equal(some, expected[-1])
    fixed = inputs[1].clone().requires_grad_()
    (only,) = torch.autograd.grad(rootdk.attention(inputs[0], fixed, inputs[2]).sum(), fixed)
    assert only.shape == fixed.shape


@needs_binding
def test_what_autograd_promises_holds_for_the_binding():
    torch = pytest.importorskip("torch")
    from rootdk import torch as operators

    q, k, v = (torch.from_numpy(x).requires_grad_() for x in random_arrays(kv_heads=4))
    out = operators.scaled_dot_product_attention(q, k, v)
    (grad,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated again"):
        grad.sum().backward()
    mask = torch.zeros(7, 9)
    out = operators.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    mask += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    out = operators.scaled_dot_product_attention(q, k, v)
    out.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.numpy().copy(), torch.from_numpy):
        out = operators.scaled_dot_product_attention(q, k, v)
    first = q.grad.clone()
    out.sum().backward()
    assert torch.equal(q.grad, 2 * first)
    with pytest.raises(ValueError, match="head_dim"):
        rootdk.attention(q, k[..., :3], v)
    with pytest.raises(RuntimeError, match="head_dim"):
        operators.scaled_dot_product_attention(q, k[..., :3], v)


@needs_binding
def test_dropout_draws_what_the_general_way_draws(monkeypatch):
    torch = pytest.importorskip("torch")
    from rootdk.torch import _sdpa

    q, k, v = (torch.from_numpy(x).requires_grad_() for x in random_arrays(kv_heads=4))

    def outcome():
        torch.manual_seed(5)
        outs = [_sdpa.scaled_dot_product_attention(q, k, v, dropout_p=0.3) for _ in range(2)]
        assert not torch.equal(*outs)
        return (*outs, *torch.autograd.grad(outs[1].sum(), (q, k, v)), torch.rand(1))

    fast = outcome()
    monkeypatch.setattr(_sdpa, "_fast_attention", None)
    assert all(torch.equal(a, b) for a, b in zip(fast, outcome()))


@needs_binding
def test_a_backward_pass_that_is_not_plain_goes_the_general_way():
    """A subclass of Tensor as the gradient of out, and no gradient at all."""
    torch = pytest.importorskip("torch")
    from rootdk import torch as operators

    class Watched(torch.Tensor):
        pass

    bias = torch.randn(4, 7, 9).requires_grad_()
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in random_arrays(kv_heads=4))
    sources = (q, k, v, bias)
    out = operators.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    grad = torch.randn_like(out)
    expected = torch.autograd.grad(out, sources, grad, retain_graph=True)
    with torch.no_grad():
        got = out.grad_fn.apply(grad.as_subclass(Watched))
    assert got[0] is None and all(torch.equal(a, b) for a, b in zip(got[1:], expected))


FAKE_CUDA = r"""
import ctypes, sys
import torch, rootdk, rootdk.torch
from rootdk import _abi, _fast, _structs

class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("rank", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]

class Managed(ctypes.Structure):
    pass

Free = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p), ("free", Free),
                    ("flags", ctypes.c_uint64), ("tensor", DLTensor)]
Allocate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(DLTensor), ctypes.POINTER(ctypes.POINTER(Managed)),
                            ctypes.c_void_p, ctypes.c_void_p)
Describe = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
Stream = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))

class Exchange(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("older", ctypes.c_void_p), ("allocate", Allocate),
                ("from_object", ctypes.c_void_p), ("to_object", ctypes.c_void_p), ("describe", Describe),
                ("stream", Stream)]

sizes, freed, kept, room = [], [], [], [True]

@Free
def free(memory):
    freed.append(memory.contents.tensor.shape[0])

@Allocate
def allocate(like, memory, context, set_error):
    like = like.contents
    assert (like.device_type, like.device_id, like.rank, like.code, like.bits, like.lanes) == (2, 3, 1, 1, 8, 1)
    sizes.append(like.shape[0])
    if not room[0]:
        return -1
    scratch = ctypes.create_string_buffer(like.shape[0])
    shape = (ctypes.c_int64 * 1)(like.shape[0])
    made = Managed(1, 2, None, free, 0, DLTensor(ctypes.addressof(scratch), 2, 3, 1, 1, 8, 1, shape, None, 0))
    kept.append((scratch, shape, made))
    memory[0] = ctypes.pointer(made)
    return 0

@Describe
def describe(x, to):
    shape, strides = (ctypes.c_int64 * x.dim())(*x.shape), (ctypes.c_int64 * x.dim())(*x.stride())
    kept.append((shape, strides))
    code, bits = {torch.float32: (2, 32), torch.bfloat16: (4, 16), torch.bool: (6, 8)}[x.dtype]
    to[0] = DLTensor(x.data_ptr(), 2, 3, x.dim(), code, bits, 1, shape, strides, 0)
    return 0

@Stream
def stream(kind, device, to):
    assert (kind, device) == (2, 3)
    to[0] = 77
    return 0

table = Exchange(1, 2, None, allocate, None, None, describe, stream)
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
capsule = new_capsule(ctypes.addressof(table), b"dlpack_exchange_api", None)
from rootdk import _arrays
kind = _arrays.kind_of(torch.empty(0), "")

class Torch:
    # PyTorch with other functions to exchange tensors.
    class Tensor:
        __dlpack_c_exchange_api__ = capsule

    def __getattr__(self, name):
        return getattr(torch, name)

fake = Torch()
names = {}
real = _fast.binding

class Recorder:
    def learn_torch(self, given):
        names.update(given)

_fast.binding = Recorder()
_fast.learn_torch(fake, {_structs.DTYPE_NAMES[code]: dtype for dtype, code in kind._codes.items()}, kind.wrote)
_fast.binding = real
names["Tensor"] = torch.Tensor
real.learn_torch(names)

seen = []

def run(wanted, execution, tensors, status=0):
    place = ctypes.cast(execution, ctypes.POINTER(_structs.Execution)).contents
    devices = [ctypes.cast(x, ctypes.POINTER(_structs.Tensor)).contents for x in tensors]
    assert all((x.device_kind, x.device_index) == (1, 3) for x in devices)
    allocate_it = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(place.allocate)
    memory = allocate_it(place.allocate_user, wanted)
    if memory is None:
        return 2
    seen.append((place.stream, bool(memory), len(freed)))
    return status

status = [0]
Forward = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 7)
Backward = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 5)
forward = Forward(lambda q, k, v, out, params, stats, execution: run(1000, execution, (q, k, v, out), status[0]))

def of(structure, address, *names):
    fields = ctypes.cast(address, ctypes.POINTER(structure)).contents
    return [getattr(fields, name) for name in names]

@Backward
def backward(saved, upstream, gradients, params, execution):
    tensors = of(_structs.AttentionSaved, saved, "q", "k", "v", "out", "lse")
    tensors += of(_structs.AttentionUpstream, upstream, "out")
    tensors += of(_structs.AttentionGradients, gradients, "q", "k", "v")
    assert None not in tensors
    return run(2000, execution, tensors)

address = lambda f: ctypes.cast(f, ctypes.c_void_p).value
real.connect(address(forward), address(backward), address(_abi.struct_init), _abi.check)
q = torch.zeros(1, 2, 3, 4)
run_it = real.scaled_dot_product_attention
out = run_it(q, q, q, None, 0.0, True, None, False)
assert out.shape == q.shape and seen == [(77, True, 0)] and sizes == freed == [1000], (seen, sizes, freed)
leaf = q.clone().requires_grad_()
(grad,) = torch.autograd.grad(run_it(leaf, leaf, leaf, None, 0.0, False, None, False), leaf, torch.ones_like(q))
assert grad.shape == q.shape and sizes == freed == [1000, 1000, 2000] and [x[0] for x in seen] == [77] * 3
status[0] = 1  # bad arguments are told by the general way
assert run_it(q, q, q, None, 0.0, True, None, False) is NotImplemented
assert run_it(leaf, leaf, leaf, None, 0.0, True, None, False) is NotImplemented
status[0], room[0] = 0, False  # so is memory that is not there
assert run_it(q, q, q, None, 0.0, True, None, False) is NotImplemented and len(freed) == 5
room[0], status[0] = True, 5
try:
    run_it(q, q, q, None, 0.0, True, None, False)
except RuntimeError:
    pass
else:
    sys.exit("a failure of the device is no error")
assert len(freed) == len(sizes) - 1
"""


@needs_binding
def test_calls_on_a_cuda_device_take_its_stream_and_one_scratch():
    """With functions that say that a tensor of the host lies on device 3: which stream and memory the library is given."""
    pytest.importorskip("torch")
    result = subprocess.run([sys.executable, "-c", FAKE_CUDA], env=os.environ, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_package_works_without_the_binding():
    program = (
        "import numpy, rootdk; from rootdk import _fast; assert _fast.binding is None\n"
        "q = numpy.ones((1, 2, 3, 4), numpy.float32)\n"
        "assert rootdk.attention(q, q, q, causal=True).shape == q.shape"
    )
    environment = dict(os.environ, ROOTDK_BINDING="0")
    assert subprocess.run([sys.executable, "-c", program], env=environment).returncode == 0
