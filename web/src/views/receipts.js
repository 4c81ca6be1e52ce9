// views/receipts.js — receipts: filter, follow, drill down to what one rests on, verify the chain.
import { reasons } from 'tables:c';
import { get } from '../api.js';
import { bytes, number, percent } from '../format.js';
import { notify, notifyError } from '../notice.js';
import { card, contractChip, digest, facts, link, loaded, meaning, reason, stamp, table } from '../parts.js';
import { changed, resource, state } from '../state.js';
import { h } from '../vdom.js';
import { go } from '../router.js';
import { chainGraph } from './chain.js';
import { faultsCard } from './faults.js';

const FILTERS = ['kind', 'reason', 'rollout', 'request', 'session', 'tenant', 'trace', 'policy', 'chunk', 'since', 'until'];
const TITLES = { trace: 'trace id or traceparent', policy: 'digest, six digits or more', chunk: 'digest, six digits or more', since: 'UTC, 2026-01-31T10:20:30Z', until: 'UTC, 2026-01-31T10:20:30Z' };
const PAGE_ROWS = 50;
const FRESH_MS = 30000;
const HURRY_MS = 1000;
let verified = null;
let verifying = false;

async function verify() {
  if (verifying) return;
  verifying = true;
  changed();
  try {
    verified = await get('receipts/verify');
    if (verified.verified) notify('good', 'Receipts verify', `${number(verified.rows)} rows, head ${verified.head.slice(0, 12)}`);
    else notify('bad', 'Receipts do not verify', `${verified.reason} at ${verified.at}: ${verified.detail}`);
  } catch (e) {
    notifyError('Verify', e);
  }
  verifying = false;
  changed();
}

// What the filters can complete: reasons from the one list, kinds from what was seen.
function suggestions(rows) {
  const kinds = [...new Set([...state.receipts, ...rows].map((r) => r.kind))].sort();
  return [
    h(
      'datalist',
      { id: 'kinds' },
      kinds.map((k) => h('option', { key: k, value: k })),
    ),
    h(
      'datalist',
      { id: 'reasons' },
      reasons.map((r) => h('option', { key: r.code, value: r.code })),
    ),
  ];
}

// Traces are copied out of headers and other programs' pages, with more around them and in any case.
const cleaned = (name, value) => (name === 'trace' ? (/(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])/i.exec(value)?.[0] ?? value).toLowerCase() : value);

function filterForm(q, rows) {
  const set = (name, value) => {
    const next = new URLSearchParams(q);
    next.delete('before');
    if (value) next.set(name, value);
    else next.delete(name);
    go('receipts', next);
  };
  return h(
    'form',
    { class: 'filters', role: 'search', 'aria-label': 'Filter receipts', onsubmit: (e) => e.preventDefault() },
    FILTERS.map((name, i) =>
      h(
        'label',
        { class: 'field', key: name },
        h('span', {}, name),
        h('input', {
          type: 'search',
          value: q.get(name) ?? '',
          class: i === 0 ? 'first-filter' : '',
          autocomplete: 'off',
          spellcheck: 'false',
          list: `${name}s`,
          title: TITLES[name],
          onchange: (e) => set(name, cleaned(name, e.target.value.trim())),
        }),
      ),
    ),
    h('button', { type: 'button', onclick: () => go('receipts', new URLSearchParams()) }, 'Clear'),
    suggestions(rows),
  );
}

const passes = (row, f, wanted) =>
  f === 'policy' || f === 'chunk'
    ? String(row.digest).startsWith(wanted)
    : f === 'since' || f === 'until' || String(row[f]) === wanted; // the server has read these; what is newer than its answer is since, and until ends it
const matches = (row, q) => FILTERS.every((f) => !q.get(f) || passes(row, f, q.get(f)));

const columns = [
  { head: 'receipt', cell: (r) => link('receipts', r.id) },
  { head: 'at', cell: (r) => stamp(r.at) },
  { head: 'kind', cell: (r) => r.kind },
  { head: 'reason', cell: (r) => reason(r.reason) },
  { head: 'request', cell: (r) => (r.request ? h('a', { href: `#/receipts?request=${encodeURIComponent(r.request)}` }, r.request) : '–') },
  { head: 'contract', cell: (r) => contractChip(r.published || r.contract) },
  { head: 'tokens', num: true, cell: (r) => number(r.tokens) },
  { head: 'bytes', num: true, cell: (r) => bytes(r.bytes) },
  { head: 'detail', wide: true, cell: (r) => h('span', { class: 'muted' }, r.detail) },
];

