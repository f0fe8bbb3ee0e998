// What the reader has chosen. All of it goes into the address, so that a link restores it.

export const kDefaults = {
  view: 'text',
  text: 'ROMEO: But soft, what light through yonder window breaks?',
  layer: 1,
  head: 0,
  query: -1,
  key: -1,
  filter: '',
  scale: '1/sqrt(d)',
  free: 0.125,
  temperature: 1,
  softcap: 0,
  score: 'dot',
  causal: true,
  window: -1,
  dropout: 0,
  d: 64,
  seed: 1,
  removed: '',
  continueSeed: 1,
  claim: 1,
  claimSeed: 1,
  step: 0,
  stack: '',
  side: 0,
  theme: '',
};

const listeners = new Set();
export const state = {...kDefaults};

export function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  Object.assign(state, kDefaults);
  for (const [name, fallback] of Object.entries(kDefaults)) {
    if (!given.has(name)) continue;
    const text = given.get(name);
    if (typeof fallback === 'number') {
      if (Number.isFinite(Number(text))) state[name] = Number(text);
    } else
      state[name] = typeof fallback === 'boolean' ? text === 'true' : text;
  }
}

export function address() {
  const shown = new URLSearchParams();
  for (const [name, fallback] of Object.entries(kDefaults))
    if (state[name] !== fallback) shown.set(name, state[name]);
  const text = shown.toString();
  return location.href.split('#')[0] + (text ? '#' + text : '');
}

export const onChange = listener => listeners.add(listener);

// change({head: 2}) sets, tells everybody once, and keeps the address up to date.
export function change(values) {
  Object.assign(state, values);
  const names = new Set(Object.keys(values));
  for (const listener of listeners) listener(names);
  clearTimeout(change.timer);
  change.timer = setTimeout(() => history.replaceState(null, '', address()), 250);
}

// The knobs as the engine takes them.
export function knobs() {
  return {
    scale: state.scale === 'free' ? state.free : state.scale,
    temperature: state.temperature,
    softcap: state.softcap,
    score: state.score,
    causal: state.causal,
    window: state.window,
    dropout: state.dropout,
  };
}

// `removed` with this head taken out, or put back.
export function withHeadToggled(layer, head) {
  const pair = `${layer}.${head}`, list = state.removed.split(',').filter(Boolean);
  return (list.includes(pair) ? list.filter(one => one !== pair) : [...list, pair]).join(',');
}

export const removedHeads = () => state.removed.split(',').filter(Boolean).map(pair => pair.split('.').map(Number));
