"""Tables of heads, as text, as HTML and as pictures."""

from html import escape
from typing import Any, Dict, Iterable, List, Sequence, Tuple

from . import _svg

Column = Tuple[str, str]  # the heading, and the format of its numbers; "" for text


def _cells(columns: Sequence[Column], row: Sequence[Any]) -> List[str]:
    return [
        str(value) if not pattern else "-" if value != value else format(value, pattern)  # NaN: nothing to say
        for (_, pattern), value in zip(columns, row)
    ]


def text_table(columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> List[str]:
    """Lines with texts on the left of their columns and numbers on the right."""
    lines = [[name for name, _ in columns]] + [_cells(columns, row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return [
        "  ".join(
            cell.rjust(width) if pattern else cell.ljust(width)
            for cell, width, (_, pattern) in zip(line, widths, columns)
        ).rstrip()
        for line in lines
    ]


def html_table(columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> str:
    def line(tag: str, cells: Iterable[str]) -> str:
        aligned = (
            f"<{tag} style='text-align:{'right' if pattern else 'left'}'>{escape(cell)}</{tag}>"
            for cell, (_, pattern) in zip(cells, columns)
        )
        return "<tr>" + "".join(aligned) + "</tr>"

    body = "".join(line("td", _cells(columns, row)) for row in rows)
    return "<table>" + line("th", (name for name, _ in columns)) + body + "</table>" if body else ""


def layer_maps(title: str, tables: Dict[str, List[List[float]]]) -> "_svg.Svg":
    """A heat map a table, which holds a row of heads for each layer; layers may have fewer heads than others."""
    widest = max(len(row) for rows in tables.values() for row in rows)
    pictures = [_svg.heat_map([row + [float("nan")] * (widest - len(row)) for row in rows]) for rows in tables.values()]
    labels = [f"{name} {_range(rows)}" for name, rows in tables.items()]
    return _svg.panels(title, pictures, labels, "rows: layers, columns: heads; darker: more")


def _range(rows: List[List[float]]) -> str:
    """The values of the lightest and the darkest colour of a heat map."""
    numbers = [x for row in rows for x in row if x == x]
    ends = [f"{x:.2g}" if abs(x) < 100 else f"{x:.0f}" for x in (min(numbers), max(numbers))] if numbers else []
    return "…".join(ends)
