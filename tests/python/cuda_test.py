"""Streams and scratch memory, on a PyTorch that only pretends to have GPUs: what a call is given, and how often it asks."""

import contextlib
import threading

import pytest

from rootdk import _cuda


class Scratch:
    made, alive = 0, set()

    def __init__(self, size):
        Scratch.made += 1
        self.size, self.address = size, 4096 * Scratch.made
        Scratch.alive.add(self.address)

    def __del__(self):
        Scratch.alive.remove(self.address)

    def data_ptr(self):
        return self.address


class Torch:
    """What the package asks of PyTorch, with a current device and stream."""

    uint8 = "uint8"

    def __init__(self):
        self.current, self.streams, self.capturing, self.allocations = 0, {0: 70, 1: 71}, False, []
        outer = self

        class Runtime:
            @staticmethod
            def current_device():
                return outer.current

            @staticmethod
            def is_current_stream_capturing():
                return outer.capturing

            @staticmethod
            @contextlib.contextmanager
            def device(index):
                before, outer.current = outer.current, index
                yield
                outer.current = before

        class Core:
            @staticmethod
            def _cuda_getCurrentRawStream(index):
                return outer.streams[index]

        self.cuda, self._C = Runtime, Core

    def device(self, kind, index):
        return (kind, index)

    def empty(self, size, dtype, device):
        assert dtype == "uint8" and device == ("cuda", self.current)
        self.allocations.append((size, device))
        return Scratch(size)


class Call:
    """A call that wants so much scratch."""

    def __init__(self, wants):
        self.wants, self.runs, self.asked = wants, [], 0

    def run(self, stream, scratch, size):
        assert scratch in Scratch.alive
        self.runs.append((stream, scratch, size))
        return 0 if size >= self.wants else 1

    def needed(self):
        self.asked += 1
        return self.wants


@pytest.fixture
def torch(monkeypatch):
    monkeypatch.setattr(_cuda, "_kept", _cuda._Kept())
    return Torch()


def test_small_calls_share_one_scratch_and_ask_nothing(torch):
    call = Call(wants=4)
    for _ in range(5):
        assert _cuda.run_on_stream(torch, 0, call.run, call.needed) == 0
    assert (
        call.asked == 0
        and len(torch.allocations) == 1
        and len(set(call.runs)) == 1
        and call.runs[0][::2] == (70, 2**20)
    )


def test_large_calls_ask_and_get_their_own(torch):
    call = Call(wants=3 << 20)
    for _ in range(2):
        assert _cuda.run_on_stream(torch, 0, call.run, call.needed) == 0
    assert call.asked == 2 and [size for size, _ in torch.allocations] == [1 << 20, 3 << 20, 3 << 20]


def test_every_stream_has_its_own_scratch(torch):
    call = Call(wants=4)
    _cuda.run_on_stream(torch, 0, call.run, call.needed)
    torch.streams[0] = 99
    _cuda.run_on_stream(torch, 0, call.run, call.needed)
    _cuda.run_on_stream(torch, 1, call.run, call.needed)
    assert [stream for stream, _, _ in call.runs] == [70, 99, 71]
    assert len({scratch for _, scratch, _ in call.runs}) == 3
    assert torch.allocations[2][1] == ("cuda", 1) and torch.current == 0


def test_every_thread_has_its_own_scratch(torch):
    call = Call(wants=4)
    threads = [threading.Thread(target=_cuda.run_on_stream, args=(torch, 0, call.run, call.needed)) for _ in range(3)]
    for thread in threads:
        thread.start()
        thread.join()
    assert len({scratch for _, scratch, _ in call.runs}) == 3


def test_a_captured_graph_has_its_own_scratch(torch):
    call = Call(wants=4)
    _cuda.run_on_stream(torch, 0, call.run, call.needed)
    torch.capturing = True
    for _ in range(2):
        _cuda.run_on_stream(torch, 0, call.run, call.needed)
    assert [size for size, _ in torch.allocations] == [1 << 20, 4, 4]


def test_errors_come_through(torch):
    def refuse():
        raise ValueError("attention: heads 3 is not a multiple of kv_heads 2")

    with pytest.raises(ValueError, match="heads 3"):
        _cuda.run_on_stream(torch, 0, lambda *_: 1, refuse)
    assert _cuda.run_on_stream(torch, 0, lambda *_: 3, lambda: 0) == 3  # what is wrong has nothing to do with scratch
    assert _cuda.run_on_stream(torch, 0, lambda *_: 1, None) == 1
