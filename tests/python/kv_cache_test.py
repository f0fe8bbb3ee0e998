"""rootdk.KvCache: what it gives is attention over the whole sequence, in every layout and type, for every kind of array;
what is wrong is said as the library says it."""

import gc
import inspect
import threading
import weakref

import numpy
import pytest
from arrays_test import WithNamespace
from conftest import random_arrays

import rootdk

TOLERANCES = {"f32": 2e-6, "bf16": 3e-2, "f16": 4e-3, "i8": 3e-2, "f8e4m3": 8e-2}


def small_cache(layout="paged", dtype="f32", **sizes):
    room = {"pages": 8, "page_size": 16} if layout == "paged" else {"max_sequences": 3, "max_len": 64}
    return rootdk.KvCache(
        layout=layout, dtype=dtype, **{"kv_heads": 2, "head_dim": 16, "value_dim": 12, **room, **sizes}
    )


def one_sequence(length=37, seed=0):
    """q, k, v of one causal sequence, and attention over all of it."""
    q, k, v = random_arrays(batch=1, q_len=length, kv_len=length, seed=seed)
    return q, k, v, rootdk.attention(q, k, v, causal=True)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("layout", ["contiguous", "paged"])
def test_token_by_token_is_attention_over_the_sequence(layout, dtype):
    q, k, v, expected = one_sequence()
    sequence = small_cache(layout, dtype).open()
    sequence.append(k[:, :, :20], v[:, :, :20])  # a prompt
    rows = [sequence.attend(q[:, :, :20])]
    for i in range(20, 37):
        sequence.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
        rows.append(sequence.attend(q[:, :, i : i + 1]))
    out = numpy.concatenate(rows, axis=2)
    assert len(sequence) == 37
    assert numpy.abs(out - expected).max() < TOLERANCES[dtype]
    assert numpy.abs(out - expected).max() > 0 or dtype == "f32"  # 16 bits and less do round


def test_many_sequences_in_one_call():
    cache = small_cache(pages=16)
    lengths = (5, 33, 1)
    cases = [one_sequence(length, seed=length) for length in lengths]
    sequences = [cache.open() for _ in lengths]
    steps = list(zip(sequences, lengths))
    cache.append(*(numpy.concatenate([case[i] for case in cases], axis=2) for i in (1, 2)), steps)
    assert [len(sequence) for sequence in sequences] == list(lengths)
    out = cache.attend(numpy.concatenate([case[0] for case in cases], axis=2), steps)
    expected = numpy.concatenate([case[3] for case in cases], axis=2)
    assert numpy.abs(out - expected).max() < 2e-6
    # A sequence alone is its last token; a position may stand anywhere in the sequence.
    last = cache.attend(numpy.concatenate([case[0][:, :, -1:] for case in cases], axis=2), sequences)
    assert numpy.array_equal(last, out[:, :, [4, 37, 38]])
    middle = cache.attend(cases[1][0][:, :, 7:9], [(sequences[1], 2, 7)])
    assert numpy.array_equal(middle, out[:, :, 12:14])


def test_options_mean_what_they_mean_in_attention():
    q, k, v, _ = one_sequence()
    rng = numpy.random.default_rng(1)
    options = {
        "scale": 0.3,
        "temperature": 1.5,
        "softcap": 5.0,
        "relative_table": rng.standard_normal((4, 9)).astype(numpy.float32),
        "relative_zero": 2,
        "alibi_slopes": [0.1, 0.2, 0.3, 0.4],
        "sinks": rng.standard_normal(4).astype(numpy.float32),
    }
    sequence = small_cache().open()
    sequence.append(k, v)
    result = sequence.attend(q, window=9, stats=True, **options)
    expected = rootdk.attention(q, k, v, causal=True, window=(9, None), stats=True, **options)
    for name in ("out", "lse", "max_logit", "max_weight", "entropy", "sum_p2"):
        numpy.testing.assert_allclose(getattr(result, name), getattr(expected, name), atol=3e-6, err_msg=name)
    assert result.column_mass is None and repr(result).startswith("attention [1, 4, 37, 12]")
    only = sequence.attend(q, stats="entropy", window=9, **options)
    assert numpy.array_equal(only.entropy, result.entropy) and only.lse is None
    kept = sequence.attend(q, window=9, window_keeps_first=37, **options)
    numpy.testing.assert_allclose(kept, rootdk.attention(q, k, v, causal=True, **options), atol=3e-6)


