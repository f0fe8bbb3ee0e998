"""rootdk.attention over NumPy arrays: what it computes, what it gives back, what it refuses."""

import concurrent.futures
import threading
import time

import numpy
import pytest
from conftest import random_arrays, softmax_attention

import rootdk


def near(actual, expected, tolerance=2e-6):
    numpy.testing.assert_allclose(numpy.asarray(actual, numpy.float64), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"causal": True},
        {"window": (3, None)},
        {"window": (1, 2)},
        {"scale": 0.3},
        {"softcap": 1.5},
        {"causal": True, "window": (2, None), "scale": 1.0, "softcap": 4.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("lengths", [(7, 9), (9, 7), (1, 33), (5, 5)], ids=str)
def test_forward_is_the_formula(params, lengths):
    q, k, v = random_arrays(q_len=lengths[0], kv_len=lengths[1])
    near(rootdk.attention(q, k, v, **params), softmax_attention(q, k, v, **params)[0])


def test_every_tensor_parameter_reaches_the_library():
    q, k, v = random_arrays()
    generator = numpy.random.default_rng(1)
    bias = generator.standard_normal((4, 7, 9)).astype(numpy.float32)
    mask = generator.random((2, 1, 7, 9)) < 0.7
    sinks = generator.standard_normal(4).astype(numpy.float32)
    near(
        rootdk.attention(q, k, v, bias=bias, mask=mask, sinks=sinks, kv_lengths=[9, 4]),
        softmax_attention(q, k, v, bias=bias, mask=mask, sinks=sinks, kv_lengths=[9, 4])[0],
    )


def test_position_biases():
    q, k, v = random_arrays(kv_heads=4)
    slopes = rootdk.alibi_slopes(4)
    distance = numpy.arange(7)[:, None] + 2 - numpy.arange(9)[None, :]
    near(
        rootdk.attention(q, k, v, alibi_slopes=slopes),
        softmax_attention(q, k, v, bias=-slopes[:, None, None] * abs(distance))[0],
    )
    table = numpy.random.default_rng(2).standard_normal((4, 5)).astype(numpy.float32)
    near(
        rootdk.attention(q, k, v, relative_table=table, relative_zero=2),
        softmax_attention(q, k, v, bias=table[:, numpy.clip(distance + 2, 0, 4)])[0],
    )


def test_scores():
    q, k, v = random_arrays(kv_heads=4)
    unit = [x / numpy.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k)]
    near(rootdk.attention(q, k, v, score="cosine", scale=5.0), softmax_attention(*unit, v, scale=5.0)[0])
    a = numpy.random.default_rng(3).standard_normal((4, 16)).astype(numpy.float32)
    logits = numpy.einsum("hd,bhijd->bhij", a, numpy.tanh(q[:, :, :, None].astype(numpy.float64) + k[:, :, None]))
    nothing = numpy.zeros_like(q)
    near(
        rootdk.attention(q, k, v, score="additive", additive_v=a, scale="none"),
        softmax_attention(nothing, k, v, bias=logits)[0],
    )


def test_block_mask_and_temperature():
    q, k, v = random_arrays(q_len=8, kv_len=8)
    blocks = numpy.array([[True, False], [True, True]])
    dense = blocks.repeat(4, axis=0).repeat(4, axis=1)
    near(
        rootdk.attention(q, k, v, block_mask=blocks, block_size=4, temperature=2.0),
        softmax_attention(q, k, v, mask=dense, scale=1 / 8)[0],
    )


def test_packed_sequences():
    q, k, v = random_arrays(batch=1, q_len=9, kv_len=9)
    starts = numpy.array([0, 4, 9], numpy.int64)  # i64 is turned into the i32 that the library reads
    out = rootdk.attention(q, k, v, causal=True, q_starts=starts, kv_starts=starts.tolist())
    for begin, end in ((0, 4), (4, 9)):
        near(out[:, :, begin:end], softmax_attention(*(x[:, :, begin:end] for x in (q, k, v)), causal=True)[0])


