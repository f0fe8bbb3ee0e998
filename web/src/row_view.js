// One row, computed: a query of a head, step by step, every number with its formula; beside it the row without the
// scale.

import {html, svg, short, number, tokenText, slider, anyChooser} from './dom.js';
import {state, change} from './state.js';
import {picture, drawStrip, drawRow} from './pictures.js';

const dot = (a, b) => a.reduce((sum, x, c) => sum + x * b[c], 0);

// sink: one more logit in the denominator, where the head has one.
function softmax(scores, sink = -Infinity) {
  const most = Math.max(...scores, sink), powers = scores.map(s => Math.exp(s - most)),
        sum = powers.reduce((a, b) => a + b, Math.exp(sink - most));
  return {scores, most, powers, sum, weights: powers.map(p => p / sum)};
}

// What a learned table of distances adds to a logit.
const relativeBias = ({relative, relative_zero}, query, j) =>
    relative ? relative[Math.min(relative.length - 1, Math.max(0, query - j + relative_zero))] : 0;

// Every number of row `query`, in double precision from the q, k and v that the kernel took. rules: how the head makes
// logits of its scores (web/engine/session.cpp, row_rules, and src/lab/inspect/head_operands.h).
export function computeRow({q, k, v, rules}, query) {
  const [n, d] = k.shape, width = v.shape[1];
  const at = (array, i, size) => Array.from(array.values.subarray(i * size, (i + 1) * size));
  const last = rules.causal ? query : rules.window_right >= 0 ? Math.min(n - 1, query + rules.window_right) : n - 1;
  const first = rules.window_left >= 0 ? Math.max(0, query - rules.window_left) : 0, visible = last + 1,
        own = at(q, query, d);
  const keys = Array.from({length: visible}, (_, j) => at(k, j, d)),
        values = Array.from({length: visible}, (_, j) => at(v, j, width));
  const products = keys.map(key => key.map((x, c) => x * own[c])), sums = keys.map(key => dot(own, key));
  const logit = (sum, j, scale) => {
    if (j < first) return -Infinity;
    const x = sum * scale;
    return (rules.softcap > 0 ? rules.softcap * Math.tanh(x / rules.softcap) : x) - rules.slope * Math.abs(query - j) +
        relativeBias(rules, query, j);
  };
  const scaled = softmax(sums.map((s, j) => logit(s, j, rules.scale)), rules.sink),
        plain = softmax(sums.map((s, j) => logit(s, j, 1)), rules.sink);
  const out = Array.from({length: width}, (_, c) => scaled.weights.reduce((sum, p, j) => sum + p * values[j][c], 0));
  return {n, d, visible, own, keys, values, products, sums, scaled, plain, out, rules};
}

// "÷ √32", or "× 0.0625" where the model has another scale.
const scaleText = ({d, rules}) =>
    Math.abs(rules.scale * Math.sqrt(d) - 1) < 1e-6 ? `÷ √${d}` : `× ${short(rules.scale)}`;

function logitFormula(row, query, j) {
  const {rules} = row, sum = short(row.sums[j], 5);
  if (row.scaled.scores[j] === -Infinity) return `masked: more than ${rules.window_left} tokens back, so the logit`;
  return `logit: q · k ${scaleText(row)} = ${sum} × ${short(rules.scale, 5)}` +
      (rules.softcap > 0 ? `, then ${rules.softcap} tanh(x ÷ ${rules.softcap})` : '') +
      (rules.slope ? `, then − ${short(rules.slope)} × distance ${Math.abs(query - j)}` : '') +
      (rules.relative ? `, then + ${short(relativeBias(rules, query, j))}, learned for distance ${query - j}` : '');
}

