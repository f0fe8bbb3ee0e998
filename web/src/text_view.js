// Text: a sentence as tokens, what each attends to, what all heads do, and what comes next.

import {html, svg, short, tokenText} from './dom.js';
import {state, change, withHeadToggled} from './state.js';
import {picture, drawMap, drawSentence, drawRow, drawNext} from './pictures.js';

const kLabelColours = {
  'previous token': 'c0',
  'first token': 'c1',
  'same token': 'c2',
  'induction': 'c4',
  'broad': 'c3',
  'local': 'c5'
};
export const labelColour = label => kLabelColours[label] || 'c8';

export class TextView {
  constructor(run) {
    this.run = run;
    this.input = html(
        'textarea',
        {id: 'text', rows: 1, spellcheck: 'false', 'aria-label': 'The text that the model continues', maxlength: 4000});
    this.input.addEventListener('input', () => change({text: this.input.value, query: -1, key: -1}));
    this.status = html('p', {class: 'soft status'});
    this.sentence =
        svg('svg', {class: 'sentence', role: 'group', 'aria-label': 'Tokens: choose one to see what it attends to'});
    this.sentence.addEventListener('pointerleave', () => this.run.hover(-1));
    this.row = svg('svg', {class: 'row', role: 'img'});
    this.next = svg('svg', {class: 'next', role: 'img', 'aria-label': 'The most likely next tokens'});
    this.grid = html('div', {class: 'grid', role: 'group', 'aria-label': 'All heads'});
    this.map = html('canvas', {class: 'map', role: 'img', tabindex: 0});
    this.map.addEventListener('pointermove', event => this.pointAt(event, false));
    this.map.addEventListener('click', event => this.pointAt(event, true));
    this.mapFigure = picture('map', 'This head', this.map);
    this.rowFigure = picture('row', 'The row of this query', this.row);
    this.nextFigure = picture('next', 'What comes next', this.next);
    this.sentenceFigure = picture('sentence', 'Who attends to whom', this.sentence);
    this.legend = html('p', {class: 'legend soft'});
    this.remove = html('button', {
      type: 'button',
      id: 'remove-head',
      title: 'Takes the head out of the model and shows how the next token changes',
      onclick: () => change({removed: withHeadToggled(state.layer, state.head), view: 'knobs'})
    });
    this.element = html(
        'div', {class: 'view text-view'}, html('div', {class: 'wide'}, this.input, this.status),
        html(
            'div', {class: 'stack'}, this.sentenceFigure, this.rowFigure,
            html('div', {class: 'pair'}, this.nextFigure, this.mapFigure)),
        html('section', {class: 'card'}, html('h2', {}, 'All heads'), this.grid, this.legend, this.remove));
  }

  pointAt(event, pick) {
    const {n, tokens} = this.run.now, box = this.map.getBoundingClientRect();
    const at = (position, size) => Math.min(n - 1, Math.max(0, Math.floor(position / size * n)));
    const i = at(event.clientY - box.top, box.height), j = at(event.clientX - box.left, box.width);
    const weight = this.run.weights(state.layer, state.head)[i * n + j];
    document.getElementById('readout').textContent = `query ${i} “${tokens[i]}” → key ${j} “${
        tokens[j]}”: attention weight ${j > i && this.run.model.causal ? '0, masked' : short(weight, 4)}`;
    if (pick) change({query: i, key: j});
  }

