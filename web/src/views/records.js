// views/records.js — operators' writes, and the credits that admission holds.
import { bytes, duration, number } from '../format.js';
import { card, chip, facts, loaded, reason, stamp, table, link } from '../parts.js';
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

// ---------------------------------------------------------------- credits
const held = (unit, x) => (unit === 'bytes' ? bytes(x) : number(x));

const rate = (x, show, unit) => (x ? `${show(x)}${unit}` : 'not measured yet');
const count = (n, noun) => `${number(n)} ${noun}${n === 1 ? '' : 's'}`;

const creditsTable = (d) =>
  card(
    'What transfers may use at once',
    null,
    table({
      label: 'Credits',
      rows: d.credits,
      key: (c) => c.name,
      columns: [
        { head: 'credit', cell: (c) => c.name },
        { head: 'used', num: true, cell: (c) => held(c.unit, c.used) },
        { head: 'of', num: true, cell: (c) => held(c.unit, c.total) },
        { head: 'free', num: true, cell: (c) => held(c.unit, c.free) },
        { head: 'peak', num: true, cell: (c) => held(c.unit, c.peak) },
      ],
    }),
    facts([
      ['taken', number(d.reserved)],
      ['given back', number(d.released)],
      ['refused', number(d.refused)],
      ['given back twice', d.stale ? chip(number(d.stale), 'fail') : '0'],
      ['bytes not charged twice', bytes(d.coalesced_bytes)],
    ]),
    facts([
      ['prefill', rate(d.rates.prefill_tokens_per_s, number, ' tokens/s')],
      ['decode', rate(d.rates.decode_tokens_per_s, number, ' tokens/s')],
      ['to the device', rate(d.rates.h2d_bytes_per_s, bytes, '/s')],
      ['promised of it', `${bytes(d.demand.h2d_bytes_per_s)}/s`],
      ['from the device', rate(d.rates.d2h_bytes_per_s, bytes, '/s')],
      ['disk read', rate(d.rates.disk_read_bytes_per_s, bytes, '/s')],
      ['disk write', rate(d.rates.disk_write_bytes_per_s, bytes, '/s')],
      ['paused rows may move', rate(d.rates.swap_bytes_per_iteration, bytes, ' an iteration')],
      ['waiting', `${count(d.demand.waiting_requests, 'request')}, ${count(d.demand.waiting_prompt_tokens, 'prompt token')}`],
      ['live', `${count(d.demand.live_requests, 'request')}, ${count(d.demand.live_tokens_left, 'token')} to come`],
    ]),
  );

const request = (r) => h('a', { href: `#/receipts?request=${encodeURIComponent(r.request)}` }, r.request);
const holdersTable = (d) =>
  card(
    'Who holds what, and who waits',
    null,
    table({
      label: 'Holders',
      rows: d.holders,
      key: (r) => r.request,
      empty: 'Nobody holds anything.',
      columns: [
        { head: 'request', cell: request },
        { head: 'for', cell: (r) => r.what },
        { head: 'since', num: true, cell: (r) => duration(r.seconds) },
        { head: 'bytes', num: true, cell: (r) => bytes(r.backend_bytes) },
        { head: 'staging', num: true, cell: (r) => bytes(r.staging_bytes) },
        { head: 'slots', num: true, cell: (r) => number(r.queue_slots) },
        { head: 'sharers', num: true, cell: (r) => number(r.sharers) },
      ],
    }),
    table({
      label: 'Waiters',
      rows: d.waiters,
      key: (r) => r.request,
      empty: 'Nobody waits.',
      columns: [
        { head: 'request', cell: request },
        { head: 'for', cell: (r) => r.what },
        { head: 'since', num: true, cell: (r) => duration(r.seconds) },
        { head: 'lacks', cell: (r) => chip(r.lacks, 'warn') },
      ],
    }),
  );

const waste = (x) => `${number(x)} byte·ms`;
const pausedTable = (d) =>
  card(
    count(d.total, 'paused session'),
    null,
    table({
      label: 'Paused sessions',
      rows: d.interruptions,
      key: (p) => `${p.tenant}/${p.session}/${p.pause_epoch}`,
      empty: 'No session waits for somebody outside.',
      columns: [
        { head: 'session', cell: (p) => h('a', { href: `#/receipts?session=${encodeURIComponent(p.session)}` }, p.session) },
        { head: 'tenant', cell: (p) => p.tenant || '–' },
        { head: 'paused', num: true, cell: (p) => duration(p.seconds) },
        { head: 'state', cell: (p) => chip(p.state) },
        { head: 'action', cell: (p) => chip(p.action, 'info', p.asked === 'auto' ? 'decided by waste' : 'asked for') },
        { head: 'held', num: true, cell: (p) => bytes(p.held_bytes) },
        { head: 'moved out', num: true, cell: (p) => bytes(p.swapped_bytes) },
        { head: 'waste: preserve', num: true, cell: (p) => waste(p.waste_byte_ms.preserve) },
        { head: 'swap', num: true, cell: (p) => waste(p.waste_byte_ms.swap) },
        { head: 'discard', num: true, cell: (p) => waste(p.waste_byte_ms.discard) },
        { head: 'call', cell: (p) => p.call_id || '–' },
        { head: 'result', cell: (p) => (p.call_id ? chip(p.result_state, p.result_state === 'APPLIED' ? 'pass' : 'none') : '–') },
      ],
    }),
  );

export const creditsView = {
  title: () => 'Credits',
  render: () => [
    h('h1', { tabindex: '-1' }, 'Credits'),
    loaded(resource('credits', 2000), (d) => [creditsTable(d), holdersTable(d)]),
    loaded(resource('interruptions', 2000), pausedTable),
  ],
};
