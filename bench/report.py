#!/usr/bin/env python3
"""Turns the results of the benchmark grid into a page and a picture beside them.

    bench/report.py docs/results/NAME.jsonl     writes NAME.md and NAME-roofline.svg

The first line of the file says machine, date and command. What was written on the page by hand, after the mark KEPT, stays.
"""

import html
import json
import math
import pathlib
import sys

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 30, 60
COLOURS = {"f32": "#1f6feb", "bf16": "#d1570a", "f16": "#2da44e", "i8": "#8250df", "f8e4m3": "#bf3989"}
BYTES = {"f32": 4, "bf16": 2, "f16": 2, "i8": 1, "f8e4m3": 1}
OPACITY = {"forward": 0.85, "backward": 0.45, "decode": 0.85}


def label(r):
    if r["operation"] == "decode":
        order = {"filled": " as filled", "random": " in random order"}.get(r.get("page_order", "random"), "")
        return f"decode, {r['dtype']}, {r['kv_len']} keys, " + (f"pages of {r['page']}{order}" if r["page"] else "contiguous")
    parts = [r["operation"], r["dtype"], f"d {r['head_dim']}", f"len {r['len']}"]
    if r["batch"] > 1:
        parts.append(f"batch {r['batch']}")
    if r["kv_heads"] != r["heads"]:
        parts.append(f"heads {r['heads']}/{r['kv_heads']}")
    parts += [word for word in ("causal", "stats") if r.get(word)]
    return ", ".join(parts)


def shape_of(r):
    """The case without operation and type: what a row of a table stands for."""
    return label(r).split(", ", 2)[2]


def number(x, pattern="{:.1f}"):
    return "" if x is None else pattern.format(x)


def by_type(results, operation, cell):
    """Rows of cells, one for each shape, with a column for each type, in the order of the first results."""
    found = {(shape_of(r), r["dtype"]): r for r in results if r["operation"] == operation}
    shapes = list(dict.fromkeys(shape for shape, _ in found))
    dtypes = [dtype for dtype in BYTES if any(d == dtype for _, d in found)]
    return dtypes, [(shape, [cell(found[shape, d]) if (shape, d) in found else "" for d in dtypes]) for shape in shapes]


def compute_table(results, operation):
    """Speed, then what the textbook computation takes, then memory: one line a shape."""

    def speed(r):
        return f"{1e3 * r['seconds']:.2f}, {r['gflops']:.1f}, {number(r['fraction_of_peak'], '{:.2f}')}"

    def others(r):
        naive = r["naive_peak_bytes"]
        seconds = r["naive_seconds"]
        return (number(seconds and 1e3 * seconds), number(r["speedup_vs_naive"]), f"{r['peak_bytes'] / 2**20:.1f}",
                number(naive and naive / 2**20))

    dtypes, rows = by_type(results, operation, lambda r: (speed(r), *others(r)))
    text = ["| case | " + " | ".join(f"{d}: ms, GFLOP/s, of peak" for d in dtypes) +
            " | textbook ms | times faster | MiB | textbook MiB |",
            "| --- |" + " ---: |" * (len(dtypes) + 4)]
    for shape, cells in rows:
        speeds = [cell[0] if cell else "" for cell in cells]
        joined = [", ".join(cell[i] for cell in cells if cell) for i in (1, 2, 3, 4)]
        text.append("| " + " | ".join([shape, *speeds, *joined]) + " |")
    return "\n".join(text)


def fastest_of_each(results):
    """One result of each case, in the order of the first ones."""
    best = {}
    for r in results:
        name = label(r)
        if name not in best or r["seconds"] < best[name]["seconds"]:
            best[name] = r
    return list(best.values())


def decode_cell(r):
    return (f"{1e3 * r['seconds']:.3f} ms, {1e-9 * r['bytes_per_second']:.1f} of {1e-9 * r['read_bandwidth']:.1f} GB/s, "
            f"{r['fraction_of_bandwidth']:.2f}")


