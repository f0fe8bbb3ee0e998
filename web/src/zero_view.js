// From zero: eleven steps for somebody who has never seen attention, each with a picture that runs.

import {html, svg, short, number, slider, tokenText} from './dom.js';
import {state, change} from './state.js';
import {picture, drawMap, drawSentence, drawRow, drawStrip, drawHistogram, drawNext} from './pictures.js';
import {computeRow} from './row_view.js';
import {labelColour} from './attention.js';

const kPositions = {
  rotary:
      'This model turns each query and key by an angle that grows with its position (RoPE), so that their product depends on the distance.',
  learned: 'This model adds a learned vector for each position to the token before anything else.',
  sinusoidal: 'This model adds waves of many lengths to the tokens, so that each position has its pattern.',
  alibi:
      'This model takes a little from each score for every token of distance (ALiBi), in some heads more than in others.',
  none: 'This model has no other sign of the order than its mask.',
};

// Each step: a title, a few sentences (or a function of the run that gives them), and draw(holder, run, width), which
// fills the picture.
export const kSteps = [
  [
    'Words that look at each other',
    [
      'A language model reads a text as tokens: words, or parts of words. To guess what comes next, each token gathers information from the tokens before it. How much from which: that is attention.',
      'Choose a token. The arcs show where it gathers from; a thick arc is a large share. The shares of one token sum to 1.'
    ],
    (holder, run, width) => {
      const drawing = svg('svg', {class: 'sentence', role: 'group', 'aria-label': 'Tokens'}), query = run.query();
      drawSentence(
          drawing, run.now.tokens,
          {weights: run.row(state.layer, state.head, query), query, width, onpick: j => change({query: j})});
      holder.append(drawing);
    }
  ],
  [
    'Query and key',
    [
      'Each token makes two short lists of numbers. Its query says what it is looking for, its key says what it has to offer. Here they are, as colours: blue is below zero, red above.',
      'The query below belongs to the token you chose, the key to the token it attends to most.'
    ],
    (holder, run, width) => {
      const row = oneRow(run), key = best(row);
      holder.append(
          html('p', {}, `query of “${tokenText(run.now.tokens[run.query()])}”`), strip(row.own, width, 'q'),
          html('p', {}, `key of “${tokenText(run.now.tokens[key])}”`), strip(row.keys[key], width, 'k'));
    }
  ],
  [
    'The dot product',
    [
      'Query and key are compared by the dot product: multiply component by component, then add. Where both point the same way, the products are positive and the sum is large: a good match.'
    ],
    (holder, run, width) => {
      const row = oneRow(run), key = best(row), other = row.sums.indexOf(Math.min(...row.sums));
      for (const [j, text] of [[key, 'the best match'], [other, 'the worst match']]) {
        holder.append(html(
            'p', {}, `${text}, “${tokenText(run.now.tokens[j])}”: products `, strip(row.products[j], width, 'q k'),
            'their sum: ', number(row.sums[j], `q · k for key ${j}`)));
      }
    }
  ],
  [
    'Why it grows',
    [
      'Add up more products, and the sum scatters more. With d_k components of variance 1, the sum has variance d_k: its usual size is the square root of d_k. Move the slider and watch the histogram leave the red curve, the normal distribution of variance 1.'
    ],
    (holder, run, width) => sampled(holder, run, width, 'none')
  ],
  [
    'The root',
    [
      'So attention divides by that usual size, the square root of d_k. Now the scores keep their spread, however many components there are. Move the slider: the histogram stays on the curve.'
    ],
    (holder, run, width) => sampled(holder, run, width, '1/sqrt(d)')
  ],
  [
    'Softmax',
    [
      'Scores become shares by the softmax: take e to the power of each score, and divide by the sum. Larger scores get more, all are positive, and they sum to 1. Filled bars: with the root. Outlined: without it, where the largest score takes nearly everything and nothing else can be learned.'
    ],
    (holder, run, width) => {
      const row = oneRow(run), drawing = svg('svg', {role: 'img', 'aria-label': 'Weights with and without the root'});
      drawRow(
          drawing, run.now.tokens.slice(0, row.visible), row.scaled.weights,
          {width, more: row.plain.weights, names: ['with the root', 'without'], height: 180});
      holder.append(
          drawing,
          html(
              'p', {class: 'soft'},
              `largest weight ${short(Math.max(...row.scaled.weights))} with the root, ${
                  short(Math.max(...row.plain.weights))} without`));
    }
  ],
  [
    'The value',
    [
      'Each token has a third list, its value: what it passes on. The output of attention is the sum of all values, each times its share. That is all: softmax(Q Kᵀ / √d_k) V.'
    ],
    (holder, run, width) => {
      const row = oneRow(run), order = row.scaled.weights.map((p, j) => [p, j]).sort((a, b) => b[0] - a[0]).slice(0, 3);
      for (const [p, j] of order)
        holder.append(
            html('p', {}, `${short(p)} × value of “${tokenText(run.now.tokens[j])}”`),
            strip(row.values[j].map(x => x * p), width, 'p v', Math.max(...row.out.map(Math.abs))));
      holder.append(html('p', {}, html('b', {}, '= the output, all keys added')), strip(row.out, width, 'out'));
    }
  ],
  [
    'Heads',
    [
      'One comparison is not enough: a token may want its neighbour, and the beginning of the sentence, and a word that was there before. So attention runs several times side by side, each time with other queries and keys. These are the heads; each square is one of them, rows are queries, columns are keys.'
    ],
    (holder, run) => {
      const grid = html('div', {class: 'grid small'});
      grid.style.setProperty('--heads', run.model.heads);
      for (let layer = 0; layer < run.model.layers; ++layer) {
        for (let head = 0; head < run.model.heads; ++head) {
          const canvas = html('canvas', {}), label = run.label(layer, head), colour = labelColour(label?.label);
          drawMap(canvas, run.weights(layer, head), run.now.n, run.now.n, {colour: `--${colour}`});
          grid.append(html(
              'button', {
                type: 'button',
                class: `head ${colour}`,
                'aria-label': `layer ${layer}, head ${head}${label ? ': ' + label.label : ''}`,
                'data-tip': `layer ${layer}, head ${head}${label ? ': ' + label.label : ''}`,
                onclick: () => change({layer, head, view: 'text'})
              },
              canvas));
        }
      }
      holder.append(grid);
    }
  ],
  [
    'Positions',
    run =>
        [`Dot products do not know the order of the tokens. ${kPositions[run.model.positions]}`,
         (run.model.causal ? 'The mask does the rest: a token sees what came before it, never what follows. ' : '') +
             'Here is the mean weight by distance in tokens, over all heads.'],
    (holder, run, width) => {
      const n = run.now.n, reach = Math.min(n, 24), sums = new Array(reach).fill(0), counts = new Array(reach).fill(0);
      for (let layer = 0; layer < run.model.layers; ++layer)
        for (let head = 0; head < run.model.heads; ++head) {
          const weights = run.weights(layer, head);
          for (let i = 0; i < n; ++i)
            for (let j = Math.max(0, i - reach + 1); j <= i; ++j) {
              sums[i - j] += weights[i * n + j];
              counts[i - j]++;
            }
        }
      const drawing = svg('svg', {role: 'img', 'aria-label': 'Mean weight by distance'});
      drawRow(
          drawing, sums.map((_, distance) => String(distance)),
          sums.map((sum, distance) => counts[distance] ? sum / counts[distance] : 0),
          {width, names: ['mean weight'], height: 180});
      holder.append(drawing);
    }
  ],
  [
    'The block',
    [
      'Attention moves information between tokens; a small network after it, the feed-forward part, works on each token alone. The two make a block, each adding its result to what was there. Blocks are stacked, and the last one’s output becomes the chances of the next token.'
    ],
    (holder, run, width) => {
      const names = [
        'tokens', ...Array.from({length: run.model.layers}, (_, i) => [`attention ${i}`, `feed-forward ${i}`]).flat(),
        'next token'
      ];
      const flow = html(
          'ol', {class: 'flow'},
          names.map(
              name => html(
                  'li',
                  {class: name.startsWith('att') ? 'c0' :
                       name.startsWith('feed')   ? 'c3' :
                                                   ''},
                  name)));
      const drawing = svg('svg', {role: 'img', 'aria-label': 'The most likely next tokens'});
      holder.append(flow);
      if (run.now.next) {
        drawNext(drawing, run.now.next.slice(0, 5), {width});
        holder.append(drawing);
      }
    }
  ],
  [
    'The cache',
    [
      'To write, the model takes a likely next token and starts again. The keys and values of earlier tokens do not change, so they are kept: that is the KV cache. Each new token computes one query, and one more key and value.',
      'You have seen all of it. The other views let you change each part.'
    ],
    (holder, run) => {
      const answer = run.engine.request({do: 'continue', text: state.text, count: 24, seed: state.continueSeed});
      const text = html('p', {class: 'continued'}, html('span', {class: 'soft'}, state.text)),
            kept = html('p', {class: 'soft'});
      const written = html('b', {});
      text.append(written);
      holder.append(
          text, kept,
          html(
              'div', {class: 'buttons'},
              html(
                  'button', {type: 'button', onclick: () => change({continueSeed: state.continueSeed + 1})},
                  'Write again')));
      const letters = [...answer.text];
      const still = matchMedia('(prefers-reduced-motion: reduce)').matches;
      let shown = still ? letters.length : 0;
      const tick = () => {
        if (!holder.isConnected) return;
        written.textContent = letters.slice(0, shown).join('');
        const added = Math.round((answer.ids.length - run.now.n) * shown / Math.max(1, letters.length));
        kept.textContent = `${run.now.n + added} tokens kept: ${run.now.n + added} keys and values in each of ${
            run.model.layers * run.model.kv_heads} key heads`;
        if (shown++ < letters.length) setTimeout(tick, 30);
      };
      setTimeout(tick, 0);
    }
  ],
];

