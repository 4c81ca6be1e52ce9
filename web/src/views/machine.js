// views/machine.js — tiers, pipelines and the log: what runs, where its rows are, which methods there are.
import { bytes, number, percent, us } from '../format.js';
import { card, chip, contractChip, facts, loaded, reason, stamp, table } from '../parts.js';
import { resource, state } from '../state.js';
import { h } from '../vdom.js';

export const logView = {
  title: () => 'Log',
  render: () => [
    h('h1', { tabindex: '-1' }, 'Log'),
    card(
      'Since this page was opened, newest first',
      null,
      table({
        label: 'Log',
        rows: state.log,
        empty: 'Nothing was logged since. The whole log is kvasird’s standard error.',
        columns: [
          { head: 'at', cell: (l) => stamp(l.at) },
          { head: 'level', cell: (l) => (l.level ? chip(l.level, { error: 'fail', warn: 'warn' }[l.level] ?? 'none') : '–') },
          { head: 'line', wide: true, cell: (l) => h('code', {}, l.line) },
        ],
      }),
    ),
  ],
};

// ---------------------------------------------------------------- tiers
function tierCard(t) {
  const used = t.capacity_bytes ? t.used_bytes / t.capacity_bytes : 0;
  const asked = t.hits + t.misses;
  const look = used > 0.95 ? 'fail' : used > 0.85 ? 'warn' : '';
  return h(
    'section',
    { class: 'card', key: t.name },
    h(
      'header',
      {},
      h('h2', {}, t.name),
      h(
        'div',
        { class: 'tools' },
        t.emulated ? chip('emulated', 'warn', 'a model of a device in memory, not a device') : null,
        t.breaker && t.breaker !== 'closed' ? chip(`breaker ${t.breaker}`, 'fail', 'after failures in a row the store is not asked for a while; rows are computed') : null,
        t.failures ? chip(`${number(t.failures)} failure${t.failures === 1 ? '' : 's'}`, 'fail') : null,
      ),
    ),
    h(
      'div',
      { class: `share ${look}`, role: 'img', 'aria-label': `${percent(used)} of ${bytes(t.capacity_bytes)} used` },
      h('div', { class: 'bar' }, h('div', { style: { width: `${Math.min(100, used * 100)}%` } })),
      h('p', {}, h('span', {}, h('strong', {}, percent(used)), ` ${bytes(t.used_bytes)}`), h('span', {}, `of ${bytes(t.capacity_bytes)}`)),
    ),
    facts([
      ['persistent', bytes(t.persistent_bytes)],
      ['staging', bytes(t.staging_bytes)],
      ['pinned', bytes(t.pinned_bytes)],
      ['scratch', bytes(t.scratch_bytes)],
      ['huge pages', t.huge_pages ? 'yes' : 'no'],
      ['hit rate', asked ? `${percent(t.hits / asked)} of ${number(asked)}` : '–'],
      ['in', bytes(t.bytes_in)],
      ['out', bytes(t.bytes_out)],
      ['in flight', number(t.transfers_in_flight)],
      ...(t.breaker
        ? [
            ['objects in the store', number(t.objects)],
            ['breaker', t.breaker],
            ['not asked or sent', number(t.skipped)],
            ['refused bodies', number(t.refused)],
          ]
        : []),
      ['last failure', t.last_failure ? [reason(t.last_failure.reason), ' ', stamp(t.last_failure.at)] : 'none'],
    ]),
  );
}

// The store that this server keeps for the remote tiers of others.
function extentsCard(e) {
  const used = e.capacity_bytes ? e.bytes / e.capacity_bytes : 0;
  return h(
    'section',
    { class: 'card', key: 'extents' },
    h('header', {}, h('h2', {}, 'extents of other daemons')),
    facts([
      ['used', `${percent(used)} · ${bytes(e.bytes)} of ${bytes(e.capacity_bytes)}`],
      ['objects', number(e.objects)],
      ['handed out', number(e.hits)],
      ['not here', number(e.misses)],
      ['taken', number(e.puts)],
      ['erased', number(e.erased)],
      ['evicted', number(e.evictions)],
      ['refused', number(e.refused)],
    ]),
  );
}

