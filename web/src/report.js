// The report of rootdk inspect: the live page's pictures over numbers that were computed when the report was written.

import {chooser, html, watchTips} from './dom.js';
import {HeadsView} from './heads_view.js';
import {picturePng, pictureSvg} from './pictures.js';
import {RowView} from './row_view.js';
import {Shell} from './shell.js';
import {change, kDefaults, state} from './state.js';

function floatsOf(base64) {
  const text = atob(base64.trim()), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) bytes[i] = text.charCodeAt(i);
  return new Float32Array(bytes.buffer);  // as written: little-endian
}

const cellRange =
    (cell, cells, length) => [Math.floor(cell * length / cells), Math.floor((cell + 1) * length / cells) - 1];
function cellOf(token, cells, length) {
  let cell = Math.floor(token * cells / length);
  while (cellRange(cell, cells, length)[1] < token) ++cell;
  return cell;
}

// One inspection. Its units are tokens, or cells of tokens where the text is too long for the maps; the state always
// holds tokens.
class Side {
  constructor(report, data, index) {
    this.report = report;
    this.data = data;
    this.title = (report.data.sides.length > 1 ? 'AB'[index] + ': ' : '') + data.model;
    this.lists = new Map();
    for (const head of data.heads) {
      const {stack, layer, map_rows: rows, map_columns: columns} = head;
      if (!this.lists.has(stack)) this.lists.set(stack, []);
      this.lists.get(stack).push({
        stack,
        layer,
        head: head.head,
        label: head,
        data: head,
        map: {values: report.list(head.map, rows * columns), rows, columns}
      });
    }
  }

  list(stack) { return this.lists.get(stack) || []; }
  selected() { return this.list(state.stack).find(one => one.layer === state.layer && one.head === state.head); }
  clearest() {
    const excess = ({label}) => label.label === 'mixed' ? -1 : label.score - label.chance;
    return [...this.lists.values()].flat().reduce((best, one) => excess(one) > excess(best) ? one : best);
  }
  queryTokens(stack) { return stack === 'encoder' ? this.data.encoder_tokens : this.data.tokens; }
  keyTokens(stack) { return stack === 'self' ? this.data.tokens : this.data.encoder_tokens; }

  // The chosen query and key of a head, as tokens and as units of its map.
  query({data}) {
    const chosen = [this.hovered, state.query].find(i => i >= 0 && i < data.queries);
    return chosen ?? data.queries - 1;
  }
  queryUnit(one) { return cellOf(this.query(one), one.data.map_rows, one.data.queries); }
  keyUnit({data}) {
    return state.key < 0 || state.key >= data.keys ? -1 : cellOf(state.key, data.map_columns, data.keys);
  }
  tokenOf(unit) {
    const {data} = this.selected();
    return cellRange(unit, data.map_rows, data.queries)[0];
  }
  keyTokenOf(unit) {
    const {data} = this.selected();
    return cellRange(unit, data.map_columns, data.keys)[0];
  }
  hover(unit) {
    const token = unit < 0 ? -1 : this.tokenOf(unit);
    if (this.hovered === token) return;
    this.hovered = token;
    change({});
  }

  // What AttentionPictures shows of a head.
  sight(one) {
    const {data, stack} = one, {queries, keys, map_rows: rows, map_columns: columns} = data;
    const pooled = rows < queries || columns < keys, cells = this.data.cells[stack];
    const axis = (tokens, texts, units, length) => {
      if (units === length && tokens.length) return {texts: tokens, name: i => `${i} “${tokens[i]}”`};
      return {
        texts: Array.from({length: units}, (_, i) => `${cellRange(i, units, length)[0]}…`),
        name: i => {
          const [first, last] = cellRange(i, units, length);
          return `tokens ${first} to ${last} “${texts?.[i] ?? ''}…”`;
        }
      };
    };
    const across = axis(this.queryTokens(stack), cells?.queries, rows, queries),
          along = axis(this.keyTokens(stack), cells?.keys, columns, keys);
    // A stack that attends to later tokens anywhere masks none of them.
    const causal = stack === 'self' &&
        !one.map.values.some((weight, n) => weight > 0 && n % columns > Math.floor(n / columns));
    return {
      name: `${stack === 'self' ? '' : stack + ', '}layer ${one.layer}, head ${one.head}`,
      map: one.map,
      queries: across.texts,
      keys: along.texts,
      crosses: stack === 'cross',
      pooled,
      masked: (i, j) => causal && j > i,
      queryName: across.name,
      keyName: along.name
    };
  }

