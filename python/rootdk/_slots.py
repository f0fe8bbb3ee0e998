"""The offset of each tensor's description in an arena, and how it is written there."""

from typing import Any, Dict

from ._abi import TENSOR_SIZE, TENSOR_SLOTS, Arena
from ._arrays import Kind, require_kind
from ._structs import GRADIENTS, AttentionParams, AttentionStats, pointer


def _tensors_of(structure: Any) -> Any:
    return (name for name, kind in structure._fields_ if kind is pointer)


_SLOTS = (
    "q",
    "k",
    "v",
    "out",
    *_tensors_of(AttentionParams),
    *_tensors_of(AttentionStats),
    "upstream.out",
    "upstream.lse",
    "upstream.entropy",
    *("grad." + name for name in GRADIENTS),
    "to.q",
    "to.k",
    "to.v",
    "key_mean",
)
assert len(_SLOTS) <= TENSOR_SLOTS
OFFSETS: Dict[str, int] = {name: TENSOR_SIZE * i for i, name in enumerate(_SLOTS)}
K, V, OUT = OFFSETS["k"], OFFSETS["v"], OFFSETS["out"]


def write_qkv(arena: Arena, kind: Kind, q: Any, k: Any, v: Any) -> None:
    memory, pack = arena.memory, kind.pack
    if type(k) is not type(q):
        require_kind(kind, k, "k")
    if type(v) is not type(q):
        require_kind(kind, v, "v")
    pack(memory, 0, q, "q")
    pack(memory, K, k, "k")
    pack(memory, V, v, "v")


def write_tensor(arena: Arena, kind: Kind, slot: str, x: Any, name: str, rank: int = 0) -> int:
    """Describes x in its slot and gives the address; 0 for None."""
    if x is None:
        return 0
    require_kind(kind, x, name)
    offset = OFFSETS[slot]
    kind.pack(arena.memory, offset, x, name, rank)
    return arena.base + offset


def write_output(arena: Arena, kind: Kind, slot: str, x: Any, name: str) -> int:
    require_kind(kind, x, name)
    if not kind.writable(x):
        raise ValueError(f"rootdk: {name} is read-only")
    if kind.wants_gradient(x):
        raise ValueError(
            f"rootdk: {name} is a tensor that requires a gradient, which does not flow through memory that is written to "
            "(use torch.no_grad(), or detach it)"
        )
    return write_tensor(arena, kind, slot, x, name)
