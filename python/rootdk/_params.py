"""The parameters of the operation and of its execution, from Python values into the structs of the C ABI."""

import struct
from typing import Any, Dict, Optional, Tuple, Union

from . import _abi
from ._abi import TENSOR_SIZE, Arena
from ._arrays import Kind, require_kind, small_code

Window = Union[None, int, Tuple[Optional[int], Optional[int]]]

# Where each tensor's description lies in an arena.
_SLOTS = (
    "q",
    "k",
    "v",
    "out",
    "kv_lengths",
    "mask",
    "block_mask",
    "q_starts",
    "kv_starts",
    "bias",
    "relative_table",
    "alibi_slopes",
    "sinks",
    "additive_v",
    "lse",
    "max_logit",
    "max_weight",
    "entropy",
    "sum_p2",
    "column_mass",
    "pooled_map",
    "weights",
    "weight_rows",
    "upstream.out",
    "upstream.lse",
    "upstream.entropy",
    *("grad." + name for name in _abi.GRADIENTS),
)
assert len(_SLOTS) <= Arena.SLOTS
OFFSETS: Dict[str, int] = {name: TENSOR_SIZE * i for i, name in enumerate(_SLOTS)}
_K, _V = OFFSETS["k"], OFFSETS["v"]

_SCALES = {None: (0, 1.0), "inverse_sqrt_head_dim": (0, 1.0), "none": (1, 1.0), "inverse_head_dim": (2, 1.0)}
_INTEGERS = ("kv_lengths", "q_starts", "kv_starts")
_SMALL = ("relative_table", "alibi_slopes", "sinks", "additive_v")
_BROADCAST = ("mask", "block_mask", "bias")  # fewer than four dimensions: those in front are 1
TENSORS = _INTEGERS + _SMALL + _BROADCAST
DIFFERENTIABLE = ("bias", "relative_table", "alibi_slopes", "sinks", "additive_v")


def pair(value: Union[int, Tuple[int, int]], name: str) -> Tuple[int, int]:
    """(n, n) for one number."""
    if isinstance(value, int):
        return (value, value)
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return (int(value[0]), int(value[1]))
    raise TypeError(f"rootdk: {name} is {value!r}, expected a number or two")


def parse_window(window: Window) -> Tuple[int, int]:
    """(left, right), -1 for no limit."""
    if window is None:
        return (-1, -1)
    if isinstance(window, int):
        return (window, window)
    if isinstance(window, (tuple, list)) and len(window) == 2:
        left, right = window
        return (-1 if left is None else int(left), -1 if right is None else int(right))
    raise TypeError(f"rootdk: window is {window!r}, expected a number of keys or (left, right)")


def parse_scale(scale: Union[None, str, float]) -> Tuple[int, float]:
    """(kind, factor) of the C ABI."""
    if scale is None or isinstance(scale, str):
        if scale not in _SCALES:
            names = ", ".join(repr(name) for name in _SCALES if name)
            raise ValueError(f"rootdk: scale is {scale!r}, expected a number or one of {names}")
        return _SCALES[scale]
    return (3, float(scale))


