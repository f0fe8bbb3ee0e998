// One row, computed: a query of a head, step by step, every number with its formula; beside it the row without the scale.

import {html, svg, short, number, tokenText, slider, chooser} from './dom.js';
import {state, change} from './state.js';
import {picture, drawStrip, drawRow} from './pictures.js';

const dot = (a, b) => a.reduce((sum, x, c) => sum + x * b[c], 0);

function softmax(scores) {
  const most = Math.max(...scores), powers = scores.map(s => Math.exp(s - most)), sum = powers.reduce((a, b) => a + b, 0);
  return {most, powers, sum, weights: powers.map(p => p / sum)};
}

// Every number of row `query`, in double precision from the q, k and v that the kernel took.
export function computeRow({q, k, v}, query, {causal, scale}) {
  const [n, d] = q.shape, width = v.shape[1];
  const at = (array, i, size) => Array.from(array.values.subarray(i * size, (i + 1) * size));
  const visible = causal ? query + 1 : n, own = at(q, query, d);
  const keys = Array.from({length: visible}, (_, j) => at(k, j, d)), values = Array.from({length: visible}, (_, j) => at(v, j, width));
  const products = keys.map(key => key.map((x, c) => x * own[c])), sums = keys.map(key => dot(own, key));
  const scaled = softmax(sums.map(s => s * scale)), plain = softmax(sums);
  const out = Array.from({length: width}, (_, c) => scaled.weights.reduce((sum, p, j) => sum + p * values[j][c], 0));
  return {n, d, visible, own, keys, values, products, sums, scaled, plain, out};
}

