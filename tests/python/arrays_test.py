"""Which objects the package takes, that it copies none of them, and that it gives back what it was given."""

import array
import ctypes
import gc
import weakref

import numpy
import pytest
from conftest import random_arrays, softmax_attention

import rootdk


class Foreign:
    """An array of some other library: speaks DLPack and nothing else."""

    taken = 0

    def __init__(self, x):
        self.x = x

    @property
    def shape(self):
        return self.x.shape

    def __dlpack__(self, stream=None):
        Foreign.taken += 1
        return self.x.__dlpack__()

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


class WithNamespace(Foreign):
    """One whose library can take DLPack back."""

    class Namespace:
        @staticmethod
        def from_dlpack(x):
            return WithNamespace(numpy.from_dlpack(x))

    def __array_namespace__(self):
        return self.Namespace


class WrongDevice(Foreign):
    def __dlpack_device__(self):
        return (7, 0)


def test_dlpack_in_and_numpy_out():
    q, k, v = random_arrays()
    Foreign.taken = 0
    out = rootdk.attention(*(Foreign(x) for x in (q, k, v)), causal=True)
    assert type(out) is numpy.ndarray and Foreign.taken == 3
    assert numpy.array_equal(out, rootdk.attention(q, k, v, causal=True))


def test_dlpack_comes_back_as_the_library_that_gave_it():
    q, k, v = (WithNamespace(x) for x in random_arrays())
    result = rootdk.attention(q, k, v, stats=True)
    assert type(result.out) is WithNamespace and type(result.entropy) is WithNamespace
    assert numpy.array_equal(result.out.x, rootdk.attention(q.x, k.x, v.x))
    own = WithNamespace(numpy.empty((2, 4, 7, 12), numpy.float32))
    assert rootdk.attention(q, k, v, out=own) is own
    assert numpy.array_equal(own.x, result.out.x)


def test_strides_survive_dlpack():
    q, k, v = random_arrays()
    turned = [WithNamespace(numpy.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)) for x in (q, k, v)]
    assert numpy.array_equal(rootdk.attention(*turned).x, rootdk.attention(q, k, v))


def test_results_own_their_memory_and_free_it():
    q, k, v = (WithNamespace(x) for x in random_arrays())
    out = rootdk.attention(q, k, v).x
    expected = rootdk.attention(q.x, k.x, v.x)
    for _ in range(50):
        rootdk.attention(q, k, v)
    assert numpy.array_equal(out, expected)
    from rootdk import _buffer

    del out
    gc.collect()
    assert not _buffer._exported  # every tensor handed out was given back


def test_an_unused_capsule_frees_its_tensor():
    from rootdk import _buffer

    buffer = _buffer.Buffer.empty((2, 3), 0)
    capsule = buffer.__dlpack__()
    assert len(_buffer._exported) == 1
    del capsule
    assert not _buffer._exported


def test_wrong_device_and_type():
    q, k, v = random_arrays()
    with pytest.raises(TypeError, match="device of DLPack type 7"):
        rootdk.attention(WrongDevice(q), k, v)
    with pytest.raises(TypeError, match="DLPack type .code 1, 8 bits"):
        rootdk.attention(Foreign(q.view(numpy.uint8)), Foreign(k), Foreign(v))


def test_kinds_do_not_mix():
    torch = pytest.importorskip("torch")
    q, k, v = random_arrays()
    with pytest.raises(TypeError, match="q is a NumPy array but k is a torch.Tensor"):
        rootdk.attention(q, torch.from_numpy(k), v)
    with pytest.raises(TypeError, match="q is a PyTorch tensor but k is a numpy.ndarray"):
        rootdk.attention(torch.from_numpy(q), k, v)
    with pytest.raises(TypeError, match="q is a PyTorch tensor but bias is a numpy.ndarray"):
        rootdk.attention(*(torch.from_numpy(x) for x in (q, k, v)), bias=numpy.zeros((7, 9), numpy.float32))


def test_buffers_need_no_numpy():
    def shaped(values, shape):
        return memoryview(array.array("f", values)).cast("B").cast("f", shape)

    q = shaped([1.0, 0.0, 0.0, 1.0], [1, 1, 2, 2])
    v = shaped([1.0, 2.0, 3.0, 4.0], [1, 1, 2, 2])
    out = rootdk.attention(q, q, v, scale=0.0)
    assert isinstance(out, memoryview) and out.tolist() == [[[[2.0, 3.0], [2.0, 3.0]]]]
    result = rootdk.attention(q, q, v, scale=0.0, stats=True, kv_lengths=[1])
    assert result.max_weight.tolist() == [[[1.0, 1.0]]]
    assert "effective keys" in repr(result)
    with pytest.raises(TypeError, match="buffer format"):
        rootdk.attention(memoryview(b"abcd"), q, v)


def test_memory_is_held_for_the_call_and_no_longer():
    q, k, v = random_arrays()
    owner = WithNamespace(q)
    gone = weakref.ref(owner)
    rootdk.attention(owner, WithNamespace(k), WithNamespace(v))
    del owner
    gc.collect()
    assert gone() is None


