// main.js — starts the console: the frame around every view, the stream's handlers, the address.
import './app.css';
import { get, setToken } from './api.js';
import { verbButton } from './actions.js';
import { confirm, isOpen, redraw as redrawDialog } from './dialog.js';
import { clock, percent, time } from './format.js';
import { listen, nextTheme, palette, PLACES, served } from './keys.js';
import { notify, notifyError, say } from './notice.js';
import { stageText } from './parts.js';
import { askStart, progressBars, startView } from './progress.js';
import { parse } from './router.js';
import {
  changed,
  currentRollout,
  invalidate,
  onChange,
  setPref,
  state,
  takeFailure,
  takeHistory,
  takeLog,
  takeReceipt,
  takeRollout,
  takeStatus,
} from './state.js';
import { reopen, start } from './stream.js';
import { h, patch } from './vdom.js';
import { overview, rolloutView } from './views/rollouts.js';
import { faultBanner } from './views/faults.js';
import { failuresView, receiptsView } from './views/receipts.js';
import { policiesView } from './views/policies.js';
import { logView, pipelinesView, tiersView } from './views/machine.js';
import { sessionsView } from './views/sessions.js';
import { helpView } from './views/help.js';
import { compareView } from './views/compare.js';
import { auditView, creditsView } from './views/records.js';

const VIEWS = {
  '': overview,
  rollouts: rolloutView,
  receipts: receiptsView,
  failures: failuresView,
  policies: policiesView,
  sessions: sessionsView,
  log: logView,
  tiers: tiersView,
  pipelines: pipelinesView,
  compare: compareView,
  audit: auditView,
  credits: creditsView,
  help: helpView,
};
const NOWHERE = {
  title: () => 'Not found',
  render: () => [h('h1', { tabindex: '-1' }, 'No such page'), h('p', {}, h('a', { href: '#/' }, 'Overview'))],
};
const HISTORY_SECONDS = 300;
const darkSystem = matchMedia('(prefers-color-scheme: dark)');
let servedVersion = '';
let newerVersion = '';

// ---------------------------------------------------------------- the frame
function news() {
  const { last, stale, open } = state.stream;
  const t = state.starting?.find((x) => x.kind === 'load' && x.total);
  if (state.starting && (t || !state.status)) {
    return h('span', { class: 'pill warn badge', role: 'status' }, t ? `starting, ${Math.floor((100 * t.done) / t.total)}\u00a0%` : 'starting');
  }
  if (stale)
    return h(
      'span',
      { class: 'pill fail badge stale', role: 'status' },
      h('span', { 'aria-hidden': 'true' }, '✗ '),
      `stale since ${clock(last)}`,
    );
  return h(
    'span',
    { class: `pill ${open ? 'pass' : 'none'} badge`, title: `last news ${time(last)}` },
    h('span', { class: open ? 'beat' : '', 'aria-hidden': 'true' }, '●'),
    open ? ' live' : ' connecting',
  );
}

// In the top bar where there is room, else in the footer.
const choices = () => [
  h(
    'button',
    { class: 'plain', title: 'zone of times', onclick: () => setPref('utc', !state.prefs.utc) },
    state.prefs.utc ? 'UTC' : 'local time',
  ),
  h(
    'button',
    { class: 'plain', title: 'look: auto, light, dark', 'aria-label': `look: ${state.prefs.theme}`, onclick: nextTheme },
    { auto: '◐ auto', light: '○ light', dark: '● dark' }[state.prefs.theme],
  ),
];