def test_dropout_is_the_published_function_of_seed_and_place():
    q, k, v = random_arrays(batch=1)
    seed = 2**64 - 3
    keeps = numpy.array(
        [[[rootdk.dropout_keeps(0.5, seed, 0, h, i, j) for j in range(9)] for i in range(7)] for h in range(4)]
    )
    weights = softmax_attention(q, k, v)[1] * keeps * 2
    near(rootdk.attention(q, k, v, dropout=0.5, seed=seed), weights @ v.repeat(2, axis=1))
    assert 0.3 < keeps.mean() < 0.7


@pytest.mark.parametrize("dtype, tolerance", [(numpy.float32, 2e-6), (numpy.float16, 3e-3), (numpy.float64, 1e-12)])
def test_types(dtype, tolerance):
    q, k, v = random_arrays(dtype=dtype)
    out = rootdk.attention(q, k, v, causal=True)
    assert out.dtype == dtype and type(out) is numpy.ndarray
    near(out, softmax_attention(q, k, v, causal=True)[0], tolerance)


def test_strided_and_transposed_inputs_are_read_in_place():
    q, k, v = random_arrays()
    expected = rootdk.attention(q, k, v)
    stored_bshd = [numpy.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (q, k, v)]
    assert not stored_bshd[0].flags.c_contiguous
    assert numpy.array_equal(rootdk.attention(*stored_bshd), expected)
    wide = numpy.zeros((2, 4, 14, 40), numpy.float32)
    wide[:, :, ::2, 3:19] = q
    assert numpy.array_equal(rootdk.attention(wide[:, :, ::2, 3:19], k, v), expected)
    assert numpy.array_equal(rootdk.attention(q[:, :, ::-1], k, v), expected[:, :, ::-1])
    one_key_for_all = numpy.broadcast_to(k[:, :, :1], k.shape)
    near(rootdk.attention(q, one_key_for_all, v), softmax_attention(q, one_key_for_all, v)[0])


def test_out_is_written_in_place():
    q, k, v = random_arrays()
    storage = numpy.full((2, 7, 4, 12), 7.0, numpy.float32)
    result = rootdk.attention(q, k, v, out=storage.swapaxes(1, 2))
    assert result.base is storage
    assert numpy.array_equal(storage.swapaxes(1, 2), rootdk.attention(q, k, v))


@pytest.mark.parametrize("shape", [(0, 4, 7, 9), (2, 0, 7, 9), (2, 4, 0, 9), (2, 4, 7, 0)], ids=str)
def test_zero_sizes(shape):
    batch, heads, q_len, kv_len = shape
    q, k, v = random_arrays(batch, heads, heads, q_len, kv_len)
    result = rootdk.attention(q, k, v, stats=True)
    assert result.out.shape == (batch, heads, q_len, 12)
    assert not result.out.any() and result.column_mass.shape == (batch, heads, kv_len)
    if kv_len == 0:
        assert (result.lse == -numpy.inf).all()


def test_statistics():
    q, k, v = random_arrays()
    _, weights, logits = softmax_attention(q, k, v, causal=True)
    result = rootdk.attention(q, k, v, causal=True, stats=True, map_size=(7, 3), weights=[0, 6])
    near(result.lse, numpy.log(numpy.exp(logits).sum(-1)))
    near(result.max_logit, logits.max(-1))
    near(result.max_weight, weights.max(-1))
    near(
        result.entropy, -(weights * numpy.log(weights, where=weights > 0, out=numpy.zeros_like(weights))).sum(-1), 5e-6
    )
    near(result.sum_p2, (weights**2).sum(-1))
    near(result.column_mass, weights.sum(2), 5e-6)
    near(result.pooled_map, weights.reshape(2, 4, 7, 3, 3).sum(-1))
    near(result.weights, weights[:, :, [0, 6]])
    assert result.weight_rows.tolist() == [0, 6]
    near(rootdk.attention(q, k, v, causal=True, weights=True).weights, weights)
    one = rootdk.attention(q, k, v, stats="entropy")
    assert list(one.stats()) == ["entropy"]


