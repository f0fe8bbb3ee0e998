// The heads of an inspected model: what each attends to, its numbers, and all of them as thumbnails. Two inspections
// stand side by side, and show the same head.

import {html, short, tokenText, anyChooser} from './dom.js';
import {state, change} from './state.js';
import {AttentionPictures, HeadGrid, labelColour} from './attention.js';

const kNumbers = [
  ['entropy', 'entropy', 'mean over rows of −sum p ln p, in nats'],
  ['effective_keys', 'effective keys', 'mean over rows of e^entropy'],
  ['max_logit', 'largest logit', 'the largest argument of the softmax, over all rows'],
  ['saturation', 'saturated rows', 'share of rows with a weight over 0.9'],
  ['gradient_left', 'gradient left', 'mean over rows of 1 − sum p²: near 0 no gradient passes the softmax'],
  ['sink', 'sink mass', 'mean weight on the first key'],
  ['sink_chance', 'sink mass by chance', 'what uniform attention over the same mask would put there'],
  ['mean_distance', 'mean distance', 'mean over rows of sum p |i − j|, in tokens'],
];

// One inspection: `side` is a Side of report.js.
class SideView {
  constructor(side, alone) {
    this.side = side;
    this.pictures = new AttentionPictures({
      query: unit => change({query: side.tokenOf(unit), key: -1}),
      key: unit => change({key: side.keyTokenOf(unit)}),
      hover: unit => side.hover(unit)
    });
    this.grid = new HeadGrid({onpick: ({layer, head}) => change({layer, head}), onfilter: filter => change({filter})});
    this.numbers = html('div', {class: 'numbers'});
    this.absent = html('p', {class: 'soft'});
    this.previous =
        html('button', {type: 'button', class: 'previous', onclick: () => this.move(-1)}, '‹ previous head');
    this.next = html('button', {type: 'button', class: 'next', onclick: () => this.move(1)}, 'next head ›');
    const {sentenceFigure, rowFigure, mapFigure} = this.pictures;
    this.shown = html(
        'div', {class: 'stack'}, sentenceFigure, rowFigure,
        html(
            'div', {class: 'pair'}, mapFigure,
            html('section', {class: 'card'}, html('h2', {}, 'In numbers'), this.numbers)));
    this.all = html(
        'section', {class: 'card'},
        html('h2', {}, 'All heads', html('span', {class: 'move'}, this.previous, this.next)), this.grid.element);
    this.element = html(
        'div', {class: alone ? 'view text-view report' : 'stack', role: 'group', 'aria-label': side.title},
        alone ? null : html('h2', {class: 'side-name'}, side.title), this.absent,
        alone ? [this.shown, this.all] : [this.all, this.shown]);
  }

  // The next head of those that the filter shows.
  move(by) {
    const list = this.side.list(state.stack).filter(one => !state.filter || one.label.label === state.filter);
    const at = list.findIndex(one => one.layer === state.layer && one.head === state.head);
    const to = list[at < 0 ? 0 : (at + by + list.length) % list.length];
    if (to) change({layer: to.layer, head: to.head});
  }

  show() {
    const {side} = this, heads = side.list(state.stack), selected = side.selected();
    this.absent.hidden = Boolean(selected);
    this.absent.textContent = `${side.title} has no ${state.stack === 'self' ? '' : state.stack + ' '}layer ${
        state.layer}, head ${state.head}.`;
    this.shown.hidden = !selected;
    this.all.hidden = !heads.length;
    if (selected) {
      const sight = side.sight(selected), query = side.queryUnit(selected), key = side.keyUnit(selected);
      this.pictures.show(sight, {query, key, colour: labelColour(selected.label.label)});
      this.showNumbers(selected);
    }
    if (heads.length) this.grid.show({heads, selected, filter: state.filter, version: heads, rules: side.report.rules});
    this.element.classList.toggle('many', this.grid.isTiny());
  }

  showNumbers(one) {
    if (this.numbered === one) return;
    this.numbered = one;
    const {data} = one, list = html('dl');
    for (const [field, name, hint] of kNumbers) {
      if (data[field] === null) continue;
      list.append(
          html('dt', {'data-tip': hint}, name),
          html(
              'dd', {'data-tip': `${hint} = ${data[field]}`},
              short(data[field], 4) + ({entropy: ' nats', mean_distance: ' tokens'}[field] || '')));
    }
    const scores = html(
        'table', {class: 'scores'},
        html('tr', {}, ['label', 'score', 'chance', 'rows'].map(text => html('th', {scope: 'col'}, text))),
        data.scores.map(
            score => html('tr', {class: score.significant ? '' : 'soft'}, html('th', {scope: 'row'}, score.label), [
              short(score.score, 2) + (score.significant ? ' *' : ''), short(score.chance, 2), score.rows
            ].map(text => html('td', {}, String(text))))));
    this.numbers.replaceChildren(
        list, scores, html('p', {class: 'soft note'}, '* significantly above chance'), html('h3', {}, 'Received'),
        this.received(one));
  }

  // The keys in shades of the weight they receive beyond uniform attention, or those that receive most.
  received({data, stack}) {
    const {report} = this.side, times = t => `${short(t, 3)} times what uniform attention gives`;
    if (data.most)
      return html(
          'p', {class: 'soft'}, 'Most weight for each unit of uniform attention: ',
          data.most.map(({key, text, times}) => `${key} “${tokenText(text)}” ${short(times, 3)}×`).join(', '));
    const tokens = this.side.keyTokens(stack), mass = report.list(data.mass, tokens.length),
          chance = report.list(data.mass_chance, tokens.length);
    const numbers = tokens.every(token => /^\d+$/.test(token));  // of a model without a tokenizer: blanks between them
    return html('div', {class: 'mass'}, tokens.map((token, j) => {
      const share = chance[j] > 0 ? mass[j] / chance[j] : 0;
      const depth = share > 1 ? Math.min(1, Math.log(share) / Math.log(report.fullShade)) : 0;
      return html(
          'span', {
            'data-tip': `key ${j} “${token}” receives ${short(mass[j], 4)}: ${times(share)}`,
            style: `background:color-mix(in srgb, var(--c3) ${Math.round(70 * depth)}%, transparent)`
          },
          numbers ? token + ' ' : token);
    }));
  }
}

export class HeadsView {
  constructor(run) {
    this.run = run;
    this.sides = run.sides.map(side => new SideView(side, run.sides.length === 1));
    this.pickers = html('div', {class: 'pickers'});
    this.element = html(
        'div', {class: 'view'},
        html('div', {class: run.sides.length > 1 ? 'summary two-sides' : 'summary'}, run.summary), this.pickers,
        html('div', {class: run.sides.length > 1 ? 'two-sides' : ''}, this.sides.map(side => side.element)));
  }

  show() {
    this.showPickers();
    for (const side of this.sides) side.show();
  }

  showPickers() {
    const layers = this.run.layers(), heads = this.run.headsOf(state.layer);
    const made = JSON.stringify([state.stack, layers, heads]);
    if (this.made !== made) {
      this.made = made;
      const choices = list => list.map(i => [i, String(i)]);
      this.layer = anyChooser('Layer', choices(layers), state.layer, layer => change({layer}));
      this.head = anyChooser('Head', choices(heads), state.head, head => change({head}));
      this.pickers.replaceChildren(
          ...this.run.stackPicker(), html('span', {class: 'with-name'}, 'layer', this.layer),
          html('span', {class: 'with-name'}, 'head', this.head));
    }
    this.layer.set(state.layer);
    this.head.set(state.head);
  }
}