function listView(q) {
  const ask = new URLSearchParams([...q].filter(([k]) => FILTERS.includes(k) || k === 'before'));
  ask.set('limit', PAGE_ROWS);
  const follows = !q.has('before') && !q.get('until');
  const page = resource(`receipts?${ask}`, follows ? FRESH_MS : Infinity);
  const top = page.data?.receipts[0]?.id ?? Infinity;
  const fresh = follows ? state.receipts.filter((r) => r.id > top && matches(r, q)) : [];
  if (fresh.length > PAGE_ROWS) resource(`receipts?${ask}`, HURRY_MS); // before the tail that is kept here has a gap
  return [
    h('h1', { tabindex: '-1' }, 'Receipts'),
    card(
      'Find',
      [
        h('a', { class: 'button', href: '#/audit' }, 'Operators’ writes'),
        h('button', { onclick: verify, 'aria-busy': verifying ? 'true' : null }, verifying ? 'Verifying…' : 'Verify the chain'),
      ],
      filterForm(q, page.data?.receipts ?? []),
      verified
        ? h(
            'p',
            { class: `health ${verified.verified ? 'pass' : 'fail'}` },
            h('span', { class: 'glyph', 'aria-hidden': 'true' }, verified.verified ? '✓' : '✗'),
            h('strong', {}, verified.verified ? 'The chain verifies' : 'The chain does not verify'),
            h(
              'span',
              {},
              verified.verified
                ? [`${number(verified.rows)} rows, head `, digest(verified.head)]
                : `${verified.reason} at receipt ${verified.at}: ${verified.detail}`,
            ),
          )
        : null,
    ),
    card(
      q.has('before') ? `Before ${q.get('before')}` : 'Newest first',
      null,
      loaded(page, (d) => {
        const rows = [...fresh, ...d.receipts].slice(0, 2 * PAGE_ROWS);
        return [
          table({ label: 'Receipts', rows, key: (r) => r.id, columns, empty: 'No receipt matches.' }),
          d.receipts.length === PAGE_ROWS
            ? h('p', { class: 'row end' }, h('a', { class: 'button', href: `#/receipts?${withBefore(q, rows.at(-1).id)}` }, 'Older'))
            : null,
        ];
      }),
    ),
  ];
}

function withBefore(q, id) {
  const next = new URLSearchParams(q);
  next.set('before', id);
  return next;
}

// Whatever has a receipt is named by its number; a manifest by its digest.
const restsOn = (x) => (/^\d+$/.test(x.id) ? link('receipts', x.id) : digest(String(x.id)));

// What was selected for each head before the fault; the whole recording is at /flight.
const flight = (r) =>
  r.flight
    ? card(
        'Flight recorder: the last heads before it',
        h('code', {}, `kvasir flight ${r.id}`),
        table({
          label: 'Flight recorder',
          rows: r.flight,
          key: (f) => f.order,
          columns: [
            { head: 'position', cell: (f) => number(f.position) },
            { head: 'layer', cell: (f) => number(f.layer) },
            { head: 'head', cell: (f) => (f.kv_head === null ? 'all' : number(f.kv_head)) },
            { head: 'rows', cell: (f) => `${number(f.rows)} of ${number(f.frontier)}` },
            { head: 'index', cell: (f) => (f.covered ? `${number(f.covered)} rows, generation ${number(f.index)}` : 'none') },
            { head: 'omitted mass', cell: (f) => (f.omitted_mass === null ? '–' : percent(f.omitted_mass)) },
            { head: 'status', cell: (f) => (f.status === 'OK' ? 'OK' : reason(f.status)) },
            { head: 'action', wide: true, cell: (f) => `${f.action ?? ''}${f.widened ? ', widened' : ''}` },
          ],
        }),
      )
    : null;

