// views/sessions.js — sessions: which arm each is on, what is kept of its history, and what an operator may do with that.
import { post } from '../api.js';
import { confirm } from '../dialog.js';
import { bytes, number, us } from '../format.js';
import { notify, notifyError } from '../notice.js';
import { card, chip, loaded, stamp, table } from '../parts.js';
import { go } from '../router.js';
import { changed, invalidate, mustBeFresh, resource, state } from '../state.js';
import { h } from '../vdom.js';

const DONE = {
  pin: 'its history stays until it is unpinned',
  unpin: 'its history may go when room is needed',
  drop: 'its next turn computes its history anew',
};
const title = (s) => s[0].toUpperCase() + s.slice(1);
const busyKey = (s, verb) => `session/${s.tenant}/${s.session}/${verb}`;

async function send(s, verb) {
  const id = busyKey(s, verb);
  mustBeFresh();
  state.busy.add(id);
  changed();
  try {
    const now = await post(`sessions/${encodeURIComponent(s.session)}/${verb}?tenant=${encodeURIComponent(s.tenant ?? '')}`, {});
    notify('good', `${title(verb)}: ${s.session}`, now.dropped_bytes ? `${bytes(now.dropped_bytes)} dropped; ${DONE.drop}` : DONE[verb]);
  } finally {
    state.busy.delete(id);
    invalidate('sessions');
  }
}

/** '' when it may be done now, else the reason why not. */
function whyNot(s, verb) {
  if (state.stream.stale) return 'what you see is stale; nothing is changed from a stale page';
  if (state.busy.has(busyKey(s, verb))) return 'the last click is still being answered';
  if (verb === 'drop' && s.pinned) return 'it is pinned; unpin it first';
  return '';
}

async function act(s, verb) {
  const why = whyNot(s, verb);
  if (why) {
    notify('info', `${title(verb)} is not possible`, why);
    return;
  }
  if (verb !== 'drop') {
    try {
      await send(s, verb);
    } catch (e) {
      notifyError(title(verb), e);
    }
    return;
  }
  confirm({
    title: `Drop what is kept of ${s.session}?`,
    action: 'Drop',
    look: 'danger',
    focusCancel: true,
    body: () => h('p', {}, `${bytes(s.saved_bytes)} of its history leave the disk. ${title(DONE.drop)}; the answers stay the same.`),
    run: () => send(s, 'drop'),
  });
}

function button(s, verb) {
  const why = whyNot(s, verb);
  return h(
    'button',
    { key: verb, class: 'small', 'aria-disabled': why ? 'true' : null, title: why || DONE[verb], 'aria-label': `${title(verb)} ${s.session}`, onclick: () => act(s, verb) },
    title(verb),
  );
}

const history = [
  {
    head: 'history',
    cell: (s) => (s.state ? chip(s.state.replaceAll('_', ' '), s.reason && s.reason !== 'OK' ? 'fail' : 'none', s.reason === 'OK' ? '' : s.reason) : '–'),
  },
  { head: 'kept', num: true, cell: (s) => (s.saved_bytes ? bytes(s.saved_bytes) : '–') },
  { head: 'restores', num: true, cell: (s) => (s.state ? number(s.restores) : '–') },
  { head: 'restored in', num: true, cell: (s) => (s.restores ? `${number(s.restored_tokens)} tokens, ${us(s.restore_ms * 1000)}` : '–') },
  { head: 'pinned', cell: (s) => (s.pinned ? chip('pinned', 'info') : '') },
  { head: 'keep it?', cell: (s) => (s.state ? h('span', { class: 'row' }, button(s, s.pinned ? 'unpin' : 'pin'), button(s, 'drop')) : '') },
];

export const sessionsView = {
  title: () => 'Sessions',
  render(_path, q) {
    const find = q.get('find') ?? '';
    return [
      h('h1', { tabindex: '-1' }, 'Sessions'),
      loaded(resource('sessions', 5000), (d) => {
        const rows = d.sessions.filter((s) => !find || [s.session, s.tenant, s.arm].some((x) => String(x).includes(find)));
        const kept = d.sessions.some((s) => s.state);
        return card(
          `${number(d.sessions.length)} session${d.sessions.length === 1 ? '' : 's'}`,
          null,
          h(
            'label',
            { class: 'field' },
            h('span', {}, 'Session, tenant or arm contains'),
            h('input', {
              type: 'search',
              class: 'first-filter',
              value: find,
              oninput: (e) => go('sessions', new URLSearchParams(e.target.value ? { find: e.target.value } : {}), true),
            }),
          ),
          kept || rows.length === 0 ? null : h('p', { class: 'muted' }, 'No history is kept between turns: kvasird runs without a disk tier (tiers.disk.path).'),
          table({
            label: 'Sessions',
            rows,
            key: (s) => `${s.tenant}/${s.session}`,
            empty: find ? 'No session matches.' : 'No session yet. A request that names one (kvasir.session) shows here with the arm it sticks to.',
            columns: [
              { head: 'session', cell: (s) => h('a', { href: `#/receipts?session=${encodeURIComponent(s.session)}` }, s.session) },
              { head: 'tenant', cell: (s) => s.tenant || '–' },
              { head: 'arm', cell: (s) => (s.arm ? chip(s.arm, s.arm === 'candidate' ? 'info' : 'none') : '–') },
              { head: 'requests', num: true, cell: (s) => number(s.requests) },
              { head: 'tokens', num: true, cell: (s) => number(s.tokens) },
              { head: 'last at', cell: (s) => stamp(s.last_at) },
              ...(kept ? history : []),
            ],
          }),
        );
      }),
    ];
  },
};
