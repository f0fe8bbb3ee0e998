// What surrounds the views of a page: tabs, light and dark, the link that restores what is seen.

import {html, say} from './dom.js';
import {address, change, onChange, readAddress, state} from './state.js';

export class Shell {
  // views: [[name, title, class], ...]; each class is made with `run` when it is first shown. before(names): called
  // before anything is shown, with the names of what changed in the state, or null for all of it.
  constructor(views, run, before) {
    Object.assign(this, {views, run, before, made: new Map()});
    this.makeTabs();
    this.restart();
    let frame = 0, waiting = new Set();
    onChange(names => {
      names.forEach(name => waiting.add(name));
      frame = frame || requestAnimationFrame(() => {
                frame = 0;
                const seen = waiting;
                waiting = new Set();
                this.update(seen);
              });
    });
    document.getElementById('share').addEventListener('click', shareLink);
    document.getElementById('theme').addEventListener('click', () => {
      const dark = state.theme ? state.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
      change({theme: dark ? 'light' : 'dark'});
    });
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.show(null));
    addEventListener('hashchange', () => this.restart());
    let resized = 0;
    addEventListener('resize', () => {
      clearTimeout(resized);
      resized = setTimeout(() => this.show(null), 100);
    });
  }

  restart() {
    readAddress();
    this.update(null);
  }

  update(names) {
    if (state.theme)
      document.documentElement.dataset.theme = state.theme;
    else
      delete document.documentElement.dataset.theme;
    this.before(names);
    this.show(names);
  }

  show(names) {
    const [name, , View] = this.views.find(([name]) => name === state.view) || this.views[0];
    const main = document.querySelector('main');
    if (!this.made.has(name)) this.made.set(name, new View(this.run));
    const view = this.made.get(name);
    if (main.firstElementChild !== view.element) main.replaceChildren(view.element);
    for (const tab of document.querySelectorAll('[role=tab]')) {
      const on = tab.dataset.view === name;
      tab.setAttribute('aria-selected', on);
      tab.tabIndex = on ? 0 : -1;
    }
    view.show(names);
  }

  makeTabs() {
    const tabs = document.querySelector('[role=tablist]');
    for (const [name, title] of this.views)
      tabs.append(
          html('button', {type: 'button', role: 'tab', 'data-view': name, onclick: () => change({view: name})}, title));
    tabs.addEventListener('keydown', event => {
      const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
      if (!step) return;
      const all = [...tabs.children],
            next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
      next.focus();
      next.click();
    });
  }
}

async function shareLink() {
  history.replaceState(null, '', address());
  try {
    await navigator.clipboard.writeText(address());
    say('The link is copied: it restores what you see.');
  } catch {
    say('The address above restores what you see.');
  }
}
