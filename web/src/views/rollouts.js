// views/rollouts.js — the overview, the list and one rollout: stage, health, gates, plots, timeline and the way back.
import { changingVerbs, freeze, verbButton, whyNot } from '../actions.js';
import { releaseCharts } from '../chart.js';
import { create } from '../create.js';
import { duration, measure, ms, number, percent, range, since, time, unbroken } from '../format.js';
import {
  card,
  chip,
  contractChip,
  digest,
  facts,
  link,
  loaded,
  reason,
  STAGES,
  stagePill,
  stageText,
  stamp,
  table,
  verdict,
  verdictPhrase,
} from '../parts.js';
import { currentRollout, resource, rollouts, state } from '../state.js';
import { h } from '../vdom.js';
import { evidence } from './evidence.js';

// ---------------------------------------------------------------- the stage track
function stageNote(r, stage, at, now) {
  const reached = r.transitions?.findLast((t) => t.to === stage);
  if (now) return h('span', {}, `for ${since(r.stage_since)}`);
  if (reached && at < STAGES.indexOf(r.stage)) return h('span', {}, 'done');
  const steps = (r.steps ?? []).filter((s) => s.stage === stage);
  if (steps.length === 0) return stage === 'OFF' ? h('span', {}, 'no traffic') : null;
  const shares = stage === 'CANARY' || stage === 'RAMP' ? `${steps.map((s) => number(s.fraction * 100)).join(', ')} % ` : '';
  return h('span', {}, `${shares}${steps[0].min_seconds ? `≥ ${duration(steps[0].min_seconds)}` : ''}`);
}

function track(r) {
  const back = r.stage === 'EXACT_BASELINE';
  const lastReached = back ? Math.max(0, STAGES.indexOf(r.transitions?.at(-1)?.from)) : STAGES.indexOf(r.stage);
  return h(
    'ol',
    { class: `track${back ? ' back' : ''}`, 'aria-label': 'Stages of the rollout' },
    STAGES.map((stage, i) => {
      const now = stage === r.stage;
      return h(
        'li',
        {
          key: stage,
          class: now ? 'now' : i < lastReached || (back && i === lastReached) ? 'done' : 'next',
          'aria-current': now ? 'step' : null,
        },
        h('i', { 'aria-hidden': 'true' }, i < lastReached || (back && i <= lastReached) ? '✓' : ''),
        h('b', {}, stage, now && r.fraction > 0 ? h('em', {}, ` ${percent(r.fraction)}`) : null),
        stageNote(r, stage, i, now),
      );
    }),
    h(
      'li',
      { key: 'EXACT_BASELINE', class: `home ${back ? 'now' : ''}`, 'aria-current': back ? 'step' : null },
      h('i', { 'aria-hidden': 'true' }, '↩'),
      h('b', {}, 'EXACT BASELINE'),
      h('span', {}, back ? `for ${since(r.stage_since)}` : 'the way back'),
    ),
  );
}

function share(r) {
  const f = r.stage === 'FULL' ? 1 : r.stage === 'CANARY' || r.stage === 'RAMP' ? r.fraction : 0;
  return h(
    'div',
    { class: 'share', role: 'img', 'aria-label': `${percent(f)} of sessions on the candidate, ${percent(1 - f)} on the exact baseline` },
    h('div', { class: 'bar' }, h('div', { style: { width: `${f * 100}%` } })),
    h('p', {}, h('span', {}, h('strong', {}, percent(f)), ' candidate'), h('span', {}, h('strong', {}, percent(1 - f)), ' exact baseline')),
  );
}

// ---------------------------------------------------------------- health in one sentence
function health(r) {
  if (r.stage === 'EXACT_BASELINE') {
    const t = r.transitions?.at(-1);
    const bad = (r.gates ?? []).filter((g) => g.verdict === 'FAIL').map((g) => g.name);
    return [
      'safe',
      'All traffic is on the exact baseline',
      t
        ? [
            `${time(t.at)}: `,
            reason(t.reason),
            ` ${t.detail ?? ''} `,
            t.receipt ? link('receipts', t.receipt, `receipt ${t.receipt}`) : null,
          ]
        : bad.join(', '),
    ];
  }
  const judged = (r.gates ?? []).filter((g) => g.judged !== false);
  const list = (gs) =>
    [...new Set(gs.map((g) => g.verdict))]
      .map((v) => {
        const names = gs.filter((g) => g.verdict === v).map((g) => g.name);
        return `${names.join(', ')} ${names.length === 1 ? verdictPhrase(v) : verdictPhrase(v).replace(/^is /, 'are ').replace(/^has /, 'have ').replace(/^fails$/, 'fail')}`;
      })
      .join('; ');
  const failing = judged.filter((g) => g.verdict === 'FAIL');
  if (failing.length) return ['fail', failing.length === 1 ? '1 gate fails' : `${failing.length} gates fail`, list(failing)];
  const open = judged.filter((g) => g.verdict !== 'PASS');
  const n = judged.length;
  if (n === 0) return ['none', 'No gate is judged at this stage', ''];
  if (open.length) return ['warn', `${n - open.length} of ${n} gates pass`, list(open)];
  return [
    'pass',
    `All ${n} gates pass`,
    r.stage === 'FULL' ? 'the candidate serves every session in its cohort' : 'ready for the next step',
  ];
}

