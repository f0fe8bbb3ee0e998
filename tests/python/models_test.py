"""rootdk.load: logits and tokens are those of transformers, text streams as it comes, and what is wrong is said."""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy
import pytest

import rootdk

FIXTURES = Path(os.environ["ROOTDK_SOURCE_DIR"]) / "tests" / "data" / "models"


def read_safetensors(path):
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    types = {"F32": numpy.float32, "I32": numpy.int32}
    return {
        name: numpy.frombuffer(
            data[start:], types[entry["dtype"]], numpy.prod(entry["shape"]), entry["data_offsets"][0]
        ).reshape(entry["shape"])
        for name, entry in json.loads(data[8:start]).items()
        if name != "__metadata__"
    }


@pytest.fixture(scope="module")
def builtin():
    return rootdk.load("builtin")


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5"])
def test_forward_gives_what_transformers_gave(name):
    model = rootdk.load(FIXTURES / name)
    expected = read_safetensors(FIXTURES / name / "expected.safetensors")
    assert model.architecture == name and model.has_encoder == (name == "t5") and not model.has_tokenizer
    out = model.forward(
        expected["input_ids"], mask=expected.get("attention_mask"), decoder_ids=expected.get("decoder_input_ids")
    )
    right = expected["logits" if model.gives_logits else "last_hidden_state"]
    if "attention_mask" in expected:  # what stands on padding is nobody's business
        out, right = (x[expected["attention_mask"].astype(bool)] for x in (out, right))
    assert numpy.abs(out - right).max() < 2e-4 * numpy.abs(right).max()


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_greedy_gives_the_tokens_that_transformers_gave(name, cache):
    model = rootdk.load(FIXTURES / name)
    expected = read_safetensors(FIXTURES / name / "expected.safetensors")
    greedy, prompt = expected["greedy"][0].tolist(), expected["input_ids"][0]
    new = greedy[1 if model.has_encoder else len(prompt) :]
    generation = model.generate(prompt, len(new), stop_at_end=False, cache=cache)
    assert generation.ids == new and generation.prompt_ids == prompt.tolist() and generation.text == ""


def test_forward_takes_every_kind_of_ids(builtin):
    ids = builtin.encode("Good morrow")
    expected = builtin.forward(numpy.array([ids]))
    assert expected.shape == (1, len(ids), builtin.vocab_size) and expected.dtype == numpy.float32
    for given in ("Good morrow", ids, tuple(ids), numpy.array(ids, numpy.int32), numpy.array(ids, numpy.int64)):
        assert numpy.array_equal(builtin.forward(given), expected[0])
    both = builtin.forward([ids, ids[::-1]])
    assert numpy.array_equal(both[0], expected[0]) and both.shape[0] == 2
    strided = numpy.array([ids, ids]).T.copy().T
    assert numpy.array_equal(builtin.forward(strided)[1], expected[0])
    assert numpy.array_equal(builtin.forward(ids, threads=1), expected[0])
    torch = pytest.importorskip("torch")
    out = builtin.forward(torch.tensor(ids))
    assert isinstance(out, torch.Tensor) and numpy.array_equal(out.numpy(), expected[0])


def test_padding_on_either_side_changes_nothing(builtin):
    ids = builtin.encode("Good morrow, cousin")
    alone = builtin.forward(ids)
    padded = builtin.forward([[0, 0, *ids], [*ids, 0, 0]], mask=[[0, 0] + [1] * len(ids), [1] * len(ids) + [0, 0]])
    numpy.testing.assert_allclose(padded[0, 2:], alone, atol=1e-4)
    numpy.testing.assert_allclose(padded[1, :-2], alone, atol=1e-4)


def test_tokenizer_goes_there_and_back(builtin):
    for text in ("ROMEO:\nO, she doth teach!", "naïve – 東京 🎭", ""):
        ids = builtin.encode(text)
        assert builtin.decode(ids) == text and all(0 <= x < builtin.vocab_size for x in ids)
    ids = builtin.encode("thou art")
    assert builtin.decode(numpy.array(ids)) == builtin.decode(tuple(ids)) == "thou art"


def test_stream_and_whole_agree(builtin):
    options = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "seed": 3}
    whole = builtin.generate("ROMEO:\n", 30, **options)
    tokens = list(builtin.stream("ROMEO:\n", 30, **options))
    assert [token.id for token in tokens] == whole.ids and len(tokens) == 30
    assert "".join(token.text for token in tokens) == whole.text
    assert str(whole) == "ROMEO:\n" + whole.text == builtin.decode(whole.prompt_ids + whole.ids)