def test_rope_rotates_keys_and_queries_at_their_positions():
    q, k, v, _ = one_sequence()
    rope = rootdk.RopeParams(layout="interleaved", base=500.0)
    sequence = small_cache().open()
    sequence.append(k[:, :, :30], v[:, :, :30], rope=rope)
    sequence.append(k[:, :, 30:], v[:, :, 30:], rope=rope)
    rotated = (rootdk.rope(x, **rope._asdict()) for x in (q, k))
    numpy.testing.assert_allclose(sequence.attend(q, rope=rope), rootdk.attention(*rotated, v, causal=True), atol=3e-6)


def test_layers_have_their_own_keys():
    q, k, v, expected = one_sequence()
    cache = small_cache(layers=2)
    sequence = cache.open()
    sequence.append(numpy.zeros_like(k), numpy.zeros_like(v))
    sequence.append(k, v, layer=1)
    assert sequence.length(0) == sequence.length(1) == 37
    assert not sequence.attend(q).any()
    assert numpy.abs(sequence.attend(q, layer=1) - expected).max() < 2e-6


def test_fork_shares_pages_until_one_writes():
    q, k, v, expected = one_sequence()
    cache = small_cache()
    trunk = cache.open()
    trunk.append(k[:, :, :20], v[:, :, :20])
    branch, short = trunk.fork(), trunk.fork(7)
    assert (len(branch), len(short), cache.usage.shared_pages) == (20, 7, 2)
    branch.append(k[:, :, 20:], v[:, :, 20:])
    trunk.append(-k[:, :, 20:], v[:, :, 20:])
    assert numpy.abs(branch.attend(q) - expected).max() < 2e-6
    assert numpy.abs(short.attend(q[:, :, 3:7]) - expected[:, :, 3:7]).max() < 2e-6
    for sequence in (trunk, branch, short):
        sequence.close()
    usage = cache.usage
    assert usage.sequences == 0 and usage.free_pages == usage.pages == 8 and usage.bytes == 8 * 16 * 2 * (16 + 12) * 4


def test_trim_takes_tokens_back():
    q, k, v, expected = one_sequence()
    sequence = small_cache().open()
    sequence.append(k, -v)
    sequence.trim(0)
    assert len(sequence) == 0
    sequence.append(k, v)
    assert numpy.abs(sequence.attend(q) - expected).max() < 2e-6


def test_evict_keeps_the_first_and_the_last():
    q, k, v, _ = one_sequence(64)
    cache = small_cache(pages=4)
    sequence = cache.open()
    sequence.append(k, v)
    assert cache.usage.free_pages == 0
    sequence.evict(keep_first=2, keep_last=10)
    assert len(sequence) == 64 and cache.usage.free_pages == 2
    kept = numpy.zeros((1, 64), bool)
    kept[:, :2] = kept[:, -10:] = True
    expected = rootdk.attention(q[:, :, -1:], k, v, mask=kept)
    assert numpy.abs(sequence.attend(q[:, :, -1:]) - expected).max() < 2e-6


def test_a_sequence_closes_behind_its_with():
    cache = small_cache()
    with cache.open() as sequence:
        assert cache.usage.sequences == 1
    assert cache.usage.sequences == 0
    with pytest.raises(ValueError, match="sequence"):
        len(sequence)


