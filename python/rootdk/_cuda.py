"""Calls on a CUDA device: PyTorch's current stream, and scratch memory from PyTorch's allocator."""

import functools
import threading
from typing import Any, Callable, Dict, Optional, Tuple

from ._errors import INVALID_ARGUMENT

_KEPT_BYTES = 1 << 20


class _Kept(threading.local):
    """Scratch that stays: most calls need a few bytes or none, and then ask neither the library for their needs nor
    PyTorch for memory. One for each stream, whose calls run one after another, and for each thread, since the kernels
    of two calls from two threads may take turns on one stream."""

    def __init__(self) -> None:
        self.by_stream: Dict[Tuple[int, int], Any] = {}


_kept = _Kept()


class _Runtime:
    """What a call asks PyTorch, without the Python around it where this version lets it."""

    def __init__(self, torch: Any) -> None:
        raw, cuda = torch._C, torch.cuda
        self.device: Callable[[], int] = getattr(raw, "_cuda_getDevice", cuda.current_device)
        self.is_capturing: Callable[[], bool] = getattr(
            raw, "_cuda_isCurrentStreamCapturing", cuda.is_current_stream_capturing
        )
        self.stream: Callable[[int], int] = getattr(
            raw, "_cuda_getCurrentRawStream", lambda device: int(cuda.current_stream(device).cuda_stream)
        )


@functools.lru_cache(maxsize=1)
def _runtime(torch: Any) -> _Runtime:
    return _Runtime(torch)


def _new_scratch(torch: Any, device: int, size: int) -> Any:
    return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))


def run_on_stream(
    torch: Any, device: int, run: Callable[[int, int, int], int], needed: Optional[Callable[[], int]]
) -> int:
    """The status of run(stream, scratch address, scratch bytes) on a device. `needed` tells how much scratch the call
    wants, or raises what is wrong with it; a call without it makes do with _KEPT_BYTES."""
    runtime = _runtime(torch)
    if runtime.device() != device:
        with torch.cuda.device(device):
            return run_on_stream(torch, device, run, needed)
    stream = runtime.stream(device)
    # A graph that is captured runs later, beside other work of this stream: its scratch is its own.
    if not runtime.is_capturing():
        kept = _kept.by_stream.get((device, stream))
        if kept is None:
            kept = _kept.by_stream[device, stream] = _new_scratch(torch, device, _KEPT_BYTES)
        status = run(stream, kept.data_ptr(), _KEPT_BYTES)
        # Only a workspace that is too small is worth a second try.
        if status != INVALID_ARGUMENT or needed is None:
            return status
        size = needed()
        if size <= _KEPT_BYTES:
            return status
    else:
        size = _KEPT_BYTES if needed is None else needed()
    scratch = _new_scratch(torch, device, size)  # until the call is launched; the stream then keeps the order
    return run(stream, scratch.data_ptr(), size)
