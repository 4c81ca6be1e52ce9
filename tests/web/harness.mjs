// harness.mjs — starts the real kvasird and a real browser for the tests; KVASIR_URL tests a daemon that already runs.
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { after, before } from 'node:test';
import { fileURLToPath } from 'node:url';
import axe from 'axe-core';
import { chromium } from 'playwright-core';

export const root = resolve(dirname(fileURLToPath(import.meta.url)), '../..');
export const build = resolve(root, process.env.KVASIR_BUILD ?? 'build');
const READY_MS = 30000;
const STOP_MS = 10000;

// kvasird takes settings from KVASIR_*, and these are the tests' own.
const environment = Object.fromEntries(Object.entries(process.env).filter(([k]) => !k.startsWith('KVASIR_') || k === 'KVASIR_ISA'));

const freePort = () =>
  new Promise((done, fail) => {
    const s = createServer()
      .once('error', fail)
      .listen(0, '127.0.0.1', () => {
        const { port } = s.address();
        s.close(() => done(port));
      });
  });

/** Polls `probe` until it answers something true; fails with `what` after `limitMs`. */
export async function until(what, probe, limitMs = 15000) {
  const end = Date.now() + limitMs;
  let last;
  for (;;) {
    try {
      const got = await probe();
      if (got) return got;
    } catch (e) {
      last = e;
    }
    if (Date.now() > end) throw new Error(`${what}: not within ${limitMs} ms${last ? ` (${last.message})` : ''}`);
    await new Promise((r) => setTimeout(r, 50));
  }
}

/** One kvasird with its own state on a free port. */
export class Daemon {
  static async start({ extra = [], config } = {}) {
    const d = new Daemon();
    if (process.env.KVASIR_URL) {
      d.url = process.env.KVASIR_URL;
      return d;
    }
    d.port = await freePort();
    d.url = `http://127.0.0.1:${d.port}`;
    d.state = mkdtempSync(join(tmpdir(), 'kvasir-web-'));
    d.extra = extra;
    if (config) {
      d.extra = [...extra, '--config', join(d.state, 'config.json')];
      writeFileSync(join(d.state, 'config.json'), JSON.stringify(config));
    }
    await d.run();
    return d;
  }

  async run() {
    const program = join(build, 'kvasird');
    if (!existsSync(program)) throw new Error(`${program} is not built: make`);
    this.log = '';
    this.child = spawn(
      program,
      ['--listen', `127.0.0.1:${this.port}`, '--state', this.state, '--model', join(root, 'models/kvasir-demo-q8_0.gguf'), ...this.extra],
      { cwd: root, env: environment, stdio: ['ignore', 'pipe', 'pipe'] },
    );
    for (const s of [this.child.stdout, this.child.stderr])
      s.on('data', (b) => {
        this.log = (this.log + b).slice(-20000);
      });
    this.gone = new Promise((r) => this.child.once('exit', r));
    await until(
      'kvasird is ready',
      async () => {
        if (this.child.exitCode !== null) throw new Error(`it ended with ${this.child.exitCode}: ${this.log.slice(-600)}`);
        return (await fetch(`${this.url}/readyz`)).ok;
      },
      READY_MS,
    );
  }

  async kill(signal = 'SIGKILL') {
    this.child.kill(signal);
    await this.gone;
  }

  async stop() {
    if (!this.child) return;
    if (this.child.exitCode === null && this.child.signalCode === null) {
      this.child.kill('SIGTERM');
      const late = setTimeout(() => this.child.kill('SIGKILL'), STOP_MS);
      await this.gone;
      clearTimeout(late);
    }
    rmSync(this.state, { recursive: true, force: true });
  }

  async api(path, body, headers = {}) {
    const reply = await fetch(
      `${this.url}/api/v1/${path}`,
      body === undefined ? {} : { method: 'POST', headers: { 'content-type': 'application/json', ...headers }, body: JSON.stringify(body) },
    );
    const answer = await reply.json();
    if (!reply.ok) throw Object.assign(new Error(`${path}: ${JSON.stringify(answer)}`), { code: answer.error?.code });
    return answer;
  }