const oneRow = run => computeRow(run.operands(state.layer, state.head), run.query());
const best = row => row.scaled.weights.indexOf(Math.max(...row.scaled.weights));

function strip(values, width, label, full) {
  const element = svg('svg', {class: 'strip', role: 'img', 'aria-label': label});
  drawStrip(element, values, {width, label, full});
  return element;
}

function sampled(holder, run, width, scale) {
  const drawing = svg('svg', {role: 'img', 'aria-label': 'Histogram of scores'});
  const draw = d => {
    const {arrays} = run.engine.request({do: 'synthetic', n: 64, d, seed: 1, knobs: {scale, causal: false}});
    drawHistogram(drawing, arrays.scores.values, {width, height: 200});
  };
  draw(64);
  holder.append(
      slider(
          'd_k', {min: 0, max: 9, step: 1, value: 64, from: x => Math.pow(2, x), to: x => Math.log2(x), text: String},
          draw),
      drawing);
}

export class ZeroView {
  constructor(run) {
    this.run = run;
    this.dots = html(
        'div', {class: 'dots', role: 'group', 'aria-label': 'Steps'},
        kSteps.map(
            ([title], i) => html(
                'button', {type: 'button', 'aria-label': `${i + 1}. ${title}`, title, onclick: () => change({step: i})},
                String(i + 1))));
    this.title = html('h2', {});
    this.words = html('div', {});
    this.holder = html('div', {class: 'holder'});
    this.figure = picture('step', '', this.holder);
    this.back = html(
        'button', {type: 'button', id: 'back', onclick: () => change({step: Math.max(0, state.step - 1)})}, '← Back');
    this.next = html(
        'button', {
          type: 'button',
          id: 'next',
          class: 'strong',
          onclick: () => change({step: Math.min(kSteps.length - 1, state.step + 1)})
        },
        'Next →');
    this.element = html(
        'div', {class: 'view zero-view'}, this.dots,
        html(
            'section', {class: 'card', 'aria-live': 'polite'}, this.title, this.words,
            html('div', {class: 'buttons'}, this.back, this.next)),
        this.figure);
    this.element.addEventListener('keydown', event => {
      if (event.target.closest('input, textarea, .token')) return;
      if (event.key === 'ArrowRight') this.next.click();
      if (event.key === 'ArrowLeft') this.back.click();
    });
  }

  show() {
    if (this.run.error) return;
    const step = Math.min(kSteps.length - 1, Math.max(0, state.step)), [title, words, draw] = kSteps[step];
    this.title.textContent = `${step + 1}. ${title}`;
    const texts = typeof words === 'function' ? words(this.run) : words;
    this.words.replaceChildren(...texts.map(text => html('p', {}, text)));
    [...this.dots.children].forEach((dot, i) => dot.setAttribute('aria-current', i === step ? 'step' : 'false'));
    this.back.disabled = step === 0;
    this.next.disabled = step === kSteps.length - 1;
    this.figure.querySelector('figcaption b').textContent = title;
    this.holder.replaceChildren();
    draw(this.holder, this.run, Math.max(260, this.figure.clientWidth - 26));
  }
}
