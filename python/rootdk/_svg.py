"""Small pictures without a plotting library: heat maps and curves per head, as SVG text."""

import base64
import math
import struct
import zlib
from html import escape
from pathlib import Path
from typing import List, Optional, Sequence, Union

PANEL, GAP, LABEL, COLUMNS = 132, 14, 18, 6
# Light to dark blue, by quarters.
_COLOURS = ((247, 251, 255), (189, 215, 231), (107, 174, 214), (33, 113, 181), (8, 48, 107))


class Svg(str):
    """SVG text that a notebook shows as a picture."""

    def _repr_svg_(self) -> str:
        return str(self)

    def save(self, path: Union[str, Path]) -> "Svg":
        Path(path).write_text(self, encoding="utf-8")
        return self


def colour(share: float) -> bytes:
    """The colour of a number in [0, 1]; grey where it is not a number."""
    if math.isnan(share):
        return bytes((200, 200, 200))
    position = min(max(share, 0.0), 1.0) * (len(_COLOURS) - 1)
    low = min(int(position), len(_COLOURS) - 2)
    part = position - low
    return bytes(round(a + part * (b - a)) for a, b in zip(_COLOURS[low], _COLOURS[low + 1]))


def png(pixels: Sequence[bytes], width: int) -> bytes:
    """A PNG of rows of RGB bytes."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, len(pixels), 8, 2, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in pixels))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def heat_map(rows: List[List[float]]) -> str:
    """A panel with one cell a number, the square root of its share of the largest: small weights stay visible."""
    if not rows or not rows[0]:
        return ""
    largest = max((x for row in rows for x in row if not math.isnan(x)), default=0.0) or 1.0
    pixels = [b"".join(colour(math.sqrt(max(x, 0.0) / largest)) for x in row) for row in rows]
    data = base64.b64encode(png(pixels, len(rows[0]))).decode()
    return (
        f'<image width="{PANEL}" height="{PANEL}" preserveAspectRatio="none" style="image-rendering:pixelated" '
        f'href="data:image/png;base64,{data}"/>'
    )


def curve(values: List[float], top: float) -> str:
    """A panel with one line over positions, from 0 to `top`; gaps where a value is not finite."""
    step = PANEL / max(1, len(values) - 1)
    parts: List[List[str]] = [[]]
    for i, value in enumerate(values):
        if math.isfinite(value):
            parts[-1].append(f"{i * step:.1f},{PANEL - PANEL * value / (top or 1.0):.1f}")
        elif parts[-1]:
            parts.append([])
    return "".join(
        f'<polyline points="{" ".join(points)}" fill="none" stroke="#2171b5" stroke-width="1.2"/>'
        for points in parts
        if points
    )


def panels(title: str, pictures: List[str], labels: List[str], note: Optional[str] = None) -> Svg:
    """A grid of panels with a label under each."""
    count = max(1, len(pictures))
    rows = -(-count // COLUMNS)
    columns = -(-count // rows)  # eight are two rows of four
    width = columns * (PANEL + GAP) + GAP
    top = 44 if note else 28
    height = top + rows * (PANEL + LABEL + GAP)
    width = max(width, 420)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11" fill="currentColor">',
        f'<text x="{GAP}" y="18" font-size="13" font-weight="bold">{escape(title)}</text>',
    ]
    if note:
        parts.append(f'<text x="{GAP}" y="34" opacity="0.7">{escape(note)}</text>')
    for i, (picture, label) in enumerate(zip(pictures, labels)):
        x, y = GAP + (i % columns) * (PANEL + GAP), top + (i // columns) * (PANEL + LABEL + GAP)
        parts.append(
            f'<g transform="translate({x},{y})">{picture}<rect width="{PANEL}" height="{PANEL}" fill="none" '
            f'stroke="currentColor" stroke-opacity="0.3"/><text y="{PANEL + 13}">{escape(label)}</text></g>'
        )
    parts.append("</svg>")
    return Svg("".join(parts))
