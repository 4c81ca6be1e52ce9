// actions.js — the operator's verbs on a rollout: whether they may be used now, what they say before they act, what they report after.
import { verbs } from 'tables:c';
import { post } from './api.js';
import { confirm } from './dialog.js';
import { number, percent, us } from './format.js';
import { notify, notifyError } from './notice.js';
import { stagePill, stageText } from './parts.js';
import { changed, invalidate, mustBeFresh, resource, state, takeRollout } from './state.js';
import { h } from './vdom.js';

const SESSIONS_MS = 2000;
const CHANGING = ['advance', 'pause', 'resume', 'ramp', 'skip', 'abort', 'retry'];
export const rolloutVerbs = verbs.filter((v) => v.group === 'rollout');
const table = new Map(rolloutVerbs.map((v) => [v.verb, v]));
export const changingVerbs = CHANGING.map((name) => table.get(name)).filter(Boolean);
const title = (s) => s[0].toUpperCase() + s.slice(1);

/** '' when `verb` may be used on `r` now, else the reason why not. */
export function whyNot(r, verb) {
  if (!r) return 'there is no rollout';
  if (state.stream.stale) return 'what you see is stale; nothing is changed from a stale page';
  if (state.busy.has(`${r.id}/${verb}`)) return 'the last click is still being answered';
  if (verb === 'rollback' && !r.live) return 'already at the exact baseline';
  const v = r.verbs?.find((x) => x.verb === verb);
  if (!v) return 'not offered at this stage';
  return v.enabled ? '' : v.why || 'not possible at this stage';
}

async function send(r, verb, body) {
  mustBeFresh();
  const id = `${r.id}/${verb}`;
  state.busy.add(id);
  changed();
  try {
    // A rollback is not based on a version: it beats whatever is pending.
    const reply = await post(`rollouts/${encodeURIComponent(r.id)}/${verb}`, body, verb === 'rollback' ? undefined : r.version);
    const after = reply.rollout ?? reply;
    if (after?.id) takeRollout(after);
    return reply;
  } catch (e) {
    if (e.code === 'VERSION_CONFLICT') e.hint = 'it changed while you looked; the page now shows the newest state';
    throw e;
  } finally {
    state.busy.delete(id);
    invalidate('rollouts');
    invalidate('receipts');
    invalidate('failures');
  }
}

const where = (r) => (r.stage === 'CANARY' || r.stage === 'RAMP' ? `${stageText(r.stage)} ${percent(r.fraction)}` : stageText(r.stage));
const report = (r, verb, after) => notify('good', `${title(verb)}: ${r.name}`, `now ${where(after)}${after.paused ? ', paused' : ''}`);

function nextStep(r) {
  const i = r.stage === 'OFF' ? 0 : (r.step ?? -1) + 1;
  return r.steps?.[i] ?? null;
}

// From → to, and what of the traffic moves.
function move(r, to, fraction) {
  return h(
    'p',
    { class: 'move' },
    stagePill(r.stage),
    ` ${percent(r.fraction)} `,
    h('span', { class: 'arrow', 'aria-label': 'to' }, '→'),
    ' ',
    stagePill(to),
    ` ${percent(fraction)}`,
  );
}

const QUESTIONS = {
  advance: (r) => {
    const n = nextStep(r);
    return [n ? move(r, n.stage, n.fraction) : null, h('p', {}, 'The daemon advances only if every gate passes at that moment.')];
  },
  skip: () => h('p', {}, 'Ends the waiting time of this step. Gates must still pass and no stage is skipped.'),
  retry: (r) => h('p', {}, 'A new candidate with the manifest of ', h('strong', {}, r.name), ' starts at OFF.'),
  abort: (r) => [
    move(r, 'EXACT_BASELINE', 0),
    h('p', {}, 'All traffic returns to the exact baseline and this rollout is closed for good.'),
  ],
};

function ramp(r) {
  let percentText = String(Math.round((r.fraction || 0) * 100));
  confirm({
    title: `Ramp ${r.name}`,
    action: 'Set fraction',
    body: () => [
      h(
        'label',
        { class: 'field' },
        h('span', {}, 'Share of sessions on the candidate, in percent'),
        h('input', {
          type: 'number',
          min: 1,
          max: 100,
          step: 1,
          value: percentText,
          autofocus: true,
          oninput: (e) => {
            percentText = e.target.value;
          },
        }),
      ),
      h('p', { class: 'muted' }, `Now ${percent(r.fraction)}. Sessions keep the arm they have.`),
    ],
    run: async () => {
      const fraction = Number(percentText) / 100;
      if (!(fraction > 0 && fraction <= 1)) throw { code: 'BAD_ARGUMENT', message: 'the share lies between 1 and 100 percent' };
      report(r, 'ramp', await send(r, 'ramp', { fraction }));
    },
  });
}

/** Acts, or asks first, as the verb's danger demands. */
export async function act(r, verb) {
  const why = whyNot(r, verb);
  const shown = title(verb);
  if (why) {
    notify('info', `${shown} is not possible`, why);
    return;
  }
  if (verb === 'rollback') {
    rollback(r);
    return;
  }
  if (verb === 'ramp') {
    ramp(r);
    return;
  }
  const v = table.get(verb);
  if (v.danger === 'SAFE') {
    try {
      report(r, verb, await send(r, verb, {}));
    } catch (e) {
      notifyError(shown, e);
    }
    return;
  }
  let reasonText = '';
  const danger = v.danger === 'DANGER';
  confirm({
    title: `${shown} ${r.name}?`,
    action: shown,
    look: danger ? 'danger' : '',
    focusCancel: danger,
    body: () => [
      QUESTIONS[verb]?.(r) ?? h('p', {}, v.help),
      reasonField((t) => {
        reasonText = t;
      }),
    ],
    run: async () => {
      const now = await send(r, verb, { reason: reasonText });
      report(now, verb, now);
      if (now.id !== r.id) location.hash = `#/rollouts/${now.id}`; // a retry is a rollout of its own
    },
  });
}