function one(id) {
  return [
    h('h1', { tabindex: '-1' }, `Receipt ${id}`),
    loaded(resource(`receipts/${encodeURIComponent(id)}`), (r) => [
      chainGraph(r),
      h(
        'div',
        { class: 'columns even' },
        h(
          'div',
          {},
          card(
            'What it says',
            null,
            facts([
              ['at', stamp(r.at)],
              ['kind', r.kind],
              ['reason', [reason(r.reason), ' ', h('span', { class: 'muted' }, meaning(r.reason))]],
              ['detail', r.detail],
              ['contract asked', contractChip(r.contract)],
              ['contract published', contractChip(r.published)],
              ['request', r.request ? h('a', { href: `#/receipts?request=${encodeURIComponent(r.request)}` }, r.request) : null],
              ['rollout', link('rollouts', r.rollout)],
              ['epoch', number(r.epoch)],
              ['tenant', r.tenant || null],
              ['trace', r.trace ? h('a', { href: `#/receipts?trace=${r.trace}` }, r.trace) : null],
              ['session', r.session ? h('a', { href: `#/receipts?session=${encodeURIComponent(r.session)}` }, r.session) : null],
              ['tokens', number(r.tokens)],
              ['rows', r.rows_total ? `${number(r.rows)} of ${number(r.rows_total)}` : number(r.rows)],
              ['bytes', bytes(r.bytes)],
              ['value', number(r.value)],
              ...['layer', 'kv_head', 'q_head', 'position']
                .filter((k) => r[k] !== undefined)
                .map((k) => [k.replace('_', ' '), number(r[k])]),
              ['content digest', digest(r.digest)],
              ['chain hash', digest(r.hash)],
            ]),
          ),
        ),
        h(
          'div',
          {},
          card(
            'What it rests on',
            null,
            table({
              label: 'What this receipt rests on',
              rows: r.rests_on ?? [],
              key: (x) => x.kind + x.id + x.title,
              empty: 'Nothing: it is a root.',
              columns: [
                { head: 'kind', cell: (x) => x.kind },
                { head: 'id', cell: restsOn },
                { head: 'what', wide: true, cell: (x) => x.title },
              ],
            }),
            h(
              'p',
              { class: 'row' },
              h('button', { onclick: verify, 'aria-busy': verifying ? 'true' : null }, verifying ? 'Verifying…' : 'Verify the chain'),
              h('a', { class: 'button', href: '#/receipts' }, 'All receipts'),
            ),
          ),
        ),
      ),
      flight(r),
    ]),
  ];
}

export const receiptsView = { title: ([, id]) => (id ? `Receipt ${id}` : 'Receipts'), render: ([, id], q) => (id ? one(id) : listView(q)) };

export const failuresView = {
  title: () => 'Failures',
  render(_path, q) {
    const r = resource('failures?limit=200', 15000);
    const wanted = (f) => ['rollout', 'reason', 'class'].every((k) => !q.get(k) || String(f[k]) === q.get(k));
    return [
      h('h1', { tabindex: '-1' }, 'Failures'),
      loaded(r, (d) => {
        const seen = new Set(d.failures.map((f) => f.id));
        const rows = [...state.failures.filter((f) => !seen.has(f.id)), ...d.failures];
        const count = new Map();
        for (const f of rows) count.set(f.reason, (count.get(f.reason) ?? 0) + 1);
        return [
          h(
            'nav',
            { class: 'row chips', 'aria-label': 'By reason' },
            h('a', { class: 'button', href: '#/failures', 'aria-current': q.size ? null : 'true' }, `all ${rows.length}`),
            [...count]
              .sort((a, b) => b[1] - a[1])
              .map(([code, n]) =>
                h(
                  'a',
                  {
                    key: code,
                    class: 'button',
                    title: meaning(code),
                    href: `#/failures?reason=${code}`,
                    'aria-current': q.get('reason') === code ? 'true' : null,
                  },
                  `${code} ${n}`,
                ),
              ),
          ),
          card(
            q.size ? [...q].map(([k, v]) => `${k} ${v}`).join(', ') : 'Newest first',
            q.size ? h('a', { class: 'button', href: '#/failures' }, 'Show all') : null,
            table({
              label: 'Failures',
              rows: rows.filter(wanted),
              key: (f) => f.id,
              empty: 'No failure. That is the good case.',
              columns: [
                { head: 'at', cell: (f) => stamp(f.at) },
                { head: 'reason', cell: (f) => reason(f.reason) },
                { head: 'class', cell: (f) => f.class },
                {
                  head: 'what happened',
                  wide: true,
                  cell: (f) => [
                    h('span', {}, f.meaning || meaning(f.reason)),
                    f.detail ? h('small', { class: 'muted block' }, f.detail) : null,
                  ],
                },
                {
                  head: 'request',
                  cell: (f) => (f.request ? h('a', { href: `#/receipts?request=${encodeURIComponent(f.request)}` }, f.request) : '–'),
                },
                { head: 'rollout', cell: (f) => link('rollouts', f.rollout) },
                { head: 'receipt', cell: (f) => (f.receipt ? link('receipts', f.receipt, `receipt ${f.receipt}`) : '–') },
              ],
            }),
          ),
        ];
      }),
      faultsCard(), // below: what happened comes first
    ];
  },
};
