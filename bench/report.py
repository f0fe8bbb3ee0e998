#!/usr/bin/env python3
"""Turns the results of the benchmark grid into docs/benchmarks.md and docs/roofline.svg.

    bench/report.py RESULTS.jsonl FOLDER
"""

import html
import json
import math
import pathlib
import sys

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 30, 60
BANDWIDTH = 26.0  # GB/s from memory to one Zen 4 core: where the slope of the roof comes from
COLOURS = {"f32": "#1f6feb", "bf16": "#d1570a", "f16": "#2da44e"}
BYTES = {"f32": 4, "bf16": 2, "f16": 2}


def label(r):
    parts = [r["operation"], r["dtype"], f"d {r['head_dim']}", f"len {r['len']}"]
    if r["batch"] > 1:
        parts.append(f"batch {r['batch']}")
    if r["kv_heads"] != r["heads"]:
        parts.append(f"heads {r['heads']}/{r['kv_heads']}")
    parts += [word for word in ("causal", "stats") if r[word]]
    return ", ".join(parts)


def number(x, pattern="{:.1f}"):
    return "" if x is None else pattern.format(x)


def table(results):
    rows = ["| case | implementation | ms | GFLOP/s | of peak | textbook ms | times faster | memory MiB | textbook MiB |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for r in results:
        fraction, naive = r["fraction_of_peak"], r["naive_seconds"]
        rows.append("| {} | {} | {:.2f} | {:.1f} | {} | {} | {} | {:.1f} | {} |".format(
            label(r), r["implementation"], 1e3 * r["seconds"], r["gflops"], number(fraction, "{:.2f}"),
            number(naive and 1e3 * naive), number(r["speedup_vs_naive"]), r["peak_bytes"] / 2**20,
            number(r["naive_peak_bytes"] and r["naive_peak_bytes"] / 2**20)))
    return "\n".join(rows)


def intensity(r):
    """Operations per byte of tensor: q, k, v and out once; backward reads and writes twice as many."""
    flops = r["gflops"] * 1e9 * r["seconds"]
    q_side = r["batch"] * r["heads"] * r["len"] * (r["head_dim"] + r["value_dim"])
    kv_side = r["batch"] * r["kv_heads"] * r["kv_len"] * (r["head_dim"] + r["value_dim"])
    return flops / ((q_side + kv_side) * BYTES[r["dtype"]] * (2 if r["operation"] == "backward" else 1))


class Picture:
    """Logarithmic axes: operations per byte to the right, GFLOP/s upwards."""

    def __init__(self, results):
        self.results = results
        points = [intensity(r) for r in results]
        self.x_low, self.x_high = 1.0, 2.0 * max(points)
        peaks = [r["peak_gflops"] or r["gflops"] for r in results]
        self.y_low, self.y_high = min(r["gflops"] for r in results) / 3, 1.6 * max(peaks)

    def x(self, value):
        share = math.log(value / self.x_low) / math.log(self.x_high / self.x_low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        share = math.log(value / self.y_low) / math.log(self.y_high / self.y_low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def roofs(self):
        highest = {}
        for r in self.results:
            if r["peak_gflops"]:
                key = (r["dtype"], r["implementation"])
                highest[key] = max(highest.get(key, 0.0), r["peak_gflops"])
        for (dtype, implementation), peak in highest.items():
            corner = max(self.x_low, peak / BANDWIDTH)
            start = max(self.x_low, self.y_low / BANDWIDTH)
            points = [(start, min(peak, start * BANDWIDTH)), (corner, peak), (self.x_high, peak)]
            path = " ".join(f"{self.x(a):.1f},{self.y(max(b, self.y_low)):.1f}" for a, b in points)
            yield f'<polyline points="{path}" fill="none" stroke="{COLOURS[dtype]}" stroke-width="1.5"/>'
            yield (f'<text x="{WIDTH - RIGHT}" y="{self.y(peak) - 5:.1f}" text-anchor="end" fill="{COLOURS[dtype]}">'
                   f'{html.escape(implementation)}, {dtype}: {peak:.0f} GFLOP/s</text>')

    def dots(self):
        for r in self.results:
            shape = f'<circle cx="{self.x(intensity(r)):.1f}" cy="{self.y(r["gflops"]):.1f}" r="4" ' \
                    f'fill="{COLOURS[r["dtype"]]}" fill-opacity="{0.45 if r["operation"] == "backward" else 0.85}">'
            yield f'{shape}<title>{html.escape(label(r))}: {r["gflops"]:.1f} GFLOP/s</title></circle>'

    def axes(self):
        bottom = HEIGHT - BOTTOM
        yield f'<path d="M{LEFT},{TOP} V{bottom} H{WIDTH - RIGHT}" fill="none" stroke="#57606a"/>'
        for exponent in range(0, 6):
            value = 10.0**exponent
            if self.x_low <= value <= self.x_high:
                yield f'<text x="{self.x(value):.1f}" y="{bottom + 18}" text-anchor="middle">{value:.0f}</text>'
            if self.y_low <= value <= self.y_high:
                yield f'<text x="{LEFT - 8}" y="{self.y(value) + 4:.1f}" text-anchor="end">{value:.0f}</text>'
        yield f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 15}" text-anchor="middle">operations per byte</text>'
        yield f'<text x="{LEFT}" y="{TOP - 12}" text-anchor="middle">GFLOP/s</text>'

    def svg(self):
        body = "\n".join([*self.axes(), *self.roofs(), *self.dots()])
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
                f'font-size="12" fill="#24292f">\n<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{body}\n</svg>\n')


def main():
    source, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    results = [json.loads(line) for line in source.read_text().splitlines()]
    threads = sorted({r["threads"] for r in results})
    (folder / "benchmarks.md").write_text(
        "# Benchmarks\n\nWritten by `make bench` (`bench/run.sh`). Heads 8, no mask unless said, "
        f"{', '.join(map(str, threads))} thread(s); packing and every other overhead is inside the times. The peak is that "
        "of the target's multiply-adds, measured between the runs. The textbook way is a BLAS product, the softmax over the "
        "n x n matrix and a BLAS product, in f32, head by head.\n\n"
        f"{table(results)}\n\n![Roofline](roofline.svg)\n\nThe slope of the roofs is {BANDWIDTH:.0f} GB/s, what one Zen 4 "
        "core reads from memory.\n")
    (folder / "roofline.svg").write_text(Picture(results).svg())


if __name__ == "__main__":
    main()