const reasonField = (set) =>
  h(
    'label',
    { class: 'field' },
    h('span', {}, 'Reason (kept in the receipt)'),
    h('input', { type: 'text', maxlength: 200, placeholder: 'optional', oninput: (e) => set(e.target.value) }),
  );

function fact(done, name, text) {
  return h(
    'li',
    { class: done ? 'pass' : 'warn' },
    h('span', { class: 'glyph', 'aria-hidden': 'true' }, done ? '✓' : '…'),
    h('strong', {}, name),
    h('span', {}, text),
  );
}

function outcome(a) {
  // Recomputes go on after the answer; the stream says when the last one is done.
  const left = state.status?.live?.recomputing ?? a.recomputing;
  const resumed = a.resumed || (state.status?.release?.epoch >= a.epoch && left === 0);
  return [
    h('p', {}, 'All traffic went to the exact baseline, epoch ', h('strong', {}, a.epoch), '.'),
    h(
      'ul',
      { class: 'steps' },
      fact(
        a.fenced,
        a.fenced ? 'Fenced' : 'Not fenced',
        a.fenced ? `no candidate token has left since ${us(a.fence_us)} after the request arrived` : 'the daemon did not confirm the fence',
      ),
      fact(
        a.durable,
        a.durable ? 'Durable' : 'Not yet durable',
        a.durable ? `the intent was on disk after ${us(a.durable_us)}` : 'the intent record is not on disk yet',
      ),
      fact(
        resumed,
        resumed ? 'Resumed' : 'Resuming',
        resumed
          ? `${number(a.recomputing)} sequences recomputed exactly`
          : `${number(left)} of ${number(a.recomputing)} sequences still recompute`,
      ),
      fact(true, 'Unsent', `${number(a.unsent_tokens)} tokens published before the fence were still on their way to slow clients`),
    ),
  ];
}

function rollback(r) {
  let reasonText = '';
  const plural = (n, noun) => [h('strong', {}, number(n)), ` ${noun}${n === 1 ? '' : 's'}`];
  const touched = () => {
    const on = resource('sessions', SESSIONS_MS).data?.sessions.filter((s) => s.arm === 'candidate').length;
    return [
      h('strong', {}, percent(r.fraction)),
      ' of sessions',
      on === undefined ? '' : [' (', plural(on, 'session'), ' seen lately)'],
      ' leave the candidate before their next token. ',
      plural(state.status?.live?.active ?? 0, 'active sequence'),
      r.contract === 'exact'
        ? ': their rows are exact already, nothing is recomputed.'
        : ' may be touched: each that read approximate rows is recomputed exactly and goes on.',
    ];
  };
  confirm({
    title: `Roll back ${r.name}?`,
    doneTitle: `Rolled back ${r.name}`,
    action: 'Roll back',
    look: 'danger',
    body: () => [
      move(r, 'EXACT_BASELINE', 0),
      h('p', {}, touched()),
      reasonField((t) => {
        reasonText = t;
      }),
    ],
    run: async () => {
      const reply = await send(r, 'rollback', { reason: reasonText });
      const a = reply.rollback;
      notify(
        a.fenced && a.durable ? 'good' : 'bad',
        `Rolled back ${r.name}`,
        `fenced in ${us(a.fence_us)}, durable in ${us(a.durable_us)}, ${a.recomputing} recomputing, ${a.unsent_tokens} unsent`,
      );
      return () => outcome(a);
    },
  });
}

/** Freezes all releases, or lets them go on. */
export function freeze(frozen) {
  if (state.stream.stale) {
    notify('info', 'Not now', 'what you see is stale; nothing is changed from a stale page');
    return;
  }
  confirm({
    title: frozen ? 'Freeze all releases?' : 'Let releases go on?',
    action: frozen ? 'Freeze' : 'Unfreeze',
    body: () =>
      h(
        'p',
        {},
        frozen
          ? 'No rollout advances, by policy or by hand, until it is undone. Rollback stays possible.'
          : 'Policies and operators may advance rollouts again, if their gates pass.',
      ),
    run: async () => {
      mustBeFresh();
      await post('freeze', { frozen });
      notify('good', frozen ? 'Frozen' : 'Unfrozen', frozen ? 'only rollback is possible' : 'releases go on');
    },
  });
}

/** A button for one verb; when it may not be used, it says why and stays reachable by keyboard. */
export function verbButton(r, verb, look = '') {
  const why = whyNot(r, verb);
  const busy = r && state.busy.has(`${r.id}/${verb}`);
  const v = table.get(verb);
  const key = v?.key ? ` (${v.key})` : '';
  return h(
    'button',
    {
      key: verb,
      class: look,
      'aria-disabled': why ? 'true' : null,
      'aria-busy': busy ? 'true' : null,
      title: why || `${v?.help ?? ''}${key}`,
      'aria-description': why || v?.help,
      onclick: () => act(r, verb),
    },
    verb === 'rollback' ? 'Roll back' : title(verb),
  );
}
