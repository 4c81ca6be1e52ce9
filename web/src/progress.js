// progress.js — what takes a while: bars above every view for what has taken over a second, and the load while there is nothing else to see.
import { get } from './api.js';
import { duration, number } from './format.js';
import { changed, state } from './state.js';
import { h } from './vdom.js';

const MOST = 4;
const WORDS = {
  load: 'Loading',
  prefill: 'Prefill',
  restore: 'Restore',
  recompute: 'Exact recompute',
  replay: 'Replay',
  backup: 'Backup',
};

/** Asks how far the start is; for when the event stream answers 503. */
export function askStart() {
  get('progress').then(
    (d) => {
      state.starting = d.tasks;
      changed();
    },
    () => {},
  );
}

function bar(t) {
  const share = t.total ? Math.min(1, t.done / t.total) : null;
  const shown = share === null ? number(t.done) : `${Math.floor(share * 100)}\u00a0%`;
  const name = `${WORDS[t.kind] ?? t.kind} ${t.what}`;
  const count = t.unit === 'permille' ? '' : `, ${number(t.done)}${t.total ? ` of ${number(t.total)}` : ''} ${t.unit}`;
  return h(
    'div',
    { class: 'task', key: t.id },
    h('span', {}, name),
    h(
      'div',
      { class: 'bar', role: 'progressbar', 'aria-label': name, 'aria-valuemin': 0, 'aria-valuemax': 100, 'aria-valuenow': share === null ? null : Math.floor(share * 100) },
      h('div', { style: { width: `${(share ?? 0) * 100}%` } }),
    ),
    h('span', { class: 'muted' }, h('strong', {}, shown), `${count}, ${duration(t.seconds)}`),
  );
}

/** Bars of what has taken over a second, the longest first. */
export function progressBars() {
  const slow = (state.starting ?? state.status?.progress ?? []).filter((t) => t.seconds >= 1 || t.kind === 'load').sort((a, b) => b.seconds - a.seconds);
  if (slow.length === 0) return null;
  return h(
    'section',
    { class: 'tasks', key: 'progress', 'aria-label': 'What takes a while' },
    slow.slice(0, MOST).map(bar),
    slow.length > MOST ? h('p', { class: 'muted' }, `and ${slow.length - MOST} more`) : null,
  );
}

/** The whole page while the daemon starts and nothing is known yet. */
export const startView = {
  title: () => 'Starting',
  render: () => [
    h('h1', { tabindex: '-1' }, 'kvasird is starting'),
    h('section', { class: 'card' }, state.starting.length ? state.starting.map(bar) : h('p', { class: 'muted' }, 'It opens its store and its model.')),
    h('p', { class: 'muted' }, 'This page goes on by itself when requests are taken.'),
  ],
};
