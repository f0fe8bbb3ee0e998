// What heads do on a text: tokens with arcs, the row of a query, a map with tokens on its axes, and all heads as
// thumbnails with a filter by label. The live page and the report of rootdk inspect share it.

import {html, svg, short, tokenText, say, chooser} from './dom.js';
import {picture, drawMap, drawSentence, drawRow} from './pictures.js';

const kLabelColours = {
  'previous token': 'c0',
  'first token': 'c1',
  'same token': 'c2',
  'induction': 'c4',
  'broad': 'c3',
  'local': 'c5'
};
export const labelColour = label => kLabelColours[label] || 'c8';
const isScored = label => label && label.label !== 'mixed' && label.chance !== null;

// A map of weights with queries down and keys across. on: {pick(query, key), point(query, key)}.
class MapWithAxes {
  constructor(on) {
    this.canvas = html('canvas', {class: 'map', role: 'img', tabindex: 0});
    this.keys = svg('svg', {class: 'keys', 'aria-hidden': 'true'});
    this.queries = svg('svg', {class: 'queries', 'aria-hidden': 'true'});
    this.marks = svg('svg', {class: 'marks', 'aria-hidden': 'true'});
    this.element = html(
        'div', {class: 'axes'}, html('span', {class: 'corner'}, html('span', {}, 'key →'), html('span', {}, 'query ↓')),
        this.keys, this.queries, html('div', {class: 'plot'}, this.canvas, this.marks));
    this.on = on;
    this.canvas.addEventListener('pointermove', event => this.on.point(...this.cellAt(event)));
    this.canvas.addEventListener('click', event => this.on.pick(...this.cellAt(event)));
    this.canvas.addEventListener('keydown', event => {
      const [down, across] = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key] ||
          [];
      if (down === undefined) return;
      event.preventDefault();
      const within = (index, count) => Math.min(count - 1, Math.max(0, index));
      const to =
          [within(this.now.query + down, this.now.rows), within(Math.max(0, this.now.key) + across, this.now.columns)];
      this.on.pick(...to);
      this.on.point(...to);
    });
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect(), {rows, columns} = this.now;
    const at = (position, size, count) => Math.min(count - 1, Math.max(0, Math.floor(position / size * count)));
    return [at(event.clientY - box.top, box.height, rows), at(event.clientX - box.left, box.width, columns)];
  }

  // width: of everything. queries, keys: the texts on the axes.
  show({values, rows, columns, queries, keys, query, key, colour, width, label}) {
    this.now = {rows, columns, query, key};
    const kBeside = 58, kAbove = 52, side = Math.max(80, width - kBeside - 2);
    const drawn =
        `${rows} ${columns} ${colour} ${getComputedStyle(document.documentElement).getPropertyValue('--map')}`;
    if (this.values !== values || this.drawn !== drawn) {
      this.values = values;
      this.drawn = drawn;
      drawMap(this.canvas, values, rows, columns, {colour: `--${colour}`});
    }
    this.canvas.setAttribute('aria-label', label);
    this.element.style.setProperty('--beside', `${kBeside}px`);
    this.element.style.setProperty('--side', `${side}px`);
    const axis = (element, texts, count, chosen, [w, h], at) => {
      const stride = side / count, every = Math.max(1, Math.ceil(10.5 / stride));
      element.setAttribute('viewBox', `0 0 ${w} ${h}`);
      element.setAttribute('width', w);
      element.setAttribute('height', h);
      const shown = texts.map((text, i) => [text, i]).filter(([, i]) => {
        // The chosen one is always named; its neighbours make room for it.
        return i === chosen || (i % every === 0 && !(chosen >= 0 && Math.abs(i - chosen) * stride < 10));
      });
      element.replaceChildren(...shown.map(
          ([text, i]) =>
              svg('text', {class: i === chosen ? 'tick chosen' : 'tick', ...at((i + 0.5) * stride)},
                  [...tokenText(text)].slice(0, 8).join(''))));  // by code points
    };
    axis(
        this.keys, keys, columns, key, [side, kAbove],
        x => ({transform: `translate(${Math.max(9, Math.min(side - 2, x + 3))},${kAbove - 3}) rotate(-90)`}));
    axis(
        this.queries, queries, rows, query, [kBeside, side],
        y => ({x: kBeside - 4, y: Math.max(9, Math.min(side - 2, y + 3.5)), 'text-anchor': 'end'}));
    const [w, h] = [side / columns, side / rows];
    this.marks.setAttribute('viewBox', `0 0 ${side} ${side}`);
    this.marks.replaceChildren(
        svg('rect', {x: 0.5, y: query * h, width: side - 1, height: Math.max(2, h), class: 'marker'}),
        key >= 0 &&
                svg('rect',
                    {x: key * w, y: query * h, width: Math.max(2, w), height: Math.max(2, h), class: 'marker key'}) ||
            '');
  }
}