def test_backward_is_the_numerical_gradient():
    q, k, v = random_arrays(dtype=numpy.float64)
    bias = numpy.random.default_rng(4).standard_normal((4, 7, 9))
    grad_out = numpy.random.default_rng(5).standard_normal((2, 4, 7, 12))

    def loss(**changed):
        values = {"q": q, "k": k, "v": v, "bias": bias, **changed}
        return float((rootdk.attention(*(values[n] for n in "qkv"), bias=values["bias"], causal=True) * grad_out).sum())

    forward = rootdk.attention(q, k, v, bias=bias, causal=True, stats="lse")
    gradients = rootdk.attention_backward(
        grad_out,
        q,
        k,
        v,
        forward.out,
        forward.lse,
        bias=bias,
        causal=True,
        gradients=("q", "k", "v", "bias", "column_mass"),
    )
    assert list(gradients) == ["q", "k", "v", "bias", "column_mass"]
    for name, x in (("q", q), ("k", k), ("v", v), ("bias", bias)):
        place = tuple(size // 2 for size in x.shape)
        up, down = x.copy(), x.copy()
        up[place] += 1e-6
        down[place] -= 1e-6
        assert gradients[name].shape == x.shape
        assert gradients[name][place] == pytest.approx((loss(**{name: up}) - loss(**{name: down})) / 2e-6, abs=1e-7)
    near(gradients["column_mass"], softmax_attention(q, k, v, bias=bias, causal=True)[1].sum(2))


def test_merge_states():
    q, k, v = random_arrays()
    parts = [
        rootdk.attention(q, k[:, :, begin:end], v[:, :, begin:end], stats="lse") for begin, end in ((0, 4), (4, 9))
    ]
    out, lse = rootdk.merge_states(numpy.stack([p.out for p in parts]), numpy.stack([p.lse for p in parts]))
    whole = rootdk.attention(q, k, v, stats="lse")
    near(out, whole.out)
    near(lse, whole.lse)


def test_explain_names_the_candidates():
    q, k, v = random_arrays()
    explanation = rootdk.explain(q, k, v)
    assert explanation.chosen in [name for name, _ in explanation.candidates]
    assert explanation.candidates[-1][0] == "reference"
    assert f"runs on {explanation.chosen}" in repr(explanation)
    assert rootdk.explain(q, k, v, target="reference").chosen == "reference"
    assert rootdk.explain(q, k, v, stats=True, map_size=4, weights=[1]).error == ""
    bad = rootdk.explain(q[0], k, v)
    assert not bad.chosen and "q has rank 3, expected 4" in bad.error


def test_target_and_threads_do_not_change_the_result():
    q, k, v = random_arrays(q_len=70, kv_len=130)
    one = rootdk.attention(q, k, v, causal=True, threads=1)
    assert numpy.array_equal(one, rootdk.attention(q, k, v, causal=True, threads=3))
    near(rootdk.attention(q, k, v, causal=True, target="reference"), one)


def test_calls_from_many_threads_do_not_meet():
    cases = [random_arrays(q_len=n, kv_len=2 * n, seed=n) for n in range(1, 25)]
    expected = [rootdk.attention(*case, causal=True, stats=True) for case in cases]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(4):
            for result, right in zip(
                pool.map(lambda c: rootdk.attention(*c, causal=True, stats=True), cases), expected
            ):
                assert numpy.array_equal(result.out, right.out) and numpy.array_equal(result.entropy, right.entropy)


def test_the_interpreter_runs_on_while_the_library_works():
    q, k, v = random_arrays(q_len=400, kv_len=400, head_dim=64)
    work = threading.Thread(target=lambda: [rootdk.attention(q, k, v, target="reference", threads=1) for _ in range(2)])
    ticks = 0
    work.start()
    while work.is_alive():
        time.sleep(0.001)
        ticks += 1
    assert ticks > 5  # with the lock held there would be one or two, between the calls


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"q": numpy.zeros((4, 7, 16), numpy.float32)}, ValueError, "q has rank 3, expected 4"),
        ({"q": numpy.zeros((), numpy.float32)}, ValueError, "q has rank 0"),
        ({"q": numpy.zeros((1,) * 7, numpy.float32)}, ValueError, "q has rank 7"),
        ({"k": numpy.zeros((2, 3, 9, 16), numpy.float32)}, ValueError, "kv_heads"),
        ({"k": numpy.zeros((2, 2, 9, 16), numpy.float64)}, ValueError, "k is f64 but q is f32"),
        ({"q": numpy.zeros((2, 4, 7, 16), numpy.int32)}, ValueError, "q has type i32"),
        ({"q": numpy.zeros((2, 4, 7, 16), numpy.complex64)}, TypeError, "q has the type complex64"),
        ({"q": numpy.zeros((2, 4, 7, 16), ">f4")}, TypeError, "q has the type >f4"),
        (
            {"q": numpy.zeros((2, 4, 7, 32), numpy.float32)[..., ::2]},
            ValueError,
            "the last dimension of q has stride 2",
        ),
        ({"q": [[1.0]]}, TypeError, "q is a list"),
        ({"k": "text"}, TypeError, "k is a builtins.str"),
        ({"mask": numpy.ones((7, 9), numpy.float32)}, ValueError, "mask has type f32, expected bool"),
        ({"mask": numpy.ones((7, 8), bool)}, ValueError, "does not broadcast"),
        ({"kv_lengths": [9, 10]}, ValueError, "kv_lengths[1] is 10"),
        ({"window": "wide"}, TypeError, "window is 'wide'"),
        ({"scale": "big"}, ValueError, "scale is 'big'"),
        ({"score": "euclid"}, ValueError, "score is 'euclid'"),
        ({"temperature": 0.0}, ValueError, "temperature 0"),
        ({"dropout": 1.0}, ValueError, "dropout 1 is not in"),
        ({"threads": -1}, ValueError, "threads -1"),
        ({"relative_zero": 1.5}, TypeError, "not an integer"),
        ({"stats": "entropi"}, ValueError, "'entropi'"),
        ({"map_size": -3}, ValueError, "map_size is -3"),
        ({"scale": 1e39}, ValueError, "scale 1e+39 / temperature 1 is 1e+39, over the limit"),
        ({"target": "abacus"}, ValueError, "there is no target abacus in this build"),
        ({"out": numpy.zeros((2, 4, 7, 11), numpy.float32)}, ValueError, "out is f32 [2, 4, 7, 11]"),
    ],
    ids=str,
)
def test_errors_name_the_values(change, error, message):
    q, k, v = random_arrays()
    arguments = {"q": q, "k": k, "v": v, **change}
    with pytest.raises(error) as caught:
        rootdk.attention(arguments.pop("q"), arguments.pop("k"), arguments.pop("v"), **arguments)
    assert message in str(caught.value)


