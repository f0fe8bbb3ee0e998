// The pictures: plain functions from numbers to SVG or canvas, and the export of any of them as SVG or PNG.

import {html, svg, short, tokenText, say} from './dom.js';

// A figure with a title, a picture, a caption and its export buttons.
export function picture(name, title, content, caption = '') {
  const button = kind => html(
      'button', {
        type: 'button',
        class: 'export',
        'data-kind': kind,
        'aria-label': `Save ${title} as ${kind.toUpperCase()}`,
        onclick: () => savePicture(figure, name, kind)
      },
      kind.toUpperCase());
  const text = html('span', {class: 'caption'}, caption);
  const figure = html(
      'figure', {class: 'picture', 'data-name': name},
      html(
          'figcaption', {}, html('b', {}, title), text, html('span', {class: 'exports'}, button('svg'), button('png'))),
      content);
  figure.caption = text;
  return figure;
}

const kSvgSpace = 'http://www.w3.org/2000/svg';
const kKept = [
  'fill', 'stroke', 'stroke-width', 'stroke-dasharray', 'opacity', 'fill-opacity', 'stroke-opacity', 'font-size',
  'font-weight', 'font-family', 'text-anchor', 'dominant-baseline'
];

// A drawing as SVG that needs no style sheet: what the sheet says is written into each element.
function standAlone(drawn) {
  const copy = drawn.cloneNode(true);
  const originals = [drawn, ...drawn.querySelectorAll('*')], copies = [copy, ...copy.querySelectorAll('*')];
  originals.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const property of kKept) copies[i].style.setProperty(property, style.getPropertyValue(property));
    for (const gone of ['tabindex', 'class', 'data-tip', 'role']) copies[i].removeAttribute(gone);
  });
  return copy;
}

// The words of the page's own text inside an element, each where it stands.
function words(element, origin) {
  const found = [], walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT), range = document.createRange();
  while (walker.nextNode()) {
    const node = walker.currentNode, style = getComputedStyle(node.parentElement);
    if (node.parentElement.closest('svg, button.export')) continue;
    for (const match of node.data.matchAll(/\S+/g)) {
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      const box = range.getBoundingClientRect();
      if (!box.width) continue;
      found.push(
          svg('text', {
            x: box.left - origin.left,
            y: box.top - origin.top + 0.78 * box.height,
            style: `font: ${style.fontWeight} ${style.fontSize} sans-serif; fill: ${style.color}`
          },
              match[0]));
    }
  }
  return found;
}

// The picture as one SVG text: its drawings, maps and words where they stand on the page.
export function pictureSvg(figure) {
  // Of content that scrolls, all of it.
  const content = figure.lastElementChild, box = content.getBoundingClientRect();
  const origin = {left: box.left - content.scrollLeft, top: box.top - content.scrollTop};
  const width = Math.ceil(Math.max(box.width, content.scrollWidth || 0)),
        height = Math.ceil(Math.max(box.height, content.scrollHeight || 0));
  const whole =
      svg('svg', {xmlns: kSvgSpace, width, height, viewBox: `0 0 ${width} ${height}`},
          svg('rect', {width: '100%', height: '100%', fill: getComputedStyle(document.body).backgroundColor}));
  const placed = (element, made) => {
    const box = element.getBoundingClientRect();
    for (const [name, value] of [
             ['x', box.left - origin.left], ['y', box.top - origin.top], ['width', box.width], ['height', box.height]])
      made.setAttribute(name, value);
    return made;
  };
  for (const element of [content, ...content.querySelectorAll('svg, canvas')]) {
    if (element.localName === 'svg') whole.append(placed(element, standAlone(element)));
    if (element.localName === 'canvas')
      whole.append(placed(
          element,
          svg('image', {href: element.toDataURL(), style: 'image-rendering: pixelated', preserveAspectRatio: 'none'})));
  }
  whole.append(...words(content, origin));
  return new XMLSerializer().serializeToString(whole);
}

export async function picturePng(figure) {
  const image = new Image();
  image.src = 'data:image/svg+xml;charset=utf-8,' + encodeURIComponent(pictureSvg(figure));
  await image.decode();
  const canvas = html('canvas', {width: 2 * image.width, height: 2 * image.height});
  canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise(resolve => canvas.toBlob(resolve, 'image/png'));
}