// One head: who attends to whom, the row of one query, the map. All three show the same query and key.
// on: {query(i), key(j), hover(i or -1)}.
export class AttentionPictures {
  constructor(on) {
    this.on = on;
    this.sentence =
        svg('svg', {class: 'sentence', role: 'group', 'aria-label': 'Tokens: choose one to see what it attends to'});
    this.others = svg('svg', {class: 'sentence others', role: 'group', 'aria-label': 'Keys, shaded by their weight'});
    this.sentence.addEventListener('pointerleave', () => on.hover(-1));
    this.row = svg('svg', {class: 'row', role: 'img'});
    this.map = new MapWithAxes({
      pick: (i, j) => {
        on.query(i);
        on.key(j);
      },
      point: (i, j) => say(this.weightText(i, j))
    });
    this.sentenceFigure =
        picture('sentence', 'Who attends to whom', html('div', {class: 'lines'}, this.sentence, this.others));
    this.rowFigure = picture('row', 'The row of this query', this.row);
    this.mapFigure = picture('map', 'This head', this.map.element);
  }

  weightText(i, j) {
    const {head, map} = this.now, weight = map.values[i * map.columns + j];
    const masked = weight === 0 && head.masked(i, j);
    return `query ${head.queryName(i)} → key ${head.keyName(j)}: attention weight ${
        masked ? '0, masked' : short(weight, 4)}`;
  }

  // head: {name, map: {values, rows, columns}, queries, keys (texts), crosses, masked(i, j), queryName(i), keyName(j)}.
  show(head, {query, key, colour}) {
    const {map} = this.now = {head, map: head.map};
    const width = Math.max(280, this.sentenceFigure.clientWidth - 24);
    const weights = Array.from(map.values.subarray(query * map.columns, (query + 1) * map.columns));
    const pick = {onpick: j => this.on.query(j), onhover: j => this.on.hover(j)};
    this.others.toggleAttribute('hidden', !head.crosses);
    if (head.crosses) {
      drawSentence(this.sentence, head.queries, {weights: null, query, width, colour, nameOf: head.queryName, ...pick});
      drawSentence(
          this.others, head.keys,
          {weights, query: -1, key, width, colour, nameOf: head.keyName, masked: () => false, onpick: this.on.key});
    } else {
      drawSentence(
          this.sentence, head.queries,
          {weights, query, key, width, colour, nameOf: head.keyName, masked: j => head.masked(query, j), ...pick});
    }
    this.sentenceFigure.caption.textContent = `${head.name}, query ${head.queryName(query)}` +
        (head.crosses ? '; above the queries, below the keys' : '') +
        (head.pooled ? '; a box is a cell of tokens, named by its first' : '');
    this.row.setAttribute('aria-label', `Attention weights of query ${head.queryName(query)}`);
    drawRow(
        this.row, head.keys, weights,
        {width, colour, chosen: key, onpick: this.on.key, names: ['attention weight'], nameOf: head.keyName});
    const entropy = weights.reduce((sum, p) => p > 0 ? sum - p * Math.log(p) : sum, 0);
    this.rowFigure.caption.textContent =
        `largest ${short(Math.max(...weights))}, entropy ${short(entropy)} nats${head.pooled ? ' over cells' : ''}`;
    this.map.show({
      ...map,
      queries: head.queries,
      keys: head.keys,
      query,
      key,
      colour,
      width: Math.min(head.mapWidth || 420, Math.max(200, this.mapFigure.clientWidth - 26)),
      label: `Attention weights of ${head.name}: rows are queries, columns are keys. Arrow keys move.`
    });
    this.mapFigure.caption.textContent = 'full colour: 1';
  }
}