def test_sampling_options_do_what_they_say(builtin):
    def ids(**options):
        return builtin.generate("ROMEO:\n", 12, **options).ids

    greedy = ids()
    assert greedy == ids(greedy=True) == ids(top_k=1, seed=9) == ids(top_p=1e-6, seed=9) == ids(cache=False)
    # Greedy is what the logits say.
    logits = builtin.forward(builtin.encode("ROMEO:\n"))
    assert greedy[0] == logits[-1].argmax()
    assert ids(temperature=1.0, seed=1) == ids(temperature=1.0, seed=1)
    assert len({tuple(ids(temperature=1.0, seed=seed)) for seed in range(5)}) == 5
    assert ids(greedy=False, seed=1) == ids(temperature=1.0, seed=1)
    likeliest = set(numpy.argsort(-logits[-1])[:3].tolist())
    assert {builtin.generate("ROMEO:\n", 1, top_k=3, temperature=5.0, seed=s).ids[0] for s in range(40)} == likeliest


def test_a_stream_is_lazy_and_may_be_left(builtin):
    stream = builtin.stream("ROMEO:\n", 10**4)
    first = next(stream)
    assert first.id == builtin.generate("ROMEO:\n", 1).ids[0]
    del stream
    ended = builtin.stream([1, 2, 3], 1)
    next(ended)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(ended)


def test_a_stream_holds_its_model():
    stream = rootdk.load("builtin").stream("ROMEO:\n", 5)
    assert len(list(stream)) == 5


def test_threads_share_a_model(builtin):
    results = [None] * 4

    def work(i):
        results[i] = builtin.generate("JULIET:\n", 20, threads=1).text

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results)) == 1 and results[0]


def test_end_tokens_end_a_text(tmp_path):
    """The model's own first token as its end token."""
    for file in (FIXTURES / "gpt2").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    free = rootdk.load(tmp_path).generate([1, 2, 3], 6)
    config = json.loads((tmp_path / "generation_config.json").read_text())
    (tmp_path / "generation_config.json").write_text(json.dumps({**config, "eos_token_id": free.ids[2]}))
    model = rootdk.load(tmp_path)
    assert model.generate([1, 2, 3], 6).ids == free.ids[: free.ids.index(free.ids[2]) + 1]
    assert model.generate([1, 2, 3], 6, stop_at_end=False).ids == free.ids