def test_pytorch_in_and_out():
    torch = pytest.importorskip("torch")
    q, k, v, expected = one_sequence()
    sequence = small_cache(dtype=torch.bfloat16).open()
    tq, tk, tv = (torch.from_numpy(x).to(torch.bfloat16) for x in (q, k, v))
    sequence.append(tk, tv)
    result = sequence.attend(tq, stats=True)
    assert result.out.dtype == torch.bfloat16 and result.entropy.dtype == torch.float32
    assert (result.out.float() - torch.from_numpy(expected)).abs().max() < 6e-2
    own = torch.empty(1, 4, 37, 12, dtype=torch.bfloat16)
    assert sequence.attend(tq, out=own) is own and torch.equal(own, result.out)
    turned = tq.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(sequence.attend(turned), own)


def test_gradients_are_refused_and_not_lost():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in one_sequence()[:3])
    sequence = small_cache().open()
    with pytest.raises(ValueError, match="append: gradients do not flow through a cache"):
        sequence.append(k, v)
    with torch.no_grad():
        sequence.append(k, v)
    with pytest.raises(ValueError, match="attend: gradients do not flow through a cache"):
        sequence.attend(q)
    assert not sequence.attend(q.detach()).requires_grad


def test_foreign_arrays_come_back_as_their_own():
    q, k, v, expected = one_sequence()
    sequence = small_cache().open()
    sequence.append(WithNamespace(k), WithNamespace(v))
    sinks = WithNamespace(numpy.full(4, -1e30, numpy.float32))
    result = sequence.attend(WithNamespace(q), sinks=sinks, stats=True)
    assert type(result.out) is WithNamespace and type(result.lse) is WithNamespace
    assert numpy.abs(result.out.x - expected).max() < 2e-6
    out = sequence.attend(memoryview(q))
    assert isinstance(out, memoryview) and numpy.array_equal(numpy.asarray(out), result.out.x)


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.dtype("float32"), "float32", "f32"])
def test_types_by_any_name(dtype):
    assert "f32" in repr(small_cache(dtype=dtype))


BAD_CACHES = [
    ({"dtype": "f64"}, "dtype is 'f64', expected one of f32, bf16, f16, i8, f8e4m3"),
    ({"layout": "round"}, "layout is 'round', expected one of contiguous, paged"),
    ({"page_size": 17}, "page_size 17 is not a multiple of 16 in 16 to 256"),
    ({"pages": 0}, "pages 0 must be at least 1"),
    ({"kv_heads": 0}, "kv_heads 0"),
    ({"max_len": 5}, "max_len 5 belong to the contiguous layout"),
    ({"device": "meta"}, "device is meta, expected cpu or cuda"),
]


@pytest.mark.parametrize("wrong, message", BAD_CACHES, ids=[next(iter(wrong)) for wrong, _ in BAD_CACHES])
def test_bad_caches(wrong, message):
    if "device" in wrong:
        pytest.importorskip("torch")
    sizes = {"kv_heads": 2, "head_dim": 16, "pages": 4, **wrong}
    with pytest.raises(ValueError, match=message):
        rootdk.KvCache(**sizes)