def decode_tables(results):
    """By type and layout at the length that all types have, then by length."""
    lengths = {dtype: {r["kv_len"] for r in results if r["dtype"] == dtype} for dtype in {r["dtype"] for r in results}}
    common = max(set.intersection(*lengths.values()))
    layouts = list(dict.fromkeys(label(r).split(", ", 3)[3] for r in results))
    rows = [f"| {common} keys in | " + " | ".join(layouts) + " |", "| --- |" + " ---: |" * len(layouts)]
    for dtype in dict.fromkeys(r["dtype"] for r in results):
        cells = {label(r).split(", ", 3)[3]: decode_cell(r) for r in results if r["dtype"] == dtype and r["kv_len"] == common}
        rows.append(f"| {dtype} | " + " | ".join(cells.get(layout, "") for layout in layouts) + " |")
    first = results[0]["dtype"]
    by_length = sorted((r for r in results if r["dtype"] == first and not r["page"]), key=lambda r: r["kv_len"])
    more = [f"| keys, {first}, contiguous | ms a token, rate, of plain reading | ns a key and key head |",
            "| ---: | ---: | ---: |"]
    for r in by_length:
        keys = r["batch"] * r["kv_heads"] * r["kv_len"]
        more.append(f"| {r['kv_len']} | {decode_cell(r)} | {1e9 * r['seconds'] / keys:.1f} |")
    return "\n".join(rows) + "\n\n" + "\n".join(more)


def torch_section(results):
    if not results:
        return ""

    def cell(r):
        return f"{r['gflops']:.0f}, {r['torch_gflops']:.0f}, {r['speedup_vs_torch']:.2f}"

    columns, cells = [], {}
    for operation in ("forward", "backward"):
        dtypes, rows = by_type(results, operation, cell)
        columns += [f"{operation}, {dtype}" for dtype in dtypes]
        for shape, values in rows:
            cells.setdefault(shape, []).extend(values)
    rows = ["| case | " + " | ".join(columns) + " |", "| --- |" + " ---: |" * len(columns)]
    rows += [f"| {shape} | " + " | ".join(values) + " |" for shape, values in cells.items()]
    return (f"\n\n## Beside PyTorch {results[0]['torch']}\n\nGFLOP/s of rootdk, of PyTorch, and how many times faster rootdk is.\n"
            "The same tensors in the same process, run by run in turn (`bench/compare_torch.py --device cpu`).\n\n"
            + "\n".join(rows))


def with_gflops(r):
    """Decoding as the picture wants it: two operations for every element of k and v and every head that reads it."""
    operations = 2 * r["batch"] * r["tokens"] * r["heads"] * r["kv_len"] * (r["head_dim"] + r["value_dim"])
    return r | {"gflops": 1e-9 * operations / r["seconds"], "len": r["tokens"], "peak_gflops": None}


def intensity(r):
    """Operations per byte of tensor: q, k, v and out once; backward reads and writes twice as many."""
    flops = r["gflops"] * 1e9 * r["seconds"]
    q_side = r["batch"] * r["heads"] * r["len"] * (r["head_dim"] + r["value_dim"])
    kv_side = r["batch"] * r["kv_heads"] * r["kv_len"] * (r["head_dim"] + r["value_dim"])
    return flops / ((q_side + kv_side) * BYTES[r["dtype"]] * (2 if r["operation"] == "backward" else 1))


