// views/evidence.js — what a rollout's gates rest on: drills, gates tried without effect, samples to download.
import { metrics } from 'tables:c';
import { download, post } from '../api.js';
import { measure, number, range } from '../format.js';
import { notifyError } from '../notice.js';
import { card, chip, link, loaded, stamp, table, verdict } from '../parts.js';
import { changed, invalidate, resource, state } from '../state.js';
import { h } from '../vdom.js';

const DRILL_MS = 150000; // a drill answers when it is over
const busy = new Set();
const tried = new Map(); // rollout → {metric, threshold, min_n, answer}

async function run(r, name) {
  busy.add(name);
  changed();
  try {
    await post(`drills/${name}`, { rollout: r.id }, undefined, DRILL_MS);
  } catch (e) {
    notifyError(`Drill ${name}`, e);
  }
  busy.delete(name);
  invalidate('drills');
}

function drillState(d) {
  if (busy.has(d.name)) return chip('runs', 'warn');
  return { PASSED: chip('passed', 'pass'), FAILED: chip('failed', 'fail') }[d.state] ?? chip('never run', 'none');
}

function drills(r) {
  return card(
    'Drills',
    null,
    loaded(resource(`drills?rollout=${r.id}`, 10000), (answer) =>
      table({
        label: 'Drills',
        rows: answer.drills,
        key: (d) => d.name,
        columns: [
          { head: 'drill', cell: (d) => h('code', { title: d.title }, d.name) },
          { head: 'state', cell: drillState },
          { head: 'checks', num: true, cell: (d) => (d.state === 'NEVER_RUN' ? '–' : `${number(d.checks - d.violations)} of ${number(d.checks)}`) },
          { head: 'at', cell: (d) => (d.at ? stamp(d.at) : '–') },
          { head: 'receipt', cell: (d) => (d.receipt ? link('receipts', d.receipt, `receipt ${d.receipt}`) : '–') },
          { head: 'what', wide: true, cell: (d) => h('span', { class: 'muted' }, d.state === 'FAILED' ? d.detail : d.title) },
          {
            head: 'run',
            cell: (d) =>
              h(
                'button',
                {
                  'aria-label': `Run drill ${d.name}`,
                  'aria-disabled': busy.size || state.stream.stale ? 'true' : null,
                  onclick: () => {
                    if (!busy.size && !state.stream.stale) run(r, d.name);
                  },
                },
                'Run',
              ),
          },
        ],
      }),
    ),
  );
}

async function dryRun(r, form) {
  const gate = { metric: form.metric };
  if (form.threshold !== '') gate.threshold = Number(form.threshold);
  if (form.min_n !== '') gate.min_n = Number(form.min_n);
  try {
    form.answer = await post('gates/dry-run', { rollout: r.id, gates: [gate] });
  } catch (e) {
    form.answer = null;
    notifyError('Dry run', e);
  }
  changed();
}

function formOf(r) {
  if (!tried.has(r.id)) tried.set(r.id, { metric: r.gates?.[0]?.metric ?? metrics[0].name, threshold: '', min_n: '', answer: null });
  return tried.get(r.id);
}

function result(form) {
  const g = form.answer?.gates.find((x) => x.metric === form.metric);
  if (!g) return null;
  return h(
    'p',
    { role: 'status' },
    verdict(g.verdict),
    ` ${g.metric} ${measure(g.value, g.unit)} (${range(g.lower, g.upper, g.unit)}) against ${measure(g.threshold, g.unit)}, `,
    `${number(g.n)} of ${number(g.min_n)} at ${form.answer.stage}. ${g.detail}. Nothing was moved.`,
  );
}

function dry(r) {
  const form = formOf(r);
  const letter = r.contract === 'exact' ? 'e' : 'a';
  const input = (name, label) =>
    h('label', {}, `${label} `, h('input', { type: 'number', step: 'any', value: form[name], placeholder: 'default', oninput: (e) => (form[name] = e.target.value) }));
  return card(
    'Try another gate',
    h('button', { onclick: () => download(`rollouts/${r.id}/samples`, `${r.id}.jsonl`).catch((e) => notifyError('Samples', e)) }, 'Download samples'),
    h(
      'form',
      {
        class: 'row',
        onsubmit: (e) => {
          e.preventDefault();
          dryRun(r, form);
        },
      },
      h(
        'label',
        {},
        'metric ',
        h(
          'select',
          { onchange: (e) => (form.metric = e.target.value) },
          metrics
            .filter((m) => m.contracts.toLowerCase().includes(letter))
            .map((m) => h('option', { key: m.name, value: m.name, selected: m.name === form.metric ? '' : null }, m.name)),
        ),
      ),
      input('threshold', 'threshold'),
      input('min_n', 'least n'),
      h('button', { type: 'submit' }, 'Dry run'),
    ),
    result(form),
  );
}

export const evidence = (r) => [drills(r), dry(r)];