  operands({data}) {
    const stored = data.operands, {report} = this;
    if (!stored) return null;
    const matrix = (at, rows, width) => ({shape: [rows, width], values: report.list(at, rows * width)});
    return {
      q: matrix(stored.q, data.queries, stored.head_dim),
      k: matrix(stored.k, data.keys, stored.head_dim),
      v: matrix(stored.v, data.keys, stored.value_dim),
      rules: stored.rules
    };
  }
}

class Report {
  constructor() {
    this.data = JSON.parse(document.getElementById('data').textContent);
    this.numbers = floatsOf(document.getElementById('numbers').textContent);
    this.rules = this.data.rules;
    this.fullShade = this.data.full_shade;
    this.sides = this.data.sides.map((side, index) => new Side(this, side, index));
    this.summary = document.getElementById('summary');
    this.guide = document.getElementById('guide');
  }

  list(at, count) { return this.numbers.subarray(at, at + count); }
  stacks() { return [...new Set(this.sides.flatMap(side => [...side.lists.keys()]))]; }
  heads() { return this.sides.flatMap(side => side.list(state.stack)); }
  layers() { return [...new Set(this.heads().map(one => one.layer))].sort((a, b) => a - b); }
  headsOf(layer) {
    return [...new Set(this.heads().filter(one => one.layer === layer).map(one => one.head))].sort((a, b) => a - b);
  }

  stackPicker() {
    const stacks = this.stacks(), names = {self: 'decoder', encoder: 'encoder', cross: 'decoder to encoder'};
    if (stacks.length < 2) return [];
    const choices = stacks.map(stack => [stack, names[stack]]);
    return [html(
        'span', {class: 'with-name'}, 'stack',
        chooser('Stack', choices, state.stack, stack => change({stack, query: -1, key: -1})))];
  }

  // What RowView asks. One side at a time.
  side() { return this.sides[state.side] || this.sides[0]; }
  query() {
    const one = this.side().selected();
    return one ? this.side().query(one) : 0;
  }
  morePickers() {
    if (this.sides.length < 2) return this.stackPicker();
    const choices = this.sides.map((side, index) => [index, 'AB'[index], side.title]);
    return [
      html('span', {class: 'with-name'}, 'side', chooser('Side', choices, state.side, side => change({side}))),
      ...this.stackPicker()
    ];
  }
  rowSubject(query) {
    const side = this.side(), one = side.selected();
    if (!one) return {queries: [], keys: [], missing: `${side.title} has no such head.`};
    const queries = side.queryTokens(one.stack), keys = side.keyTokens(one.stack),
          exact = one.data.map_rows === one.data.queries && one.data.map_columns === one.data.keys;
    return {
      queries,
      keys,
      operands: side.operands(one),
      missing: `q, k and v of this head are not in the page. ${side.data.left_out.map(note => note + '.').join(' ')}`,
      kernel: exact ? Array.from(one.map.values.subarray(query * keys.length, (query + 1) * keys.length)) : null
    };
  }
}

class GuideView {
  constructor(run) {
    this.element = html('div', {class: 'view guide-view'}, html('section', {class: 'card'}, run.guide));
  }
  show() {}
}

const kReportViews = [
  ['heads', 'Heads', HeadsView], ['row', ['One row', html('span', {class: 'more'}, ', computed')], RowView],
  ['guide', 'How to read this', GuideView]
];

function startReport() {
  const report = new Report();
  // A link leaves out what is as it was at the beginning: the clearest head.
  const {stack, layer, head} = report.sides[0].clearest();
  Object.assign(kDefaults, {view: 'heads', text: '', stack, layer, head});
  watchTips();
  const shell = new Shell(kReportViews, report, names => {
    if (!names || ['view', 'stack', 'layer', 'head'].some(name => names.has(name)))
      for (const side of report.sides) side.hovered = -1;
    // What the stack or the layer does not have gives way to the nearest that it has.
    const nearest = (list, wanted) => list.reduce((a, b) => Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a);
    if (!report.stacks().includes(state.stack)) state.stack = stack;
    state.layer = nearest(report.layers(), state.layer);
    state.head = nearest(report.headsOf(state.layer), state.head);
  });
  // For tests and for the curious.
  window.rootdkReport = {report, state, change, views: shell.made, picturePng, pictureSvg};
}

startReport();
