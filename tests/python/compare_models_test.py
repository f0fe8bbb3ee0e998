"""bench/compare_torch.py --models: its arithmetic without PyTorch, the whole of it on the CPU, and its CUDA part over a
PyTorch whose CUDA functions are replaced."""

import contextlib
import json
import math
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

BENCH = Path(os.environ.get("ROOTDK_SOURCE_DIR", Path(__file__).resolve().parents[2])) / "bench"
sys.path.insert(0, str(BENCH))

import model_shapes  # noqa: E402
from model_shapes import Deadline, Report, Times  # noqa: E402


def test_there_are_26_shapes_with_whole_groups():
    assert len(model_shapes.SHAPES) == len({shape.name for shape in model_shapes.SHAPES}) == 26
    for shape in model_shapes.SHAPES:
        assert shape.heads % shape.kv_heads == 0
        assert not shape.causal or shape.q_len == shape.kv_len  # PyTorch's corner and ours are the same
        small = model_shapes.small(shape)
        assert small.heads // small.kv_heads == shape.heads // shape.kv_heads
        assert (small.causal, small.head_dim) == (shape.causal, shape.head_dim)
        assert not small.causal or small.q_len == small.kv_len
        assert max(small.q_len, small.kv_len) <= 320 and small.q_len % 8 == shape.q_len % 8


def test_rounds_take_turns_and_end_in_time():
    calls = []
    numbers = iter(range(1, 1000))

    def measure(name):
        calls.append(name)
        return float(next(numbers))

    measures = {name: lambda name=name: measure(name) for name in ("a", "b", "c")}
    times = model_shapes.interleaved(measures, passed=lambda: len(calls) >= 15)
    assert len(calls) == 15 and all(set(calls[i : i + 3]) == {"a", "b", "c"} for i in range(0, 15, 3))
    assert len({tuple(calls[i : i + 3]) for i in range(0, 15, 3)}) > 1  # not always in the same order
    assert all(t.rounds == 5 and t.best <= t.median for t in times.values())
    calls.clear()
    model_shapes.interleaved(measures, passed=lambda: True)
    assert len(calls) == 9  # three rounds in any case


def test_ratio_is_that_of_the_fastest_other():
    times = {"rootdk": Times(2.0, 1.0, 3), "cudnn": Times(3.0, 2.5, 3), "flash2": Times(5.0, 1.5, 3)}
    assert model_shapes.ratios(times) == (1.5, 1.5)
    assert model_shapes.ratios({**times, model_shapes.C_FUNCTION: Times(0.1, 0.1, 3)}) == (1.5, 1.5)
    assert model_shapes.ratios({"rootdk": times["rootdk"]}) == (None, None)
    assert model_shapes.ratios({"cudnn": times["cudnn"]}) == (None, None)
    assert model_shapes.geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)


def test_a_deadline_shares_what_is_left():
    now = [0.0]
    deadline = Deadline(10.0, lambda: now[0])
    assert deadline.share(5) == 2.0
    now[0] = 6.0
    assert deadline.left() == 4.0 and deadline.share(4) == 7.0 and not deadline.passed(7.0)
    now[0] = 11.0
    assert deadline.share(4) == 11.0 and deadline.passed(7.0)


def test_the_report_is_whole_after_every_line(tmp_path):
    path, shown = tmp_path / "report.json", []
    report = Report(path, shown.append)
    won, lost = model_shapes.SHAPES[0], model_shapes.SHAPES[1]
    report.shape(won, "eager", "forward", {"rootdk": Times(1.0, 1.0, 3), "cudnn": Times(2.0, 2.0, 3)}, {"flash2": "no"})
    assert json.loads(path.read_text())["shapes"][0]["ratio"] == 2.0
    report.shape(lost, "eager", "forward", {"rootdk": Times(2.0, 2.0, 3), "cudnn": Times(1.0, 1.0, 3)}, {})
    report.failure("decode, forward", RuntimeError("no memory\nand more"))
    report.means()
    content = json.loads(path.read_text())
    assert content["means"][0]["mean"] == pytest.approx(1.0)
    assert content["means"][0]["below_one"] == {lost.name: 0.5}
    assert content["failures"] == [{"where": "decode, forward", "reason": "RuntimeError: no memory"}]
    assert any("below 1.00: ViT-L 384 0.50" in line for line in shown) and "decode, forward" in shown[-1]


# --- with PyTorch -----------------------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch")
    if not hasattr(torch.nn.functional, "scaled_dot_product_attention"):
        pytest.skip(f"PyTorch {torch.__version__} has nothing to compare with")
    return torch


def run(*arguments):
    return subprocess.run(
        [sys.executable, BENCH / "compare_torch.py", *arguments], capture_output=True, text=True
    )


def test_on_the_cpu_from_end_to_end(torch, tmp_path):
    path = tmp_path / "models.json"
    options = "--device cpu --models --only decode,Gemma,LLaMA --seconds 200 --rounds 3 --no-compile --json".split()
    done = run(*options, path)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(path.read_text())
    rows = {(row["name"], row["pass"]): row for row in content["shapes"]}
    assert set(rows) == {(name, pass_) for name in ("decode", "Gemma", "LLaMA, odd length") for pass_ in ("forward", "both")}
    assert all(row["ratio"] > 0 and row["same_bits"] and row["difference"] < 1e-3 for row in rows.values())
    assert [row["call"] for row in content["host"]] == ["no_grad", "with grad", "forward + backward"]
    assert set(content["host"][0]["microseconds"]) == {"rootdk", "pytorch", model_shapes.C_FUNCTION}
    assert not content["failures"] and len(content["means"]) == 2