const kNamelessFrom = 12;  // heads of a layer

// All heads as thumbnails. heads: [{layer, head, label: {label, score, chance, rows, entropy, ...} or undefined, map}].
export class HeadGrid {
  constructor({onpick, onfilter}) {
    this.onpick = onpick;
    this.onfilter = onfilter;
    this.grid = html('div', {class: 'grid', role: 'group', 'aria-label': 'All heads'});
    this.grid.addEventListener('keydown', event => this.walk(event));
    this.filters = html('div', {class: 'filters'});
    this.legend = html('p', {class: 'legend soft'});
    this.element = html('div', {class: 'head-grid'}, this.filters, this.grid, this.legend);
  }

  walk(event) {
    const shown = this.cells.filter(({cell}) => !cell.hidden),
          at = shown.findIndex(({cell}) => cell === document.activeElement);
    if (at < 0) return;
    const top = shown[0].cell.offsetTop, line = shown.findIndex(({cell}) => cell.offsetTop > top);
    const across = line < 0 ? shown.length : line;
    const to = {ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + across, ArrowUp: at - across}[event.key];
    if (to === undefined || !shown[to]) return;
    event.preventDefault();
    shown[to].cell.focus();
    this.onpick(shown[to].one);
  }

  make(heads) {
    const layers = [...new Set(heads.map(one => one.layer))],
          across = Math.max(...layers.map(layer => heads.filter(one => one.layer === layer).length));
    this.grid.style.setProperty('--heads', across);
    this.grid.classList.toggle('dense', across > 6);  // numbers then go to the lines below, and to the pointer
    this.grid.classList.toggle('tiny', across > kNamelessFrom);
    this.cells = heads.map(one => {
      const canvas = html('canvas', {}), name = html('span', {class: 'name'}), detail = html('span', {class: 'detail'}),
            rows = html('span', {class: 'detail'});
      const cell = html(
          'button', {
            type: 'button',
            class: 'head',
            'data-layer': one.layer,
            'data-head': one.head,
            onclick: () => this.onpick(one)
          },
          canvas, name, detail, rows);
      return {one, cell, canvas, name, detail, rows};
    });
    this.across = across;
    // Where thumbnails have no names, their layers have.
    this.grid.replaceChildren(...this.cells.flatMap(
        ({one, cell}, i) => across > kNamelessFrom && one.layer !== this.cells[i - 1]?.one.layer ?
            [html('span', {class: 'layer-name'}, `layer ${one.layer}`), cell] :
            [cell]));
  }

  // So many heads in a layer that their thumbnails have no room for names.
  isTiny() { return this.across > kNamelessFrom; }

  showFilters(heads, filter) {
    const counts = new Map();
    for (const {label} of heads) {
      if (label) counts.set(label.label, (counts.get(label.label) || 0) + 1);
    }
    const order = [...Object.keys(kLabelColours), 'mixed'].filter(label => counts.has(label) || label === filter);
    const made = JSON.stringify([...counts]);
    if (this.filtersMade !== made) {
      this.filtersMade = made;
      const choices = [['', `all ${heads.length}`, 'Every head']];
      for (const label of order)
        choices.push([
          label, [html('i', {class: `dot ${labelColour(label)}`}), `${label} ${counts.get(label) || 0}`],
          `Only heads labelled “${label}”`
        ]);
      this.chooser = chooser('Filter by label', choices, filter, this.onfilter);
      this.filters.replaceChildren(this.chooser);
    }
    this.chooser.set(filter);
  }