function hero(r, isCurrent) {
  const [look, head, text] = health(r);
  const release = state.status?.release;
  const why = whyNot(r, 'rollback');
  return h(
    'section',
    { class: `card hero ${look}`, 'aria-label': 'Release at a glance' },
    h(
      'div',
      { class: 'hero-top' },
      h(
        'div',
        {},
        h('h1', { tabindex: '-1' }, r.name, ' ', h('small', {}, r.id)),
        h(
          'p',
          { class: 'row' },
          link('pipelines', r.pipeline),
          contractChip(r.contract),
          r.paused ? chip('paused', 'warn') : null,
          isCurrent && release?.latched ? chip('latched', 'safe', 'the rollback latch is set: nothing approximate leaves') : null,
          isCurrent && release?.frozen ? chip('frozen', 'warn') : null,
          isCurrent ? h('span', { class: 'muted' }, `epoch ${release?.epoch ?? '–'}`) : null,
        ),
      ),
      h(
        'div',
        { class: 'way-back' },
        verbButton(r, 'rollback', 'danger big'),
        why ? h('small', {}, why) : h('small', {}, 'before the next token · ', h('kbd', {}, 'R')),
      ),
    ),
    track(r),
    share(r),
    h(
      'p',
      { class: `health ${look}` },
      h('span', { class: 'glyph', 'aria-hidden': 'true' }, { pass: '✓', fail: '✗', warn: '◐', safe: '↩', none: '○' }[look]),
      h('strong', {}, head),
      text ? h('span', {}, text) : null,
    ),
    controls(r),
  );
}

// ---------------------------------------------------------------- figures of now
function tile(name, value, note, look = '') {
  return h('div', { class: `tile ${look}` }, h('dt', {}, name), h('dd', {}, value, note ? h('small', {}, note) : null));
}

function tiles() {
  const s = state.status;
  if (!s) return null;
  const l = s.live;
  return h(
    'dl',
    { class: 'tiles', 'aria-label': 'Now' },
    tile('Throughput', `${number(l.tokens_per_s)}`, 'tokens/s'),
    tile('Time per token', ms(l.tpot_p50_ms), `p99 ${ms(l.tpot_p99_ms)}`),
    tile('First token', ms(l.ttft_p50_ms), 'p50'),
    tile(
      'Omitted mass',
      percent(l.omitted_mass_mean),
      [
        l.omitted_mass_upper === null ? null : `≤ ${percent(l.omitted_mass_upper)}`,
        `${number(l.units)} units`,
        l.units_dropped ? `${number(l.units_dropped)} dropped` : null,
      ]
        .filter(Boolean)
        .join(' · '),
    ),
    tile('Published', number(l.published_tokens), `tokens, ${number(l.requests)} requests`),
    tile('Exact mismatches', number(l.exact_mismatches), `${number(l.exact_tokens)} exact tokens`, l.exact_mismatches ? 'fail' : ''),
    l.fallbacks
      ? tile(
          'Full fallbacks',
          number(l.fallbacks.full),
          ['index_missed', 'index_stale', 'budget_exceeded', 'not_finite']
            .filter((k) => l.fallbacks[k])
            .map((k) => `${number(l.fallbacks[k])} ${k.replaceAll('_', ' ')}`)
            .join(' · ') || `${number(l.fallbacks.widened)} widened`,
        )
      : null,
    tile('Sequences', number(l.active), `${l.queued} queued · ${l.recomputing} recomputing`),
    tile(
      'Receipts',
      number(s.store?.receipts),
      `${s.store?.queued ?? 0} queued · ${s.store?.dropped ?? 0} dropped`,
      s.store?.dropped ? 'fail' : '',
    ),
  );
}

