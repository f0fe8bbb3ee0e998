"""The ranks of a torch.distributed group, as the library calls them: rootdk_transport of distributed_c_api.h."""

import ctypes
import datetime
import itertools
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist

from ._errors import DeviceError

Group = Optional["dist.ProcessGroup"]  # None: all ranks


def require_reach(group: Group, device: torch.device) -> None:
    """Raises where this process is not in the group, or its backend does not send tensors of the device."""
    if dist.get_rank(group) < 0:
        raise ValueError("rootdk: this process is not in the group")
    if device.type == "cpu" and str(dist.get_backend(group)) == "nccl":
        raise ValueError(
            "rootdk: the tensors lie on the CPU, which a group on nccl does not send; use gloo or mpi, or tensors on a GPU"
        )


class _Transport(ctypes.Structure):
    """rootdk_transport"""

    POST = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t)
    WAIT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_double)
    PROGRESS = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    FAILURE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("user", ctypes.c_void_p),
        ("post_send", POST),
        ("post_receive", POST),
        ("wait", WAIT),
        ("progress", PROGRESS),
        ("last_failure", FAILURE),
    ]


# gloo ends the process where a message meets a smaller one. Those of the library have tag 0: a rank that is in another call, a backward
# pass for one, is waited for until the time-out.
_ROWS_TAG = 1


class _Rows(ctypes.Structure):
    """What a rank tells the others before a call."""

    _fields_ = [("queries", ctypes.c_int64), ("keys", ctypes.c_int64), ("failure", ctypes.c_char * 496)]


def _duration(seconds: float) -> datetime.timedelta:
    """A time-out that is no number, or not positive, is refused by the library, once every rank has begun the call."""
    longest = 1e8
    return datetime.timedelta(seconds=min(seconds, longest) if seconds > 0 else 300.0)


class GroupTransport:
    """The ranks of a torch.distributed group, as the library calls them."""

    def __init__(self, group: Group = None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError("rootdk: torch.distributed has no process group here (init_process_group)")
        require_reach(group, torch.device("cpu"))
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._peers = [self._global(r) for r in range(self.size)]
        self._open: Dict[int, Tuple[Any, torch.Tensor]] = {}
        self._kept: List[Any] = []
        self._numbers = itertools.count(1)
        self._failure = ctypes.create_string_buffer(b"")
        self.functions = _Transport(
            ctypes.sizeof(_Transport),
            self.rank,
            self.size,
            None,
            _Transport.POST(self._post(dist.isend)),
            _Transport.POST(self._post(dist.irecv)),
            _Transport.WAIT(self._wait),
            _Transport.PROGRESS(0),
            _Transport.FAILURE(lambda _: ctypes.addressof(self._failure)),
        )

    def _global(self, rank: int) -> int:
        if self.group is None or self.group is dist.group.WORLD:
            return rank
        find = getattr(dist, "get_global_rank", None) or dist.distributed_c10d._get_global_rank
        return int(find(self.group, rank))

    def _failed(self, error: BaseException) -> None:
        self._failure = ctypes.create_string_buffer(f"{type(error).__name__}: {error}".encode())

    def _post(self, post: Callable[..., Any]) -> Callable[..., int]:
        def begin(_: Any, peer: int, data: int, size: int) -> int:
            try:
                bytes_ = torch.frombuffer((ctypes.c_char * size).from_address(data), dtype=torch.uint8)
                number = next(self._numbers)
                self._open[number] = (post(bytes_, self._peers[peer], group=self.group), bytes_)
                return number
            except Exception as error:  # it must not cross into C
                self._failed(error)
                return 0

        return begin

    def _wait(self, _: Any, transfer: int, timeout: float) -> int:
        try:
            work, _bytes = self._open.pop(transfer)
            work.wait(_duration(timeout))
            return 0
        except Exception as error:
            self._failed(error)
            return 1

    def rows_of_all(self, rows: Tuple[int, int], failure: Optional[Exception], timeout: float) -> Tuple[int, int]:
        """How many queries and keys all ranks have together, of those that each rank has. A failure of one rank is an error on every
        rank; so is a rank that does not answer in time. Every call on the CPU begins with it."""
        text = "" if failure is None else f"{type(failure).__name__}: {failure}"
        own = _Rows(*rows, text.encode(errors="replace")[: _Rows.failure.size - 1])
        sent = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        came = [torch.empty_like(sent) for _ in range(self.size)]
        others = [rank for rank in range(self.size) if rank != self.rank]
        try:
            works: List[Any] = [dist.irecv(came[rank], self._peers[rank], group=self.group, tag=_ROWS_TAG) for rank in others]
            works += [dist.isend(sent, self._peers[rank], group=self.group, tag=_ROWS_TAG) for rank in others]
            for work in works:
                work.wait(_duration(timeout))
        except Exception as error:
            self._kept.append((sent, came))  # which a transfer may still touch
            if failure is not None:
                raise failure from None
            raise DeviceError(
                f"rootdk: rank {self.rank}: the other ranks did not begin the call within {timeout:g} seconds, or failed: {error}"
            ) from error
        if failure is not None:
            raise failure
        queries, keys = rows
        for rank in others:
            told = _Rows.from_buffer_copy(bytes(came[rank].tolist()))
            if told.failure:
                raise ValueError(f"rootdk: rank {rank}: {told.failure.decode(errors='replace')}")
            queries, keys = queries + told.queries, keys + told.keys
        return queries, keys

    @property
    def address(self) -> int:
        return ctypes.addressof(self.functions)


_transports: Dict[Any, GroupTransport] = {}


def transport_of(group: Any) -> GroupTransport:
    transport = _transports.get(group)
    if transport is None or (transport.rank, transport.size) != (dist.get_rank(group), dist.get_world_size(group)):
        transport = _transports[group] = GroupTransport(group)
    return transport