// Two bars a layer on one scale: the planner's prediction behind, the measurement before it.
function stalls(layers) {
  const W = 640;
  const H = 120;
  const max = Math.max(1, ...layers.flatMap((l) => [l.stall_us, l.predicted_stall_us]));
  const step = W / layers.length;
  const bar = (v) => Math.max(1, (v / max) * (H - 8));
  return h(
    'svg',
    {
      viewBox: `0 0 ${W} ${H}`,
      class: 'bars',
      preserveAspectRatio: 'none',
      role: 'img',
      'aria-label': `Stall per layer, measured against predicted, at most ${us(max)}; figures in the table below`,
    },
    layers.map((l, i) =>
      h(
        'g',
        { key: l.layer },
        h('rect', {
          x: i * step + step * 0.12,
          y: H - bar(l.predicted_stall_us),
          width: step * 0.36,
          height: bar(l.predicted_stall_us),
          class: 'fill line-strong',
        }),
        h('rect', {
          x: i * step + step * 0.5,
          y: H - bar(l.stall_us),
          width: step * 0.36,
          height: bar(l.stall_us),
          class: 'fill series-1',
        }),
      ),
    ),
  );
}

export const tiersView = {
  title: () => 'Tiers',
  render() {
    const s = state.status;
    const layers = s?.layers ?? [];
    const sum = (k) => layers.reduce((a, l) => a + l[k], 0);
    return [
      h('h1', { tabindex: '-1' }, 'Tiers'),
      s ? h('div', { class: 'cards' }, (s.tiers ?? []).map(tierCard), s.extents ? extentsCard(s.extents) : null) : h('p', { class: 'empty' }, 'Loading…'),
      layers.length
        ? card(
            'Stall per layer',
            h(
              'ul',
              { class: 'legend' },
              h('li', {}, h('span', { class: 'swatch line-strong' }), ` predicted ${us(sum('predicted_stall_us'))}`),
              h('li', {}, h('span', { class: 'swatch series-1' }), ` measured ${us(sum('stall_us'))}`),
            ),
            stalls(layers),
            table({
              label: 'Layers',
              rows: layers,
              key: (l) => l.layer,
              stack: false,
              columns: [
                { head: 'layer', num: true, cell: (l) => l.layer },
                { head: 'fetch', num: true, cell: (l) => us(l.fetch_us) },
                { head: 'compute', num: true, cell: (l) => us(l.compute_us) },
                { head: 'stall', num: true, cell: (l) => us(l.stall_us) },
                { head: 'predicted', num: true, cell: (l) => us(l.predicted_stall_us) },
                { head: 'difference', num: true, cell: (l) => us(l.stall_us - l.predicted_stall_us) },
              ],
            }),
          )
        : null,
    ];
  },
};

// ---------------------------------------------------------------- pipelines
const FIELDS = ['support', 'representation', 'tier', 'unit', 'index', 'update_phase', 'compute_site', 'exactness', 'fallback', 'workload'];

function onePipeline(p) {
  return h(
    'div',
    { class: 'columns' },
    h(
      'div',
      {},
      card('Contract', null, facts(FIELDS.map((f) => [f.replace('_', ' '), f === 'exactness' ? contractChip(p[f]) : p[f]]))),
      card(
        'Parameters',
        null,
        table({
          label: 'Parameters',
          rows: p.params ?? [],
          key: (x) => x.name,
          empty: 'None.',
          columns: [
            { head: 'name', cell: (x) => h('code', {}, x.name) },
            { head: 'default', num: true, cell: (x) => String(x.default) },
            {
              head: 'range',
              num: true,
              cell: (x) => (x.min === null || x.min === undefined ? '–' : `${number(x.min)} … ${number(x.max)}`),
            },
            { head: 'unit', cell: (x) => x.unit || '–' },
            { head: 'source', cell: (x) => x.source || '–' },
            { head: 'what it does', wide: true, cell: (x) => x.help },
          ],
        }),
      ),
    ),
    h(
      'div',
      {},
      card(
        'Where it comes from',
        null,
        facts([
          ['section', p.section],
          ['provenance', p.provenance],
          ['selector', p.selector || 'none'],
          ['omitted mass, estimated online', p.selector ? (p.omitted_mass_estimate ?? '–') : '–'],
          [
            'a byte it reads counts as, read in order',
            p.selector && p.byte_cost ? `${number(p.byte_cost)} (${number(p.declared_byte_cost)} declared)` : '–',
          ],
          ['placement', p.placement],
          ['built', p.built ? 'yes' : 'not yet'],
        ]),
        h(
          'p',
          { class: 'row' },
          p.built
            ? h('a', { class: 'button primary', href: `#/rollouts/new?pipeline=${encodeURIComponent(p.name)}` }, 'New rollout with it')
            : h('span', { class: 'muted' }, 'It is registered and has no implementation yet.'),
          h('a', { class: 'button', href: '#/pipelines' }, 'All pipelines'),
        ),
      ),
    ),
  );
}