def test_read_only_memory_is_read_but_not_written():
    q, k, v = random_arrays()
    for x in (q, k, v):
        x.flags.writeable = False
    out = rootdk.attention(q, k, v)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        rootdk.attention(q, k, v, out=out)


def test_a_gradient_needs_its_tensor():
    q, k, v = random_arrays()
    forward = rootdk.attention(q, k, v, stats="lse")
    with pytest.raises(ValueError, match="a gradient of bias is asked for, but bias is not given"):
        rootdk.attention_backward(forward.out, q, k, v, forward.out, forward.lse, gradients=["bias"])
    with pytest.raises(ValueError, match="'w'"):
        rootdk.attention_backward(forward.out, q, k, v, forward.out, forward.lse, gradients=["w"])


def test_arrays_by_name():
    q, k, v = random_arrays()
    assert numpy.array_equal(rootdk.attention(q=q, k=k, v=v), rootdk.attention(q, k, v))
    assert numpy.array_equal(rootdk.attention(v=v, k=k, q=q), rootdk.attention(q, k, v))
    assert numpy.array_equal(rootdk.rope(x=q), rootdk.rope(q))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'v'"):
        rootdk.attention(q, k)


def test_whole_numbers_of_numpy():
    q, k, v = random_arrays()
    for option in ({"window": 2}, {"map_size": 3}, {"block_size": 4, "block_mask": numpy.ones((2, 3), bool)}):
        name, value = next(iter(option.items()))
        result = rootdk.attention(q, k, v, **{**option, name: numpy.int64(value)}, stats=True)
        assert numpy.array_equal(result.out, rootdk.attention(q, k, v, **option, stats=True).out)


