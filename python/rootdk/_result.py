"""What attention(..., stats=True) gives back: the arrays, a table of what each head did, and a picture."""

import math
from pathlib import Path
from typing import Any, Callable, Dict, Generic, List, NamedTuple, Optional, Tuple, Union

from . import _buffer, _svg
from ._tables import html_table, text_table
from ._typing import ArrayT

STATS = ("lse", "max_logit", "max_weight", "entropy", "sum_p2", "column_mass", "pooled_map", "weights", "weight_rows")
_SATURATED = 0.9  # a row whose sum of squared weights is above this attends to one key


SUMMARY_COLUMNS = (
    ("head", "d"),
    ("effective keys", ".2f"),
    ("max logit", ".3f"),
    ("mean max weight", ".3f"),
    ("saturated rows", ".1%"),
)


class HeadSummary(NamedTuple):
    """One head over all batches and the rows that see a key; NaN where there are none, or the statistic was not asked
    for."""

    head: int
    effective_keys: float  # exp of the mean entropy: about how many keys a row attends to
    max_logit: float
    mean_max_weight: float
    saturated: float  # the share of rows that read one key


def as_lists(x: Any) -> Any:
    """Nested lists of numbers, from any kind of array."""
    if hasattr(x, "detach"):
        x = x.detach()
    if hasattr(x, "tolist"):
        return x.tolist()
    if not isinstance(x, _buffer.Buffer):
        x = _buffer.from_dlpack(x, "statistics")
    return x.memoryview().tolist()