  // version: changes when maps or labels do. rules: [{name, rule}].
  show({heads, selected, filter, version, rules}) {
    const key = heads.map(one => `${one.layer}.${one.head}`).join();
    if (this.made !== key) {
      this.made = key;
      this.make(heads);
    }
    const known = heads.some(one => one.label), active = known ? filter : '';
    this.showFilters(heads, filter);
    this.grid.classList.toggle('filtered', Boolean(active));
    const theme = getComputedStyle(document.documentElement).getPropertyValue('--map');
    const fresh = this.version !== version || this.theme !== theme;
    this.version = version;
    this.theme = theme;
    let reachable = null;
    for (const [index, parts] of this.cells.entries()) {
      const one = parts.one = heads[index], {cell} = parts, chosen = one === selected;
      if (fresh) this.fill(parts);
      cell.setAttribute('aria-pressed', chosen);
      cell.hidden = Boolean(active) && one.label?.label !== active;
      cell.tabIndex = -1;
      if (!cell.hidden && (chosen || !reachable)) reachable = cell;
    }
    if (reachable) reachable.tabIndex = 0;
    if (this.reached !== reachable) this.scrollTo(this.reached = reachable);
    this.grid.classList.toggle('nothing', !reachable);
    this.showLegend(selected, rules, reachable);
  }

  fill({one, cell, canvas, name, detail, rows}) {
    const {layer, head, label, map} = one, colour = labelColour(label?.label), scored = isScored(label);
    drawMap(canvas, map.values, map.rows, map.columns, {colour: `--${colour}`});
    cell.className = `head ${colour}`;
    name.textContent = label ? label.label : '…';
    detail.textContent = scored ? `${short(label.score, 2)}, chance ${short(label.chance, 2)}` :
        label ? `entropy ${short(label.entropy, 2)}` :
                '';
    rows.textContent = `${layer}.${head}` + (scored ? ` · ${label.rows} rows` : '');
    const tip = `layer ${layer}, head ${head}: ` +
        (label ? `${label.label}` +
                 (scored ? `, score ${short(label.score)}; uniform attention over the same mask scores ${
                               short(label.chance)}; ${label.rows} rows` :
                           '') +
                 `; mean entropy ${short(label.entropy)} nats; weight on the first token ${short(label.sink)} (chance ${
                     short(label.sink_chance)})` :
                 'labels follow');
    cell.dataset.tip = tip;
    cell.setAttribute('aria-label', tip);
  }

  // A grid of many heads scrolls; the page around it stays where it is.
  scrollTo(cell) {
    const {scrollTop, clientHeight, scrollHeight} = this.grid;
    if (!cell || scrollHeight <= clientHeight) return;
    if (cell.offsetTop < scrollTop || cell.offsetTop + cell.offsetHeight > scrollTop + clientHeight)
      this.grid.scrollTop = cell.offsetTop - clientHeight / 2;
  }

  showLegend(selected, rules, reachable) {
    const label = selected?.label, rule = rules?.find(one => one.name === label?.label);
    if (!reachable) {
      this.legend.textContent = 'No head has this label.';
      return;
    }
    const text = label?.label === 'mixed' ?
        'no label has a score that is large enough and significantly above chance' :
        rule?.rule.replace('none of the above', 'no label before this one in the list');
    this.legend.textContent = !rule ? '' :
                                      `${selected.layer}.${selected.head} ${rule.name}: ${text}.` +
            (isScored(label) ? ` Score ${short(label.score)}, by chance ${short(label.chance)}, ${label.rows} rows.` :
                               '');
  }
}
