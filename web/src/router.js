// router.js — the address after # is the state of the page: every view, filter and object has one.
import { state } from './state.js';

/** Goes to `path` with the parameters `q`; `replace` leaves no step in the browser's history (for typing). */
export function go(path, q, replace = false) {
  const hash = `#/${path}${q && [...q].length ? `?${q}` : ''}`;
  if (replace) location.replace(hash);
  else location.hash = hash;
}

export function parse() {
  const [path, query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  state.route = { path: path.split('/').filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query) };
}
