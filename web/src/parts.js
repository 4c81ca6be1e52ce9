// parts.js — the small pieces every view is made of: verdicts, stages, tables, links, states of loading.
import { reasons } from 'tables:c';
import { h } from './vdom.js';
import { short, time } from './format.js';
import { notify } from './notice.js';

const VERDICTS = {
  PASS: ['✓', 'pass', 'passes'],
  FAIL: ['✗', 'fail', 'fails'],
  INCONCLUSIVE: ['◐', 'warn', 'is inconclusive'],
  NO_DATA: ['○', 'none', 'has no data'],
};
const STAGE_LOOK = { OFF: 'none', SHADOW: 'info', CANARY: 'info', RAMP: 'info', FULL: 'pass', EXACT_BASELINE: 'safe' };

export const STAGES = ['OFF', 'SHADOW', 'CANARY', 'RAMP', 'FULL'];
export const stageText = (s) => (s === 'EXACT_BASELINE' ? 'EXACT BASELINE' : (s ?? '–'));
export const verdictPhrase = (v) => (VERDICTS[v] ?? VERDICTS.NO_DATA)[2];

/** Glyph, word and colour: none of the three alone. */
export function verdict(v) {
  const [glyph, look] = VERDICTS[v] ?? ['?', 'none'];
  return h('span', { class: `pill ${look}` }, h('span', { 'aria-hidden': 'true' }, glyph), ` ${v.replace('_', ' ')}`);
}

export function stagePill(s) {
  return h(
    'span',
    { class: `pill ${STAGE_LOOK[s] ?? 'none'}` },
    s === 'EXACT_BASELINE' ? h('span', { 'aria-hidden': 'true' }, '↩ ') : null,
    stageText(s),
  );
}

export const chip = (text, look = 'none', title) => h('span', { class: `pill ${look}`, title }, text);
export const contractChip = (c) =>
  c ? chip(c, c === 'exact' ? 'pass' : 'warn', c === 'exact' ? 'bit-identical to the baseline' : 'rows may be omitted or estimated') : '–';

const meanings = new Map(reasons.map((r) => [r.code, r.meaning]));
export const meaning = (code) => meanings.get(code) ?? '';

export function reason(code) {
  if (!code) return '–';
  return h('a', { class: code === 'OK' ? 'quiet' : 'code', href: `#/help/reasons/${code}`, title: meaning(code) }, code);
}

export const stamp = (t) => h('time', { datetime: t ?? '', class: 'nowrap' }, time(t));

export function digest(d) {
  if (!d) return '–';
  return h(
    'button',
    {
      class: 'digest',
      title: `${d} — click to copy`,
      'aria-label': `copy digest ${short(d)}`,
      onclick: () =>
        navigator.clipboard?.writeText(d).then(
          () => notify('good', 'Copied', d),
          () => notify('bad', 'Not copied', d),
        ),
    },
    short(d),
  );
}

export function link(kind, id, text) {
  return id === null || id === undefined || id === '' ? '–' : h('a', { href: `#/${kind}/${encodeURIComponent(id)}` }, text ?? String(id));
}

const boxed = (x) => (Array.isArray(x) ? h('div', {}, x) : x); // a card's cell is a grid: one name, one value

/** columns: [{head, cell(row), num, wide}]. On a phone each row becomes a card, its cells named by their heads. */
export function table({ label, columns, rows, key, empty = 'Nothing here.', stack = true, current }) {
  if (rows.length === 0) return h('p', { class: 'empty' }, empty);
  return h(
    'div',
    { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': label },
    h(
      'table',
      { class: stack ? 'stack' : '' },
      h(
        'thead',
        {},
        h(
          'tr',
          {},
          columns.map((c) => h('th', { scope: 'col', class: c.num ? 'num' : '' }, c.head)),
        ),
      ),
      h(
        'tbody',
        {},
        rows.map((r) =>
          h(
            'tr',
            { key: key?.(r), class: current?.(r) ? 'current' : '' },
            columns.map((c) => h('td', { class: `${c.num ? 'num ' : ''}${c.wide ? 'wide' : ''}`, 'data-label': c.head }, boxed(c.cell(r)))),
          ),
        ),
      ),
    ),
  );
}

/** Names and values of one thing. */
export const facts = (pairs) =>
  h(
    'dl',
    { class: 'facts' },
    pairs.filter(Boolean).map(([k, v]) => h('div', {}, h('dt', {}, k), h('dd', {}, v ?? '–'))),
  );

/** What `r` (see resource()) holds, or why it does not. */
export function loaded(r, show) {
  if (r.data) return show(r.data);
  if (r.error) {
    return h(
      'div',
      { class: 'banner fail', role: 'alert' },
      h('strong', {}, r.error.code),
      ` ${r.error.message}`,
      r.error.hint ? ` — ${r.error.hint}` : '',
    );
  }
  return h('p', { class: 'empty', 'aria-busy': 'true' }, 'Loading…');
}

export const card = (title, tools, ...kids) =>
  h('section', { class: 'card' }, h('header', {}, h('h2', {}, title), tools ? h('div', { class: 'tools' }, tools) : null), kids);
