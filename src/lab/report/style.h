#pragma once

namespace rootdk::lab {

// The style sheet of every report: light and dark, a wide screen and a phone.
inline constexpr char kStyle[] = R"css(
:root { --ink:#1b2436; --soft:#5a667d; --paper:#ffffff; --card:#f6f8fc; --edge:#d5dceb; --good:#15803d; --fix:#b45309; --bad:#b91c1c;
  --c0:#2563eb; --c1:#dc2626; --c2:#059669; --c3:#d97706; --c4:#7c3aed; --c5:#0891b2; --c6:#be185d; --c7:#4d7c0f; }
@media (prefers-color-scheme: dark) {
  :root { --ink:#e6ecf8; --soft:#a3b0c8; --paper:#0f1522; --card:#171f30; --edge:#2c3850; --good:#4ade80; --fix:#fbbf24; --bad:#f87171;
    --c0:#60a5fa; --c1:#f87171; --c2:#34d399; --c3:#fbbf24; --c4:#a78bfa; --c5:#22d3ee; --c6:#f472b6; --c7:#a3e635; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.2rem; }
h1 { font-size: 1.9rem; margin: .4rem 0; } h2 { margin: 2.2rem 0 .6rem; font-size: 1.4rem; } h3 { margin: 0 0 .4rem; font-size: 1.1rem; }
p { margin: .5rem 0; } a { color: var(--c0); } .soft { color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 1rem 1.1rem; margin: 1rem 0; }
.badge { display: inline-block; border-radius: 99px; padding: .05rem .7rem; font-size: .85rem; font-weight: 600; color: var(--paper); }
.holds { background: var(--good); } .correction { background: var(--fix); } .fails { background: var(--bad); }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; } .figures figure { margin: .6rem 0; flex: 1 1 22rem; min-width: 0; }
figcaption { color: var(--soft); font-size: .88rem; }
svg.figure, svg.diagram { width: 100%; height: auto; max-width: 34rem; }
svg .title { font-weight: 600; font-size: 14.5px; fill: var(--ink); } svg .tick { font-size: 12px; fill: var(--soft); }
svg .label { font-size: 13px; fill: var(--soft); } svg .grid { stroke: var(--edge); } svg .axis { stroke: var(--soft); }
svg .line { fill: none; stroke-width: 2.2; } svg .cell { fill: var(--c0); shape-rendering: crispEdges; } svg .legend { fill: var(--c0); shape-rendering: crispEdges; } svg .cold { fill: var(--c1); } svg .tick.on { fill: var(--paper); } svg .frame { fill: none; stroke: var(--edge); }
svg .box { fill: var(--paper); stroke: var(--c0); stroke-width: 1.4; } svg .flow { stroke: var(--soft); stroke-width: 1.6; fill: none; }
svg .name { font-size: 14px; font-weight: 600; fill: var(--ink); text-anchor: middle; } svg .shape { font-size: 12.5px; fill: var(--soft); text-anchor: middle; }
.line.c0 { stroke: var(--c0); } .line.c1 { stroke: var(--c1); } .line.c2 { stroke: var(--c2); } .line.c3 { stroke: var(--c3); }
.line.c4 { stroke: var(--c4); } .line.c5 { stroke: var(--c5); } .line.c6 { stroke: var(--c6); } .line.c7 { stroke: var(--c7); }
.dot.c0, .bar.c0 { fill: var(--c0); } .dot.c1, .bar.c1 { fill: var(--c1); } .dot.c2, .bar.c2 { fill: var(--c2); } .dot.c3, .bar.c3 { fill: var(--c3); }
.dot.c4, .bar.c4 { fill: var(--c4); } .dot.c5, .bar.c5 { fill: var(--c5); } .dot.c6, .bar.c6 { fill: var(--c6); } .dot.c7, .bar.c7 { fill: var(--c7); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; min-width: 100%; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--edge); } th + th { text-align: right; } td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
details summary { cursor: pointer; color: var(--soft); } math { font-size: 1.08em; } math[display=block] { margin: .6rem 0; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1rem; } .two .card { margin: 0; } ol.steps > li { margin: .5rem 0; }
nav.verdicts { columns: 2; font-size: .92rem; } nav.verdicts a { display: block; text-decoration: none; color: var(--ink); padding: .12rem 0; }
nav.verdicts b { display: inline-block; width: 1.1em; } b.holds-mark { color: var(--good); } b.correction-mark { color: var(--fix); } b.fails-mark { color: var(--bad); }
@media (max-width: 40rem) { nav.verdicts { columns: 1; } td.n .soft { display: block; } main { padding: .7rem; } h1 { font-size: 1.5rem; } }
)css";

}  // namespace rootdk::lab