class Picture:
    """Logarithmic axes: operations per byte to the right, GFLOP/s upwards."""

    def __init__(self, results, bandwidth):
        self.results, self.bandwidth = results, bandwidth  # the slope of the roofs, in GB/s
        points = [intensity(r) for r in results]
        self.x_low, self.x_high = 1.0, 2.0 * max(points)
        peaks = [r["peak_gflops"] or r["gflops"] for r in results]
        self.y_low, self.y_high = min(r["gflops"] for r in results) / 2, 1.6 * max(peaks)

    def x(self, value):
        share = math.log(value / self.x_low) / math.log(self.x_high / self.x_low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        share = math.log(value / self.y_low) / math.log(self.y_high / self.y_low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def roofs(self):
        highest, dtypes = {}, {}
        for r in self.results:
            if r["peak_gflops"]:
                key = r["implementation"]
                highest[key] = max(highest.get(key, 0.0), r["peak_gflops"])
                dtypes.setdefault(key, []).append(r["dtype"])
        for implementation, peak in highest.items():
            names = list(dict.fromkeys(dtypes[implementation]))
            start = max(self.x_low, self.y_low / self.bandwidth)
            corner = max(start, peak / self.bandwidth)
            points = [(start, min(peak, start * self.bandwidth)), (corner, peak), (self.x_high, peak)]
            path = " ".join(f"{self.x(a):.1f},{self.y(max(b, self.y_low)):.1f}" for a, b in points)
            yield f'<polyline points="{path}" fill="none" stroke="{COLOURS[names[0]]}" stroke-width="1.5"/>'
            yield (f'<text x="{WIDTH - RIGHT}" y="{self.y(peak) - 5:.1f}" text-anchor="end" fill="{COLOURS[names[0]]}">'
                   f'{html.escape(implementation)}, {" and ".join(names)}: {peak:.0f} GFLOP/s</text>')

    def dots(self):
        for r in self.results:
            style = f'fill="{COLOURS[r["dtype"]]}" fill-opacity="{OPACITY[r["operation"]]}"'
            x, y = self.x(intensity(r)), self.y(r["gflops"])
            where = f'<path d="M{x:.1f},{y - 5:.1f} l5,5 l-5,5 l-5,-5 z"' if r["operation"] == "decode" else \
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"'
            name = where.split()[0][1:]
            yield f'{where} {style}><title>{html.escape(label(r))}: {r["gflops"]:.1f} GFLOP/s</title></{name}>'

    def axes(self):
        bottom = HEIGHT - BOTTOM
        yield f'<path d="M{LEFT},{TOP} V{bottom} H{WIDTH - RIGHT}" fill="none" stroke="#57606a"/>'
        for value in (step * 10.0**exponent for exponent in range(0, 6) for step in (1, 2, 5)):
            if self.x_low <= value <= self.x_high and math.log10(value).is_integer():
                yield f'<text x="{self.x(value):.1f}" y="{bottom + 18}" text-anchor="middle">{value:.0f}</text>'
            if self.y_low <= value <= self.y_high:
                yield f'<text x="{LEFT - 8}" y="{self.y(value) + 4:.1f}" text-anchor="end">{value:.0f}</text>'
        yield f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 15}" text-anchor="middle">operations per byte</text>'
        yield f'<text x="{LEFT}" y="{TOP - 12}" text-anchor="middle">GFLOP/s</text>'

    def svg(self):
        body = "\n".join([*self.axes(), *self.roofs(), *self.dots(), *legend()])
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
                f'font-size="12" fill="#24292f">\n<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{body}\n</svg>\n')


def legend():
    rows = ["forward: dots, backward: pale dots", "decode, contiguous and in pages of 16: diamonds"]
    for i, text in enumerate(rows):
        yield f'<text x="{LEFT + 14}" y="{TOP + 6 + 16 * i}">{html.escape(text)}</text>'
    for i, (dtype, colour) in enumerate(COLOURS.items()):
        yield f'<text x="{LEFT + 14 + 42 * i}" y="{TOP + 38}" fill="{colour}">{dtype}</text>'


def spread(values, pattern="{:.2f}"):
    low, high = pattern.format(min(values)), pattern.format(max(values))
    return low if low == high else f"{low} to {high}"


