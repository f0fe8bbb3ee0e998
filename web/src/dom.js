// Small tools to build the page with: elements, numbers as a reader wants them, and the line that explains them.

const kSvg = 'http://www.w3.org/2000/svg';

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on'))
      element.addEventListener(name.slice(2), value);
    else if (name.startsWith('aria-'))
      element.setAttribute(name, value);
    else if (value === true)
      element.setAttribute(name, '');
    else if (value !== false && value != null)
      element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter(child => child != null && child !== false));
  return element;
}

// html('p', {class: 'soft'}, 'text', other) and svg('rect', {x: 1}).
export const html = (name, attributes, ...children) => filled(document.createElement(name), attributes, children);
export const svg = (name, attributes, ...children) =>
    filled(document.createElementNS(kSvg, name), attributes, children);

// Three digits, no needless zeros: 0.0312, 12.5, 3.1e-7.
export function short(x, digits = 3) {
  if (x === null || x === undefined || Number.isNaN(x)) return '–';
  if (!Number.isFinite(x)) return x > 0 ? '∞' : '−∞';
  if (x === 0) return '0';
  const size = Math.abs(x);
  const text = size < 1e-4 || size >= 1e6 ? x.toExponential(digits - 1) : Number(x.toPrecision(digits)).toString();
  const [front, power] = text.split('e');
  const raised =
      power && '·10' + [...power.replace('+', '')].map(c => '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'['-0123456789'.indexOf(c)]).join('');
  return front.replace('-', '−') + (raised || '');
}

// How a token is shown: blanks and line breaks made visible.
export const tokenText = text => text.replace(/\n/g, '⏎').replace(/ /g, '·') || '∅';

// A number that explains itself in the line at the bottom when the pointer or the keyboard is on it.
export function number(value, explanation, digits = 3) {
  return html(
      'span', {class: 'number', tabindex: 0, 'data-tip': `${explanation} = ${String(value).replace('-', '−')}`},
      short(value, digits));
}

// Whatever carries data-tip shows it in the line at the bottom.
export function watchTips() {
  const readout = document.getElementById('readout');
  const show = event => {
    const tip = event.target.closest?.('[data-tip]')?.dataset.tip || '';
    if (readout.textContent !== tip) readout.textContent = tip;
  };
  for (const kind of ['pointerover', 'focusin', 'pointerdown']) document.addEventListener(kind, show);
}

export const say = text => {
  document.getElementById('readout').textContent = text;
};

// A set of choices of which one is on. choices: [[value, label], ...]
export function chooser(label, choices, current, onchange) {
  const buttons = choices.map(
      ([value, text, hint]) => html(
          'button', {
            type: 'button',
            role: 'radio',
            'data-value': String(value),
            title: hint,
            onclick: () => {
              set(value);
              onchange(value);
            },
          },
          text));
  const group = html('div', {class: 'chooser', role: 'radiogroup', 'aria-label': label}, buttons);
  const set = value => buttons.forEach((button, i) => {
    const on = choices[i][0] === value;
    button.setAttribute('aria-checked', on);
    button.tabIndex = on ? 0 : -1;
  });
  group.addEventListener('keydown', event => {
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    if (!step) return;
    event.preventDefault();
    const at = buttons.indexOf(document.activeElement);
    const next = buttons[(at + step + buttons.length) % buttons.length];
    next.focus();
    next.click();
  });
  set(current);
  group.set = set;
  return group;
}

// A slider with its value beside it. from and to map between the slider's number and the value.
export function slider(
    label, {min, max, step = 'any', value, from = x => x, to = x => x, text = short, hint = ''}, onchange) {
  const output = html('output', {}, text(value));
  const input = html('input', {type: 'range', min, max, step, 'aria-label': label});
  const row = html('label', {class: 'slider', title: hint}, html('span', {}, label), input, output);
  const shown = x => {
    output.textContent = text(x);
    input.setAttribute('aria-valuetext', text(x));
  };
  input.value = to(value);
  shown(value);
  input.addEventListener('input', () => {
    const x = from(Number(input.value));
    shown(x);
    onchange(x);
  });
  row.limit = max => {
    input.max = max;
  };
  row.set = x => {
    input.value = to(x);
    shown(x);
  };
  return row;
}

// The same for many choices: a list that opens.
export function dropList(label, choices, current, onchange) {
  const list = html(
      'select', {'aria-label': label}, choices.map(([value, text]) => html('option', {value: String(value)}, text)));
  const set = value => {
    list.value = String(value);
  };
  list.addEventListener('change', () => onchange(choices.find(([value]) => String(value) === list.value)[0]));
  set(current);
  list.set = set;
  return list;
}

const kMostButtons = 8;
export const anyChooser = (label, choices, ...rest) =>
    (choices.length > kMostButtons ? dropList : chooser)(label, choices, ...rest);
