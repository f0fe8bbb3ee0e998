"""What ranks on GPUs send to each other. A group on nccl sends from device to device, others through the memory of the host."""

import functools
import hashlib
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, TypeVar

import torch
import torch.distributed as dist

from ._distributed_calls import Shares

_T = TypeVar("_T")


def _on_host(group: Any) -> bool:
    return str(dist.get_backend(group)) != "nccl"


def gather(x: torch.Tensor, shares: Shares, group: Any) -> torch.Tensor:
    """The rows of all ranks, in their order in the whole."""
    counts = [sum(end - begin for begin, end in rows) for rows in shares]
    shape = list(x.shape)
    whole = x.new_empty([*shape[:2], sum(counts), *shape[3:]])
    shape[2] = max(counts)
    own = torch.zeros(shape, dtype=x.dtype, device="cpu" if _on_host(group) else x.device)
    own[:, :, : x.shape[2]].copy_(x)
    parts = [torch.empty_like(own) for _ in counts] if len(counts) > 1 else [own]
    if len(counts) > 1 or not _on_host(group):
        dist.all_gather(parts, own, group=group)
    for part, rows in zip(parts, shares):
        at = 0
        for begin, end in rows:
            whole[:, :, begin:end].copy_(part[:, :, at : at + end - begin])
            at += end - begin
    return whole


Keys = Tuple[Tuple[Tuple[int, int], ...], ...]  # the ranges of keys of each call of a rank


class SumPlan(NamedTuple):
    """How gradients of keys, which every rank has a part of, come to the ranks that hold the keys."""

    sent: torch.Tensor  # the rows of this rank's calls, one after another, by the rank that they go to
    send_counts: List[int]
    receive_counts: List[int]
    received: torch.Tensor  # what comes, by the row that it belongs to, and there in order of ranks and calls
    offsets: torch.Tensor  # where in `received` each of this rank's rows begins


def _rows_of(keys: Keys) -> torch.Tensor:
    ranges = [torch.arange(begin, end) for call in keys for begin, end in call]
    return torch.cat(ranges or [torch.arange(0)])


@functools.lru_cache(maxsize=64)
def sum_plan(keys_of: Tuple[Keys, ...], shares: Tuple[Tuple[Tuple[int, int], ...], ...], rank: int, device: torch.device) -> SumPlan:
    """keys_of: the calls of each rank, so that what it sends is known. Kept, since layers and steps repeat it."""
    total = max((end for rows in shares for _, end in rows), default=0)
    owner, local = torch.zeros(total, dtype=torch.int64), torch.zeros(total, dtype=torch.int64)
    for holder, rows in enumerate(shares):
        at = 0
        for begin, end in rows:
            owner[begin:end] = holder
            local[begin:end] = torch.arange(at, at + end - begin)
            at += end - begin
    to = owner[_rows_of(keys_of[rank])]
    come = [rows[owner[rows] == rank] for rows in map(_rows_of, keys_of)]
    places = local[torch.cat(come)]
    count = sum(end - begin for begin, end in shares[rank])
    each = torch.bincount(places, minlength=count)
    return SumPlan(
        torch.sort(to, stable=True)[1].to(device),
        torch.bincount(to, minlength=len(shares)).tolist(),
        [len(rows) for rows in come],
        torch.sort(places, stable=True)[1].to(device),
        (each.cumsum(0) - each).to(device),
    )


def pack(parts: Sequence[torch.Tensor], plan: SumPlan, like: torch.Tensor) -> torch.Tensor:
    """What goes to each rank, one rank after another: [rows, batch * heads * columns]."""
    parts = parts or [like[:, :, :0]]
    whole = torch.cat(list(parts), 2) if len(parts) > 1 else parts[0]
    return whole.permute(2, 0, 1, 3).index_select(0, plan.sent).flatten(1)


def add_rows(flat: torch.Tensor, plan: SumPlan, like: torch.Tensor) -> torch.Tensor:
    """The sum of what came for each row, in f32 and in a fixed order, rounded once."""
    batch, heads, rows, columns = like.shape
    if flat.shape[0] == 0 or rows == 0:
        return torch.zeros_like(like)
    total = torch.nn.functional.embedding_bag(plan.received, flat, plan.offsets, mode="sum")
    return total.view(rows, batch, heads, columns).permute(1, 2, 0, 3).contiguous()


def add_up(parts: Sequence[torch.Tensor], plan: SumPlan, group: Any, like: torch.Tensor) -> torch.Tensor:
    """The gradient of this rank's keys or values: the sum of the parts of all ranks. parts: those of this rank's calls; like: the keys."""
    flat = pack(parts, plan, like)
    if len(plan.send_counts) > 1:
        staged = flat.cpu() if _on_host(group) else flat
        received = staged.new_empty((sum(plan.receive_counts), staged.shape[1]))
        dist.all_to_all_single(received, staged, plan.receive_counts, plan.send_counts, group=group)
        flat = received.to(like.device)
    return add_rows(flat, plan, like)


def sum_over_ranks(x: torch.Tensor, group: Any) -> torch.Tensor:
    """The same on every rank: in order of the ranks."""
    own = x.cpu() if _on_host(group) else x.contiguous()
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own, group=group)
    return torch.stack(parts).sum(0).to(x.device)


def _difference(described: Sequence[Any]) -> str:
    """The first difference between what rank 0 and another say."""
    for rank, other in enumerate(described):
        for name, value in described[0].items():
            if other.get(name) != value:
                return f"{name} is {value} on rank 0 but {other.get(name)} on rank {rank}"
        for name, value in other.items():
            if name not in described[0]:
                return f"{name} is not given on rank 0 but is {value} on rank {rank}"
    return "the ranks make different calls"


def agree(prepare: Callable[[], Tuple[_T, Dict[str, Any]]], group: Any, device: torch.device) -> _T:
    """What prepare() makes of a call, once every rank has described the same call. An error on one rank, or a difference between two,
    is an error on all, before any of them sends rows."""
    result: Optional[Tuple[_T, Dict[str, Any]]] = None
    failure: Optional[Exception] = None
    try:
        result = prepare()
        described = {name: str(value) for name, value in result[1].items()}
    except Exception as error:
        failure, described = error, {"": f"{type(error).__name__}: {error}"}
    words = repr(sorted(described.items())).encode()
    digest = torch.frombuffer(bytearray(hashlib.blake2b(words, digest_size=16).digest()), dtype=torch.int64)
    own = digest if _on_host(group) else digest.to(device)
    digests = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(digests, own, group=group)
    numbers = torch.stack(digests).tolist()
    if result is not None and all(number == numbers[0] for number in numbers):
        return result[0]
    everything: List[Any] = [None] * len(numbers)
    dist.all_gather_object(everything, described, group=group)
    if failure is not None:
        raise failure
    for other, words_of in enumerate(everything):
        if "" in words_of:
            raise ValueError(f"rootdk: rank {other}: {words_of['']}")
    raise ValueError(f"rootdk: {_difference(everything)}")