def _mean(values: List[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


class AttentionResult(Generic[ArrayT]):
    """`out` and the statistics of one call: lse, max_logit, max_weight, entropy, sum_p2 [batch, heads, q_len];
    column_mass [batch, heads, kv_len]; pooled_map [batch, heads, rows, columns]; weights [batch, heads, rows, kv_len]
    for the queries weight_rows. What was not asked for is None."""

    # Arrays to a checker of types, so that what was asked for needs no second look.
    out: ArrayT
    lse: ArrayT
    max_logit: ArrayT
    max_weight: ArrayT
    entropy: ArrayT
    sum_p2: ArrayT
    column_mass: ArrayT
    pooled_map: ArrayT
    weights: ArrayT
    weight_rows: ArrayT

    def __init__(self, out: ArrayT, arrays: Dict[str, ArrayT]) -> None:
        self.out = out
        for name in STATS:
            setattr(self, name, arrays.get(name))

    def stats(self) -> Dict[str, ArrayT]:
        """The statistics that are there, by name."""
        return {name: getattr(self, name) for name in STATS if getattr(self, name) is not None}

    def map_arrays(self, change: Callable[[Any], Any]) -> "AttentionResult[Any]":
        return AttentionResult(change(self.out), {name: change(x) for name, x in self.stats().items()})

    def _rows_of_heads(self, name: str) -> Optional[List[List[float]]]:
        """For each head the values of the rows that see a key (all where max_logit is not there), over the batch."""
        if getattr(self, name) is None:
            return None
        batches = as_lists(getattr(self, name))
        logits = as_lists(self.max_logit if self.max_logit is not None else getattr(self, name))
        heads = len(batches[0]) if batches else 0
        return [
            [
                value
                for values, tops in zip(batches, logits)
                for value, top in zip(values[head], tops[head])
                if top != -math.inf
            ]
            for head in range(heads)
        ]

    def summary(self) -> List[HeadSummary]:
        """One line a head."""
        entropy, max_logit, max_weight, sum_p2 = (
            self._rows_of_heads(name) for name in ("entropy", "max_logit", "max_weight", "sum_p2")
        )
        heads = max((len(rows) for rows in (entropy, max_logit, max_weight, sum_p2) if rows), default=0)
        table = []
        for head in range(heads):
            known = [x for x in sum_p2[head] if math.isfinite(x)] if sum_p2 else []
            table.append(
                HeadSummary(
                    head,
                    math.exp(_mean(entropy[head])) if entropy else math.nan,
                    max(max_logit[head], default=-math.inf) if max_logit else math.nan,
                    _mean(max_weight[head]) if max_weight else math.nan,
                    sum(x > _SATURATED for x in known) / len(known) if known else math.nan,
                )
            )
        return table

    def __repr__(self) -> str:
        title = f"attention {list(self._shape)} with {', '.join(self.stats()) or 'no statistics'}"
        table = self.summary()
        return "\n".join([title, *(text_table(SUMMARY_COLUMNS, table) if table else ())])

    def _repr_svg_(self) -> Optional[str]:
        return str(self.plot()) if self._has_picture() else None

    def _repr_html_(self) -> str:
        table = html_table(SUMMARY_COLUMNS, self.summary())
        return f"<div><p>attention {list(self._shape)}</p>{table}{self._repr_svg_() or ''}</div>"

    @property
    def _shape(self) -> Tuple[int, ...]:
        shape: Any = self.out.shape
        return tuple(shape)

    def _has_picture(self) -> bool:
        return self._shape[0] > 0 and any(x is not None for x in (self.pooled_map, self.weights, self.entropy))

    def plot(self, path: Union[None, str, Path] = None, *, batch: int = 0) -> "_svg.Svg":
        """A picture with one panel a head: the pooled map (map_size), else the exact weights, else how many keys each
        row attends to. Gives SVG text, which a notebook shows, and writes it to `path`. Other endings than .svg, such as
        .png and .pdf, are written through matplotlib, where it is installed."""
        if not self._has_picture():
            raise ValueError("plot: the result has no pooled_map, weights or entropy (ask attention for map_size=64)")
        batches = self._shape[0]
        if not -batches <= batch < batches:
            raise ValueError(f"plot: there is no batch {batch}; there are 0 to {batches - 1}")
        if path is not None and Path(path).suffix != ".svg":
            self._plot_with_matplotlib(path, batch)
        picture = self._draw(batch)
        if path is not None and Path(path).suffix == ".svg":
            picture.save(path)
        return picture

    def _maps(self, batch: int) -> Optional[List[List[List[float]]]]:
        for x in (self.pooled_map, self.weights):
            if x is not None:
                return as_lists(x)[batch]  # type: ignore[no-any-return]
        return None

    def _curves(self, batch: int) -> List[List[float]]:
        entropy = as_lists(self.entropy)[batch]
        logits = as_lists(self.max_logit)[batch] if self.max_logit is not None else entropy
        return [
            [0.0 if top == -math.inf else math.exp(value) for value, top in zip(values, tops)]
            for values, tops in zip(entropy, logits)
        ]

    def _draw(self, batch: int) -> "_svg.Svg":
        maps = self._maps(batch)
        if maps is not None:
            pictures = [_svg.heat_map(rows) for rows in maps]
            note = "rows: queries, columns: keys; darker: more weight"
        else:
            curves = self._curves(batch)
            top = max((x for values in curves for x in values if math.isfinite(x)), default=1.0)
            pictures = [_svg.curve(values, top) for values in curves]
            note = f"how many keys each query attends to (e^entropy), 0 to {top:.1f}"
        labels = [f"head {head}" for head in range(len(pictures))]
        if self.entropy is not None:
            labels = [
                f"head {row.head}: " + ("no keys" if row.max_logit == -math.inf else f"{row.effective_keys:.1f} keys")
                for row in self.summary()
            ]
        return _svg.panels(f"attention {list(self._shape)}", pictures, labels, note)

    def _plot_with_matplotlib(self, path: Union[str, Path], batch: int) -> None:
        try:
            from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise ValueError(f"plot: {path} needs matplotlib, which is not installed (a .svg file does not)") from None
        maps = self._maps(batch)
        pictures: List[Any] = list(maps) if maps is not None else list(self._curves(batch))
        columns = min(_svg.COLUMNS, len(pictures))
        rows = -(-len(pictures) // columns)
        figure = Figure(figsize=(2 * columns, 2.2 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).flat
        for head, (axis, picture) in enumerate(zip(axes, pictures)):
            axis.set_title(f"head {head}", fontsize=8)
            if maps is not None:
                axis.imshow(picture, cmap="Blues", aspect="auto")
            else:
                axis.plot(picture)
        figure.savefig(path)
