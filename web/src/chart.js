// chart.js — time series drawn by uPlot, each with a spoken summary and its figures as a table.
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { h } from './vdom.js';
import { clock, number } from './format.js';
import { changed, state } from './state.js';

const HEIGHT_PX = 168;
const WINDOW_SECONDS = 300;
const TABLE_ROWS = 60;

// The value a custom property has now, light-dark() resolved.
function colour(name) {
  const probe = document.createElement('i');
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const c = getComputedStyle(probe).color;
  probe.remove();
  return c;
}

// A thin line with its name wherever the release stage changed.
function stageMarks(u) {
  const { t, stage } = state.history;
  const { ctx } = u;
  ctx.save();
  ctx.strokeStyle = colour('--line-strong');
  ctx.fillStyle = colour('--muted');
  ctx.font = `${10 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textAlign = 'left';
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  let free = u.bbox.left + u.bbox.width; // the newest names first: one that would run into a newer one is left out
  for (let i = t.length - 1; i > 0; i--) {
    if (stage[i] === stage[i - 1]) continue;
    const x = Math.round(u.valToPos(t[i], 'x', true));
    if (x < u.bbox.left) break;
    ctx.beginPath();
    ctx.moveTo(x, u.bbox.top);
    ctx.lineTo(x, u.bbox.top + u.bbox.height);
    ctx.stroke();
    const name = stage[i] === 'EXACT_BASELINE' ? 'BASELINE' : stage[i];
    const at = x + 4 * devicePixelRatio;
    if (at + ctx.measureText(name).width < free) ctx.fillText(name, at, u.bbox.top + 10 * devicePixelRatio);
    free = x - 2 * devicePixelRatio;
  }
  ctx.restore();
}

function options(spec, width) {
  const axis = {
    stroke: colour('--muted'),
    grid: { stroke: colour('--line'), width: 1 },
    ticks: { show: false },
    font: '11px system-ui, sans-serif',
  };
  return {
    width,
    height: HEIGHT_PX,
    padding: [10, 8, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 6 } },
    tzDate: (ts) => (state.prefs.utc ? uPlot.tzDate(new Date(ts * 1e3), 'Etc/UTC') : new Date(ts * 1e3)),
    // The window is always as wide: what moves is the data, not the scale.
    scales: {
      x: { range: (_u, _lo, hi) => [(hi ?? Date.now() / 1000) - WINDOW_SECONDS, hi ?? Date.now() / 1000] },
      y: { range: (_u, _lo, hi) => [0, Math.max((hi ?? 0) * 1.15, spec.atLeast)] },
    },
    axes: [
      { ...axis, space: 46, size: 26, values: (_u, at) => at.map((t) => (t % 60 ? clock(t * 1000) : clock(t * 1000).slice(0, 5))) },
      { ...axis, size: 52, values: (_u, at) => at.map((v) => spec.show(v)) },
    ],
    series: [
      {},
      ...spec.series.map((s) => ({
        label: s.label,
        stroke: colour(s.colour),
        width: 1.75,
        dash: s.dash,
        fill: s.fill ? colour(s.fill) : undefined,
        spanGaps: false,
        points: { show: false },
      })),
    ],
    hooks: { draw: [stageMarks, (u) => limitLine(u, spec), (u) => emptiness(u, spec)], setCursor: [(u) => readout(u, spec)] },
  };
}

function limitLine(u, spec) {
  const at = spec.limit?.();
  if (at === undefined || at === null || at > u.scales.y.max) return;
  const { ctx } = u;
  const y = Math.round(u.valToPos(at, 'y', true));
  ctx.save();
  ctx.strokeStyle = colour('--fail');
  ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(u.bbox.left, y);
  ctx.lineTo(u.bbox.left + u.bbox.width, y);
  ctx.stroke();
  ctx.restore();
}

function emptiness(u, spec) {
  if (spec.series.some((s) => state.history[s.key].some((v) => v !== null))) return;
  const { ctx, bbox } = u;
  ctx.save();
  ctx.fillStyle = colour('--muted');
  ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textAlign = 'center';
  ctx.fillText(spec.nothing, bbox.left + bbox.width / 2, bbox.top + bbox.height / 2);
  ctx.restore();
}

function readout(u, spec) {
  const at = u.cursor.idx;
  const out = u.root.parentNode?.querySelector('.readout');
  if (!out) return;
  out.textContent =
    at === null || at === undefined
      ? ''
      : `${clock(u.data[0][at] * 1000)}  ${spec.series.map((s, i) => `${s.label} ${spec.show(u.data[i + 1][at])}`).join('  ')}`;
}

const data = (spec) => [state.history.t, ...spec.series.map((s) => state.history[s.key])];
const last = (spec, s) => spec.show(state.history[s.key].at(-1));

/** spec: {id, title, series: [{key, label, colour, dash}], show(value), limit(), atLeast: the least top of the scale, nothing: what to say without data}. */
export function chart(spec) {
  let plot = null;
  let look = '';
  const build = (el) => {
    plot?.destroy();
    look = document.documentElement.dataset.look + state.prefs.utc;
    plot = new uPlot(options(spec, Math.max(240, el.clientWidth)), data(spec), el);
  };
  const mount = (el) => {
    const out = document.createElement('div');
    out.className = 'readout';
    el.append(out);
    build(el);
    const watch = new ResizeObserver(() => {
      if (el.clientWidth && el.clientWidth !== plot.width) plot.setSize({ width: el.clientWidth, height: HEIGHT_PX });
    });
    watch.observe(el);
    el.kvRefresh = () => {
      if (look !== document.documentElement.dataset.look + state.prefs.utc) build(el);
      else plot.setData(data(spec));
    };
    return () => {
      watch.disconnect();
      plot.destroy();
    };
  };
  return h(
    'section',
    { class: 'card chart', key: spec.id },
    h(
      'header',
      {},
      h('h2', {}, spec.title),
      h(
        'ul',
        { class: 'legend' },
        spec.series.map((s) =>
          h(
            'li',
            {},
            h(
              'svg',
              { width: 18, height: 8, 'aria-hidden': 'true' },
              h('line', { x1: 0, y1: 4, x2: 18, y2: 4, class: `stroke ${s.colour.slice(2)}`, 'stroke-dasharray': s.dash?.join(' ') }),
            ),
            ` ${s.label} `,
            h('strong', {}, last(spec, s)),
          ),
        ),
      ),
    ),
    h('div', {
      class: 'plot',
      role: 'img',
      mount,
      update: (el) => el.kvRefresh?.(),
      'aria-label': `${spec.title}, last five minutes: ${spec.series.map((s) => `${s.label} now ${last(spec, s)}`).join(', ')}. The figures are in the table below.`,
    }),
    figures(spec),
  );
}

const opened = new Set();

function figures(spec) {
  const isOpen = opened.has(spec.id);
  const { t } = state.history;
  return h(
    'details',
    {
      open: isOpen,
      ontoggle: (e) => {
        if (e.target.open) opened.add(spec.id);
        else opened.delete(spec.id);
        changed();
      },
    },
    h('summary', {}, 'Figures'),
    isOpen
      ? h(
          'div',
          { class: 'scroll short', tabindex: '0', role: 'region', 'aria-label': `${spec.title}: figures` },
          h(
            'table',
            {},
            h(
              'thead',
              {},
              h(
                'tr',
                {},
                h('th', { scope: 'col' }, 'time'),
                spec.series.map((s) => h('th', { scope: 'col', class: 'num' }, s.label)),
              ),
            ),
            h(
              'tbody',
              {},
              t.slice(-TABLE_ROWS).map((_, i, a) => {
                const at = t.length - 1 - i;
                return h(
                  'tr',
                  { key: t[at] },
                  h('td', {}, clock(t[at] * 1000)),
                  spec.series.map((s) => h('td', { class: 'num' }, spec.show(state.history[s.key][at]))),
                );
              }),
            ),
          ),
        )
      : null,
  );
}

const msText = (v) => (v === null || v === undefined ? '–' : `${number(v)} ms`);

/** The three plots of a release: time per token, omitted mass, throughput. */
export function releaseCharts(massLimit) {
  return h(
    'div',
    { class: 'charts' },
    chart({
      id: 'tpot',
      title: 'Time per token',
      atLeast: 0.1,
      nothing: 'no token yet',
      show: msText,
      series: [
        { key: 'tpot_p50_ms', label: 'p50', colour: '--series-1' },
        { key: 'tpot_p99_ms', label: 'p99', colour: '--series-2', dash: [6, 3] },
      ],
    }),
    chart({
      id: 'mass',
      title: 'Omitted mass',
      atLeast: 0.01,
      nothing: 'no approximate unit sampled',
      limit: () => massLimit,
      show: (v) => (v === null || v === undefined ? '–' : `${number(v * 100, 2)} %`),
      series: [{ key: 'omitted_mass', label: 'mean', colour: '--series-3' }],
    }),
    chart({
      id: 'rate',
      title: 'Throughput',
      atLeast: 10,
      nothing: 'no token yet',
      show: (v) => (v === null || v === undefined ? '–' : number(v)),
      series: [{ key: 'tokens_per_s', label: 'tokens/s', colour: '--series-1' }],
    }),
  );
}
