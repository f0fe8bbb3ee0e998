"""Every kind of error of the library is an exception of its kind, with the message of the library."""

import numpy as np
import pytest

import rootdk
from rootdk import _cuda, _errors

Q = np.ones((1, 2, 3, 4), dtype=np.float32)


def test_bad_arguments_are_value_errors() -> None:
    with pytest.raises(ValueError, match="temperature -1"):
        rootdk.attention(Q, Q, Q, temperature=-1)
    with pytest.raises(ValueError, match="there is no target abacus"):
        rootdk.attention(Q, Q, Q, target="abacus")


def test_what_is_not_served_is_not_implemented() -> None:
    assert issubclass(rootdk.UnsupportedError, NotImplementedError)
    wide = Q.astype(np.float64)  # f64 runs on the reference alone
    candidates = rootdk.explain(wide, wide, wide).candidates
    refusing = next(name for name, refusal in candidates if refusal)
    with pytest.raises(NotImplementedError, match="no implementation accepts this call"):
        rootdk.attention(wide, wide, wide, target=refusing)


def test_missing_and_malformed_files_are_os_errors(tmp_path: "object") -> None:
    with pytest.raises(OSError, match="nowhere"):
        rootdk.load(str(tmp_path) + "/nowhere")
    folder = tmp_path / "model"  # type: ignore[operator]
    folder.mkdir()
    (folder / "config.json").write_text("{")
    with pytest.raises(rootdk.FileError, match="config.json"):
        rootdk.load(str(folder))


@pytest.mark.parametrize(
    "status, kind", [(1, ValueError), (2, MemoryError), (3, RuntimeError), (4, NotImplementedError), (5, RuntimeError), (6, OSError)]
)
def test_statuses_have_their_exception(status: int, kind: type) -> None:
    error = _errors.error_of(status, "message")
    assert isinstance(error, kind)
    assert str(error) == "message"


class _Cuda:
    """As much of PyTorch as run_on_stream asks for."""

    class _C:
        @staticmethod
        def _cuda_getDevice() -> int:
            return 0

        @staticmethod
        def _cuda_isCurrentStreamCapturing() -> bool:
            return False

        @staticmethod
        def _cuda_getCurrentRawStream(device: int) -> int:
            return 7

    class cuda:
        current_device = is_current_stream_capturing = None

    class uint8:
        pass

    @staticmethod
    def device(kind: str, index: int) -> str:
        return f"{kind}:{index}"

    @staticmethod
    def empty(size: int, **_: object) -> "object":
        class Scratch:
            @staticmethod
            def data_ptr() -> int:
                return size

        return Scratch()


@pytest.mark.parametrize("status", [2, 3, 4, 5])
def test_a_failed_call_on_a_device_is_not_run_again(status: int) -> None:
    runs = []

    def run(stream: int, scratch: int, size: int) -> int:
        runs.append(size)
        return status

    assert _cuda.run_on_stream(_Cuda, 0, run, lambda: 1 << 30) == status
    assert len(runs) == 1


def test_a_call_that_needs_more_scratch_is_run_again_with_it() -> None:
    runs = []

    def run(stream: int, scratch: int, size: int) -> int:
        runs.append(size)
        return 0 if size >= 5 << 20 else 1

    assert _cuda.run_on_stream(_Cuda, 0, run, lambda: 5 << 20) == 0
    assert runs[-1] == 5 << 20
    assert _cuda.run_on_stream(_Cuda, 0, lambda *_: 1, lambda: 10) == 1  # the scratch was not what is wrong