function topBar() {
  const s = state.status;
  const release = s?.release;
  const r = currentRollout();
  const shown = r?.live && release ? release.stage : (release?.stage ?? '…');
  return h(
    'header',
    { class: 'top' },
    h(
      'a',
      { class: 'brand', href: '#/', 'aria-label': 'Kvasir: overview' },
      h('img', { src: 'icon.svg', alt: '', width: 24, height: 24 }),
      h('b', {}, 'Kvasir'),
    ),
    h(
      'a',
      { class: `stage ${shown}`, href: r ? `#/rollouts/${r.id}` : '#/rollouts' },
      h('b', {}, stageText(shown)),
      release?.fraction > 0 && release.fraction < 1 ? ` ${percent(release.fraction)}` : '',
      h('span', {}, r?.live ? ` ${release?.name ?? r.name}` : ''),
    ),
    news(),
    s?.demo ? h('span', { class: 'pill info wide-only', title: 'traffic is made by kvasird itself' }, 'demo') : null,
    h('span', { class: 'gap' }),
    h('button', { class: 'plain wide-only', title: 'commands (:)', onclick: palette }, 'Commands ', h('kbd', {}, ':')),
    h('span', { class: 'wide-only' }, choices()),
    r?.live ? verbButton(r, 'rollback', 'danger') : null,
  );
}

function places() {
  const here = state.route.path[0] ?? '';
  return h(
    'nav',
    { class: 'places', 'aria-label': 'Places' },
    PLACES.filter(served).map((p) => h('a', { key: p.path, href: p.hash, 'aria-current': p.path === here ? 'page' : null, title: `g ${p.key}` }, p.name)),
  );
}

function banners() {
  const s = state.status;
  return [
    state.stream.stale && !(state.starting && !s)
      ? h(
          'div',
          { class: 'banner fail', role: 'alert', key: 'stale' },
          h('strong', {}, 'Stale. '),
          `Nothing was heard since ${time(state.stream.last)}; what you see may be old and nothing can be changed here. `,
          state.stream.error ? `${state.stream.error}. ` : '',
          'The way back without this page: ',
          h('code', {}, 'kvasir rollout rollback'),
          ' or ',
          h('code', {}, 'kill -USR1'),
          ' to kvasird.',
        )
      : null,
    newerVersion
      ? h(
          'div',
          { class: 'banner warn', key: 'version' },
          `kvasird is now version ${newerVersion}. `,
          h('button', { onclick: () => location.reload() }, 'Reload this page'),
        )
      : null,
    s?.live?.exact_mismatches
      ? h(
          'div',
          { class: 'banner fail', role: 'alert', key: 'mismatch' },
          h('strong', {}, `${s.live.exact_mismatches} exact mismatches. `),
          'A token that was promised exact differs from the baseline. ',
          h('a', { href: '#/failures?reason=EXACT_MISMATCH' }, 'Look at them'),
        )
      : null,
    s?.store && s.store.ok === false
      ? h(
          'div',
          { class: 'banner fail', role: 'alert', key: 'store' },
          h('strong', {}, 'Receipts are not written. '),
          `${s.store.reason ?? ''}: releases hold, then return to the exact baseline.`,
        )
      : null,
    s?.draining
      ? h('div', { class: 'banner warn', key: 'draining' }, 'kvasird is draining: it finishes what runs and takes nothing new.')
      : null,
    faultBanner(s),
    s?.release?.frozen ? h('div', { class: 'banner warn', key: 'frozen' }, 'Releases are frozen: only rollback is possible.') : null,
  ];
}

function footer() {
  const s = state.status;
  if (!s) return null;
  return h(
    'footer',
    {},
    h('span', { class: 'narrow-only' }, choices()),
    `kvasird ${s.version} · ${s.model?.name} · ${s.machine?.isa}, ${s.machine?.threads} threads · CUDA ${s.machine?.cuda} · ${time(s.now)}`,
  );
}

let drawnPath = null;

