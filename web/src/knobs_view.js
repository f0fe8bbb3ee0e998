// Knobs: what scale, temperature and the rest do, on random queries and keys and in the model itself.

import {html, svg, short, number, slider, chooser} from './dom.js';
import {state, change, knobs, removedHeads, withHeadToggled, kDefaults} from './state.js';
import {picture, drawMap, drawHistogram, drawNext} from './pictures.js';

const mean = values => values.reduce((a, b) => a + b, 0) / values.length;
const kKnobs = ['scale', 'free', 'temperature', 'softcap', 'score', 'causal', 'window', 'dropout', 'd', 'seed'];

function meter(name, hint) {
  const bar = html('span', {class: 'fill'}), value = html('b', {}), bound = html('span', {class: 'soft'});
  const element = html(
      'div', {class: 'meter', 'data-tip': hint, tabindex: 0}, html('span', {}, name), value, bound,
      html('span', {class: 'track', 'aria-hidden': 'true'}, bar));
  return {
    element,
    set: (x, share, text) => {
      value.textContent = short(x);
      bar.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
      bound.textContent = text;
    }
  };
}

export class KnobsView {
  constructor(run) {
    this.run = run;
    this.controls = this.makeControls();
    this.map = html(
        'canvas',
        {class: 'map', role: 'img', 'aria-label': 'Attention weights of 64 random queries over 64 random keys'});
    this.histogram = svg(
        'svg', {role: 'img', 'aria-label': 'Histogram of the scaled scores against the standard normal distribution'});
    this.mapFigure = picture('weights', 'Weights, 64 × 64', this.map, 'full colour is weight 1');
    this.histogramFigure = picture('scores', 'Scores, scaled', this.histogram);
    this.meters = {
      entropy: meter(
          'entropy', 'mean over rows of −sum p ln p, in nats; the largest possible is the mean of ln(visible keys)'),
      top: meter('largest weight', 'mean over rows of the largest attention weight'),
      gradient: meter('1 − sum p²', 'mean over rows of 1 − sum p²: near 0 no gradient passes the softmax'),
    };
    this.before = html('p', {class: 'continued'});
    this.after = html('p', {class: 'continued'});
    this.next =
        svg('svg', {role: 'img', 'aria-label': 'Next tokens under these knobs; the mark is the model as trained'});
    this.nextFigure = picture('next-knobs', 'What comes next, with the knobs', this.next, 'mark: as trained');
    this.heads = html('div', {class: 'remove', role: 'group', 'aria-label': 'Remove heads'});
    this.changeLine = html('p', {class: 'soft'});
    this.element = html(
        'div', {class: 'view knobs-view'},
        html('section', {class: 'card controls', 'aria-label': 'Knobs'}, this.controls),
        html(
            'div', {class: 'stack'}, html('h2', {}, 'On random queries and keys'),
            html('div', {class: 'meters'}, Object.values(this.meters).map(one => one.element)),
            html('div', {class: 'pair'}, this.mapFigure, this.histogramFigure)),
        html(
            'section', {class: 'card model'}, html('h2', {}, 'In the model'),
            html(
                'p', {class: 'soft'},
                'The same knobs (scale, temperature, softcap, score, mask) in every head, and the text goes on:'),
            html('h3', {}, 'as trained'), this.before, html('h3', {}, 'with the knobs'), this.after, this.changeLine,
            html('h3', {}, 'Remove heads'), this.heads, this.nextFigure));
  }

  makeControls() {
    const log = {from: x => Math.pow(2, x), to: x => Math.log2(x)};
    const set = name => value => change({[name]: value});
    const all = this.all = {
      scale: chooser(
          'Scale', [['none', 'none'], ['1/sqrt(d)', '1/√d'], ['1/d', '1/d'], ['free', 'free']], state.scale,
          set('scale')),
      free: slider(
          'free scale', {min: -12, max: 3, step: 0.05, value: state.free, ...log},
          value => change({free: value, scale: 'free'})),
      d: slider(
          'd_k', {
            min: 0,
            max: 10,
            step: 0.25,
            value: state.d,
            from: x => Math.round(Math.pow(2, x)),
            to: x => Math.log2(x),
            text: String,
            hint: 'components of a query and a key'
          },
          set('d')),
      temperature:
          slider('temperature', {min: -5, max: 5, step: 0.05, value: state.temperature, ...log}, set('temperature')),
      softcap: slider(
          'softcap', {min: 0, max: 50, step: 0.5, value: state.softcap, text: x => x > 0 ? short(x) : 'none'},
          set('softcap')),
      score:
          chooser('Score', [['dot', 'dot'], ['cosine', 'cosine'], ['additive', 'additive']], state.score, set('score')),
      causal: chooser('Mask', [[true, 'causal'], [false, 'all keys']], state.causal, set('causal')),
      window: slider(
          'window', {min: -1, max: 63, step: 1, value: state.window, text: x => x < 0 ? 'all' : `${x} back`},
          set('window')),
      dropout: slider('dropout', {min: 0, max: 0.95, step: 0.05, value: state.dropout}, set('dropout')),
    };
    const named = (name, control) => html('div', {class: 'with-name'}, html('span', {}, name), control);
    this.seed = html('span', {class: 'soft'});
    return [
      named('scale', all.scale), all.free, all.d, all.temperature, all.softcap, named('score', all.score),
      named('mask', all.causal), all.window, all.dropout,
      html(
          'div', {class: 'buttons'},
          html(
              'button', {
                type: 'button',
                id: 'no-root',
                onclick: () => change({scale: state.scale === 'none' ? '1/sqrt(d)' : 'none'})
              },
              'Without the root'),
          html('button', {type: 'button', id: 'draw', onclick: () => change({seed: state.seed + 1})}, 'Draw again'),
          html(
              'button', {
                type: 'button',
                id: 'reset',
                onclick: () => change(Object.fromEntries([...kKnobs, 'removed'].map(name => [name, kDefaults[name]])))
              },
              'Reset')),
      this.seed
    ];
  }