// ---------------------------------------------------------------- gates
// The interval on a line from 0 to a little past whichever is larger, the threshold as a mark.
function interval(g) {
  if (g.value === null || g.value === undefined || g.threshold === null || g.threshold === undefined) return null;
  const W = 120;
  const hi = g.upper ?? g.value;
  const lo = g.lower ?? g.value;
  const max = Math.max(hi, g.threshold, 1e-12) * 1.2;
  const x = (v) => 3 + (W - 6) * Math.min(1, Math.max(0, v / max));
  const look = { PASS: 'pass', FAIL: 'fail', INCONCLUSIVE: 'warn' }[g.verdict] ?? 'muted';
  return h(
    'svg',
    { width: W, height: 18, viewBox: `0 0 ${W} 18`, 'aria-hidden': 'true', class: 'interval' },
    h('line', { x1: 3, y1: 9, x2: W - 3, y2: 9, class: 'stroke line' }),
    h('line', { x1: x(lo), y1: 9, x2: Math.max(x(lo) + 1, x(hi)), y2: 9, class: `stroke wide ${look}` }),
    h('circle', { cx: x(g.value), cy: 9, r: 3.2, class: `fill ${look}` }),
    h('line', { x1: x(g.threshold), y1: 2, x2: x(g.threshold), y2: 16, class: 'stroke text' }),
  );
}

const comparison = (c) => ({ '<=': '≤', '>=': '≥' })[c] ?? c ?? '';

function gates(r) {
  return card(
    'Gates',
    null,
    table({
      label: 'Gates',
      rows: r.gates ?? [],
      key: (g) => g.name,
      empty: 'No gate was evaluated yet.',
      columns: [
        { head: 'gate', cell: (g) => h('code', { title: g.metric }, g.name) },
        {
          head: 'verdict',
          cell: (g) => (g.judged === false ? h('span', { class: 'muted nowrap' }, 'not judged here') : verdict(g.verdict)),
        },
        { head: 'value', num: true, cell: (g) => measure(g.value, g.unit) },
        { head: 'bounds', num: true, cell: (g) => range(g.lower, g.upper, g.unit) },
        { head: 'threshold', num: true, cell: (g) => `${comparison(g.comparison)} ${measure(g.threshold, g.unit)}` },
        { head: 'on its scale', cell: interval },
        {
          head: 'n / min',
          num: true,
          cell: (g) =>
            h('span', { class: g.judged !== false && g.verdict === 'NO_DATA' ? 'warn-text' : '' }, `${number(g.n)} / ${number(g.min_n)}`),
        },
        { head: 'why', wide: true, cell: (g) => h('span', { class: 'muted' }, unbroken(g.detail)) },
      ],
    }),
  );
}

function controls(r) {
  const refused = changingVerbs.map((v) => [v.verb, whyNot(r, v.verb)]).filter(([, why]) => why);
  return h(
    'section',
    { class: 'controls', 'aria-label': 'Controls' },
    h(
      'div',
      { class: 'row' },
      changingVerbs.map((v) => verbButton(r, v.verb, v.verb === 'advance' ? 'primary' : v.danger === 'DANGER' ? 'danger outline' : '')),
    ),
    refused.length
      ? h(
          'details',
          { class: 'whys' },
          h('summary', {}, `Why ${refused.length} of these cannot be used now`),
          h(
            'ul',
            {},
            refused.map(([verb, why]) => h('li', { key: verb }, h('strong', {}, verb), ` — ${why}`)),
          ),
        )
      : null,
  );
}

function timeline(r) {
  const rows = [...(r.transitions ?? [])].reverse();
  return card(
    'Transitions',
    null,
    rows.length === 0
      ? h('p', { class: 'empty' }, 'None yet.')
      : h(
          'ol',
          { class: 'timeline' },
          rows.map((t) =>
            h(
              'li',
              { key: `${t.at}${t.to}` },
              h(
                'div',
                { class: 'row' },
                stagePill(t.from),
                h('span', { 'aria-label': 'to' }, '→'),
                stagePill(t.to),
                h('span', { class: 'muted' }, `epoch ${t.epoch}`),
              ),
              h('p', {}, stamp(t.at), ' · ', t.actor, t.receipt ? [' · ', link('receipts', t.receipt, `receipt ${t.receipt}`)] : null),
              h('p', { class: 'muted' }, t.reason && t.reason !== 'OK' ? [reason(t.reason), ' '] : null, t.detail),
            ),
          ),
        ),
  );
}

function identity(r) {
  return card(
    'Candidate',
    null,
    facts([
      ['pipeline', link('pipelines', r.pipeline)],
      ['contract', contractChip(r.contract)],
      ['manifest', digest(r.manifest)],
      ['a byte it reads counts as, read in order', r.byte_cost ? number(r.byte_cost) : '–'],
      ['model', digest(r.model_artifact)],
      ['created', stamp(r.created_at)],
      ['ended', r.ended_at ? stamp(r.ended_at) : 'not yet'],
      ['version', number(r.version)],
      ['cohort', [...(r.cohort?.tenants ?? []), ...(r.cohort?.classes ?? []), ...(r.cohort?.headers ?? [])].join(', ') || (r.contract === 'exact' ? 'everybody' : 'everybody who allows approximation')],
      ...Object.entries(r.params ?? {}).map(([k, v]) => [k, String(v)]),
      [
        'evidence',
        h(
          'span',
          {},
          h('a', { href: `#/receipts?rollout=${r.id}` }, 'its receipts'),
          ' · ',
          h('a', { href: `#/failures?rollout=${r.id}` }, 'its failures'),
        ),
      ],
    ]),
  );
}