class Params:
    """One call's parameters, with every value in the C ABI's form. `tensors` holds the arrays that are given.
    integers: score, scale_kind, causal, window_left, window_right, block_q, block_kv, max_q_len, max_kv_len,
    relative_zero, seed. factors: scale, temperature, softcap, dropout."""

    __slots__ = ("integers", "factors", "tensors", "seed_tensor")

    def __init__(
        self,
        causal: bool = False,
        window: Window = None,
        scale: Union[None, str, float] = None,
        temperature: float = 1.0,
        softcap: Optional[float] = None,
        score: str = "dot",
        bias: Any = None,
        mask: Any = None,
        block_mask: Any = None,
        block_size: Union[None, int, Tuple[int, int]] = None,
        kv_lengths: Any = None,
        q_starts: Any = None,
        kv_starts: Any = None,
        max_q_len: int = 0,
        max_kv_len: int = 0,
        relative_table: Any = None,
        relative_zero: int = 0,
        alibi_slopes: Any = None,
        sinks: Any = None,
        additive_v: Any = None,
        dropout: float = 0.0,
        seed: Any = 0,
    ) -> None:
        if score not in _abi.SCORES:
            raise ValueError(f"rootdk: score is {score!r}, expected one of {', '.join(_abi.SCORES)}")
        scale_kind, factor = (0, 1.0) if scale is None else parse_scale(scale)
        left, right = (-1, -1) if window is None else parse_window(window)
        block_q, block_kv = (0, 0) if block_size is None else pair(block_size, "block_size")
        # A seed that is a tensor is read when the call runs, so that a compiled graph keeps it open.
        self.seed_tensor = None if isinstance(seed, int) else seed
        self.integers: Tuple[int, ...] = (
            _abi.SCORES[score],
            scale_kind,
            int(causal),
            left,
            right,
            block_q,
            block_kv,
            max_q_len,
            max_kv_len,
            relative_zero,
            seed & 0xFFFFFFFFFFFFFFFF if self.seed_tensor is None else 0,
        )
        self.factors: Tuple[float, ...] = (factor, float(temperature), float(softcap or 0.0), float(dropout))
        self.tensors: Optional[Dict[str, Any]] = None
        if not (
            bias
            is mask
            is block_mask
            is kv_lengths
            is q_starts
            is kv_starts
            is relative_table
            is alibi_slopes
            is sinks
            is additive_v
            is None
        ):
            given = {
                "kv_lengths": kv_lengths,
                "q_starts": q_starts,
                "kv_starts": kv_starts,
                "relative_table": relative_table,
                "alibi_slopes": alibi_slopes,
                "sinks": sinks,
                "additive_v": additive_v,
                "mask": mask,
                "block_mask": block_mask,
                "bias": bias,
            }
            self.tensors = {name: x for name, x in given.items() if x is not None}

    @classmethod
    def from_numbers(cls, integers: Tuple[int, ...], factors: Tuple[float, ...], tensors: Dict[str, Any]) -> "Params":
        params = cls.__new__(cls)
        params.integers, params.factors, params.tensors, params.seed_tensor = integers, factors, tensors or None, None
        return params

    def write(self, arena: Arena, kind: Kind, q: Any) -> int:
        """The address of rootdk_attention_params. Lists of numbers become arrays here, and stay in `tensors`."""
        score, scale_kind, causal, left, right, block_q, block_kv, max_q, max_kv, zero, seed = self.integers
        scale, temperature, softcap, dropout = self.factors
        if self.seed_tensor is not None:
            seed = int(self.seed_tensor) & 0xFFFFFFFFFFFFFFFF
        at = self._write_tensors(arena, kind, q) if self.tensors else _NO_TENSORS
        try:
            _abi.PARAMS.pack_into(
                arena.memory,
                arena.params,
                _abi.PARAMS.size,
                score,
                scale_kind,
                scale,
                temperature,
                softcap,
                causal,
                left,
                right,
                at["kv_lengths"],
                at["mask"],
                at["block_mask"],
                block_q,
                block_kv,
                at["q_starts"],
                at["kv_starts"],
                max_q,
                max_kv,
                at["bias"],
                at["relative_table"],
                zero,
                at["alibi_slopes"],
                at["sinks"],
                at["additive_v"],
                dropout,
                seed,
            )
        except struct.error as error:
            raise TypeError(
                f"rootdk: a number of the call is of the wrong type or too large: {error} (integers "
                f"{self.integers}, factors {self.factors})"
            ) from None
        return arena.base + arena.params

    def _write_tensors(self, arena: Arena, kind: Kind, q: Any) -> Dict[str, int]:
        addresses = dict(_NO_TENSORS)
        tensors = self.tensors
        assert tensors is not None
        for name, x in tensors.items():
            if isinstance(x, (list, tuple)):
                code = _abi.I32 if name in _INTEGERS else small_code(kind.code(q, "q"))
                x = tensors[name] = kind.from_list(x, code, q)
            require_kind(kind, x, name)
            if name in _INTEGERS:
                x = tensors[name] = kind.to_int32(x)
            kind.pack(arena.memory, OFFSETS[name], x, name, 4 if name in _BROADCAST else 0)
            addresses[name] = arena.base + OFFSETS[name]
        return addresses


_NO_TENSORS = {name: 0 for name in TENSORS}


def write_qkv(arena: Arena, kind: Kind, q: Any, k: Any, v: Any) -> None:
    memory, pack = arena.memory, kind.pack
    if type(k) is not type(q):
        require_kind(kind, k, "k")
    if type(v) is not type(q):
        require_kind(kind, v, "v")
    pack(memory, 0, q, "q")
    pack(memory, _K, k, "k")
    pack(memory, _V, v, "v")


def write_tensor(arena: Arena, kind: Kind, slot: str, x: Any, name: str, rank: int = 0) -> int:
    """Describes x in its slot and gives the address; 0 for None."""
    if x is None:
        return 0
    require_kind(kind, x, name)
    kind.pack(arena.memory, OFFSETS[slot], x, name, rank)
    return arena.base + OFFSETS[slot]


def write_output(arena: Arena, kind: Kind, slot: str, x: Any, name: str) -> int:
    if not kind.writable(x):
        raise ValueError(f"rootdk: {name} is read-only")
    return write_tensor(arena, kind, slot, x, name)


def write_execution(
    arena: Arena,
    target: Optional[str],
    threads: Optional[int],
    workspace_limit: int = 0,
    stream: int = 0,
    workspace: int = 0,
    workspace_bytes: int = 0,
) -> int:
    """The address of rootdk_execution, or 0 where everything is left to the library."""
    if target is None and not threads and not workspace_limit and not stream and not workspace:
        return 0
    _abi.EXECUTION.pack_into(
        arena.memory,
        arena.execution,
        _abi.EXECUTION.size,
        int(threads or 0),
        0,
        0,
        0,
        _abi.target_address(target) if target else 0,
        workspace_limit,
        stream,
        workspace,
        workspace_bytes,
    )
    return arena.base + arena.execution