def test_lists_become_arrays_of_the_right_type():
    q, k, v = random_arrays()
    mask = numpy.tri(7, 9, dtype=bool)
    assert numpy.array_equal(rootdk.attention(q, k, v, mask=mask.tolist()), rootdk.attention(q, k, v, mask=mask))


@pytest.mark.parametrize(
    "error, message, options",
    [
        (TypeError, "weights is a builtins.int", {"weights": 3}),
        (TypeError, "weights is a builtins.str", {"weights": "all"}),
        (ValueError, "weight_rows has rank 0", {"weights": numpy.array(1)}),
        (TypeError, "kv_lengths is a builtins.int", {"kv_lengths": 3}),
        (ValueError, "kv_lengths.0. is 2147483647", {"kv_lengths": numpy.array([2**32 + 2, 1])}),
        (TypeError, "stats_stride is 1.5, expected a whole number", {"stats": True, "stats_stride": 1.5}),
        (TypeError, "window is 1.5", {"window": (1.5, 2)}),
        (ValueError, "threads is 1099511627776, which 32 bits do not hold", {"threads": 2**40}),
        (TypeError, "threads is 'x'", {"threads": "x"}),
        (TypeError, "target is 5", {"target": 5}),
        (TypeError, "seed is 1.5", {"seed": 1.5}),
    ],
)
def test_options_of_the_wrong_type(error, message, options):
    with pytest.raises(error, match=message):
        rootdk.attention(*random_arrays(), **options)


def test_one_gradient_by_name():
    q, k, v = random_arrays()
    result = rootdk.attention(q, k, v, stats="lse")
    gradients = rootdk.attention_backward(result.out, q, k, v, result.out, result.lse, gradients="v")
    assert list(gradients) == ["v"]


def test_a_masked_array_is_refused():
    q, k, v = random_arrays()
    with pytest.raises(TypeError, match="the mask of a masked array would be lost"):
        rootdk.attention(numpy.ma.array(q, mask=q > 0), k, v)
    with pytest.raises(TypeError, match="k is a numpy.ma.*MaskedArray"):
        rootdk.attention(q, numpy.ma.array(k, mask=k > 0), v)


def test_explain_takes_what_attention_takes():
    explanation = rootdk.explain(*random_arrays(), stats=True, stats_stride=2)
    assert explanation.chosen and "stride 0" in rootdk.explain(*random_arrays(), stats=True, stats_stride=0).error


@pytest.mark.parametrize("lengths", [(1, 1), (1, 33), (3, 1025), (8, 2100)], ids=str)
def test_few_queries_run_on_the_kernels_of_decoding(lengths):
    q, k, v = random_arrays(batch=3, heads=4, kv_heads=2, q_len=lengths[0], kv_len=lengths[1])
    generator = numpy.random.default_rng(7)
    params = {
        "causal": True,
        "mask": generator.random((3, 1, *lengths)) < 0.7,
        "bias": generator.standard_normal((4, *lengths)).astype(numpy.float32),
        "kv_lengths": [lengths[1], lengths[1] // 2, 1],
        "sinks": [0.1, 0.2, 0.3, 0.4],
    }
    v[2, :, 1:] = numpy.nan  # behind the length of the last batch entry
    assert rootdk.explain(q, k, v, **params).chosen.startswith("decode_")
    right = rootdk.attention(q, k, v, target="reference", stats=True, map_size=1, **params)
    ours = rootdk.attention(q, k, v, stats=True, map_size=1, threads=1, **params)
    for name, expected in {"out": right.out, **right.stats()}.items():
        numpy.testing.assert_allclose(getattr(ours, name), expected, rtol=1e-4, atol=1e-5, err_msg=name)
    for threads in (2, 3):
        assert numpy.array_equal(ours.out, rootdk.attention(q, k, v, threads=threads, **params))
    del params["mask"], params["kv_lengths"]
    assert numpy.array_equal(
        rootdk.attention(q, k, v, **params)[1:2], rootdk.attention(q[1:2], k[1:2], v[1:2], **params)
    )
    many = numpy.repeat(q, 17, axis=2)
    assert not rootdk.explain(many, k, v).chosen.startswith("decode_")
