"""The result object: its table, its reprs, its pictures."""

import base64
import math
import re
import struct
import sys
import xml.etree.ElementTree as xml
import zlib

import numpy
import pytest
from conftest import random_arrays

import rootdk


def picture_of(svg):
    return xml.fromstring(str(svg))


def decode_png(data):
    """Rows of RGB triples of an 8-bit PNG without filters."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        length, name = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(name + body)
        chunks[name] = body
        at += 12 + length
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    raw = zlib.decompress(chunks[b"IDAT"])
    rows = numpy.frombuffer(raw, numpy.uint8).reshape(height, 1 + 3 * width)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def test_summary_measures_the_heads():
    q, k, v = random_arrays(heads=2)
    q[:, 0] = 0  # reads all nine keys alike
    q[:, 1] = 100 * k[:, 1, :1]  # and this head one key
    rows = rootdk.attention(q, k, v, stats=True).summary()
    assert [row.head for row in rows] == [0, 1]
    assert rows[0].effective_keys == pytest.approx(9, rel=1e-5) and rows[0].saturated == 0
    assert rows[1].effective_keys == pytest.approx(1, abs=1e-3) and rows[1].saturated == 1
    assert rows[1].max_logit > 100 and rows[1].mean_max_weight == pytest.approx(1, abs=1e-4)


def test_repr_is_a_table():
    q, k, v = random_arrays()
    text = repr(rootdk.attention(q, k, v, stats=True))
    assert text.startswith("attention [2, 4, 7, 12] with lse, max_logit") and len(text.splitlines()) == 6
    assert repr(rootdk.attention(q, k, v, weights=[0])) == "attention [2, 4, 7, 12] with weights, weight_rows"


def test_plot_shows_the_pooled_map(tmp_path):
    q, k, v = random_arrays()
    result = rootdk.attention(q, k, v, causal=True, stats=True, map_size=(7, 9))
    svg = result.plot(tmp_path / "heads.svg")
    assert (tmp_path / "heads.svg").read_text() == svg == svg._repr_svg_()
    root = picture_of(svg)
    images = root.findall(".//{http://www.w3.org/2000/svg}image")
    assert len(images) == 4
    pixels = decode_png(base64.b64decode(images[0].get("href").partition(",")[2]))
    assert pixels.shape == (7, 9, 3)
    # Dark where the weight is, and the lightest colour where causal leaves none.
    weights = result.pooled_map[0, 0]
    assert pixels[0, -1].tolist() == [247, 251, 255]
    assert tuple(pixels[numpy.unravel_index(weights.argmax(), weights.shape)]) == (8, 48, 107)
    labels = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any(re.fullmatch(r"head 0: \d+\.\d keys", label) for label in labels)


def test_plot_without_a_map_draws_curves():
    q, k, v = random_arrays()
    root = picture_of(rootdk.attention(q, k, v, stats="entropy").plot())
    lines = root.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 4 and all(len(line.get("points").split()) == 7 for line in lines)


def test_html_holds_table_and_picture():
    q, k, v = random_arrays()
    html = rootdk.attention(q, k, v, stats=True)._repr_html_()
    assert html.count("<tr>") == 5 and "<svg" in html
    picture_of(html)  # well-formed


def test_notebooks_get_the_picture():
    q, k, v = random_arrays()
    result = rootdk.attention(q, k, v, stats=True)
    assert result._repr_svg_() == result.plot()
    assert rootdk.attention(q, k, v, stats="lse")._repr_svg_() is None


def test_rows_without_keys_do_not_spoil_the_table():
    q, k, v = random_arrays(q_len=9, kv_len=7)
    result = rootdk.attention(q, k, v, causal=True, stats=True)
    assert (result.lse == -numpy.inf).any()
    assert all(math.isfinite(row.max_logit) and math.isfinite(row.effective_keys) for row in result.summary())
    picture_of(result.plot())
    # The seven rows that see keys read what they read without the two others.
    last = rootdk.attention(q[:, :, 2:], k, v, causal=True, stats=True).summary()
    assert [row[1:] for row in result.summary()] == [pytest.approx(row[1:]) for row in last]


def test_a_head_that_sees_nothing_reads_no_key():
    q, k, v = random_arrays(kv_len=7)
    result = rootdk.attention(q, k, v, mask=numpy.zeros((1, 1, 1, 7), bool), stats=True)
    assert all(math.isnan(row.effective_keys) and row.max_logit == -math.inf for row in result.summary())
    picture_of(result.plot())
    assert "0 to 0.0" in result.plot() and "head 0: no keys" in result.plot()


def test_nothing_to_plot():
    q, k, v = random_arrays()
    with pytest.raises(ValueError, match="no pooled_map, weights or entropy"):
        rootdk.attention(q, k, v, stats="lse").plot()


def test_eight_heads_are_two_rows_of_four():
    q, k, v = random_arrays(heads=8)
    root = picture_of(rootdk.attention(q[:1], k[:1], v[:1], stats="entropy").plot())
    places = [group.get("transform") for group in root.iter() if group.tag.endswith("}g")]
    assert len({place.partition(",")[0] for place in places}) == 4 and len(places) == 8


def test_other_formats_without_matplotlib(tmp_path, monkeypatch):
    q, k, v = random_arrays()
    result = rootdk.attention(q, k, v, stats=True, map_size=4)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ValueError, match="heads.png needs matplotlib, which is not installed"):
        result.plot(tmp_path / "heads.png")
    assert not (tmp_path / "heads.png").exists()
    assert result.plot(tmp_path / "heads.svg")  # needs nothing


@pytest.mark.parametrize("stats", [{"map_size": 4}, {"weights": [0, 3]}, {}], ids=["map", "weights", "curves"])
def test_other_formats_with_matplotlib(tmp_path, stats):
    pytest.importorskip("matplotlib")
    q, k, v = random_arrays()
    result = rootdk.attention(q, k, v, stats=True, **stats)
    result.plot(tmp_path / "heads.png")
    result.plot(tmp_path / "heads.pdf", batch=1)
    data = (tmp_path / "heads.png").read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert data[:4] == b"\x89PNG" and width > 4 * height / 2.2 > 100  # four heads side by side
    assert (tmp_path / "heads.pdf").read_bytes()[:5] == b"%PDF-"


def test_pictures_of_nothing():
    q, k, v = random_arrays()
    assert picture_of(rootdk.attention(q[:, :, :0], k, v, weights=True).plot()) is not None
    nothing = rootdk.attention(q[:0], k[:0], v[:0], stats=True)
    assert nothing._repr_svg_() is None and "attention [0" in nothing._repr_html_()
    with pytest.raises(ValueError, match="there is no batch 2; there are 0 to 1"):
        rootdk.attention(q, k, v, stats=True).plot(batch=2)
