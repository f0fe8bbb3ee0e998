"""Which statistics a call computes, and the arrays they go into."""

from typing import Any, Dict, Literal, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi, _structs
from ._arrays import Kind, require_kind, small_code
from ._params import Pair, pair, whole
from ._slots import write_tensor
from ._typing import AnyArray

ROW_STATS = ("lse", "max_logit", "max_weight", "entropy", "sum_p2")


Asked = Union[Literal[True], str, Sequence[str]]
Stats = Union[bool, str, Sequence[str]]
AskedRows = Union[Literal[True], AnyArray, Sequence[int]]  # of which the exact weights are given
Rows = Union[bool, AnyArray, Sequence[int]]


def stat_names(stats: Stats, known: Tuple[str, ...]) -> Tuple[str, ...]:
    """The statistics that are asked for by name, or all with True."""
    if stats is True:
        return known
    names = () if not stats else (stats,) if isinstance(stats, str) else tuple(stats)
    for name in names:
        if name not in known:
            raise ValueError(f"rootdk: stats has {name!r}, expected some of {', '.join(known)}")
    return names


class StatsRequest(NamedTuple):
    """Which statistics a call computes."""

    names: Tuple[str, ...] = ()  # of ROW_STATS and column_mass
    map_size: Optional[Tuple[int, int]] = None
    weights: Any = False  # True: all rows; else the rows
    stride: int = 1

    @classmethod
    def make(
        cls,
        stats: Stats,
        map_size: Optional[Pair],
        weights: Any,
        stride: int,
    ) -> Optional["StatsRequest"]:
        """None where nothing is asked for."""
        wants_weights = weights is not None and weights is not False
        if not stats and map_size is None and not wants_weights:
            return None
        names = stat_names(stats, ROW_STATS + ("column_mass",))
        map_sides = None if map_size is None else pair(map_size, "map_size")
        if map_sides is not None and min(map_sides) < 1:
            raise ValueError(f"rootdk: map_size is {map_size!r}, expected numbers from 1 on")
        return cls(names, map_sides, weights if wants_weights else False, whole(stride, "stats_stride"))

    @property
    def is_empty(self) -> bool:
        return not self.names and self.map_size is None and self.weights is False

    def allocate(self, kind: Kind, q: Any, k: Any) -> Dict[str, Any]:
        """The arrays that the call fills, by name; weight_rows among them where rows are chosen."""
        batch, heads, q_len, _ = q.shape
        kv_len = k.shape[2]
        code = small_code(kind.code(q, "q"))
        arrays = {
            name: kind.empty((batch, heads, kv_len if name == "column_mass" else q_len), code, q) for name in self.names
        }
        if self.map_size is not None:
            arrays["pooled_map"] = kind.empty((batch, heads) + self.map_size, code, q)
        if self.weights is not False:
            rows = q_len
            if self.weights is not True:
                chosen = self.weights
                chosen = kind.from_list(chosen, _structs.I32, q) if isinstance(chosen, (list, tuple, range)) else chosen
                require_kind(kind, chosen, "weights")
                arrays["weight_rows"] = kind.to_int32(chosen)
                rows = chosen.shape[0] if len(chosen.shape) else 0  # which the library refuses
            arrays["weights"] = kind.empty((batch, heads, rows, kv_len), code, q)
        return arrays


_STATS_FIELDS = ROW_STATS + ("column_mass", "pooled_map", "weights", "weight_rows")


def write_stats(arena: _abi.Arena, kind: Kind, arrays: Dict[str, Any], stride: int) -> int:
    addresses = [write_tensor(arena, kind, name, arrays[name], name) if name in arrays else 0 for name in _STATS_FIELDS]
    return _abi.STATS.write(arena, *addresses, stride)