  show() {
    const {now, model} = this.run;
    if (document.activeElement !== this.input) this.input.value = state.text;
    this.input.style.height = 'auto';
    this.input.style.height = `${Math.min(170, this.input.scrollHeight + 2)}px`;
    if (this.run.error) {
      this.status.textContent = this.run.error;
      this.status.classList.add('bad');
      return;
    }
    this.status.classList.remove('bad');
    const beyond = this.run.context && now.n > this.run.context;
    this.status.textContent = `${now.n} tokens in ${now.milliseconds.toFixed(1)} ms, kernel ${model.kernel}. ` +
        (beyond ? `Beyond the ${
                      this.run.context} tokens this model was trained on: what you see is no longer what it learned.` :
                  `${model.name}: ${model.layers} layers of ${model.heads} heads, d_k ${model.head_dim}.`);
    this.status.classList.toggle('bad', Boolean(beyond));
    const query = this.run.query(), label = this.run.label(state.layer, state.head), colour = labelColour(label?.label);
    const weights = this.run.row(state.layer, state.head, query),
          width = Math.max(280, this.sentenceFigure.clientWidth - 24);
    drawSentence(this.sentence, now.tokens, {
      weights,
      query,
      key: state.key,
      width,
      colour,
      onpick: j => change({query: j}),
      onhover: j => this.run.hover(j)
    });
    this.sentenceFigure.caption.textContent =
        `layer ${state.layer}, head ${state.head}, query ${query} “${tokenText(now.tokens[query])}”`;
    this.row.setAttribute('aria-label', `Attention weights of query ${query}`);
    drawRow(
        this.row, now.tokens, weights,
        {width, colour, chosen: state.key, onpick: j => change({key: j}), names: ['attention weight']});
    this.rowFigure.caption.textContent = `largest ${short(Math.max(...weights))}, entropy ${
        short(now.entropy[(state.layer * model.heads + state.head) * now.n + query])} nats`;
    if (now.next) drawNext(this.next, now.next.slice(0, 8), {width: Math.max(220, this.nextFigure.clientWidth - 24)});
    this.nextFigure.caption.textContent = `after “${tokenText(now.tokens[now.n - 1])}”`;
    this.nextFigure.hidden = !now.next;
    this.showHeads();
  }

  showHeads() {
    const {now, model} = this.run;
    if (this.cells?.length !== model.layers * model.heads) {
      this.cells = [];
      this.grid.style.setProperty('--heads', model.heads);
      this.grid.classList.toggle('dense', model.heads > 6);  // numbers then go to the lines below, and to the pointer
      this.grid.replaceChildren();
      for (let layer = 0; layer < model.layers; ++layer) {
        for (let head = 0; head < model.heads; ++head) {
          const canvas = html('canvas', {}), name = html('span', {class: 'name'}),
                detail = html('span', {class: 'detail'}), rows = html('span', {class: 'detail'});
          const cell = html(
              'button', {
                type: 'button',
                class: 'head',
                'data-layer': layer,
                'data-head': head,
                onclick: () => change({layer, head})
              },
              canvas, name, detail, rows);
          this.cells.push({cell, canvas, name, detail, rows, layer, head});
          this.grid.append(cell);
        }
      }
    }
    for (const {cell, canvas, name, detail, rows, layer, head} of this.cells) {
      const label = this.run.label(layer, head), colour = labelColour(label?.label);
      drawMap(canvas, this.run.weights(layer, head), now.n, now.n, {colour: `--${colour}`});
      cell.className = `head ${colour}`;
      cell.setAttribute('aria-pressed', layer === state.layer && head === state.head);
      name.textContent = label ? label.label : '…';
      const scored = label && label.label !== 'mixed' && label.chance !== null;
      detail.textContent = scored ? `${short(label.score, 2)}, chance ${short(label.chance, 2)}` :
          label ? `H ${short(label.entropy, 2)} nats` :
                  '';
      rows.textContent = `${layer}.${head}` + (scored ? ` · ${label.rows} rows` : '');
      const tip = `layer ${layer}, head ${head}: ` +
          (label ? `${label.label}` +
                   (scored ? `, score ${short(label.score)}; uniform attention over the same mask scores ${
                                 short(label.chance)}; ${label.rows} rows` :
                             '') +
                   `; mean entropy ${short(label.entropy)} nats; weight on the first token ${
                       short(label.sink)} (chance ${short(label.sink_chance)})` :
                   'labels follow');
      cell.dataset.tip = tip;
      cell.setAttribute('aria-label', tip);
    }
    const label = this.run.label(state.layer, state.head),
          rule = this.run.rules?.find(one => one.name === label?.label);
    drawMap(
        this.map, this.run.weights(state.layer, state.head), now.n, now.n, {colour: `--${labelColour(label?.label)}`});
    this.map.setAttribute(
        'aria-label',
        `Attention weights of layer ${state.layer}, head ${state.head}: rows are queries, columns are keys`);
    this.mapFigure.caption.textContent = `${state.layer}.${state.head}; full colour: weight 1`;
    this.remove.textContent =
        `${state.removed.split(',').includes(`${state.layer}.${state.head}`) ? 'Put back' : 'Remove'} head ${
            state.layer}.${state.head} …`;
    const scored = label && label.label !== 'mixed' && label.chance !== null;
    this.legend.textContent = !rule ? '' :
                                      `${state.layer}.${state.head} ${rule.name}: ${rule.rule}.` +
            (scored ? ` Score ${short(label.score)}, by chance ${short(label.chance)}, ${label.rows} rows.` : '');
  }
}