BAD_CALLS = {
    "missing folder": (lambda model: rootdk.load("/nonexistent/model"), ValueError, "/nonexistent/model"),
    "temperature": (lambda model: model.generate("a", temperature=0.0), ValueError, "temperature 0 must be positive"),
    "top_p": (lambda model: model.generate("a", top_p=1.5), ValueError, "top_p 1.5"),
    "top_k": (lambda model: model.generate("a", top_k=-1), ValueError, "top_k -1"),
    "max_new": (lambda model: model.generate("a", -1), ValueError, "max_new -1"),
    "both": (lambda model: model.generate("a", greedy=True, top_k=3), ValueError, "greedy takes no top_k"),
    "a string": (lambda model: model.generate("a", temperature="0.8"), TypeError, "temperature is '0.8', expected a number"),
    "large top_k": (lambda model: model.generate("a", top_k=2**64 + 5), ValueError, "top_k is 18446744073709551621"),
    "option": (lambda model: model.generate("a", heat=1.0), TypeError, "heat"),
    "negative id": (lambda model: model.generate([-1]), ValueError, "-1 is not a token id"),
    "text as id": (lambda model: model.generate(["a"]), ValueError, "'a' is not a token id"),
    "float id": (lambda model: model.generate(numpy.array([1.5])), ValueError, "1.5 is not a token id"),
    "large id": (lambda model: model.forward([5000]), ValueError, "5000"),
    "no ids": (lambda model: model.forward([]), ValueError, "no token ids"),
    "ragged": (lambda model: model.forward([[1, 2], [3]]), ValueError, "different lengths"),
    "float array": (lambda model: model.forward(numpy.ones((1, 3), numpy.float32)), ValueError, "whole numbers"),
    "rank 3": (lambda model: model.forward(numpy.ones((1, 1, 3), numpy.int32)), ValueError, "ids: expected"),
    "short mask": (lambda model: model.forward([1, 2, 3], mask=[1, 1]), ValueError, "mask has 2 numbers, ids 3"),
    "decoder": (lambda model: model.forward([1], decoder_ids=[1]), ValueError, "takes no decoder_ids"),
    "no decoder": (lambda model: rootdk.load(FIXTURES / "t5").forward([1]), ValueError, "t5 needs decoder_ids"),
    "hidden states": (lambda model: rootdk.load(FIXTURES / "bert").generate([1]), ValueError, "hidden states"),
    "no tokenizer": (lambda model: rootdk.load(FIXTURES / "gpt2").generate("a"), ValueError, "no tokenizer.json"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_calls(builtin, case):
    call, kind, message = BAD_CALLS[case]
    with pytest.raises(kind, match=message):
        call(builtin)


def test_reprs(builtin):
    assert repr(builtin) == "rootdk.Model('builtin': rootdk_lm, 922752 parameters, 4 layers of 4 heads)"
    assert repr(next(builtin.stream("ROMEO:\n"))).startswith("Token(id=")


def run_python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True
    )


def test_attention_needs_no_models_library(tmp_path):
    code = "import rootdk; print(rootdk.__version__); rootdk.load('builtin')"
    done = run_python(code, ROOTDK_MODELS_LIBRARY=str(tmp_path / "absent.so"))
    assert done.stdout.strip() == rootdk.__version__ and done.returncode == 1
    assert "ImportError: rootdk: models need oneDNN and ICU" in done.stderr and "absent.so" in done.stderr


def test_a_library_of_another_version_is_named():
    done = run_python("import rootdk; rootdk.load('builtin')", ROOTDK_MODELS_LIBRARY=os.environ["ROOTDK_LIBRARY"])
    assert re.search(r"has no function rootdk_\w+; it belongs to another version", done.stderr)


def test_the_pool_of_threads_is_the_librarys_own(builtin):
    """One copy of the library in the process: models call the one that is loaded already."""
    maps = Path("/proc/self/maps").read_text()
    libraries = {line.split()[-1] for line in maps.splitlines() if "librootdk.so" in line}
    assert len(libraries) == 1 and builtin.layers == 4


def test_ids_may_be_any_whole_numbers(builtin):
    expected = builtin.generate([3, 1], max_new=4).ids
    for ids in ([numpy.int64(3), numpy.int32(1)], (3, 1), numpy.array([3, 1], numpy.uint8), numpy.array([3, 1])):
        assert builtin.generate(ids, max_new=4).ids == expected


@pytest.mark.parametrize(
    "error, message, prompt",
    [
        (TypeError, "bytes are neither a text nor token ids", b"text"),
        (TypeError, "None is neither a text nor a sequence", None),
        (TypeError, "5 is neither a text nor a sequence", 5),
        (ValueError, "1.5 is not a token id", [1.5]),
        (ValueError, "-1 is not a token id", [-1]),
        (ValueError, "is not a token id", [[1, 2]]),
    ],
)
def test_prompts_that_are_none(builtin, error, message, prompt):
    with pytest.raises(error, match=message):
        builtin.generate(prompt, max_new=2)


def test_encode_takes_text_alone(builtin):
    with pytest.raises(TypeError, match="text is a NoneType, expected a str"):
        builtin.encode(None)


def test_forward_names_the_arrays_that_do_not_mix(builtin):
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="ids is a NumPy array but mask is a torch.Tensor"):
        builtin.forward(numpy.array([[1, 2]]), mask=torch.ones(1, 2, dtype=torch.int64))


def test_a_large_max_new_takes_no_memory(builtin):
    stream = builtin.stream("ROMEO:", max_new=10**15)
    assert next(stream).id >= 0


def test_numbers_of_numpy_and_numbers_too_large():
    model = rootdk.load("builtin")
    expected = model.generate("ROMEO:", 3, temperature=1.0, seed=5)
    assert model.generate("ROMEO:", numpy.int64(3), temperature=1.0, seed=numpy.int64(5)) == expected
    with pytest.raises(ValueError, match="max_new is 18446744073709551618"):
        model.generate("ROMEO:", 2**64 + 2)


def loss_of(model, text):
    """The mean cross-entropy of a text's tokens, each by those before it."""
    ids, logits = model.encode(text), model.forward(text).astype(float)[:-1]
    logits -= logits.max(axis=1, keepdims=True)
    return float(numpy.mean(numpy.log(numpy.exp(logits).sum(axis=1)) - logits[range(len(ids) - 1), ids[1:]]))


