// Starts the library, runs the model when the text changes, and shows the chosen view.

import {ClaimsView} from './claims_view.js';
import {html, say, watchTips} from './dom.js';
import {Engine} from './engine.js';
import {KnobsView} from './knobs_view.js';
import {picturePng, pictureSvg} from './pictures.js';
import {RowView} from './row_view.js';
import {address, change, onChange, readAddress, state} from './state.js';
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
    showView(new Set(['labels']));
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
  label(layer, head) { return this.heads?.[layer * this.model.heads + head]; }
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
const made = new Map();
let run;

function showView(names) {
  const [name, , View] = kViews.find(([name]) => name === state.view) || kViews[0];
  const main = document.querySelector('main');
  if (!made.has(name)) made.set(name, new View(run));
  const view = made.get(name);
  if (main.firstElementChild !== view.element) main.replaceChildren(view.element);
  for (const tab of document.querySelectorAll('[role=tab]')) {
    const on = tab.dataset.view === name;
    tab.setAttribute('aria-selected', on);
    tab.tabIndex = on ? 0 : -1;
  }
  view.show(names);
}

function makeTabs() {
  const tabs = document.querySelector('[role=tablist]');
  for (const [name, title] of kViews)
    tabs.append(
        html('button', {type: 'button', role: 'tab', 'data-view': name, onclick: () => change({view: name})}, title));
  tabs.addEventListener('keydown', event => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!step) return;
    const all = [...tabs.children], next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
    next.focus();
    next.click();
  });
}

function applyTheme() {
  if (state.theme)
    document.documentElement.dataset.theme = state.theme;
  else
    delete document.documentElement.dataset.theme;
}

async function start() {
  readAddress();
  applyTheme();
  watchTips();
  const engine = await Engine.start();
  run = new Run(engine);
  state.layer = Math.min(state.layer, run.model.layers - 1);
  state.head = Math.min(state.head, run.model.heads - 1);
  run.update();
  makeTabs();
  showView(null);
  let frame = 0, waiting = new Set();
  onChange(names => {
    names.forEach(name => waiting.add(name));
    if (frame) return;
    frame = requestAnimationFrame(() => {
      frame = 0;
      const seen = waiting;
      waiting = new Set();
      if (seen.has('view') || seen.has('text')) run.hovered = -1;
      if (seen.has('text')) run.update();
      if (seen.has('theme')) applyTheme();
      showView(seen);
    });
  });
  document.getElementById('share').addEventListener('click', async () => {
    history.replaceState(null, '', address());
    try {
      await navigator.clipboard.writeText(address());
      say('The link is copied: it restores what you see.');
    } catch {
      say('The address above restores what you see.');
    }
  });
  document.getElementById('theme').addEventListener('click', () => {
    const dark = state.theme ? state.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    change({theme: dark ? 'light' : 'dark'});
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => showView(null));
  addEventListener('hashchange', () => {
    readAddress();
    applyTheme();
    run.update();
    showView(null);
  });
  let resized = 0;
  addEventListener('resize', () => {
    clearTimeout(resized);
    resized = setTimeout(() => showView(null), 100);
  });
  // For tests and for the curious: the same engine and state from the console.
  window.rootdkLive = {engine, run, state, change, views: made, picturePng, pictureSvg};
}

start().catch(error => {
  const loading = document.getElementById('loading');
  if (loading)
    loading.textContent =
        `The library could not start: ${error.message}. It needs a browser with WebAssembly SIMD (2023 or newer).`;
  console.error(error);
});
