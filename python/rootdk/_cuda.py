"""Calls on a CUDA device: PyTorch's current stream, and scratch memory from PyTorch's allocator."""

import contextlib
import ctypes
import threading
from typing import Any, Dict, Optional, Tuple

from . import _abi
from ._params import write_execution

_KEPT_BYTES = 1 << 20


class _Kept(threading.local):
    """Scratch that stays: most calls need a few bytes or none, and then ask neither the library for their needs nor
    PyTorch for memory. One for each stream, whose calls run one after another, and for each thread, since the kernels
    of two calls from two threads may take turns on one stream."""

    def __init__(self) -> None:
        self.by_stream: Dict[Tuple[int, int], Any] = {}


_kept = _Kept()


def _stream(torch: Any, device: int) -> int:
    """The address of PyTorch's current stream, without the objects that torch.cuda.current_stream makes."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(raw(device) if raw is not None else torch.cuda.current_stream(device).cuda_stream)


def _on_device(torch: Any, device: int) -> Any:
    """A context in which the device is the current one."""
    return contextlib.nullcontext() if torch.cuda.current_device() == device else torch.cuda.device(device)


def _new_scratch(torch: Any, device: int, size: int) -> Any:
    return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))


def run_on_stream(
    arena: _abi.Arena,
    kind: Any,
    q: Any,
    function: Any,
    workspace: Any,
    arguments: Tuple[int, ...],
    target: Optional[str],
    threads: Optional[int],
) -> int:
    """The status of function(*arguments, execution) on the device of q. Without a `workspace` function that tells how
    much scratch a call wants, _KEPT_BYTES must do."""
    torch, device = kind.torch, q.get_device()

    def run(scratch: Any, size: int) -> int:
        return int(function(*arguments, write_execution(arena, target, threads, stream, scratch.data_ptr(), size)))

    with _on_device(torch, device):
        stream = _stream(torch, device)
        # A graph that is captured runs later, beside other work of this stream: its scratch is its own.
        if not torch.cuda.is_current_stream_capturing():
            kept = _kept.by_stream.get((device, stream))
            if kept is None:
                kept = _kept.by_stream[device, stream] = _new_scratch(torch, device, _KEPT_BYTES)
            status = run(kept, _KEPT_BYTES)
            if not status or workspace is None:
                return status
        # Asks for what is needed, and says what is wrong where the call cannot run at all. PyTorch may hand the scratch
        # out again as soon as the stream has passed the call.
        size = ctypes.c_size_t(_KEPT_BYTES)
        if workspace is not None:
            _abi.check(workspace(*arguments, ctypes.addressof(size)))
        return run(_new_scratch(torch, device, size.value), size.value)