def test_smaller_weights_are_near(builtin):
    exact = builtin.forward("ROMEO:\nO, she")
    errors = [
        numpy.abs(rootdk.load("builtin", weights=weights).forward("ROMEO:\nO, she") - exact).max()
        for weights in ("int8", "int4")
    ]
    assert 0 < errors[0] < errors[1] < 0.5 * numpy.abs(exact).max()
    text = "ROMEO:\nBut soft, what light through yonder window breaks?\nIt is the east, and Juliet is the sun.\n"
    losses = [loss_of(rootdk.load("builtin", weights=weights), text) for weights in (None, "int8", "int4")]
    assert abs(losses[1] - losses[0]) < 0.01 and abs(losses[2] - losses[0]) < 0.15, losses
    assert numpy.array_equal(rootdk.load("builtin", activations="bf16").forward("ROMEO:\nO, she"), exact)  # it is f32


def test_many_at_once_are_each_alone(builtin):
    prompts = ["ROMEO:\n", [5, 6, 7], "O, she doth teach", "What"]
    options = {"temperature": 0.9, "min_p": 0.02, "repetition_penalty": 1.1, "seed": 4}
    many = builtin.generate_many(prompts, 11, batch=3, **options)
    assert many == [builtin.generate(prompt, 11, **options) for prompt in prompts]
    assert builtin.generate_many([], 5) == []


def test_stop_strings_end_a_text(builtin):
    whole = builtin.generate("ROMEO:\n", 30, temperature=0.8, seed=3)
    end = whole.text[len(whole.text) // 2 :][:4]
    stopped = builtin.generate("ROMEO:\n", 30, temperature=0.8, seed=3, stop=["never there", end])
    assert stopped.text == whole.text[: whole.text.index(end)] and stopped.ids == whole.ids[: len(stopped.ids)]
    # What could have begun a string is not lost at the end.
    begun = whole.text[-2:] + "and more"
    assert builtin.generate("ROMEO:\n", 30, temperature=0.8, seed=3, stop=begun).text == whole.text


def test_a_draft_changes_no_token(builtin):
    alone = builtin.generate("ROMEO:\n", 20, cache_type="f32")
    assert builtin.generate("ROMEO:\n", 20, cache_type="f32", draft=builtin, draft_tokens=3).ids == alone.ids


def test_words_behind_a_prompt_begin_with_a_space(tmp_path):
    """A tokenizer as Llama 2 has it drops the space before the first word of a text, which a continuation is not."""
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).write_bytes((FIXTURES / "llama" / file).read_bytes())
    spaces = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    decoder = {"type": "Sequence", "decoders": [spaces, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    words = {"type": "BPE", "vocab": {f"\u2581w{i}": i for i in range(99)}, "merges": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "decoder": decoder, "model": words}))
    model = rootdk.load(tmp_path)
    text = "".join(token.text for token in model.stream([3, 1, 4], 5, stop_at_end=False))
    assert text.startswith(" w") and text.count(" ") == 5
    assert model.generate([3, 1, 4], 5, stop_at_end=False).text == text
    assert model.generate_many([[3, 1, 4]], 5, stop_at_end=False)[0].text == text
    assert model.beams([3, 1, 4], 5, beams=1, stop_at_end=False)[0].text == text


def test_beams_are_sorted_and_hold_the_greedy_one(builtin):
    beams = builtin.beams("ROMEO:\n", 6, beams=3)
    assert len(beams) == 3 and [beam.score for beam in beams] == sorted((beam.score for beam in beams), reverse=True)
    assert builtin.decode(beams[0].ids) == beams[0].text
    (one,) = builtin.beams("ROMEO:\n", 6, beams=1)
    assert one.ids == builtin.generate("ROMEO:\n", 6).ids and one.log_probability <= beams[0].log_probability + 1e-9


BAD_OPTIONS = {
    "weights": (lambda model: rootdk.load("builtin", weights="int3"), ValueError, "weights is 'int3'"),
    "activations": (lambda model: rootdk.load("builtin", activations="f16"), ValueError, "activations is 'f16'"),
    "cache type": (lambda model: model.generate("a", cache_type="f64"), ValueError, "cache_type is 'f64'"),
    "min_p": (lambda model: model.generate("a", min_p=2.0), ValueError, "min_p 2"),
    "stop": (lambda model: model.generate("a", stop=""), ValueError, "stop string is empty"),
    "draft": (lambda model: model.generate("a", draft="builtin"), TypeError, "draft is a str"),
    "batch": (lambda model: model.generate_many(["a"], batch=0), ValueError, "max_sequences 0"),
    "beams": (lambda model: model.beams("a", beams=0), ValueError, "0"),
    "pooling": (lambda model: model.embed("a", pooling="max"), ValueError, "pooling is 'max'"),
    "decoder": (lambda model: model.embed("a"), ValueError, "builtin|encoder|hidden"),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_options(builtin, case):
    call, kind, message = BAD_OPTIONS[case]
    with pytest.raises(kind, match=message):
        call(builtin)