export class RowView {
  constructor(run) {
    this.run = run;
    this.pickers = html('div', {class: 'pickers'});
    this.strips = Object.fromEntries(['q', 'k', 'products', 'v', 'part', 'out'].map(
        name => [name, {
          element: svg('svg', {class: 'strip', role: 'img', 'aria-label': name}),
          text: html('p', {class: 'strip-name'})
        }]));
    const shown = (...names) => names.map(name => [this.strips[name].text, this.strips[name].element]);
    this.table = html('table', {class: 'steps'});
    this.compare = svg('svg', {class: 'row', role: 'img', 'aria-label': 'The row with the scale, and without it'});
    this.compareFigure = picture('scale', 'With the root and without it', this.compare);
    this.verdict = html('p', {class: 'soft'});
    this.missing = html('p', {class: 'wide'});
    this.element = html(
        'div', {class: 'view row-view'}, html('div', {class: 'wide'}, this.pickers, this.missing),
        html(
            'div', {class: 'stack'},
            html('section', {class: 'card one'}, html('h2', {}, '1  One query, one key'), shown('q', 'k', 'products')),
            this.compareFigure,
            html(
                'section', {class: 'card three'}, html('h2', {}, '3  Weights times values'), shown('v', 'part', 'out'),
                this.verdict)),
        html(
            'div', {class: 'stack'},
            html(
                'section', {class: 'card two'}, html('h2', {}, '2  Every key: product, root, mask, softmax'),
                html(
                    'div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'The row, key by key'},
                    this.table))));
  }

  show() {
    if (this.run.error) return;
    const query = this.run.query(), subject = this.subject = this.run.rowSubject(query);
    for (const stack of this.element.querySelectorAll(':scope > .stack')) stack.hidden = !subject.operands;
    this.missing.textContent = subject.operands ? '' : subject.missing;
    if (!subject.operands) {
      this.now = null;
      this.showPickers(query, 0);
      return;
    }
    const row = this.now = computeRow(subject.operands, query);
    const key = Math.min(
        row.visible - 1, state.key < 0 ? row.scaled.weights.indexOf(Math.max(...row.scaled.weights)) : state.key);
    this.showPickers(query, key);
    const width = Math.max(260, this.element.querySelector('.card').clientWidth - 26);
    this.showStrips(row, query, key, width);
    this.showTable(row, query, key);
    drawRow(this.compare, subject.keys.slice(0, row.visible), row.scaled.weights, {
      width,
      more: row.plain.weights,
      chosen: key,
      names: ['with 1/√d_k', 'without'],
      onpick: j => change({key: j})
    });
    this.compareFigure.caption.textContent = `filled: ${scaleText(row)}, largest ${
        short(Math.max(...row.scaled.weights))}; outlined: no scale, largest ${short(Math.max(...row.plain.weights))}`;
    const {kernel} = subject, gap = kernel && Math.max(...row.scaled.weights.map((p, j) => Math.abs(p - kernel[j])));
    this.verdict.replaceChildren(
        ...(kernel ?
                [
                  'Computed here in double precision; the kernel’s weights differ by at most ',
                  number(gap, 'largest difference between these weights and the kernel’s'), '.'
                ] :
                ['Computed here in double precision from the q, k and v that the kernel took.']));
  }

  showStrips(row, query, key, width) {
    const largest = (...lists) => Math.max(...lists.flat().map(Math.abs));
    const {queries, keys} = this.subject, name = (texts, i) => `“${tokenText(texts[i])}”`;
    const weight = row.scaled.weights[key];
    const part = row.values[key].map(x => x * weight);
    const draw = (strip, values, label, full, ...words) => {
      drawStrip(this.strips[strip].element, values, {width, label, full});
      this.strips[strip].element.setAttribute('aria-label', `${label}: ${values.length} numbers as colours`);
      this.strips[strip].text.replaceChildren(...words);
    };
    const operands = largest(row.own, row.keys[key]);
    draw(
        'q', row.own, 'q', operands,
        `q, the query of ${name(queries, query)}: ${row.d} components (red: above 0, blue: below)`);
    draw('k', row.keys[key], 'k', operands, `k, the key of ${name(keys, key)}`);
    draw(
        'products', row.products[key], 'q k', largest(row.products[key]),
        'q[c] k[c], component by component; their sum is ',
        number(row.sums[key], `q · k = sum over c of q[c] k[c], for key ${key}`), `, ${scaleText(row)}: `,
        number(row.sums[key] * row.rules.scale, `q · k × scale, the scale being ${short(row.rules.scale, 5)}`));
    const results = largest(row.values[key], row.out);
    draw('v', row.values[key], 'v', results, `v, the value of ${name(keys, key)}: ${row.out.length} components`);
    draw('part', part, 'p v', results, 'p v, with the weight p = ', number(weight, `attention weight of key ${key}`));
    draw('out', row.out, 'out', results, 'out = sum over keys of p[j] v[j], which goes into the output projection');
  }

