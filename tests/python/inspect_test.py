"""rootdk.inspect: its numbers are those of attention's own weights, and its table, pictures and page show them."""

import csv
import io
import json
import math
import os
import subprocess
import xml.etree.ElementTree as xml
from pathlib import Path

import numpy
import pytest

import rootdk
from models_test import FIXTURES, read_safetensors

TEXT = "What light through yonder window breaks? What light, what light is it?"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def inspection():
    return rootdk.inspect("builtin", TEXT)


def test_numbers_are_those_of_the_exact_weights():
    expected = read_safetensors(FIXTURES / "gpt2" / "expected.safetensors")
    row = expected["attention_mask"].sum(1).argmax()  # a sequence without padding
    assert expected["attention_mask"][row].all()
    inspection = rootdk.inspect(FIXTURES / "gpt2", expected["input_ids"][row])
    for layer in range(2):
        for head in range(4):
            p = expected[f"attention.{layer}"][row, head].astype(numpy.float64)
            found = inspection.find(layer, head)
            entropy = -(p * numpy.log(numpy.where(p > 0, p, 1))).sum(-1)
            assert found.entropy == pytest.approx(entropy.mean(), abs=1e-3)
            assert found.effective_keys == pytest.approx(numpy.exp(entropy).mean(), rel=1e-3)
            assert found.sink_mass == pytest.approx(p[:, 0].mean(), abs=1e-4)
            assert found.saturation == pytest.approx((p.max(-1) > 0.9).mean())
            assert found.gradient_left == pytest.approx(1 - (p**2).sum(-1).mean(), abs=1e-3)
            numpy.testing.assert_allclose(inspection.map(layer, head), p, atol=2e-4)
            assert found.rows == 20


def test_table_has_every_head_once(inspection):
    assert len(inspection) == 16 and inspection.token_count == len(inspection.tokens) == len(
        inspection.to_dict()["ids"]
    )
    assert sorted((head.layer, head.head) for head in inspection) == [(i, j) for i in range(4) for j in range(4)]
    assert "".join(inspection.tokens) == TEXT
    labels = [head.label for head in inspection]
    assert labels == sorted(labels, key=list(inspection.rules).index)  # grouped
    table = inspection.table("entropy")
    assert [[inspection.find(i, j).entropy for j in range(4)] for i in range(4)] == table
    for head in inspection:
        for row in inspection.map(head.layer, head.head):
            assert sum(row) == pytest.approx(1, abs=1e-4)


def test_labels_say_what_they_rest_on(inspection):
    for head in inspection:
        scores = {score.label: score for score in inspection.scores(head.layer, head.head)}
        assert list(scores) == [label for label in inspection.rules if label != "mixed"]
        if head.label == "mixed":
            assert head.strength == 0 and math.isnan(head.chance) and head.label_rows == 0
        else:
            chosen = scores[head.label]
            assert chosen.significant
            assert (chosen.score, chosen.chance, chosen.rows) == (head.strength, head.chance, head.label_rows)
        for score in scores.values():
            assert score.rows == 0 or (0 <= score.score <= 1.0001 and 0 < score.chance <= 1)
            assert score.tokens <= score.rows and 0 <= score.p_value <= 1
    # Uniform attention over a causal mask gives the first key the mean of 1 / (i + 1).
    n = inspection.token_count
    assert inspection.heads[0].sink_chance == pytest.approx(sum(1 / (i + 1) for i in range(n)) / n)
    chance = inspection.to_dict()["heads"][0]["column_chance"]
    assert sum(chance) == pytest.approx(n) and chance[0] > chance[-1]


def test_warns_beyond_the_trained_context():
    ids = [i % 90 for i in range(129)]
    inspection = rootdk.inspect("builtin", ids, layers=[0])
    assert inspection.trained_context == 128 and len(inspection.warnings) == 1
    assert "129 tokens, and the model was trained on 128" in repr(inspection)
    assert rootdk.inspect("builtin", ids[:128], layers=[0]).warnings == []


def test_repr_is_the_table(inspection):
    lines = repr(inspection).splitlines()
    assert lines[0].startswith("builtin: rootdk_lm, ") and len(lines) == 18
    assert lines[1].split("  ")[0] == "label" and lines[2].startswith(inspection.heads[0].label)
    assert len({len(line.rstrip()) for line in lines[1:]}) == 1  # columns stand below each other


