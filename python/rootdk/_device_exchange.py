"""What ranks on GPUs send to each other. A group on nccl sends from device to device, others through the memory of the host."""

import hashlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, TypeVar

import torch
import torch.distributed as dist

from ._device_calls import KeyGradients
from ._distributed_calls import Ranges, Shares

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


def _meeting(keys: Sequence[Tuple[int, int]], rows: Ranges) -> Iterator[Tuple[int, int, int]]:
    """Where ranges of keys meet the rows of a share: (first among the keys, first among the rows, how many)."""
    of_keys = 0
    for k_begin, k_end in keys:
        of_rows = 0
        for begin, end in rows:
            first, last = max(begin, k_begin), min(end, k_end)
            if first < last:
                yield of_keys + first - k_begin, of_rows + first - begin, last - first
            of_rows += end - begin
        of_keys += k_end - k_begin


def pack_for(rows: Ranges, gradients: Sequence[KeyGradients]) -> List[torch.Tensor]:
    """What goes to the rank that holds these rows."""
    return [
        x[:, :, first : first + count].flatten()
        for one in gradients
        for first, _, count in _meeting(one.keys, rows)
        for x in (one.k, one.v)
    ]


def add_parts(totals: Sequence[torch.Tensor], rows: Ranges, keys: Sequence[Sequence[Tuple[int, int]]], flat: torch.Tensor) -> None:
    """Adds what a rank sent, whose calls have these keys, to the gradients of k and v of these rows."""
    at = 0
    for ranges in keys:
        for _, first, count in _meeting(ranges, rows):
            for total in totals:
                part = total[:, :, first : first + count]
                part += flat[at : at + part.numel()].view(part.shape)
                at += part.numel()


def add_up(
    gradients: Sequence[KeyGradients], keys_of: Sequence[Sequence[Sequence[Tuple[int, int]]]], shares: Shares, rank: int, group: Any, like: Any
) -> List[torch.Tensor]:
    """The gradients of k and v of this rank's keys: the sum of what all ranks have for them, in f32, in order of the ranks.
    keys_of: the keys of the calls of each rank, so that what it sends is known. like: k and v of this rank."""
    k, v = like
    widths = sum(x.shape[0] * x.shape[1] * x.shape[3] for x in like)
    counts = [sum(count for ranges in keys for _, _, count in _meeting(ranges, shares[rank])) * widths for keys in keys_of]
    sent = [pack_for(rows, gradients) for rows in shares]
    send_counts = [sum(x.numel() for x in parts) for parts in sent]
    flat = torch.cat([x for parts in sent for x in parts] or [k.new_empty(0)])
    if len(shares) > 1:
        staged = flat.cpu() if _on_host(group) else flat
        received = staged.new_empty(sum(counts))
        dist.all_to_all_single(received, staged, counts, send_counts, group=group)
        flat = received.to(k.device)
    totals = [torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in like]
    for keys, part in zip(keys_of, flat.split(counts)):
        add_parts(totals, shares[rank], keys, part)
    return [total.to(x.dtype) for total, x in zip(totals, like)]


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