async function savePicture(figure, name, kind) {
  const blob = kind === 'png' ? await picturePng(figure) : new Blob([pictureSvg(figure)], {type: 'image/svg+xml'});
  const link = html('a', {href: URL.createObjectURL(blob), download: `rootdk-${name}.${kind}`});
  link.click();
  say(`Saved rootdk-${name}.${kind}, ${Math.round(blob.size / 1024)} KB`);
}

// Colours of the style sheet as numbers, so that canvases follow light and dark.
function channels(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map(i => parseInt(text.slice(i, i + 2), 16));
}

// rows x columns weights as pixels. Full colour is `full` (a weight of 1 unless said otherwise): two maps compare.
export function drawMap(canvas, values, rows, columns, {full = 1, colour = '--c0', root = true} = {}) {
  if (canvas.width !== columns || canvas.height !== rows) {
    canvas.width = columns;
    canvas.height = rows;
  }
  const context = canvas.getContext('2d'), image = context.createImageData(columns, rows);
  const paper = channels('--map'), ink = channels(colour);
  for (let i = 0; i < rows * columns; ++i) {
    const share = Math.min(1, Math.max(0, values[i] / full)), depth = root ? Math.sqrt(share) : share;
    for (let c = 0; c < 3; ++c) image.data[4 * i + c] = paper[c] + (ink[c] - paper[c]) * depth;
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

let ruler;
const widthOf = (text, font) => {
  ruler = ruler || document.createElement('canvas').getContext('2d');
  ruler.font = font;
  return ruler.measureText(text).width;
};

// The sentence as tokens, with arcs from the chosen query to the keys it attends to.
// weights: of the query's row, or null. query: -1 where the queries are another sentence, which leaves the arcs out.
// nameOf(index): what the line at the bottom calls a token. onpick(index) when a token is chosen, onhover(index) while
// the pointer is on it.
export function drawSentence(element, tokens, {
  weights,
  query,
  key = -1,
  width,
  colour = 'c0',
  onpick,
  onhover,
  nameOf = j => `${j} “${tokens[j]}”`,
  masked = j => j > query
}) {
  const font = 14, pad = 6, gap = 3, height = 26,
        lead = query < 0 || !weights ? 8 :
      tokens.length > 60             ? 34 :
                                       42,
        edge = 2;
  const places = [];
  let x = edge, line = 0;
  for (const token of tokens) {
    const text = tokenText(token), w = Math.max(14, widthOf(text, `${font}px ui-monospace, monospace`) + 2 * pad - 3);
    if (x + w > width - edge && x > edge) {
      x = edge;
      ++line;
    }
    places.push({x, y: line * (height + lead) + lead - Math.min(8, lead / 2), w, text, line});
    x += w + gap;
  }
  const total = (line + 1) * (height + lead);
  element.setAttribute('viewBox', `0 0 ${width} ${total}`);
  element.setAttribute('height', total);
  const arcs = svg('g', {class: 'arcs', fill: 'none'});
  const centre = place => place.x + place.w / 2;
  if (weights && query >= 0) {
    places.forEach((place, j) => {
      if (j === query || !(weights[j] >= 0.01)) return;
      const from = places[query], a = centre(from), b = centre(place);
      const path = from.line === place.line ?
          `M${a} ${from.y}C${a} ${from.y - Math.min(lead - 6, 10 + Math.abs(a - b) / 4)} ${b} ${
              from.y - Math.min(lead - 6, 10 + Math.abs(a - b) / 4)} ${b} ${place.y}` :
          `M${a} ${from.y}C${a} ${from.y - 34} ${b} ${place.y + height + 34} ${b} ${place.y + height}`;
      arcs.append(svg('path', {
        d: path,
        class: `arc ${colour}`,
        'stroke-width': 0.6 + 5 * weights[j],
        'stroke-opacity': 0.25 + 0.7 * Math.sqrt(weights[j])
      }));
    });
  }
  const boxes = places.map((place, j) => {
    const weight = weights ? weights[j] : 0, hidden = weights && weights[j] === 0 && masked(j);
    const say = !weights ? `query ${nameOf(j)}` :
        j === query ? `query ${nameOf(j)}, own weight ${short(weight)}` :
                      `key ${nameOf(j)}: attention weight ${hidden ? '0, masked' : short(weight)}`;
    return svg(
        'g', {
          class: `token${j === query ? ' query' : ''}${j === key ? ' key' : ''}${hidden ? ' hidden' : ''}`,
          tabindex: j === Math.max(0, query) ? 0 : -1,
          role: 'button',
          'aria-pressed': j === query,
          'aria-label': say,
          'data-tip': say,
          'data-index': j,
          onclick: () => onpick(j),
          onpointerenter: event => event.pointerType === 'mouse' && onhover?.(j),
          onkeydown: event => {
            const to =
                {ArrowRight: j + 1, ArrowLeft: j - 1, Home: 0, End: tokens.length - 1, Enter: j, ' ': j}[event.key];
            if (to === undefined || to < 0 || to >= tokens.length) return;
            event.preventDefault();
            onpick(to);
            element.querySelector(`[data-index="${to}"]`)?.focus();
          }
        },
        svg('rect', {x: place.x, y: place.y, width: place.w, height, rx: 5, class: 'ground'}), svg('rect', {
          x: place.x,
          y: place.y,
          width: place.w,
          height,
          rx: 5,
          class: `ink ${colour}`,
          'fill-opacity': 0.85 * Math.sqrt(weight)
        }),
        svg('text', {x: centre(place), y: place.y + 18, 'text-anchor': 'middle', 'font-size': font}, place.text));
  });
  element.replaceChildren(arcs, ...boxes);
}

// Bars that stand on a line of tokens. values: 0 to 1; more: a second series, drawn as outlines.
export function drawRow(element, tokens, values, {
  width,
  height = 138,
  more = null,
  chosen = -1,
  colour = 'c0',
  names = ['weight', 'other'],
  onpick,
  nameOf = j => `${j} “${tokens[j]}”`
}) {
  const left = 30, bottom = 46, top = 8, plot = height - bottom - top, n = tokens.length;
  const stride = (width - left - 4) / n, y = value => top + plot * (1 - value);
  const children = [];
  for (const tick of [0, 0.5, 1]) {
    children.push(
        svg('line', {x1: left, x2: width - 4, y1: y(tick), y2: y(tick), class: 'grid'}),
        svg('text', {x: left - 5, y: y(tick) + 4, class: 'tick', 'text-anchor': 'end'}, String(tick)));
  }
  const labelled = Math.max(1, Math.ceil(13 / stride));
  for (let j = 0; j < n; ++j) {
    const x = left + j * stride, value = values[j] || 0;
    const tip = `key ${nameOf(j)}: ${names[0]} ${short(value)}` + (more ? `, ${names[1]} ${short(more[j])}` : '');
    children.push(
        svg('g', {class: `bar${j === chosen ? ' chosen' : ''}`, 'data-tip': tip, onclick: () => onpick?.(j)},
            svg('rect', {x, y: top, width: stride, height: plot, class: 'reach'}), svg('rect', {
              x: x + stride * 0.12,
              width: Math.max(0.8, stride * 0.76),
              y: y(value),
              height: Math.max(0, plot * value),
              class: `ink ${colour}`
            }),
            more && svg('rect', {
              x: x + stride * 0.12,
              width: Math.max(0.8, stride * 0.76),
              y: y(more[j]),
              height: Math.max(0, plot * more[j]),
              class: 'outline'
            })));
    if (j % labelled) continue;
    const at = x + stride / 2 + 3;
    children.push(
        svg('text',
            {class: 'tick', transform: `translate(${at},${height - bottom + 10}) rotate(-55)`, 'text-anchor': 'end'},
            tokenText(tokens[j]).slice(0, 7)));
  }
  element.setAttribute('viewBox', `0 0 ${width} ${height}`);
  element.setAttribute('height', height);
  element.replaceChildren(...children);
}

// Horizontal bars, most likely first. rows: [{text, p}], other: the same tokens' p under other rules, by id.
export function drawNext(element, rows, {width, other = null, names = ['probability', 'as trained']}) {
  const line = 20, left = 92, right = 48, plot = width - left - right;
  const most = Math.max(0.02, ...rows.map(row => row.p), ...(other ? rows.map(row => other.get(row.id) || 0) : []));
  element.setAttribute('viewBox', `0 0 ${width} ${rows.length * line + 2}`);
  element.setAttribute('height', rows.length * line + 2);
  element.replaceChildren(...rows.map((row, i) => {
    const was = other ? other.get(row.id) || 0 : null;
    return svg(
        'g', {
          'data-tip': `next token “${row.text}”: ${names[0]} ${short(row.p, 4)}` +
              (other ? `, ${names[1]} ${short(was, 4)}` : `, logit ${short(row.logit, 4)}`)
        },
        svg('text', {x: left - 8, y: i * line + 15, 'text-anchor': 'end', class: 'token-name'},
            tokenText(row.text).slice(0, 11)),
        svg('rect', {
          x: left,
          y: i * line + 3,
          width: Math.max(1, plot * row.p / most),
          height: line - 6,
          rx: 2,
          class: 'ink c2'
        }),
        other && svg('line', {
          x1: left + plot * was / most,
          x2: left + plot * was / most,
          y1: i * line + 1,
          y2: i * line + line - 2,
          class: 'was'
        }),
        svg('text', {x: left + Math.max(1, plot * row.p / most) + 5, y: i * line + 15, class: 'tick'},
            short(row.p, 2)));
  }));
}

// How often each score occurs, against the normal distribution of variance 1.
export function drawHistogram(element, values, {width, height = 170}) {
  const left = 8, right = 8, bottom = 24, top = 22, plot = height - top - bottom, bins = 48;
  let most = 4, mean = 0, square = 0;
  for (const value of values) {
    most = Math.max(most, Math.abs(value));
    mean += value;
    square += value * value;
  }
  mean /= values.length;
  const variance = square / values.length - mean * mean;
  const edge = most <= 4 ? 4 : Math.pow(2, Math.ceil(Math.log2(most))), counts = new Float64Array(bins);
  for (const value of values) counts[Math.min(bins - 1, Math.max(0, Math.floor((value + edge) / (2 * edge) * bins)))]++;
  const density = Array.from(counts, count => count / values.length * bins / (2 * edge));
  const highest = Math.max(0.42, ...density);
  const x = value => left + (value + edge) / (2 * edge) * (width - left - right),
        y = d => top + plot * (1 - d / highest);
  const bars = density.map((d, i) => svg('rect', {
                             x: x(-edge + 2 * edge * i / bins) + 0.5,
                             width: (width - left - right) / bins - 1,
                             y: y(d),
                             height: Math.max(0, top + plot - y(d)),
                             class: 'ink c0'
                           }));
  const normal = [];
  for (let i = 0; i <= 160; ++i) {
    const value = -edge + 2 * edge * i / 160;
    normal.push(`${x(value).toFixed(1)},${y(Math.exp(-value * value / 2) / Math.sqrt(2 * Math.PI)).toFixed(1)}`);
  }
  const ticks = [-edge, -edge / 2, 0, edge / 2, edge].map(
      value =>
          svg('text', {
            x: x(value),
            y: height - 7,
            class: 'tick',
            'text-anchor': value === -edge ? 'start' :
                value === edge             ? 'end' :
                                             'middle'
          },
              short(value)));
  element.setAttribute('viewBox', `0 0 ${width} ${height}`);
  element.setAttribute('height', height);
  element.replaceChildren(
      svg('line', {x1: left, x2: width - right, y1: top + plot, y2: top + plot, class: 'axis'}), ...bars,
      svg('polyline', {points: normal.join(' '), class: 'line c1'}),
      svg('text', {x: width - right, y: 14, class: 'tick', 'text-anchor': 'end'}, 'line: N(0, 1)'),
      svg('text', {x: left, y: 14, class: 'tick'}, `variance ${short(variance)}`), ...ticks);
  return variance;
}

// A vector as coloured cells: blue below zero, red above; full colour at `full`.
export function drawStrip(element, values, {width, full, label, cell = 22}) {
  const n = values.length, stride = width / n;
  const most = full || Math.max(1e-9, ...Array.from(values, Math.abs));
  element.setAttribute('preserveAspectRatio', 'none');  // its border takes a little of its height
  element.setAttribute('viewBox', `0 0 ${width} ${cell}`);
  element.setAttribute('height', cell);
  element.replaceChildren(...Array.from(values, (value, i) => svg('rect', {
                                                  x: i * stride,
                                                  width: Math.max(0.5, stride - (stride > 4 ? 1 : 0)),
                                                  y: 0,
                                                  height: cell,
                                                  class: value < 0 ? 'cold' : 'warm',
                                                  'fill-opacity': Math.min(1, Math.abs(value) / most),
                                                  'data-tip': `${label}[${i}] = ${String(value).replace('-', '−')}`
                                                })));
}
