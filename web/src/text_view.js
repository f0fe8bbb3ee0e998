// Text: a sentence as tokens, what each attends to, what all heads do, and what comes next.

import {AttentionPictures, HeadGrid, labelColour} from './attention.js';
import {html, svg, tokenText} from './dom.js';
import {drawNext, picture} from './pictures.js';
import {change, state, withHeadToggled} from './state.js';

export class TextView {
  constructor(run) {
    this.run = run;
    this.input = html(
        'textarea',
        {id: 'text', rows: 1, spellcheck: 'false', 'aria-label': 'The text that the model continues', maxlength: 4000});
    this.input.addEventListener('input', () => change({text: this.input.value, query: -1, key: -1}));
    this.status = html('p', {class: 'soft status'});
    this.pictures = new AttentionPictures(
        {query: query => change({query}), key: key => change({key}), hover: index => this.run.hover(index)});
    this.grid = new HeadGrid({onpick: ({layer, head}) => change({layer, head}), onfilter: filter => change({filter})});
    this.next = svg('svg', {class: 'next', role: 'img', 'aria-label': 'The most likely next tokens'});
    this.nextFigure = picture('next', 'What comes next', this.next);
    this.remove = html('button', {
      type: 'button',
      id: 'remove-head',
      title: 'Takes the head out of the model and shows how the next token changes',
      onclick: () => change({removed: withHeadToggled(state.layer, state.head), view: 'knobs'})
    });
    const {sentenceFigure, rowFigure, mapFigure} = this.pictures;
    this.element = html(
        'div', {class: 'view text-view'}, html('div', {class: 'wide'}, this.input, this.status),
        html(
            'div', {class: 'stack'}, sentenceFigure, rowFigure,
            html('div', {class: 'pair'}, this.nextFigure, mapFigure)),
        html('section', {class: 'card'}, html('h2', {}, 'All heads'), this.grid.element, this.remove));
  }

  // What AttentionPictures shows of a head.
  sight(layer, head) {
    const {now, model} = this.run, name = i => `${i} “${now.tokens[i]}”`;
    return {
      name: `layer ${layer}, head ${head}`,
      map: {values: this.run.weights(layer, head), rows: now.n, columns: now.n},
      queries: now.tokens,
      keys: now.tokens,
      masked: (i, j) => model.causal && j > i,
      queryName: name,
      keyName: name,
      mapWidth: 330
    };
  }

  showStatus() {
    const {now, model} = this.run;
    if (this.run.error) {
      this.status.textContent = this.run.error;
      this.status.classList.add('bad');
      return;
    }
    const beyond = this.run.context && now.n > this.run.context;
    this.status.textContent = `${now.n} tokens in ${now.milliseconds.toFixed(1)} ms, kernel ${model.kernel}. ` +
        (beyond ? `Beyond the ${
                      this.run.context} tokens this model was trained on: what you see is no longer what it learned.` :
                  `${model.name}: ${model.layers} layers of ${model.heads} heads, d_k ${model.head_dim}.`);
    this.status.classList.toggle('bad', Boolean(beyond));
  }

  show() {
    const {now} = this.run;
    if (document.activeElement !== this.input) this.input.value = state.text;
    this.input.style.height = 'auto';
    this.input.style.height = `${Math.min(170, this.input.scrollHeight + 2)}px`;
    this.showStatus();
    if (this.run.error) return;
    const label = this.run.label(state.layer, state.head);
    if (now.next) drawNext(this.next, now.next.slice(0, 8), {width: Math.max(220, this.nextFigure.clientWidth - 24)});
    this.nextFigure.caption.textContent = `after “${tokenText(now.tokens[now.n - 1])}”`;
    this.nextFigure.hidden = !now.next;
    this.pictures.show(
        this.sight(state.layer, state.head),
        {query: this.run.query(), key: Math.min(state.key, now.n - 1), colour: labelColour(label?.label)});
    this.grid.show({
      heads: this.run.headList(),
      selected: this.run.headList().find(one => one.layer === state.layer && one.head === state.head),
      filter: state.filter,
      version: this.run.heads || now,
      rules: this.run.rules
    });
    this.remove.textContent =
        `${state.removed.split(',').includes(`${state.layer}.${state.head}`) ? 'Put back' : 'Remove'} head ${
            state.layer}.${state.head} …`;
  }
}
