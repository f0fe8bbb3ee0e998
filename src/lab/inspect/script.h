#pragma once

namespace rootdk::lab {

// Draws the maps and answers the pointer. `sides` is the data of the page: for each side its tokens and the maps of its
// heads; a canvas names its side and head.
inline constexpr char kInspectScript[] = R"js(
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const channels = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16));

function draw(canvas) {
  const head = sides[canvas.dataset.side].heads[canvas.dataset.head];
  canvas.width = head.columns; canvas.height = head.rows;
  const context = canvas.getContext('2d'), image = context.createImageData(head.columns, head.rows);
  const paper = channels(colour('--paper')), ink = channels(colour('--c0'));
  head.map.forEach((weight, cell) => {
    const depth = Math.sqrt(Math.min(1, weight));  // one scale for all maps: 0 to 1
    for (let c = 0; c < 3; ++c) image.data[4 * cell + c] = paper[c] + (ink[c] - paper[c]) * depth;
    image.data[4 * cell + 3] = 255;
  });
  context.putImageData(image, 0, 0);
}

const cell_range = (cell, cells, length) => [Math.floor(cell * length / cells), Math.floor((cell + 1) * length / cells) - 1];

function describe(tokens, [first, last]) {
  if (first === last) return `${first} “${tokens[first]}”`;
  return `${first} to ${last}`;
}

function read(canvas, event) {
  const side = sides[canvas.dataset.side], head = side.heads[canvas.dataset.head], box = canvas.getBoundingClientRect();
  const at = (position, size, cells) => Math.min(cells - 1, Math.max(0, Math.floor(position / size * cells)));
  const row = at(event.clientY - box.top, box.height, head.rows), column = at(event.clientX - box.left, box.width, head.columns);
  const queries = side[head.query_tokens], keys = side[head.key_tokens];
  const weight = head.map[row * head.columns + column];
  canvas.parentElement.querySelector('output').textContent =
    `query ${describe(queries, cell_range(row, head.rows, head.query_count))} → key ` +
    `${describe(keys, cell_range(column, head.columns, head.key_count))}: ${weight.toPrecision(3)}`;
}

const canvases = [...document.querySelectorAll('canvas')];
const observer = new IntersectionObserver(entries => entries.forEach(entry => {
  if (!entry.isIntersecting) return;
  draw(entry.target); observer.unobserve(entry.target);
}), {rootMargin: '400px'});
canvases.forEach(canvas => {
  observer.observe(canvas);
  canvas.addEventListener('pointermove', event => read(canvas, event));
  canvas.addEventListener('pointerdown', event => read(canvas, event));
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => canvases.forEach(draw));
)js";

inline constexpr char kInspectStyle[] = R"css(
.heads { display: grid; grid-template-columns: repeat(auto-fill, minmax(18.5rem, 1fr)); gap: 1rem; align-items: start; }
.heads.pairs { grid-template-columns: 1fr; } .pair { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1rem; }
.heads .card { margin: 0; min-width: 0; }
canvas { width: 100%; aspect-ratio: 1; image-rendering: pixelated; border: 1px solid var(--edge); display: block; touch-action: pan-y; cursor: crosshair; }
output { display: block; min-height: 2.9em; font-size: .82rem; line-height: 1.4; color: var(--soft); overflow-wrap: anywhere; padding-top: .2rem; }
dl { display: grid; grid-template-columns: 1fr auto; gap: .05rem .8rem; font-size: .86rem; margin: .3rem 0; } dd { margin: 0; text-align: right; font-variant-numeric: tabular-nums; }
.label { font-weight: 600; white-space: nowrap; } .l0 { color: var(--c0); } .l1 { color: var(--c1); } .l2 { color: var(--c2); } .l3 { color: var(--c4); } .l4 { color: var(--c3); } .l5 { color: var(--c5); } .l6 { color: var(--soft); }
.mass { font-size: .86rem; line-height: 1.7; overflow-wrap: anywhere; white-space: pre-wrap; } .mass span { border-radius: 3px; }
blockquote { margin: .3rem 0; padding-left: .8rem; border-left: 3px solid var(--edge); font-style: italic; }
table.overview th { white-space: nowrap; text-align: left; } table.overview td, table.overview th + th { padding: .15rem .45rem; font-size: .82rem; } table.overview a { text-decoration: none; }
table.scores { font-size: .82rem; margin: .3rem 0; } table.scores td, table.scores th { padding: .08rem .3rem; } table.scores th { font-weight: 400; color: var(--soft); }
h2, blockquote { overflow-wrap: anywhere; }
.warning { border-left: 4px solid var(--fix); padding: .2rem .7rem; background: color-mix(in srgb, var(--fix) 12%, transparent); }
.legend { display: flex; gap: .5rem; align-items: center; font-size: .82rem; max-width: 20rem; } .legend i { flex: 1; height: .9rem; border: 1px solid var(--edge);
  background: linear-gradient(to right, var(--paper), color-mix(in srgb, var(--c0) 50%, var(--paper)) 25%, color-mix(in srgb, var(--c0) 70.7%, var(--paper)) 50%, color-mix(in srgb, var(--c0) 86.6%, var(--paper)) 75%, var(--c0)); }
.legend-ticks { font-size: .82rem; }
@media (max-width: 40rem) { .pair { grid-template-columns: 1fr; } }
)css";

}  // namespace rootdk::lab
