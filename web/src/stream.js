// stream.js — the one event stream of this tab: resumed by Last-Event-ID, closed while hidden, and declared stale after 5 s of silence.
import { auth } from './api.js';
import { changed, changedByNews, state } from './state.js';

const STALE_MS = 5000;
const FIRST_RETRY_MS = 250;
const LAST_RETRY_MS = 3000;

let handlers = {};
let lastId = '';
let abort = null;
let retryMs = FIRST_RETRY_MS;

function dispatch(lines) {
  let event = 'message';
  const data = [];
  for (const line of lines) {
    if (line === '' || line.startsWith(':')) continue;
    const at = line.indexOf(':');
    const field = at < 0 ? line : line.slice(0, at);
    const value = at < 0 ? '' : line.slice(at + 1).replace(/^ /, '');
    if (field === 'event') event = value;
    else if (field === 'data') data.push(value);
    else if (field === 'id') lastId = value;
  }
  if (data.length === 0) return;
  if (event === 'status') state.stream.last = Date.now(); // the heart beat; other events may come from a half-dead server
  handlers[event]?.(JSON.parse(data.join('\n')));
}

async function read(signal) {
  // fetch and not EventSource: only so can a reopened stream send Last-Event-ID and a token.
  const reply = await fetch('api/v1/events', {
    cache: 'no-store',
    signal,
    headers: { accept: 'text/event-stream', ...auth(), ...(lastId ? { 'last-event-id': lastId } : {}) },
  });
  if (!reply.ok) throw Object.assign(new Error(`the stream answered ${reply.status}`), { http: reply.status });
  state.stream.open = true;
  state.stream.error = '';
  retryMs = FIRST_RETRY_MS;
  handlers.open?.();
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error('the server closed the stream');
    rest += value;
    let end;
    while ((end = rest.indexOf('\n\n')) >= 0) {
      dispatch(rest.slice(0, end).split('\n'));
      rest = rest.slice(end + 2);
    }
    changedByNews();
  }
}

async function run(signal) {
  while (!signal.aborted) {
    try {
      await read(signal);
    } catch (e) {
      if (signal.aborted) break;
      state.stream.open = false;
      state.stream.error = e.message;
      handlers.error?.(e);
      changed();
    }
    await new Promise((r) => setTimeout(r, retryMs));
    retryMs = Math.min(retryMs * 2, LAST_RETRY_MS);
  }
}

export function reopen() {
  abort?.abort();
  abort = new AbortController();
  run(abort.signal);
}

/** Starts the stream; `on` maps event names to functions, and has `open` and `error`. */
export function start(on) {
  handlers = on;
  state.stream.last = Date.now();
  reopen();
  document.addEventListener('visibilitychange', () => {
    if (document.hidden) {
      abort?.abort();
      state.stream.open = false;
    } else {
      reopen();
      watch();
    }
  });
  setInterval(watch, 500);
}

function watch() {
  const stale = Date.now() - state.stream.last > STALE_MS;
  if (stale !== state.stream.stale || stale) {
    state.stream.stale = stale;
    changed();
  }
}