def test_bad_calls_change_nothing():
    q, k, v, _ = one_sequence()
    cache = small_cache(pages=3)
    sequence, other = cache.open(), small_cache().open()
    sequence.append(k, v)
    cases = [
        (ValueError, "trim: length 38 is not in 0 to 37", lambda: sequence.trim(38)),
        (TypeError, "length is 1.5", lambda: sequence.trim(1.5)),
        (ValueError, "length is 18446744073709551616", lambda: sequence.trim(2**64)),
        (TypeError, "length is 1.5", lambda: sequence.fork(1.5)),
        (TypeError, "layer is 'x'", lambda: sequence.length("x")),
        (TypeError, "layer is 'x'", lambda: sequence.append(k, v, layer="x")),
        (TypeError, "rope is a dict, expected rootdk.RopeParams", lambda: sequence.attend(q, rope={"base": 1.0})),
        (TypeError, "keep_last is 1.5", lambda: sequence.evict(keep_last=1.5)),
        (
            ValueError,
            "2 pages of 16 tokens needed, 0 of 3 free",
            lambda: cache.open().append(k[:, :, :17], v[:, :, :17]),
        ),
        (ValueError, r"k is f32 \[1, 2, 37, 8\], expected", lambda: sequence.append(k[..., :8], v)),
        (ValueError, "rank 3", lambda: sequence.attend(q[0])),
        (ValueError, "belongs to another cache", lambda: cache.attend(q, other)),
        (TypeError, "begins with a int, expected a KvSequence", lambda: cache.attend(q, [(0, 1)])),
        (TypeError, "k is a NumPy array but v is a builtins.list", lambda: sequence.append(k, [1])),
        (TypeError, "attend: unknown option 'causal'", lambda: sequence.attend(q, causal=True)),
        (ValueError, "stats has 'column_mass'", lambda: sequence.attend(q, stats="column_mass")),
        (ValueError, "layer 1", lambda: sequence.attend(q, layer=1)),
        (ValueError, "keep_last -1", lambda: sequence.evict(keep_last=-1)),
    ]
    for kind, message, call in cases:
        with pytest.raises(kind, match=message):
            call()
    frozen = numpy.empty((1, 4, 37, 12), numpy.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        sequence.attend(q, out=frozen)
    assert len(sequence) == 37 and cache.usage.free_pages == 0


def test_threads_take_turns():
    q, k, v, expected = one_sequence()
    cache = small_cache(pages=64)
    results = [None] * 8

    def work(i):
        with cache.open() as sequence:
            for j in range(37):
                sequence.append(k[:, :, j : j + 1], v[:, :, j : j + 1])
            results[i] = sequence.attend(q)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(numpy.abs(out - expected).max() < 2e-6 for out in results)
    assert cache.usage.sequences == 0


def test_a_cache_dies_with_its_last_sequence():
    cache = small_cache()
    sequence, watched = cache.open(), weakref.ref(cache)
    del cache
    gc.collect()
    assert watched() is not None and len(sequence) == 0
    del sequence
    gc.collect()
    assert watched() is None


def test_signatures_show_every_option():
    shown = inspect.signature(rootdk.KvCache.attend).parameters
    assert {"layer", "window", "window_keeps_first", "scale", "sinks"} <= shown.keys() and "options" not in shown
    assert shown["temperature"].default == 1.0 and shown["window"].default is None
    shown = inspect.signature(rootdk.attention).parameters
    assert shown["causal"].default is False and shown["score"].default == "dot" and shown["seed"].default == 0


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_cache_on_a_gpu(device, dtype):
    torch = pytest.importorskip("torch")
    if device != "cuda":
        pytest.skip("the CPU has tests of its own")
    q, k, v, expected = (torch.from_numpy(x).to(device) for x in one_sequence())
    sequence = small_cache(dtype=dtype, device=device).open()
    sequence.append(k, v)
    assert (sequence.attend(q) - expected).abs().max() < max(TOLERANCES[dtype], 1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_on_a_gpu(device, dtype):
    torch = pytest.importorskip("torch")
    if device != "cuda":
        pytest.skip("the CPU has tests of its own")
    q, k, v, expected = (torch.from_numpy(x).to(device) for x in one_sequence())
    q, k, v = (x.to(getattr(torch, dtype)) for x in (q, k, v))
    sequence = small_cache(dtype=dtype, device=device).open()
    sequence.append(k, v)
    out = sequence.attend(q)
    assert out.dtype == q.dtype and (out.float() - expected).abs().max() < 3e-2


def test_devices_by_name():
    torch = pytest.importorskip("torch")
    sizes = {"kv_heads": 1, "head_dim": 8, "pages": 1}
    assert rootdk.KvCache(**sizes, device=torch.device("cpu", 0)).usage.pages == 1
    with pytest.raises(ValueError, match="device is 'abacus', expected cpu or cuda"):
        rootdk.KvCache(**sizes, device="abacus")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="PyTorch sees no CUDA device"):
            rootdk.KvCache(**sizes, device="cuda")