def test_rows_go_into_other_tools(inspection):
    rows = inspection.rows()
    assert rows[0]["label"] == inspection.heads[0].label and len(rows) == 16
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    assert len(text.getvalue().splitlines()) == 17
    plain = inspection.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert len(plain["heads"][0]["column_mass"]) == inspection.token_count
    plain["heads"].clear()
    assert len(inspection.to_dict()["heads"]) == 16  # a copy


def test_pictures(inspection, tmp_path):
    overview = inspection.plot(tmp_path / "overview.svg")
    keys = [head.effective_keys for head in inspection.heads]
    assert f"effective keys {min(keys):.2g}…{max(keys):.2g}<" in overview
    assert (tmp_path / "overview.svg").read_text() == overview == inspection._repr_svg_()
    assert len(xml.fromstring(overview).findall(f".//{SVG}image")) == 4
    with pytest.raises(ValueError, match="does not end in .svg"):
        inspection.plot(tmp_path / "overview.png")
    maps = xml.fromstring(inspection.plot(maps=True))
    assert len(maps.findall(f".//{SVG}image")) == 16
    labels = [text.text for text in maps.iter(f"{SVG}text")]
    assert f"{inspection.heads[0].name} {inspection.heads[0].label}" in labels
    html = inspection._repr_html_()
    assert xml.fromstring(html).tag == "div" and html.count("<tr>") == 17 and "<svg" in html


def test_page(inspection, tmp_path):
    inspection.save(tmp_path / "heads.html")
    page = (tmp_path / "heads.html").read_text()
    assert page.rstrip().endswith("</html>") and page.count('"map_rows": ') == 16


def test_some_layers_and_heads():
    model = rootdk.load("builtin")
    some = rootdk.inspect(model, TEXT, layers=[1, 3], heads=[2], map_size=4)
    assert sorted((head.layer, head.head) for head in some) == [(1, 2), (3, 2)]
    assert numpy.shape(some.map(1, 2)) == (4, 4)
    assert some.find(1, 2).entropy == rootdk.inspect(model, TEXT, threads=1).find(1, 2).entropy
    some.plot()


def test_encoder_decoder_models_show_three_stacks():
    inspection = rootdk.inspect(FIXTURES / "t5", [3, 4, 5, 6, 7, 8, 9, 10])
    assert {head.stack for head in inspection} == {"self", "encoder", "cross"}
    assert math.isnan(inspection.find(0, 0, "cross").mean_distance) and "-" in repr(inspection)
    assert inspection.find(1, 2, "encoder").name == "encoder 1.2"
    inspection.plot()
    xml.fromstring(inspection._repr_html_())


def test_agrees_with_the_command_line(inspection):
    binary = Path(os.environ["ROOTDK_BUILD_DIR"]) / "rootdk"
    if not binary.exists():
        pytest.skip(f"{binary} is not built")
    done = subprocess.run([binary, "inspect", "builtin", "--prompt", TEXT, "--json"], capture_output=True, text=True)
    assert json.loads(done.stdout) == inspection.to_dict()


def test_bad_calls():
    model = rootdk.load("builtin")
    cases = [
        ("there is no layer 9; there are 0 to 3", lambda: rootdk.inspect(model, TEXT, layers=[9])),
        ("there is no head -1", lambda: rootdk.inspect(model, TEXT, heads=[-1])),
        ("layers is empty", lambda: rootdk.inspect(model, TEXT, layers=[])),
        ("map_side 0", lambda: rootdk.inspect(model, TEXT, map_size=0)),
        ("no tokens", lambda: rootdk.inspect(model, [])),
        ("there is no head 7 of layer 0", lambda: rootdk.inspect(model, TEXT).find(0, 7)),
        ("no field 'heat'", lambda: rootdk.inspect(model, TEXT).table("heat")),
        ("no tokenizer.json", lambda: rootdk.inspect(FIXTURES / "gpt2", TEXT)),
    ]
    for message, call in cases:
        with pytest.raises(ValueError, match=message):
            call()


def test_layers_and_heads_from_arrays():
    chosen = rootdk.inspect("builtin", "To be", layers=numpy.array([0, 2]), heads=iter([1]))
    assert sorted((head.layer, head.head) for head in chosen) == [(0, 1), (2, 1)]
    with pytest.raises(TypeError, match="layers is 1, expected a list"):
        rootdk.inspect("builtin", "To be", layers=1)