  show(names) {
    for (const [name, control] of Object.entries(this.all)) control.set(state[name]);
    this.seed.textContent = `seed ${state.seed}`;
    this.drawSynthetic();
    if (!names || [...names].some(name => name !== 'd' && name !== 'dropout' && name !== 'seed')) {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.runModel(), 120);
    }
  }

  drawSynthetic() {
    const begin = performance.now(), n = 64;
    const {arrays} = this.now =
        this.run.engine.request({do: 'synthetic', n, d: state.d, seed: state.seed, knobs: knobs()});
    drawMap(this.map, arrays.dropped.values, n, n);
    const entropy = mean(arrays.entropy.values), top = mean(arrays.max_weight.values),
          gradient = 1 - mean(arrays.sum_p2.values);
    let most = 0;
    for (let i = 0; i < n; ++i)
      most += Math.log(Math.min(
                  state.causal ? i + 1 : n,
                  state.window >= 0 ? (state.causal ? state.window + 1 : state.window + n - i) : n)) /
          n;
    this.meters.entropy.set(entropy, entropy / most, `of at most ${short(most)} nats`);
    this.meters.top.set(top, top, top > 0.9 ? 'saturated' : '');
    this.meters.gradient.set(gradient, gradient, gradient < 0.1 ? 'hardly any gradient' : '');
    const variance = drawHistogram(
        this.histogram, arrays.scores.values, {width: Math.max(240, this.histogramFigure.clientWidth - 22)});
    this.histogramFigure.caption.textContent = `d_k ${state.d}: variance ${short(variance)}`;
    this.milliseconds = performance.now() - begin;
  }

  modelKnobs() {
    const own = knobs();
    delete own.dropout;
    if (state.scale === kDefaults.scale) own.scale = 'model';
    return {...own, removed: removedHeads()};
  }

  runModel() {
    const {engine, model, now} = this.run;
    if (!now || this.run.error || !model.has_logits) return;
    const text = state.text, seed = state.continueSeed, count = 28;
    const goOn = changed => engine.request({do: 'continue', text, seed, count, knobs: changed});
    try {
      this.before.replaceChildren(html('span', {class: 'soft'}, '… '), goOn({}).text);
      const changed = this.modelKnobs();
      this.after.replaceChildren(html('span', {class: 'soft'}, '… '), goOn(changed).text);
      const result = engine.request({do: 'run', text, knobs: changed, next: 8});
      this.changed = {...result, knobs: changed};
      const before = now.logits, after = result.arrays.logits.values;
      let most = 0;
      for (let i = 0; i < before.length; ++i) most = Math.max(most, Math.abs(after[i] - before[i]));
      const trained = new Map(now.next.map(one => [one.id, one.p]));
      const total = before.reduce((sum, x) => sum + Math.exp(x - now.next[0].logit), 0);
      for (const one of result.next)
        if (!trained.has(one.id)) trained.set(one.id, Math.exp(before[one.id] - now.next[0].logit) / total);
      this.changeLine.replaceChildren(
          'The logits of the next token change by at most ',
          number(most, 'largest |logit with the knobs − logit as trained|'), '.');
      drawNext(
          this.next, result.next.slice(0, 6), {width: Math.max(240, this.nextFigure.clientWidth - 22), other: trained});
    } catch (error) {
      this.after.replaceChildren();
      this.changeLine.textContent = error.message;
    }
    this.showRemoved();
  }

  showRemoved() {
    const {model} = this.run, removed = removedHeads();
    const gone = (layer, head) => removed.some(([l, h]) => l === layer && h === head);
    if (!this.heads.childElementCount) {
      this.heads.style.setProperty('--heads', model.heads);
      for (let layer = 0; layer < model.layers; ++layer) {
        for (let head = 0; head < model.heads; ++head) {
          this.heads.append(html(
              'button', {
                type: 'button',
                'data-layer': layer,
                'data-head': head,
                'aria-label': `Remove head ${head} of layer ${layer}`,
                onclick: () => change({removed: withHeadToggled(layer, head)})
              },
              `${layer}.${head}`));
        }
      }
    }
    for (const button of this.heads.children)
      button.setAttribute('aria-pressed', gone(Number(button.dataset.layer), Number(button.dataset.head)));
  }
}