export class RowView {
  constructor(run) {
    this.run = run;
    this.pickers = html('div', {class: 'pickers'});
    this.strips = ['q', 'k', 'product'].map(name => ({name, element: svg('svg', {class: 'strip', role: 'img'}), text: html('p', {class: 'strip-name'})}));
    this.out = {element: svg('svg', {class: 'strip', role: 'img'}), text: html('p', {class: 'strip-name'})};
    this.table = html('table', {class: 'steps'});
    this.compare = svg('svg', {class: 'row', role: 'img', 'aria-label': 'The row with the scale, and without it'});
    this.compareFigure = picture('scale', 'With the root and without it', this.compare);
    this.verdict = html('p', {class: 'soft'});
    this.element = html('div', {class: 'view row-view'},
      html('div', {class: 'wide'}, this.pickers),
      html('div', {class: 'stack'},
        html('section', {class: 'card'}, html('h2', {}, '1  One query, one key'), this.strips.map(({text, element}) => [text, element])),
        this.compareFigure,
        html('section', {class: 'card'}, html('h2', {}, '3  Weights times values'), this.out.text, this.out.element, this.verdict)),
      html('div', {class: 'stack'}, html('section', {class: 'card'}, html('h2', {}, '2  Every key: product, root, mask, softmax'), html('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'The row, key by key'}, this.table))));
  }

  show() {
    const {now, model} = this.run;
    if (this.run.error) return;
    const query = this.run.query(), answer = this.run.operands(state.layer, state.head);
    const row = this.now = computeRow(answer, query, model);
    const key = Math.min(row.visible - 1, state.key < 0 ? row.scaled.weights.indexOf(Math.max(...row.scaled.weights)) : state.key);
    this.showPickers(query, key);
    const width = Math.max(260, this.element.querySelector('.card').clientWidth - 26), root = Math.sqrt(row.d);
    const name = i => `“${tokenText(now.tokens[i])}”`, full = Math.max(...row.own.map(Math.abs), ...row.keys[key].map(Math.abs));
    const data = [row.own, row.keys[key], row.products[key]];
    const says = [`q, the query of ${name(query)}: ${row.d} components`, `k, the key of ${name(key)}`, null];
    this.strips.forEach(({element, text}, i) => {
      drawStrip(element, data[i], {width, full: i < 2 ? full : undefined, label: ['q', 'k', 'q k'][i]});
      element.setAttribute('aria-label', ['query', 'key', 'products'][i]);
      text.replaceChildren(...(says[i] ? [says[i]] : ['q[c] k[c], component by component; their sum is ', number(row.sums[key], `q · k = sum over c of q[c] k[c], for key ${key}`),
        `, divided by √${row.d} = ${short(root)}: `, number(row.sums[key] * model.scale, `q · k × scale, the scale being ${short(model.scale, 5)}`)]));
    });
    this.showTable(row, query, key);
    drawRow(this.compare, now.tokens.slice(0, row.visible), row.scaled.weights, {width, more: row.plain.weights, chosen: key, names: ['with 1/√d_k', 'without'], onpick: j => change({key: j})});
    this.compareFigure.caption.textContent = `filled: divided by √${row.d}, largest ${short(Math.max(...row.scaled.weights))}; outlined: not divided, largest ${short(Math.max(...row.plain.weights))}`;
    this.out.text.replaceChildren(`out = sum over keys of p[j] v[j]: ${row.out.length} components, into the output projection`);
    drawStrip(this.out.element, row.out, {width, label: 'out'});
    this.out.element.setAttribute('aria-label', 'output of the head');
    const kernel = this.run.row(state.layer, state.head, query);
    const gap = Math.max(...row.scaled.weights.map((p, j) => Math.abs(p - kernel[j])));
    this.verdict.replaceChildren('Computed here in double precision; the kernel’s weights differ by at most ', number(gap, 'largest difference between these weights and the kernel’s'), '.');
  }

  showPickers(query, key) {
    const {model, now} = this.run;
    const made = `${model.layers} ${model.heads} ${now.n} ${query}`;
    if (this.made !== made) {
      this.made = made;
      const choices = count => Array.from({length: count}, (_, i) => [i, String(i)]);
      this.layer = chooser('Layer', choices(model.layers), state.layer, layer => change({layer}));
      this.head = chooser('Head', choices(model.heads), state.head, head => change({head}));
      const label = i => `${i} “${tokenText(now.tokens[i])}”`;
      this.query = slider('query', {min: 0, max: now.n - 1, step: 1, value: query, text: label}, i => change({query: i, key: -1}));
      this.key = slider('key', {min: 0, max: model.causal ? query : now.n - 1, step: 1, value: key, text: label}, j => change({key: j}));
      const focused = this.pickers.contains(document.activeElement) ? document.activeElement.getAttribute('aria-label') : null;
      this.pickers.replaceChildren(html('span', {class: 'with-name'}, 'layer', this.layer), html('span', {class: 'with-name'}, 'head', this.head), this.query, this.key);
      if (focused) this.pickers.querySelector(`[aria-label="${focused}"]`)?.focus();
    }
    this.layer.set(state.layer);
    this.head.set(state.head);
    this.query.set(query);
    this.key.set(key);
  }

  showTable(row, query, key) {
    const {now, model} = this.run, {scaled, plain} = row;
    const heading = html('tr', {}, ['key', 'q · k', `÷ √${row.d}`, 'e^(x − max)', 'p', 'p, no root'].map(text => html('th', {scope: 'col'}, text)));
    const lines = row.sums.map((sum, j) => html('tr', {class: j === key ? 'chosen' : '', onclick: () => change({key: j})},
      html('th', {scope: 'row', class: 'token-name'}, `${j} ${tokenText(now.tokens[j])}`),
      html('td', {}, number(sum, `q[${query}] · k[${j}] = sum over ${row.d} components`)),
      html('td', {}, number(sum * model.scale, `logit: q · k ÷ √${row.d} = ${short(sum, 5)} × ${short(model.scale, 5)}`)),
      html('td', {}, number(scaled.powers[j], `e^(logit − largest logit ${short(scaled.most, 5)})`)),
      html('td', {style: `--p:${scaled.weights[j]}`, class: 'filled'}, number(scaled.weights[j], `attention weight: e^(x − max) ÷ their sum ${short(scaled.sum, 5)}`)),
      html('td', {style: `--p:${plain.weights[j]}`, class: 'filled other'}, number(plain.weights[j], `softmax of q · k itself, not divided: e^(${short(row.sums[j], 4)} − ${short(plain.most, 4)}) ÷ ${short(plain.sum, 4)}`))));
    const hidden = row.n - row.visible;
    const foot = html('tr', {class: 'foot'}, html('th', {scope: 'row'}, 'sum'), html('td'), html('td'), html('td', {}, number(scaled.sum, 'sum over keys of e^(x − max)')),
      html('td', {}, number(scaled.weights.reduce((a, b) => a + b, 0), 'the weights of a row sum to 1')), html('td', {}, number(plain.weights.reduce((a, b) => a + b, 0), 'these too')));
    const masked = hidden > 0 ? html('tr', {class: 'foot'}, html('td', {colspan: 6, class: 'soft'}, `${hidden} later ${hidden === 1 ? 'key is' : 'keys are'} masked: logit −∞, weight 0`)) : null;
    this.table.replaceChildren(html('thead', {}, heading), html('tbody', {}, lines, foot, masked));
  }
}
