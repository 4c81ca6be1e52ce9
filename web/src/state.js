// state.js — everything the page shows, in one object, and the one function that says it changed.
import { get } from './api.js';

function storedPrefs() {
  try {
    return JSON.parse(localStorage.getItem('kvasir.prefs')) ?? {};
  } catch {
    return {};
  }
}

const HISTORY_SECONDS = 300;
const TAIL_ROWS = 200;

export const state = {
  route: { path: [], query: new URLSearchParams() },
  prefs: { theme: 'auto', utc: false, keys: true, ...storedPrefs() },
  stream: { open: false, stale: false, last: 0, error: '' },
  status: null,
  skewMs: 0, // the daemon's clock minus this one
  rollouts: new Map(),
  receipts: [], // newest first, since this page was opened
  failures: [],
  log: [],
  history: { t: [], tokens_per_s: [], tpot_p50_ms: [], tpot_p99_ms: [], omitted_mass: [], stage: [] },
  starting: null, // what a daemon that takes no requests yet is at
  credits: false, // whether this daemon accounts for them
  busy: new Set(), // "r_000003/advance" while its answer is awaited
};

let draw = () => {};
let pending = false;

export function onChange(f) {
  draw = f;
}

const NEWS_MS = 250;
let newsTimer = 0;

/** Redraws within a quarter of a second: for what the stream brings, however fast. */
export function changedByNews() {
  newsTimer ||= setTimeout(() => {
    newsTimer = 0;
    changed();
  }, NEWS_MS);
}

/** Redraws once, at the next frame, however often it is called until then. */
export function changed() {
  if (pending) return;
  pending = true;
  const run = () => {
    pending = false;
    draw();
  };
  if (document.hidden) setTimeout(run, 0);
  else requestAnimationFrame(run);
}

export function setPref(name, value) {
  state.prefs[name] = value;
  try {
    localStorage.setItem('kvasir.prefs', JSON.stringify(state.prefs));
  } catch {
    /* private mode: the choice lasts for this page */
  }
  changed();
}

// ---------------------------------------------------------------- what was fetched
const cache = new Map();
const RETRY_MS = 5000;

/** What GET api/v1/PATH answered, fetched when absent or older than `maxAgeMs`: {data, error, loading}. */
export function resource(path, maxAgeMs = Infinity) {
  let r = cache.get(path);
  if (!r) cache.set(path, (r = { data: null, error: null, loading: false, at: 0 }));
  const age = Date.now() - r.at;
  if (!r.loading && age > (r.error ? RETRY_MS : r.at ? maxAgeMs : 0)) {
    r.loading = true;
    get(path)
      .then(
        (d) => {
          r.data = d;
          r.error = null;
        },
        (e) => {
          r.error = e;
        },
      )
      .finally(() => {
        r.loading = false;
        r.at = Date.now();
        changed();
      });
  }
  return r;
}

/** Forgets the age of everything under `prefix`, so that the next look fetches again while the old answer still shows. */
export function invalidate(prefix) {
  for (const [path, r] of cache) if (path.startsWith(prefix)) r.at = 0;
  changed();
}

// ---------------------------------------------------------------- what the stream said
export function takeStatus(s) {
  state.status = s;
  state.skewMs = Date.parse(s.now) - Date.now();
  const h = state.history;
  const t = Math.floor(Date.parse(s.now) / 1000);
  if (h.t.length && t <= h.t.at(-1)) return;
  const live = s.live ?? {};
  h.t.push(t);
  for (const k of ['tokens_per_s', 'tpot_p50_ms', 'tpot_p99_ms']) h[k].push(live[k] ?? null);
  h.omitted_mass.push(live.omitted_mass_mean ?? null);
  h.stage.push(s.release?.stage ?? 'OFF');
  while (h.t.length && h.t[0] < t - HISTORY_SECONDS) for (const k of Object.keys(h)) h[k].shift();
}

/** History from the server, then what the stream added since. */
export function takeHistory(server) {
  const h = state.history;
  const last = server.t.at(-1) ?? 0;
  const from = h.t.findIndex((t) => t > last);
  for (const k of Object.keys(h)) h[k] = [...(server[k] ?? server.t.map(() => null)), ...(from < 0 ? [] : h[k].slice(from))];
}

/** Takes the newer of what is known and `r`; returns the transition that is new to this page, if there is one. */
export function takeRollout(r) {
  const have = state.rollouts.get(r.id);
  if (have && (r.version ?? 0) < (have.version ?? 0)) return null;
  state.rollouts.set(r.id, r);
  const last = r.transitions?.at(-1);
  const known = have?.transitions?.at(-1);
  return have && last && (last.at !== known?.at || last.to !== known.to) ? last : null; // not by receipt: its number may come later
}

function tail(list, row) {
  if (row.id !== undefined && list.some((x) => x.id === row.id)) return;
  list.unshift(row);
  if (list.length > TAIL_ROWS) list.pop();
}
export const takeReceipt = (row) => tail(state.receipts, row);
export const takeFailure = (row) => tail(state.failures, row);
export const takeLog = (row) => tail(state.log, row);

/** Refuses a change from a page that no longer shows what is. */
export function mustBeFresh() {
  if (state.stream.stale)
    throw {
      code: 'STALE',
      message: 'the stream is silent, so what you see may be old',
      hint: 'kvasir rollout rollback, or SIGUSR1 to kvasird, work without this page',
    };
}

/** Rollouts, newest first. */
export const rollouts = () => [...state.rollouts.values()].sort((a, b) => (a.id < b.id ? 1 : -1));

/** The rollout that holds traffic now, else the newest one. */
export function currentRollout() {
  return state.rollouts.get(state.status?.release?.rollout) ?? rollouts().find((r) => r.live) ?? rollouts()[0] ?? null;
}

/** The rollout this page is about: the one in the address, else the current one. */
export function chosenRollout() {
  const [place, id] = state.route.path;
  return (place === 'rollouts' && state.rollouts.get(id)) || currentRollout();
}
