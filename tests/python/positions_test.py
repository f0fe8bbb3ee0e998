"""The positional encodings against their formulas."""

import math

import numpy
import pytest

import rootdk


def rotated(x, positions, layout="half_split", base=10000.0):
    dim = x.shape[-1]
    angle = positions[:, None] / base ** (numpy.arange(0, dim, 2) / dim)
    cos, sin = numpy.cos(angle), numpy.sin(angle)
    out = numpy.empty_like(x, dtype=numpy.float64)
    a, b = (
        (slice(0, dim // 2), slice(dim // 2, dim)) if layout == "half_split" else (slice(0, None, 2), slice(1, None, 2))
    )
    out[..., a] = x[..., a] * cos - x[..., b] * sin
    out[..., b] = x[..., a] * sin + x[..., b] * cos
    return out


@pytest.mark.parametrize("layout", ["half_split", "interleaved"])
def test_rope(layout):
    x = numpy.random.default_rng(0).standard_normal((2, 3, 5, 8)).astype(numpy.float32)
    numpy.testing.assert_allclose(
        rootdk.rope(x, layout=layout, offset=7), rotated(x, numpy.arange(5.0) + 7, layout), rtol=0, atol=1e-6
    )
    places = [3, 1, 4, 1, 5]
    numpy.testing.assert_allclose(
        rootdk.rope(x, layout=layout, positions=places),
        rotated(x, numpy.array(places, float), layout),
        rtol=0,
        atol=1e-6,
    )
    # The transposed rotation undoes the rotation.
    numpy.testing.assert_allclose(
        rootdk.rope_backward(rootdk.rope(x, layout=layout), layout=layout), x, rtol=0, atol=1e-6
    )
    inside = x.copy()
    assert rootdk.rope(inside, layout=layout, out=inside) is inside
    assert numpy.array_equal(inside, rootdk.rope(x, layout=layout))


def test_rope_frequencies():
    plain = rootdk.rope_frequencies(8)
    numpy.testing.assert_allclose(plain.frequencies, 10000.0 ** (-numpy.arange(0, 8, 2) / 8))
    assert plain.attention_factor == 1.0
    yarn = rootdk.rope_frequencies(8, scaling="yarn", factor=4.0, original_max_position=64)
    assert yarn.attention_factor == pytest.approx(0.1 * math.log(4.0) + 1)
    numpy.testing.assert_allclose(
        rootdk.rope_frequencies(8, scaling="linear", factor=4.0).frequencies, plain.frequencies / 4
    )


def test_sinusoidal():
    table = rootdk.sinusoidal_positions(6, 8)
    angle = numpy.arange(6)[:, None] / 10000 ** (numpy.arange(0, 8, 2) / 8)
    numpy.testing.assert_allclose(table[:, 0::2], numpy.sin(angle), atol=1e-6)
    numpy.testing.assert_allclose(table[:, 1::2], numpy.cos(angle), atol=1e-6)
    split = rootdk.sinusoidal_positions(6, 8, layout="concatenated")
    assert numpy.array_equal(split[:, :4], table[:, 0::2])


def test_learned_positions():
    table = numpy.random.default_rng(1).standard_normal((10, 4)).astype(numpy.float32)
    x = numpy.zeros((2, 3, 4), numpy.float32)
    assert rootdk.add_learned_positions(x, table, offset=2) is x
    assert numpy.array_equal(x, numpy.broadcast_to(table[2:5], x.shape))
    gradient = rootdk.add_learned_positions_backward(numpy.ones((2, 3, 4), numpy.float32), 10, offset=2)
    assert gradient[:, 0].tolist() == [0, 0, 2, 2, 2, 0, 0, 0, 0, 0]


def test_t5():
    assert [rootdk.t5_bucket(d) for d in (0, 1, 7, 8, 200, -1, -200)] == [0, 1, 7, 8, 15, 17, 31]
    weights = numpy.random.default_rng(2).standard_normal((32, 3)).astype(numpy.float32)
    table = rootdk.t5_relative_table(weights)
    assert table.shape == (3, 257)
    for distance in (-128, -3, 0, 5, 128):
        assert numpy.array_equal(table[:, 128 + distance], weights[rootdk.t5_bucket(distance)])
    counts = rootdk.t5_relative_table_backward(numpy.ones((3, 257), numpy.float32), 32)
    assert counts.sum() == 3 * 257 and counts[0].tolist() == [1, 1, 1]


def test_alibi():
    assert rootdk.alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
    assert rootdk.alibi_slopes(2, out=numpy.empty(2)).dtype == numpy.float64


def test_transformer_xl():
    generator = numpy.random.default_rng(3)
    q, v_bias, r = (generator.standard_normal(shape) for shape in ((1, 2, 3, 4), (2, 4), (2, 7, 4)))
    bias = rootdk.transformer_xl_bias(q, v_bias, r, 5, scale=0.5, zero=2)
    i, j = 1, 2
    entry = (i + 2 - j) + 2
    assert bias[0, 1, i, j] == pytest.approx(0.5 * (q[0, 1, i] + v_bias[1]) @ r[1, entry])
    gradients = rootdk.transformer_xl_bias_backward(numpy.ones_like(bias), q, v_bias, r, scale=0.5, zero=2)
    assert [g.shape for g in gradients] == [q.shape, v_bias.shape, r.shape]
    change = numpy.zeros_like(q)
    change[0, 0, 1, 2] = 1e-6
    slope = (rootdk.transformer_xl_bias(q + change, v_bias, r, 5, scale=0.5, zero=2) - bias).sum() / 1e-6
    assert gradients[0][0, 0, 1, 2] == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda x: rootdk.rope(x, layout="spiral"), "layout is 'spiral'"),
        (lambda x: rootdk.rope(x, scaling="cubic"), "scaling is 'cubic'"),
        (lambda x: rootdk.rope(x, rotary_dim=3), "rotary_dim 3"),
        (lambda x: rootdk.rope(x[0, 0]), "rank 2"),
        (lambda x: rootdk.t5_bucket(1, buckets=0), "buckets 0"),
        (lambda x: rootdk.t5_relative_table(x), "rank 4"),
    ],
)
def test_errors_name_the_values(call, message):
    with pytest.raises(ValueError) as caught:
        call(numpy.zeros((1, 1, 2, 8), numpy.float32))
    assert message in str(caught.value)
