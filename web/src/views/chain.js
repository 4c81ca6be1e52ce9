// views/chain.js — what a receipt rests on as a graph one can click through: the receipt, its reasons, and theirs.
import { card } from '../parts.js';
import { resource } from '../state.js';
import { h } from '../vdom.js';

const MOST = 8; // a column's nodes; the table beside it names all
const W = 264;
const H = 44;
const GAP_X = 46;
const GAP_Y = 12;

const isReceipt = (id) => /^\d+$/.test(String(id));
const cut = (text, n) => (text.length > n ? `${text.slice(0, n - 1)}…` : text);

// What several rows say of one receipt (its gates, for instance) is one node.
function once(nodes) {
  const seen = new Map();
  for (const n of nodes) {
    const known = seen.get(n.id);
    if (known) known.more++;
    else seen.set(n.id, { ...n, more: 0 });
  }
  return [...seen.values()].slice(0, MOST);
}

// Columns of nodes {id, kind, title, href, from}: from is the index of the node in the column before.
function columns(r) {
  const first = [{ id: String(r.id), kind: r.kind, title: r.detail || r.reason, href: '', from: -1, more: 0 }];
  const node = (x, from) => ({ id: String(x.id), kind: x.kind, title: x.title ?? '', href: isReceipt(x.id) ? `#/receipts/${x.id}` : '', from });
  const second = once((r.rests_on ?? []).map((x) => node(x, 0)));
  const third = once(second.flatMap((n, i) => (n.href ? (resource(`receipts/${n.id}`).data?.rests_on ?? []).map((x) => node(x, i)) : [])));
  return [first, second, third].filter((c) => c.length);
}

function box(n, x, y) {
  const inside = [
    h('rect', { x, y, width: W, height: H, rx: 8 }),
    h('text', { x: x + 12, y: y + 18, class: 'name' }, cut(isReceipt(n.id) ? `${n.kind} ${n.id}` : `${n.kind} ${n.id.slice(0, 10)}`, 28)),
    h('text', { x: x + 12, y: y + 34, class: 'what' }, cut(n.title || ' ', n.more ? 22 : 34) + (n.more ? ` and ${n.more} more` : '')),
  ];
  const key = `${x}:${n.id}:${n.from}`;
  return n.href ? h('a', { key, href: n.href, class: 'node' }, inside) : h('g', { key, class: 'node plain' }, inside);
}

export function chainGraph(r) {
  if (!r.rests_on?.length) return null;
  const cols = columns(r);
  const rows = Math.max(...cols.map((c) => c.length));
  const height = rows * (H + GAP_Y) - GAP_Y;
  const width = cols.length * (W + GAP_X) - GAP_X;
  const x = (c) => c * (W + GAP_X);
  const y = (i) => i * (H + GAP_Y);
  const lines = cols.slice(1).flatMap((col, k) =>
    col.map((n, i) => {
      const [x1, y1, x2, y2] = [x(k) + W, y(n.from) + H / 2, x(k + 1), y(i) + H / 2];
      return h('path', { key: `l${k}:${i}`, d: `M${x1} ${y1}C${x1 + GAP_X / 2} ${y1} ${x2 - GAP_X / 2} ${y2} ${x2} ${y2}` });
    }),
  );
  return card(
    'The chain of reasons',
    null,
    h('p', { class: 'muted' }, 'Left to right: this receipt, its reasons, and theirs. Each numbered box opens.'),
    h(
      'div',
      { class: 'scroll', role: 'region', tabindex: '0', 'aria-label': 'Graph of what this receipt rests on' },
      h(
        'svg',
        { class: 'chain', viewBox: `-2 -2 ${width + 4} ${height + 4}`, width: width + 4, height: height + 4 },
        h('g', { class: 'edges', 'aria-hidden': 'true' }, lines),
        cols.flatMap((col, c) => col.map((n, i) => box(n, x(c), y(i)))),
      ),
    ),
  );
}