// What a tournament found: who reads the fewest bytes where all hold the same mass.
function tournament(t) {
  const between = (e, k, f) => {
    if (e[k] === null) return '–';
    return e[`${k}_low`] === null ? f(e[k]) : `${f(e[k])} (${f(e[`${k}_low`])} … ${f(e[`${k}_high`])})`;
  };
  return card(
    `Tournament at mass ${t.mass}`,
    h(
      'span',
      {},
      chip(t.state, t.state === 'RUNNING' ? 'info' : 'none'),
      ` ${number(t.units)} of ${number(t.limit)} units, ${number(t.dropped)} dropped`,
    ),
    table({
      label: 'Tournament',
      rows: t.entries,
      columns: [
        { head: 'rank', num: true, cell: (e) => e.rank ?? '–' },
        { head: 'pipeline', cell: (e) => h('a', { href: `#/pipelines/${e.pipeline}` }, e.pipeline) },
        {
          head: 'verdict',
          cell: (e) =>
            chip(
              e.verdict,
              { RANKED: 'pass', TIE: 'none', SHORT: 'warn' }[e.verdict] ?? 'none',
              { TIE: 'not told apart from another entry', SHORT: 'never holds the mass', NO_DATA: 'too few units' }[e.verdict],
            ),
        },
        { head: 'bytes a query', num: true, cell: (e) => between(e, 'bytes', bytes) },
        { head: 'of all rows', num: true, cell: (e) => (e.share === null ? '–' : percent(e.share)) },
        { head: 'mass', num: true, cell: (e) => between(e, 'mass', (x) => x.toFixed(3)) },
        { head: 'rows', num: true, cell: (e) => (e.rows === null ? '–' : number(Math.round(e.rows))) },
        { head: 'at', cell: (e) => h('code', {}, `${e.budget}=${Number(e.at.toPrecision(4))}`) },
      ],
    }),
  );
}

export const pipelinesView = {
  title: ([, name]) => (name ? `Pipeline ${name}` : 'Pipelines'),
  render([, name]) {
    const all = resource('pipelines', 5000);
    const p = all.data?.pipelines.find((x) => x.name === name);
    const heading = h('h1', { tabindex: '-1' }, name ? [p?.title ?? name, ' ', h('small', {}, name)] : 'Pipelines');
    return [
      heading,
      loaded(all, (d) => {
        if (p) return onePipeline(p);
        if (name)
          return h('p', { class: 'banner fail' }, `No pipeline is called ${name}. `, h('a', { href: '#/pipelines' }, 'All pipelines'));
        return [
          d.tournament ? tournament(d.tournament) : null,
          card(
            `${d.pipelines.length} pipelines, one contract`,
            null,
            table({
              label: 'Pipelines',
              rows: d.pipelines,
              key: (x) => x.name,
              columns: [
                { head: 'pipeline', cell: (x) => h('a', { href: `#/pipelines/${x.name}` }, x.title ?? x.name) },
                { head: 'exactness', cell: (x) => contractChip(x.exactness) },
                { head: 'built', cell: (x) => (x.built ? chip('✓ built', 'pass') : chip('○ not yet', 'none')) },
                { head: 'placement', cell: (x) => x.placement },
                { head: 'selector', cell: (x) => x.selector || '–' },
                { head: 'byte cost', num: true, cell: (x) => (x.selector && x.byte_cost ? number(x.byte_cost) : '–') },
                { head: 'unit', cell: (x) => x.unit },
                { head: 'tiers', cell: (x) => x.tier },
                { head: 'fallback', wide: true, cell: (x) => x.fallback },
              ],
            }),
          ),
        ];
      }),
    ];
  },
};