function drawPage() {
  const { path, query } = state.route;
  const view = state.starting && !state.status ? startView : (VIEWS[path[0] ?? ''] ?? NOWHERE);
  const at = path.join('/');
  document.title = `${state.stream.stale ? '✗ stale · ' : ''}${view.title(path)}${state.status ? ` · ${stageText(state.status.release.stage)}` : ''} · Kvasir`;
  patch(document.getElementById('app'), [
    topBar(),
    h(
      'div',
      { class: 'body' },
      places(),
      h(
        'main',
        { id: 'main', tabindex: '-1' },
        banners(),
        view === startView ? null : progressBars(),
        h('div', { class: 'view', 'data-path': at, key: `view:${path[0] ?? ''}:${path[1] ?? ''}` }, view.render(path, query)),
        footer(),
      ),
    ),
  ]);
  redrawDialog();
  if (drawnPath !== null && drawnPath !== at && !isOpen() && !document.activeElement?.matches('input')) {
    document.querySelector('main h1')?.focus({ preventScroll: true });
    scrollTo(0, 0);
    say(view.title(path));
  }
  // On a phone the places are a strip of which a part is in sight.
  if (drawnPath !== at) document.querySelector('.places [aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  drawnPath = at;
}

function drawLook() {
  const { theme } = state.prefs;
  const look = theme === 'auto' ? (darkSystem.matches ? 'dark' : 'light') : theme;
  if (document.documentElement.dataset.look !== look) document.documentElement.dataset.look = look;
}

// ---------------------------------------------------------------- news
const loadRollouts = () =>
  get('rollouts').then(
    (d) => {
      d.rollouts.forEach(takeRollout);
      changed();
    },
    () => {},
  );
const loadHistory = () =>
  get(`metrics/history?seconds=${HISTORY_SECONDS}`).then(
    (d) => {
      takeHistory(d);
      changed();
    },
    () => {},
  );

function askToken() {
  if (isOpen()) return;
  let text = '';
  confirm({
    title: 'Token',
    action: 'Use it',
    body: () =>
      h(
        'label',
        { class: 'field' },
        h('span', {}, 'This daemon asks for a token. It is kept for this tab only.'),
        h('input', {
          type: 'password',
          autofocus: true,
          autocomplete: 'off',
          oninput: (e) => {
            text = e.target.value;
          },
        }),
      ),
    run: async () => {
      setToken(text);
      invalidate('');
      reopen();
    },
  });
}

let greeted = '';
const on = {
  open() {
    state.starting = null;
    invalidate('');
    loadRollouts();
    loadHistory();
    // A daemon without credits has no such place.
    get('openapi.json').then(
      (d) => {
        state.credits = '/api/v1/credits' in d.paths;
        changed();
      },
      () => {},
    );
  },
  error(e) {
    if (e.http === 401 || e.http === 403) askToken();
    if (e.http === 503) askStart();
    else state.starting = null;
  },
  hello(d) {
    if (servedVersion && d.version !== servedVersion) newerVersion = d.version;
    servedVersion ||= d.version;
  },
  status(s) {
    takeStatus(s);
    const words = `${stageText(s.release.stage)} ${percent(s.release.fraction)}`;
    if (greeted && greeted !== words) say(`Stage: ${words}`);
    greeted = words;
  },
  rollout(r) {
    const t = takeRollout(r);
    const mine = [...state.busy].some((b) => b.startsWith(`${r.id}/`)); // its own answer reports it
    if (t && !mine)
      notify(
        t.to === 'EXACT_BASELINE' ? 'bad' : 'info',
        `${r.name}: ${stageText(t.from)} → ${stageText(t.to)}`,
        `${t.reason === 'OK' ? '' : `${t.reason}, `}${t.detail} (${t.actor})`,
      );
  },
  log: takeLog,
  receipt: takeReceipt,
  failure: takeFailure,
};

addEventListener('hashchange', () => {
  parse();
  changed();
});
darkSystem.addEventListener('change', changed);
onChange(() => {
  drawLook();
  drawPage();
});
parse();
drawLook();
listen();
document.getElementById('app').replaceChildren();
get('status').then(
  (s) => {
    takeStatus(s);
    changed();
  },
  (e) => (e.http === 401 ? askToken() : e.http === 503 ? askStart() : notifyError('Status', e)),
);
start(on);
changed();