def glance(others, decode, beside):
    """The whole page in a few lines: of peak, of plain reading, and beside PyTorch."""
    rows = ["| at a glance | |", "| --- | --- |"]

    def by_dtype(results, value):
        for dtype in BYTES:
            values = [value(r) for r in results if r["dtype"] == dtype and value(r) is not None]
            if values:
                yield f"{dtype} {spread(values)}"

    for operation in ("forward", "backward"):
        plain = [r for r in others if r["operation"] == operation and r["len"] >= 1024 and not r["causal"] and not r["stats"]]
        rows.append(f"| {operation}, long rows without a mask: of peak | " +
                    ", ".join(by_dtype(plain, lambda r: r["fraction_of_peak"])) + " |")
    contiguous = [r for r in decode if not r["page"] and r["kv_len"] == 32768]
    rows.append("| decode over 32768 contiguous keys: of plain reading | " +
                ", ".join(by_dtype(contiguous, lambda r: r["fraction_of_bandwidth"])) + " |")
    for operation in ("forward", "backward"):
        same = [r for r in beside if r["operation"] == operation]
        if same:
            rows.append(f"| {operation}: times PyTorch's rate | " +
                        ", ".join(by_dtype(same, lambda r: r["speedup_vs_torch"])) + " |")
    return "\n".join(rows)


KEPT = "<!-- Written by hand from here on: make bench keeps it. -->"


def kept_part(page):
    """What follows the mark on the page of an earlier run."""
    text = page.read_text() if page.exists() else ""
    return KEPT + text.split(KEPT, 1)[1] if KEPT in text else ""


def head(machine, threads, source):
    """The table that every page of results opens with."""
    return (f"# Results: {machine['machine']}\n\n| | |\n| --- | --- |\n| date | {machine['date']} |\n"
            f"| machine | {machine['machine']}, {', '.join(map(str, threads))} thread(s) |\n"
            f"| command | `{machine['command']}` ([bench/run.sh](../../bench/run.sh)) |\n"
            f"| every figure | [{source.name}]({source.name}) |\n\n")


def page_text(machine, source, results):
    decode = fastest_of_each([r for r in results if r["operation"] == "decode"])
    beside = [r for r in results if "torch" in r]
    others = [r for r in results if r["operation"] != "decode" and "torch" not in r]
    bandwidth = 1e-9 * max(r["read_bandwidth"] for r in decode)
    picture = Picture(others + [with_gflops(r) for r in decode if r["kv_len"] == 32768], bandwidth)
    used = {d: ", ".join(dict.fromkeys(r["implementation"] for r in others if r["dtype"] == d)) for d in BYTES}
    text = (
        head(machine, sorted({r["threads"] for r in results}), source) + glance(others, decode, beside) + "\n\n" +
        "Packing and every other overhead is inside the times. 8 heads, no mask unless said. The peak is that of the target's\n"
        "multiply-adds, measured between the runs. The textbook is a BLAS product, the softmax over the n x n matrix and a BLAS\n"
        "product, in f32, head by head. Targets: " + "; ".join(f"{d} on {name}" for d, name in used.items() if name) + ".\n\n"
        f"## Forward\n\n{compute_table(others, 'forward')}\n\n## Backward\n\n{compute_table(others, 'backward')}\n\n"
        "## Decoding\n\nOne new token, 32 heads over 8, head_dim 128: time a token, rate, and its fraction of plain reading. Plain\n"
        "reading is a loop with the widest loads of the same target over memory of the same kind, measured between the runs. The\n"
        "fastest of four processes, since the rate of memory differs from one to the next.\n\n"
        f"{decode_tables(decode)}{torch_section(beside)}\n\n## Roofline\n\n![Roofline]({source.stem}-roofline.svg)\n\n"
        f"The slope of the roofs is {bandwidth:.0f} GB/s, what the core reads from memory.\n")
    return text, picture.svg()


def main():
    source = pathlib.Path(sys.argv[1])
    machine, *results = [json.loads(line) for line in source.read_text().splitlines()]
    page = source.with_suffix(".md")
    text, picture = page_text(machine, source, results)
    kept = kept_part(page)
    page.write_text(text + ("\n" + kept if kept else ""))
    source.with_name(source.stem + "-roofline.svg").write_text(picture)


if __name__ == "__main__":
    main()