  showPickers(query, key) {
    const {queries, keys} = this.subject, layers = this.run.layers(), heads = this.run.headsOf(state.layer);
    const made = JSON.stringify([queries, keys, layers, heads, !this.subject.operands]);
    if (this.made !== made) {
      this.made = made;
      const choices = list => list.map(i => [i, String(i)]);
      this.layer = anyChooser('Layer', choices(layers), state.layer, layer => change({layer}));
      this.head = anyChooser('Head', choices(heads), state.head, head => change({head}));
      const label = texts => i => `${i} “${tokenText(texts[i] ?? '')}”`;
      this.query = slider(
          'query', {min: 0, max: queries.length - 1, step: 1, value: query, text: label(queries)},
          i => change({query: i, key: -1}));
      this.key =
          slider('key', {min: 0, max: keys.length - 1, step: 1, value: key, text: label(keys)}, j => change({key: j}));
      const focused =
          this.pickers.contains(document.activeElement) ? document.activeElement.getAttribute('aria-label') : null;
      this.pickers.replaceChildren(
          ...(this.run.morePickers?.() || []), html('span', {class: 'with-name'}, 'layer', this.layer),
          html('span', {class: 'with-name'}, 'head', this.head),
          ...(this.subject.operands ? [this.query, this.key] : []));
      if (focused) this.pickers.querySelector(`[aria-label="${focused}"]`)?.focus();
    }
    this.layer.set(state.layer);
    this.head.set(state.head);
    this.query.set(query);
    this.key.limit(this.subject.operands?.rules.causal ? query : keys.length - 1);
    this.key.set(key);
  }

  showTable(row, query, key) {
    const {keys} = this.subject, {scaled, plain} = row;
    const cell = (value, tip) => number(value, tip, innerWidth < 600 ? 2 : 3);
    const heading = html('tr', {}, [
      'key', 'q · k', scaleText(row), 'e^(x − max)', 'p', 'p, no root'
    ].map(text => html('th', {scope: 'col'}, text)));
    const lines = row.sums.map(
        (sum, j) => html(
            'tr', {class: j === key ? 'chosen' : '', onclick: () => change({key: j})},
            html('th', {scope: 'row', class: 'token-name'}, `${j} ${tokenText(keys[j])}`),
            html('td', {}, cell(sum, `q[${query}] · k[${j}] = sum over ${row.d} components`)),
            html('td', {}, cell(scaled.scores[j], logitFormula(row, query, j))),
            html('td', {}, cell(scaled.powers[j], `e^(logit − largest logit ${short(scaled.most, 5)})`)),
            html(
                'td', {style: `--p:${scaled.weights[j]}`, class: 'filled'},
                cell(scaled.weights[j], `attention weight: e^(x − max) ÷ their sum ${short(scaled.sum, 5)}`)),
            html(
                'td', {style: `--p:${plain.weights[j]}`, class: 'filled other'},
                cell(
                    plain.weights[j],
                    `softmax of q · k itself, without the scale: e^(${short(plain.scores[j], 4)} − ${
                        short(plain.most, 4)}) ÷ ${short(plain.sum, 4)}`))));
    const hidden = row.n - row.visible;
    const foot = html(
        'tr', {class: 'foot'}, html('th', {scope: 'row'}, 'sum'), html('td'), html('td'),
        html(
            'td', {},
            cell(
                scaled.sum,
                'sum over keys of e^(x − max)' + (row.rules.sink === undefined ? '' : ', and the sink of this head'))),
        html(
            'td', {},
            cell(
                scaled.weights.reduce((a, b) => a + b, 0),
                row.rules.sink === undefined ? 'the weights of a row sum to 1' : 'the sink takes the rest of 1')),
        html('td', {}, cell(plain.weights.reduce((a, b) => a + b, 0), 'these too')));
    const masked = hidden > 0 ?
        html(
            'tr', {class: 'foot'},
            html(
                'td', {colspan: 6, class: 'soft'},
                `${hidden} later ${hidden === 1 ? 'key is' : 'keys are'} masked: logit −∞, weight 0`)) :
        null;
    this.table.replaceChildren(html('thead', {}, heading), html('tbody', {}, lines, foot, masked));
  }
}
