// Starts the library, runs the model when the text changes, and shows the chosen view.

import {ClaimsView} from './claims_view.js';
import {html, watchTips} from './dom.js';
import {Engine} from './engine.js';
import {KnobsView} from './knobs_view.js';
import {picturePng, pictureSvg} from './pictures.js';
import {RowView} from './row_view.js';
import {Shell} from './shell.js';
import {change, state} from './state.js';
import {TextView} from './text_view.js';
import {ZeroView} from './zero_view.js';

// The last forward pass over the text, and what the views ask of it.
class Run {
  constructor(engine) {
    this.engine = engine;
    this.model = engine.request({do: 'describe'});
    this.context = engine.context;
  }

  update() {
    const begin = performance.now();
    try {
      const answer = this.engine.request({do: 'run', text: state.text, next: 10});
      this.now = {
        ids: answer.ids,
        tokens: answer.tokens,
        n: answer.ids.length,
        next: answer.next,
        logits: answer.arrays.logits?.values,
        weights: answer.arrays.weights.values,
        entropy: answer.arrays.entropy.values,
        milliseconds: performance.now() - begin
      };
      this.error = null;
      this.kept = new Map();
      this.heads = null;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.labelHeads(), 150);
    } catch (error) {
      this.error = error.message;
    }
  }

  labelHeads() {
    const {heads, rules} = this.engine.request({do: 'labels', ids: this.now.ids});
    this.heads = heads;
    this.rules = rules;
    shell.show(new Set(['labels']));
  }

  // The token that the pointer is on, else the chosen one, else the last.
  query() { return [this.hovered, state.query].find(i => i >= 0 && i < this.now.n) ?? this.now.n - 1; }
  hover(index) {
    if (this.hovered === index) return;
    this.hovered = index;
    change({});
  }
  weights(layer, head) {
    const size = this.now.n ** 2, at = (layer * this.model.heads + head) * size;
    return this.now.weights.subarray(at, at + size);
  }
  row(layer, head, query) {
    return Array.from(this.weights(layer, head).subarray(query * this.now.n, (query + 1) * this.now.n));
  }
  // Every head with its label and its map, for the grid.
  headList() {
    const {now, model, heads} = this;
    if (this.listed?.now !== now || this.listed.labels !== heads) {
      const list = [];
      for (let layer = 0; layer < model.layers; ++layer)
        for (let head = 0; head < model.heads; ++head)
          list.push({
            layer,
            head,
            label: this.label(layer, head),
            map: {values: this.weights(layer, head), rows: now.n, columns: now.n}
          });
      this.listed = {now, labels: heads, list};
    }
    return this.listed.list;
  }
  label(layer, head) { return this.heads?.[layer * this.model.heads + head]; }
  // What RowView asks: the choices, the names of queries and keys, the operands and the kernel's weights.
  layers() { return Array.from({length: this.model.layers}, (_, i) => i); }
  headsOf() { return Array.from({length: this.model.heads}, (_, i) => i); }
  rowSubject(query) {
    return {
      queries: this.now.tokens,
      keys: this.now.tokens,
      operands: this.operands(state.layer, state.head),
      kernel: this.row(state.layer, state.head, query)
    };
  }
  operands(layer, head) {
    const name = `${layer}.${head}`;
    if (!this.kept.has(name)) {
      this.engine.request({do: 'run', ids: this.now.ids});
      const {arrays, ...rules} = this.engine.request({do: 'row', layer, head});
      this.kept.set(name, {...arrays, rules});
    }
    return this.kept.get(name);
  }
}

const kViews = [
  ['text', 'Text', TextView], ['row', ['One row', html('span', {class: 'more'}, ', computed')], RowView],
  ['knobs', 'Knobs', KnobsView], ['claims', 'Claims', ClaimsView], ['zero', 'From zero', ZeroView]
];
let shell;

async function start() {
  watchTips();
  const engine = await Engine.start(), run = new Run(engine);
  shell = new Shell(kViews, run, names => {
    state.layer = Math.min(state.layer, run.model.layers - 1);
    state.head = Math.min(state.head, run.model.heads - 1);
    if (!names || names.has('view') || names.has('text')) run.hovered = -1;
    if (!names || names.has('text')) run.update();
  });
  // For tests and for the curious: the same engine and state from the console.
  window.rootdkLive = {engine, run, state, change, views: shell.made, picturePng, pictureSvg};
}

start().catch(error => {
  const loading = document.getElementById('loading');
  if (loading)
    loading.textContent =
        `The library could not start: ${error.message}. It needs a browser with WebAssembly SIMD (2023 or newer).`;
  console.error(error);
});