def test_time_that_is_out_is_named(torch, tmp_path):
    path = tmp_path / "models.json"
    done = run("--device", "cpu", "--models", "--seconds", "0", "--no-host", "--json", path)
    assert done.returncode == 1
    failures = json.loads(path.read_text())["failures"]
    assert len(failures) == 52 and failures[0] == {"where": "ViT-B, forward", "reason": "not run: no time left"}


class FakeGraph:
    """Records the calls made while it is captured, as a CUDA graph does."""

    capturing = None

    def __init__(self):
        self.recorded = 0

    def replay(self):
        assert self.recorded, "an empty graph"


def replaced_cuda(torch, clock):
    """torch.cuda without a GPU: events are times of a clock that every call advances."""

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = clock[0]

        def elapsed_time(self, other):
            return other.at - self.at + 1e-3

    class Stream:
        def wait_stream(self, other):
            assert isinstance(other, Stream)

    @contextlib.contextmanager
    def graph(captured, stream):
        assert isinstance(stream, Stream)
        FakeGraph.capturing = captured
        yield
        FakeGraph.capturing = None

    current = Stream()
    return types.SimpleNamespace(
        Event=Event,
        Stream=Stream,
        CUDAGraph=FakeGraph,
        graph=graph,
        stream=lambda stream: contextlib.nullcontext(),
        current_stream=lambda: current,
        synchronize=lambda: None,
        empty_cache=lambda: None,
        get_device_name=lambda: "a GPU that is none",
    )


class TorchWithout:
    """PyTorch with another torch.cuda; tensors asked for on CUDA lie on the CPU."""

    def __init__(self, torch, cuda):
        self._torch, self.cuda = torch, cuda

    def randn(self, *shape, device, dtype):
        assert device == "cuda"
        return self._torch.randn(*shape, dtype=dtype)

    def __getattr__(self, name):
        return getattr(self._torch, name)


def test_the_cuda_part_with_failures_of_every_kind(torch, tmp_path):
    import compare_torch_models as models

    clock = [0.0]
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def contender(milliseconds, refuses=lambda q, k: None):
        def call(q, k, v, is_causal=False, enable_gqa=False):
            refuses(q, k)
            clock[0] += milliseconds
            if FakeGraph.capturing is not None:
                FakeGraph.capturing.recorded += 1
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
            return sdpa(q, k, v, is_causal=is_causal)

        return call

    def no_few_keys(q, k):
        if k.shape[2] == 77:
            raise RuntimeError("No available kernel.\nAborting execution.")

    def no_graph(q, k):
        if FakeGraph.capturing is not None and q.shape[2] == 1:
            FakeGraph.capturing = None
            raise RuntimeError("operation not permitted when stream is capturing")

    kernels = []

    @contextlib.contextmanager
    def kernel(name):
        kernels.append(name)
        yield

    contenders = {
        "rootdk": models.Contender(contender(2.0, no_graph)),
        "cudnn": models.Contender(contender(3.0, no_few_keys), lambda: kernel("cudnn")),
        "flash2": models.Contender(contender(4.0), lambda: kernel("flash2")),
    }
    path = tmp_path / "models.json"
    tiny = dict(batch=1, heads=2, kv_heads=1, head_dim=8)
    shapes = [
        {**shape._asdict(), **tiny, "q_len": min(shape.q_len, 16), "kv_len": 77 if shape.kv_len == 77 else 16}
        for shape in model_shapes.SHAPES
    ]
    (tmp_path / "shapes.json").write_text(json.dumps(shapes))
    options = models.parse(
        f"--device cuda --seconds 500 --rounds 3 --dtype f32 --json {path} --shapes {tmp_path / 'shapes.json'} --no-compile".split()
    )
    fake = TorchWithout(torch, replaced_cuda(torch, clock))
    report = models.compare(options, fake, models.Cuda(fake), contenders, {})
    content = json.loads(path.read_text())
    assert content == json.loads(json.dumps(report.content))
    rows = {(row["name"], row["mode"], row["pass"]): row for row in content["shapes"]}
    assert len(rows) == 26 * 4
    for (name, mode, pass_), row in rows.items():
        if name == "decode" and mode == "graph":
            assert row["ratio"] is None and "capturing" in row["refused"]["rootdk"]
        elif mode == "eager":
            # Without cuDNN, where it refuses, FlashAttention-2 is the fastest other.
            assert row["ratio"] == pytest.approx(2.0 if "cross" in name else 1.5, rel=1e-2), (name, row)
            assert row["refused"] == ({"cudnn": "No available kernel."} if "cross" in name else {})
        assert row["same_bits"] and math.isfinite(row["difference"])
    assert {"cudnn", "flash2"} == set(kernels)
    failed = [entry["where"] for entry in content["failures"]]
    assert sorted(failed) == ["decode, graph, both", "decode, graph, forward"]
    assert {mean["mode"] for mean in content["means"]} == {"eager", "graph"}


def test_a_wrong_result_is_a_failure(torch):
    import compare_torch_models as models

    sdpa = torch.nn.functional.scaled_dot_product_attention
    noise = iter(range(100))
    contenders = {
        "rootdk": models.Contender(lambda q, k, v, **_: sdpa(q, k, v) + next(noise)),
        "pytorch": models.Contender(lambda q, k, v, **_: sdpa(q, k, v)),
    }
    options = models.parse("--device cpu --seconds 100 --rounds 3 --no-host --passes forward --only BERT".split())
    report = models.compare(options, torch, models.Cpu(torch), contenders, {})
    reasons = [entry["reason"] for entry in report.content["failures"]]
    assert any("differ by" in reason for reason in reasons) and any("other bits" in reason for reason in reasons)