function panel(r, isCurrent) {
  const mass = r.gates?.find((g) => g.metric === 'omitted_mass')?.threshold;
  return [
    hero(r, isCurrent),
    isCurrent ? tiles() : null,
    gates(r),
    isCurrent ? releaseCharts(mass) : null,
    evidence(r),
    h('div', { class: 'columns even' }, h('div', {}, timeline(r)), h('div', {}, identity(r))),
  ];
}

const newButton = () =>
  h(
    'button',
    {
      class: 'primary',
      'aria-disabled': state.stream.stale ? 'true' : null,
      title: state.stream.stale ? 'what you see is stale' : 'create a candidate (c)',
      onclick: () => {
        if (!state.stream.stale) location.hash = '#/rollouts/new';
      },
    },
    'New rollout',
  );

const tools = () => [
  h(
    'button',
    { 'aria-disabled': state.stream.stale ? 'true' : null, onclick: () => freeze(!state.status?.release?.frozen) },
    state.status?.release?.frozen ? 'Unfreeze' : 'Freeze',
  ),
  newButton(),
];

function list() {
  return table({
    label: 'Rollouts',
    rows: rollouts(),
    key: (r) => r.id,
    empty: 'No rollout yet. All traffic is on the exact baseline.',
    current: (r) => r.live,
    columns: [
      { head: 'rollout', cell: (r) => h('a', { href: `#/rollouts/${r.id}` }, r.name, ' ', h('small', {}, r.id)) },
      {
        head: 'stage',
        cell: (r) =>
          h(
            'span',
            {},
            stagePill(r.stage),
            r.fraction > 0 && r.fraction < 1 ? ` ${percent(r.fraction)}` : '',
            r.paused ? [' ', chip('paused', 'warn')] : null,
          ),
      },
      { head: 'pipeline', cell: (r) => link('pipelines', r.pipeline) },
      { head: 'contract', cell: (r) => contractChip(r.contract) },
      {
        head: 'gates',
        cell: (r) =>
          ['PASS', 'FAIL', 'INCONCLUSIVE', 'NO_DATA']
            .map((v) => [v, (r.gates ?? []).filter((g) => g.judged !== false && g.verdict === v).length])
            .filter(([, n]) => n)
            .map(([v, n]) => h('span', { class: 'tight' }, verdict(v), ` ${n} `)),
      },
      { head: 'last reason', cell: (r) => reason(r.transitions?.at(-1)?.reason) },
      { head: 'created', cell: (r) => stamp(r.created_at) },
    ],
  });
}

function quiet() {
  return h(
    'section',
    { class: 'card hero safe' },
    h('h1', { tabindex: '-1' }, 'Exact baseline'),
    h(
      'p',
      { class: 'health safe' },
      h('span', { class: 'glyph', 'aria-hidden': 'true' }, '↩'),
      h('strong', {}, 'No candidate holds traffic'),
      h('span', {}, 'every token is exact'),
    ),
    newButton(),
  );
}

let formFor = '';
function openForm(q) {
  if (formFor) return;
  formFor = 'open';
  // Whoever goes back has left the form: it would cover the page they went to.
  const left = () => location.hash.startsWith('#/rollouts/new') || form.close();
  addEventListener('hashchange', left);
  const form = create(q.get('pipeline') ?? '', () => {
    formFor = '';
    removeEventListener('hashchange', left);
    if (location.hash.startsWith('#/rollouts/new')) location.hash = '#/rollouts';
  });
}

export const overview = {
  title: () => 'Overview',
  render() {
    const r = currentRollout();
    const all = resource('rollouts');
    const waiting = () => [h('h1', { tabindex: '-1' }, 'Overview'), loaded(all, () => null)];
    return [r ? panel(r, true) : all.data ? [quiet(), tiles(), releaseCharts()] : waiting(), card('All rollouts', tools(), list())];
  },
};

export const rolloutView = {
  title: ([, id]) => (id ? `Rollout ${id}` : 'Rollouts'),
  render([, id], q) {
    if (!id || id === 'new') {
      if (id) queueMicrotask(() => openForm(q));
      return [h('h1', { tabindex: '-1' }, 'Rollouts'), loaded(resource('rollouts'), () => card('Newest first', tools(), list()))];
    }
    const r = state.rollouts.get(id);
    if (r) return panel(r, r.id === currentRollout()?.id);
    const one = resource(`rollouts/${encodeURIComponent(id)}`);
    return [h('h1', { tabindex: '-1' }, stageText(id)), loaded(one, (d) => panel(d, false))];
  },
};
