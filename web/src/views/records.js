// views/records.js — operators' writes, and the credits that admission holds.
import { card, facts, loaded, reason, stamp, table, link } from '../parts.js';
import { resource } from '../state.js';
import { h } from '../vdom.js';

export const auditView = {
  title: () => 'Audit',
  render: () => [
    h('h1', { tabindex: '-1' }, 'Audit'),
    loaded(resource('audit?limit=200', 5000), (d) =>
      card(
        'Operators’ writes, newest first',
        null,
        table({
          label: 'Audit',
          rows: d.receipts,
          key: (r) => r.id,
          empty: 'Nobody has changed anything yet.',
          columns: [
            { head: 'receipt', cell: (r) => link('receipts', r.id) },
            { head: 'at', cell: (r) => stamp(r.at) },
            { head: 'result', cell: (r) => reason(r.reason) },
            { head: 'tenant', cell: (r) => r.tenant || '–' },
            { head: 'what', wide: true, cell: (r) => r.detail },
          ],
        }),
      ),
    ),
  ],
};

const plain = (v) => (v === null || v === undefined ? '–' : String(v));
const isRows = (v) => Array.isArray(v) && v.every((x) => x && typeof x === 'object');

// Whatever the daemon accounts for: a list is a table, the rest names and values.
function any(name, v) {
  if (isRows(v)) {
    const heads = [...new Set(v.flatMap(Object.keys))];
    return card(
      name,
      null,
      table({
        label: name,
        rows: v.map((row, i) => ({ ...row, row_key: i })),
        key: (r) => r.row_key,
        columns: heads.map((k) => ({
          head: k.replaceAll('_', ' '),
          num: v.every((x) => typeof x[k] === 'number'),
          cell: (r) => (typeof r[k] === 'object' && r[k] !== null ? JSON.stringify(r[k]) : plain(r[k])),
        })),
      }),
    );
  }
  const pairs = Object.entries(v);
  return [
    card(
      name,
      null,
      facts(pairs.filter(([, x]) => typeof x !== 'object' || x === null).map(([k, x]) => [k.replaceAll('_', ' '), plain(x)])),
    ),
    pairs.filter(([, x]) => typeof x === 'object' && x !== null && !(Array.isArray(x) && !isRows(x))).map(([k, x]) => any(k.replaceAll('_', ' '), x)),
  ];
}

export const creditsView = {
  title: () => 'Credits',
  render: () => [
    h('h1', { tabindex: '-1' }, 'Credits'),
    loaded(resource('credits', 2000), (d) => any('Credits', d)),
    loaded(resource('interruptions', 2000), (d) => any('Paused sessions', d.interruptions)),
  ],
};
