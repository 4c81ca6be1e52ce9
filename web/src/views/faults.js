// views/faults.js — the failure lab: what is armed, what each fault is to lead to, runs and their checks.
import { post, remove } from '../api.js';
import { confirm } from '../dialog.js';
import { number } from '../format.js';
import { notify, notifyError } from '../notice.js';
import { card, loaded, reason, stamp, table } from '../parts.js';
import { changed, invalidate, mustBeFresh, resource, state } from '../state.js';
import { h } from '../vdom.js';

const FRESH_MS = 5000;
const RUN_MS = 120000;
const SERVING = ['CANARY', 'RAMP', 'FULL'];
const scopeText = (s) => ['rollout', 'tenant', 'session'].filter((k) => s?.[k]).map((k) => `${k} ${s[k]}`).join(', ');

/** On every page while something is armed. */
export function faultBanner(status) {
  const armed = status?.faults?.armed ?? [];
  if (!armed.length) return null;
  return h(
    'div',
    { class: 'banner warn', role: 'status', key: 'faults' },
    h('strong', {}, 'Faults are armed: '),
    armed.map((f) => `${f.name} on ${scopeText(f.scope)}`).join('; '),
    '. ',
    h('a', { href: '#/failures' }, 'The failure lab'),
  );
}

async function act(f, what, run) {
  const id = `fault/${f.name}`;
  if (state.busy.has(id)) return;
  state.busy.add(id);
  changed();
  try {
    mustBeFresh();
    await run();
  } catch (e) {
    notifyError(`${what} ${f.name}`, e);
  }
  state.busy.delete(id);
  invalidate('faults');
  invalidate('failures');
}

const runFault = (f) =>
  act(f, 'Run', async () => {
    const after = await post(`faults/${f.name}/run`, {}, undefined, RUN_MS);
    const failed = after.last.checks.filter((c) => !c.pass);
    if (after.last.pass) notify('good', `${f.name}: PASS`, `${after.last.checks.length} checks hold`);
    else notify('bad', `${f.name}: FAIL`, failed.map((c) => `${c.what}: ${c.detail}`).join('; '));
  });

const disarm = (f) => act(f, 'Disarm', () => remove(`faults/${f.name}`));

const arm = (f, rollout) =>
  confirm({
    title: `Arm ${f.name} on ${rollout.name}`,
    body: () => h('p', {}, `Once, on the next request that the candidate serves: ${f.meaning}. It is to lead to ${f.expects}; nobody else meets it.`),
    action: 'Arm',
    look: 'danger',
    run: () => act(f, 'Arm', () => post(`faults/${f.name}`, { count: 1, scope: { rollout: rollout.id } })),
  });

function tools(f, rollout) {
  const busy = state.busy.has(`fault/${f.name}`);
  const button = (text, why, onclick) => h('button', { key: text, disabled: busy || Boolean(why), title: why, onclick }, text);
  if (f.armed) return button('Disarm', '', () => disarm(f));
  return h(
    'span',
    { class: 'row' },
    button(busy ? 'Running…' : 'Run', f.class === 'PROCESS' ? 'it ends the server: kvasir fault run kill checks it from outside' : '', () => runFault(f)),
    button('Arm…', rollout ? '' : 'no rollout serves now; the command line arms tenants and sessions', () => arm(f, rollout)),
  );
}

const checks = (last) =>
  h(
    'details',
    {},
    h('summary', {}, `${last.checks.filter((c) => c.pass).length} of ${last.checks.length} hold, `, stamp(last.at)),
    h(
      'ul',
      {},
      last.checks.map((c) => h('li', { key: c.what + c.detail }, h('span', { class: `pill ${c.pass ? 'pass' : 'fail'}` }, c.pass ? '✓' : '✗'), ` ${c.what}: ${c.detail}`)),
    ),
  );

export function faultsCard() {
  if (!state.status?.faults?.enabled) return null;
  const rollout = [...state.rollouts.values()].find((r) => r.live && SERVING.includes(r.stage));
  return loaded(resource('faults', FRESH_MS), (d) =>
    card(
      'Failure lab',
      h('small', { class: 'muted' }, 'A run asks as a client would and compares with an uncached recompute.'),
      table({
        label: 'Failure lab',
        rows: d.faults,
        key: (f) => f.name,
        columns: [
          { head: 'fault', cell: (f) => h('code', { title: f.meaning }, f.name) },
          { head: 'expects', cell: (f) => (f.expects === 'OK' ? '–' : reason(f.expects)) },
          { head: 'armed', cell: (f) => (f.armed ? `${scopeText(f.scope)}${f.left === null ? '' : `, ${number(f.left)} left`}` : '') },
          { head: 'hits', num: true, cell: (f) => number(f.hits) },
          { head: 'last run', cell: (f) => (f.last ? h('span', { class: `pill ${f.last.pass ? 'pass' : 'fail'}` }, f.outcome) : '–') },
          { head: 'checks', wide: true, cell: (f) => (f.last ? checks(f.last) : f.meaning) },
          { head: 'do', cell: (f) => tools(f, rollout) },
        ],
      }),
    ),
  );
}
