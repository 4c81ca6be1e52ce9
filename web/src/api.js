// api.js — requests to the daemon. Addresses are relative, so that the console works behind a path prefix.

/** An answer that is an error: code, what happened, and what to do. */
export class ApiError extends Error {
  constructor(http, body) {
    const e = body?.error ?? {};
    super(e.message || `the server answered ${http}`);
    this.http = http;
    this.code = e.code ?? 'UNREACHABLE';
    this.param = e.param ?? '';
    this.hint = e.hint ?? '';
  }
}

const TOKEN = 'kvasir.token';
export const token = () => sessionStorage.getItem(TOKEN) ?? '';
export const setToken = (t) => sessionStorage.setItem(TOKEN, t);
export const auth = () => (token() ? { authorization: `Bearer ${token()}` } : {});

const LIMIT_MS = 15000;
const INFER_MS = 120000;

async function call(method, path, body, headers = {}, root = 'api/v1', limitMs = LIMIT_MS) {
  let reply;
  try {
    reply = await fetch(`${root}/${path}`, {
      method,
      cache: 'no-store',
      signal: AbortSignal.timeout(limitMs),
      headers: { ...auth(), ...headers, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (e) {
    const late = e.name === 'TimeoutError';
    throw new ApiError(0, {
      error: {
        code: late ? 'DEADLINE' : 'UNREACHABLE',
        message: late ? `no answer within ${limitMs / 1000} s` : 'the server cannot be reached',
        hint: method === 'GET' ? 'is kvasird running?' : 'it is unknown whether the change was made: look before you repeat it',
      },
    });
  }
  const text = await reply.text();
  let parsed = null;
  try {
    parsed = JSON.parse(text);
  } catch {
    /* an error below, with its status */
  }
  if (!reply.ok || parsed === null) throw new ApiError(reply.status, parsed);
  return parsed;
}

/** A request to the model, as any client makes it. */
export const infer = (path, body) => call('POST', path, body, {}, 'v1', INFER_MS);

export const get = (path) => call('GET', path);

/** Saves what the path answers, whatever it is, under a name. */
export async function download(path, name) {
  const reply = await fetch(`api/v1/${path}`, { cache: 'no-store', headers: auth() });
  if (!reply.ok) throw new ApiError(reply.status, await reply.json().catch(() => null));
  const url = URL.createObjectURL(await reply.blob());
  Object.assign(document.createElement('a'), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

/** A write: `version` is the one it was based on, when the route wants it. Each call is a new intent with its own key. */
export function post(path, body, version, limitMs = LIMIT_MS) {
  const key = [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, '0')).join('');
  return call('POST', path, body, { 'idempotency-key': key, ...(version === undefined ? {} : { 'if-match': String(version) }) }, 'api/v1', limitMs);
}

export const remove = (path) => call('DELETE', path);