def test_bfloat16_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: NumPy has no bfloat16 of its own")
    q, k, v = (x.astype(ml_dtypes.bfloat16) for x in random_arrays())
    out = rootdk.attention(q, k, v, causal=True)
    assert out.dtype == ml_dtypes.bfloat16
    expected = softmax_attention(*(x.astype(numpy.float64) for x in (q, k, v)), causal=True)[0]
    numpy.testing.assert_allclose(out.astype(numpy.float64), expected, rtol=0, atol=2e-2)


def test_bfloat16_through_dlpack():
    torch = pytest.importorskip("torch")

    class Bf16(Foreign):
        def __array_namespace__(self):
            return torch

    tensors = [torch.from_numpy(x).bfloat16() for x in random_arrays()]
    expected = rootdk.attention(*tensors)
    out = rootdk.attention(*(Bf16(x) for x in tensors))
    assert out.dtype == torch.bfloat16 and torch.equal(out, expected)
    # NumPy has no such type: the result is a buffer that speaks DLPack itself.
    out = rootdk.attention(*(Foreign(x) for x in tensors))
    assert isinstance(out, rootdk.Buffer) and out.dtype == "bf16"
    assert torch.equal(torch.utils.dlpack.from_dlpack(out.__dlpack__()), expected)


def test_cuda_memory_through_dlpack(device):
    torch = pytest.importorskip("torch")
    if device == "cpu":
        pytest.skip("the CPU has tests of its own")

    class OnDevice(Foreign):
        def __array_namespace__(self):
            return torch

    tensors = [torch.randn(1, 2, 64, 64, device=device).bfloat16() for _ in range(3)]
    out = rootdk.attention(*(OnDevice(x) for x in tensors))
    assert out.device == tensors[0].device and torch.equal(out, rootdk.attention(*tensors))


def test_misaligned_and_odd_strides():
    q, k, v = random_arrays()
    raw = numpy.zeros(q.nbytes + 1, numpy.uint8)
    crooked = raw[1:].view(numpy.float32).reshape(q.shape)
    with pytest.raises(ValueError, match="q is not aligned"):
        rootdk.attention(crooked, k, v)
    record = numpy.zeros(q.shape, [("x", numpy.float32), ("y", numpy.uint8)])
    with pytest.raises(ValueError, match="stride of 5 bytes"):
        rootdk.attention(record["x"], k, v)


def test_structs_are_those_of_the_library():
    """What the library's own init functions say their sizes are, in memory with room for more."""
    from rootdk import _abi, _models_abi, _structs

    models = _models_abi.functions()
    cases = [
        (_structs.AttentionParams, _abi.attention_params_init),
        (_structs.AttendParams, _abi.attend_params_init),
        (_structs.KvCacheConfig, _abi.kv_cache_config_init),
        (_structs.RopeParams, _abi.rope_params_init),
        (_models_abi.ModelInfo, models.model_info_init),
        (_models_abi.GenerateParams, models.generate_params_init),
        (_models_abi.LoadParams, models.load_params_init),
        (_models_abi.BeamParams, models.beam_params_init),
        (_models_abi.InspectParams, models.inspect_params_init),
    ]
    for structure, init in cases:
        memory = ctypes.create_string_buffer(4096)
        described = structure.from_buffer(memory)
        init(ctypes.byref(described))
        assert described.struct_size == ctypes.sizeof(structure), structure.__name__
    # Its size is passed on, so that the last defaults say where its fields are.
    params = _models_abi.GenerateParams()
    models.generate_params_init(ctypes.byref(params))
    assert (params.repetition_penalty, params.draft_tokens, params.stop_count, params.cache_type) == (1.0, 4, 0, -1)


def test_results_for_unknown_libraries_are_writable():
    out = rootdk.attention(*(Foreign(x) for x in random_arrays()))
    assert out.flags.writeable
    half = [x.astype(numpy.float16) for x in random_arrays()]
    out = rootdk.attention(*(Foreign(x) for x in half))
    assert out.dtype == numpy.float16 and numpy.array_equal(out, rootdk.attention(*half))


def test_foreign_arrays_with_numbers_of_numpy_and_with_an_explanation():
    q, k, v = random_arrays()
    foreign = [Foreign(x) for x in (q, k, v)]
    out = rootdk.attention(*foreign, scale=numpy.float32(0.5), dropout=0.5, seed=numpy.int64(3))
    assert numpy.array_equal(out, rootdk.attention(q, k, v, scale=0.5, dropout=0.5, seed=3))
    assert rootdk.explain(*foreign) == rootdk.explain(q, k, v)


def test_misaligned_and_odd_buffers():
    q, k, v = (memoryview(x) for x in random_arrays())
    crooked = memoryview(bytearray(q.nbytes + 1))[1:].cast("f", list(q.shape))
    with pytest.raises(ValueError, match="q is not aligned"):
        rootdk.attention(crooked, k, v)
    record = numpy.zeros(q.shape, [("x", numpy.float32), ("y", numpy.uint8)])
    with pytest.raises(ValueError, match="stride of 5 bytes"):
        rootdk.attention(memoryview(record["x"]), k, v)