  /** A short completion, so that there is traffic. */
  async complete(session, contract = 'approximate') {
    const reply = await fetch(`${this.url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'kvasir-demo', prompt: 'The river ran', max_tokens: 8, kvasir: { contract, session } }),
    });
    return reply.json();
  }

  /** So many completions of one token over eight connections, each asked without waiting for the answer before it. */
  async completeMany(n, session) {
    const body = JSON.stringify({ model: 'kvasir-demo', prompt: 'a', max_tokens: 1, kvasir: { contract: 'exact', session } });
    const ask = `POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: ${body.length}\r\n\r\n${body}`;
    const some = Math.ceil(n / 8);
    const over = (done, fail) => {
      let head = '';
      let answers = 0;
      const s = connect(Number(new URL(this.url).port), '127.0.0.1', () => s.write(ask.repeat(some)));
      s.setEncoding('latin1').on('error', fail).on('close', () => fail(new Error(`closed after ${answers} answers`)));
      s.on('data', (text) => {
        const lines = (head + text).split('HTTP/1.1 200');
        head = lines.at(-1).slice(-11);
        answers += lines.length - 1;
        if (answers < some) return;
        done();
        s.destroy();
      });
    };
    await Promise.all(Array.from({ length: 8 }, () => new Promise(over)));
  }
}

export const launch = () =>
  chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox', '--disable-dev-shm-usage'] });

/** What the tests of one file share, there once `opening` has prepared it. */
export let daemon;
export let browser;

/** Starts both before a file's tests and ends them after; `first` prepares the daemon. */
export function opening(options, first) {
  before(async () => {
    const started = await Promise.allSettled([Daemon.start(options), launch()]);
    [daemon, browser] = started.map((x) => x.value);
    for (const x of started) if (x.reason) throw x.reason;
    await first?.();
  });
  after(async () => {
    await browser?.close();
    await daemon?.stop();
  });
}

/** A page of its own that remembers every complaint of the browser in `page.complaints`; `live`: wait until the stream brings news; `routes`: answers
 *  by address instead of the daemon's, `events` that of the stream; `token`: as if it had been typed. */
export async function open(browser, url, { live = true, routes = {}, events, token, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, timezoneId: 'Europe/Oslo', ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(20000);
  if (token) await page.addInitScript((t) => sessionStorage.setItem('kvasir.token', t), token);
  for (const [address, answer] of Object.entries(events ? { ...routes, '**/api/v1/events': { contentType: 'text/event-stream', ...events } } : routes)) await page.route(address, (r) => r.fulfill(answer));
  page.complaints = [];
  page.on('pageerror', (e) => page.complaints.push(e.stack ?? String(e)));
  page.on('console', (m) => {
    if (m.type() === 'error') page.complaints.push(m.text());
  });
  await page.goto(url);
  if (live) await page.locator('.top .badge', { hasText: 'live' }).waitFor();
  return page;
}

/** What axe-core finds wrong, as lines of text; `only` narrows it to some rules. */
export async function wrongs(page, only) {
  if (!(await page.evaluate(() => 'axe' in globalThis))) await page.evaluate(axe.source);
  const runOnly = only ?? ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'];
  const found = await page.evaluate((rules) => globalThis.axe.run(document, { runOnly: rules, resultTypes: ['violations'] }), runOnly);
  return found.violations.flatMap((v) =>
    v.nodes.map(
      (n) =>
        `${v.id}: ${n.target.flat().join(' ')} — ${v.help} ${n.any
          .map((a) => a.message)
          .join('; ')
          .slice(0, 160)}`,
    ),
  );
}

const HOUR = 3600;
const STEPS = [
  { stage: 'SHADOW', fraction: 0, min_seconds: HOUR },
  { stage: 'CANARY', fraction: 0.1, min_seconds: HOUR },
  { stage: 'RAMP', fraction: 0.5, min_seconds: HOUR },
  { stage: 'FULL', fraction: 1, min_seconds: 0 },
];
/** A live rollout: the one there is, else a new one that stays in its first stages. */
export async function live(daemon) {
  const { rollouts } = await daemon.api('rollouts');
  const has = rollouts.find((r) => r.live);
  return has ?? daemon.api('rollouts', { name: 'web-quest', pipeline: 'quest', params: {}, contract: 'approximate', steps: STEPS });
}

/** Goes to a place and waits until it is drawn with what it loads. */
export async function visit(page, place) {
  await page.evaluate((h) => {
    location.hash = h;
  }, `#/${place}`);
  await page.locator(`.view[data-path="${place}"] h1`).first().waitFor();
  await page.waitForFunction(() => !document.querySelector('main [aria-busy=true]'));
}

/** What runs out of its card or over the text beside it. */
export const spilt = (page) =>
  page.evaluate(() => [...document.querySelectorAll('main .card, .facts dt, .facts dd')].filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.innerText.slice(0, 60)));

export const notes = (page) => page.locator('.notes');
export const dialog = (page) => page.locator('dialog[open]');
