// Claims: what textbooks say, each measured here and now. Long experiments play what was recorded.

import {html, short} from './dom.js';
import {state, change} from './state.js';
import {picture} from './pictures.js';

// The knobs that show a claim's experiment on one synthetic head.
const kSettings = {
  1: {scale: 'none', d: 64, causal: false},
  2: {scale: 'none', d: 512, causal: false},
  3: {scale: 'none', d: 512, causal: false},
  4: {scale: '1/d', d: 64, causal: false},
  5: {scale: 'none', d: 512, causal: false},
  6: {scale: '1/sqrt(d)', d: 64, causal: false},
  7: {scale: 'none', d: 512, causal: false},
  8: {scale: 'none', d: 512, causal: false},
  9: {scale: 'none', d: 512, softcap: 50, causal: false},
  10: {temperature: 0.25, causal: false},
  11: {causal: false},
  12: {causal: true},
  13: {window: 8},
  14: {causal: true},
  15: {dropout: 0.5},
  16: {d: 32},
  17: {scale: 'free', free: 1 / Math.sqrt(512), d: 64, causal: false},
  18: {score: 'additive', scale: 'none', d: 32, causal: false},
  19: {score: 'cosine', scale: 'none', causal: false},
  20: {},
  21: {causal: true},
  22: {},
  23: {},
  24: {score: 'cosine'},
  25: {scale: 'none', d: 16, causal: false},
  26: {},
  27: {},
};
const kMarks = {
  'holds': ['holds', '✓'],
  'holds with a correction': ['correction', '≈'],
  'does not hold': ['fails', '✗']
};
const kNeutral = {
  scale: '1/sqrt(d)',
  temperature: 1,
  softcap: 0,
  score: 'dot',
  causal: true,
  window: -1,
  dropout: 0,
  d: 64
};

function interval([value, low, high]) {
  return high > low ? `${short(value, 4)} [${short(low, 4)}, ${short(high, 4)}]` : short(value, 4);
}

export class ClaimsView {
  constructor(run) {
    this.run = run;
    this.recorded = new Map(JSON.parse(document.getElementById('recorded').textContent).map(one => [one.id, one]));
    this.found = new Map();
    this.claims = run.engine.request({do: 'claims'}).claims;
    this.list = html(
        'nav', {class: 'claims', 'aria-label': 'The claims'},
        this.claims.map(
            claim => html(
                'button', {type: 'button', 'data-id': claim.id, onclick: () => change({claim: claim.id})},
                html('b', {class: 'mark'}, '·'), ` ${claim.id}. ${claim.text}`)));
    this.list.addEventListener('keydown', event => {
      const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
      if (!step) return;
      event.preventDefault();
      const id = Math.min(this.claims.length, Math.max(1, state.claim + step));
      change({claim: id});
      this.list.children[id - 1].focus();
    });
    this.card = html('article', {class: 'card claim', 'aria-live': 'polite'});
    this.element = html('div', {class: 'view claims-view'}, this.list, this.card);
  }

  show(names) {
    for (const button of this.list.children) {
      const id = Number(button.dataset.id), finding = this.found.get(id) || this.recorded.get(id);
      button.setAttribute('aria-current', id === state.claim);
      if (!finding) continue;
      const [style, sign] = kMarks[finding.verdict];
      button.firstChild.className = `mark ${style}-mark`;
      button.firstChild.textContent = sign;
    }
    const known = this.found.get(state.claim);
    if (known && known.seed === state.claimSeed) return this.showFinding(known, false);
    if (this.recorded.has(state.claim)) return this.showFinding(this.recorded.get(state.claim), true);
    this.measure(state.claim, state.claimSeed);
  }

  async measure(id, seed) {
    this.showFinding(null, false);
    if (this.measuring === `${id} ${seed}`) return;
    this.measuring = `${id} ${seed}`;
    try {
      const finding = await this.run.engine.later({do: 'claim', id, seed, quick: true});
      this.found.set(id, finding);
    } catch (error) {
      this.card.replaceChildren(html('p', {class: 'bad'}, error.message));
      return;
    } finally {
      this.measuring = null;
    }
    if (state.claim === id && state.view === 'claims') this.show();
  }

  showFinding(finding, recorded) {
    const claim = this.claims[state.claim - 1];
    const formula = html('p', {class: 'formula'});
    formula.innerHTML = claim.formula;  // MathML from the library
    const buttons = html(
        'div', {class: 'buttons'},
        html(
            'button', {
              type: 'button',
              id: 'again',
              disabled: !finding || recorded,
              title: recorded ? 'This one trains or times for minutes: rootdk lab measures it anew' :
                                'Measure with new random numbers',
              onclick: () => change({claimSeed: state.claimSeed + 1})
            },
            'Again'),
        html(
            'button', {
              type: 'button',
              id: 'to-knobs',
              onclick: () => change({...kNeutral, ...kSettings[claim.id], view: 'knobs'})
            },
            'Set the knobs'));
    const children = [html('h2', {}, `${claim.id}. ${claim.text}`), formula];
    if (!finding) {
      children.push(html('p', {class: 'soft', role: 'status'}, `Measuring with seed ${state.claimSeed} …`), buttons);
      this.card.replaceChildren(...children);
      return;
    }
    const [style] = kMarks[finding.verdict];
    children.push(
        html('p', {}, html('span', {class: `badge ${style}`}, finding.verdict), ' ', finding.note),
        html(
            'p', {class: 'soft'},
            `${finding.quantity}: ` +
                (finding.expected === null ? '' :
                                             `expected ${finding.relation === 'equal' ? '' : finding.relation + ' '}${
                                                 short(finding.expected, 4)}, `) +
                `measured ${interval(finding.measured)}. ` +
                (recorded ? `Recorded with seed ${finding.seed}; rootdk lab --only ${claim.id} measures it anew.` :
                            `Seed ${finding.seed}, ${finding.samples.toLocaleString('en')} samples, ${
                                finding.seconds.toFixed(2)} s in this browser.`)),
        buttons);
    const figures = finding.figures.map((figure, i) => {
      const holder = html('div', {class: recorded ? 'drawn played' : 'drawn'});
      holder.innerHTML = figure.svg;  // drawn by the library
      return picture(`claim-${claim.id}-${i + 1}`, figure.caption || claim.text, holder);
    });
    const details = html(
        'details', {open: finding.details.length <= 6 && figures.length < 2},
        html('summary', {}, `${finding.details.length} measurements`),
        html(
            'div', {class: 'scroll'},
            html(
                'table', {},
                html('tr', {}, html('th', {}, 'what'), html('th', {}, 'expected'), html('th', {}, 'measured')),
                finding.details.map(
                    one => html(
                        'tr', {}, html('td', {}, one.setting), html('td', {class: 'n'}, short(one.expected, 4)),
                        html('td', {class: 'n'}, interval(one.measured)))))));
    this.card.replaceChildren(...children, html('div', {class: 'figures'}, figures), details);
    this.card.dataset.shown = `${claim.id} ${finding.seed}`;
  }
}
