// work.test.mjs — sessions, policies of two users, starts and what takes a while, in a real browser against the real daemon.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { browser, Daemon, daemon, dialog, notes, open, opening, until, wrongs } from './harness.mjs';

// Leaves every move to the operator.
const HOLDS = 'return { api = 1, name = "holds", release = function() return { action = "HOLD", reason = "by hand" } end }\n';
const LONG = 'The river ran over the stones and under the bridge. '.repeat(30);

const disk = mkdtempSync(join(tmpdir(), 'kvasir-web-disk-'));

opening({ config: { tiers: { disk: { path: disk, capacity_bytes: '64MiB', reserve_bytes: 0 } } } });
after(() => rmSync(disk, { recursive: true, force: true }));

test('what is kept of a session is pinned, let go and dropped', async () => {
  const reply = await fetch(`${daemon.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ prompt: LONG, max_tokens: 4, kvasir: { session: 'keep me' } }),
  });
  assert.equal(reply.status, 200);
  const kept = async () => (await daemon.api('sessions')).sessions.find((s) => s.session === 'keep me');
  await until('saved', async () => (await kept())?.saved_blocks > 0);
  const page = await open(browser, `${daemon.url}/#/sessions`);
  const row = page.getByRole('row', { name: /keep me/ });
  await row.getByRole('button', { name: 'Pin keep me' }).click();
  await row.getByText('pinned', { exact: true }).waitFor();
  assert.equal((await kept()).pinned, true);
  const drop = row.getByRole('button', { name: 'Drop keep me' });
  assert.match(await drop.getAttribute('title'), /unpin it first/);
  await drop.click({ force: true });
  await notes(page).getByText('it is pinned; unpin it first').waitFor();
  await row.getByRole('button', { name: 'Unpin keep me' }).click();
  await until('unpinned', async () => !(await kept()).pinned);
  await row.getByRole('button', { name: 'Pin keep me' }).waitFor();
  assert.deepEqual(await wrongs(page), []);
  await drop.click();
  await dialog(page).getByText(/leave the disk/).waitFor();
  await dialog(page).getByRole('button', { name: 'Drop' }).click();
  await notes(page).getByText(/dropped; its next turn/).waitFor();
  await until('dropped', async () => !(await kept())?.saved_blocks);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test('a rollout is advanced in two clicks and held in one', async () => {
  const { source } = await daemon.api('policies/release');
  await daemon.api('policies/release/activate', { source: HOLDS }, { 'If-Match': '*' });
  const r = await daemon.api('rollouts', { name: 'by-clicks', pipeline: 'layerwise', contract: 'exact' });
  const page = await open(browser, `${daemon.url}/`);
  const controls = page.locator('.controls');
  await controls.getByRole('button', { name: 'Advance' }).click();
  await dialog(page).getByText('SHADOW').waitFor();
  await dialog(page).getByRole('button', { name: 'Advance' }).click();
  await until('in the shadow', async () => (await daemon.api(`rollouts/${r.id}`)).stage === 'SHADOW');
  await controls.getByRole('button', { name: 'Pause' }).click();
  await until('held', async () => (await daemon.api(`rollouts/${r.id}`)).paused);
  await daemon.api(`rollouts/${r.id}/rollback`, {});
  await daemon.api('policies/release/activate', { source }, { 'If-Match': '*' });
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test('drills are run, a gate is tried without effect, and samples are saved', async () => {
  const { rollouts } = await daemon.api('rollouts');
  const page = await open(browser, `${daemon.url}/#/rollouts/${rollouts[0].id}`);
  const row = page.getByRole('row', { name: /idempotent_replay/ });
  await row.getByText('never run').waitFor();
  await row.getByRole('button', { name: 'Run drill idempotent_replay' }).click();
  await row.getByText('passed').waitFor({ timeout: 60000 });
  await row.getByRole('link', { name: /receipt/ }).waitFor();
  await page.getByLabel('metric').selectOption('tenant_failures');
  await page.getByRole('button', { name: 'Dry run' }).click();
  await page.getByText(/Nothing was moved/).waitFor();
  const [saved] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Download samples' }).click()]);
  assert.equal(saved.suggestedFilename(), `${rollouts[0].id}.jsonl`);
  assert.deepEqual(await wrongs(page), []);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test('what takes over a second shows as a bar with its percent, in every place', async () => {
  const task = (id, what, seconds) => ({ id, kind: 'prefill', what, done: 1536, total: 4096, unit: 'tokens', since: '2026-01-01T00:00:00Z', seconds });
  const status = { ...(await daemon.api('status')), progress: [task('q_1', 'acme s05', 2.4), task('q_2', 'acme s06', 0.3)] };
  const page = await open(browser, `${daemon.url}/`, { live: false, events: { status: 200, body: `event: status\ndata: ${JSON.stringify(status)}\n\n` } });
  for (const place of ['', 'tiers', 'help']) {
    await page.evaluate((h) => {
      location.hash = h;
    }, `#/${place}`);
    const bar = page.getByRole('progressbar', { name: 'Prefill acme s05' });
    await bar.waitFor();
    assert.equal(await bar.getAttribute('aria-valuenow'), '37');
    assert.equal(await page.getByRole('progressbar').count(), 1);
  }
  assert.match(await page.locator('.task').innerText(), /37\s%, 1,536 of 4,096 tokens, 2 s/);
  assert.deepEqual(await wrongs(page), []);
  await page.context().close();
});

test('a request is found by its trace, pasted as it stands in a header, and by time', async () => {
  const trace = '4bf92f3577b34da6a3ce929d0e0e4736';
  const parent = `00-${trace}-00f067aa0ba902b7-01`;
  for (const headers of [{ traceparent: parent }, {}])
    await (await fetch(`${daemon.url}/v1/completions`, { method: 'POST', headers: { 'content-type': 'application/json', ...headers }, body: JSON.stringify({ prompt: 'a', max_tokens: 1 }) })).arrayBuffer();
  await until('receipted', async () => (await daemon.api(`receipts?trace=${trace}`)).receipts.length === 1);
  const page = await open(browser, `${daemon.url}/#/receipts`);
  const rows = page.locator('main tbody tr');
  await until('others too', async () => (await rows.count()) > 1);
  await page.getByRole('searchbox', { name: 'trace' }).fill(` ${parent.toUpperCase()} `);
  await page.keyboard.press('Enter');
  await until('the one', async () => (await rows.count()) === 1);
  assert.equal(new URL(page.url()).hash, `#/receipts?trace=${trace}`);
  await rows.getByRole('link').first().click();
  await page.getByRole('link', { name: trace }).click();
  await until('back at the one', async () => (await rows.count()) === 1);
  await page.getByRole('searchbox', { name: 'trace' }).fill('4bf9');
  await page.keyboard.press('Enter');
  await page.getByText(/32 hexadecimal digits/).first().waitFor();
  await page.getByRole('button', { name: 'Clear' }).click();
  await until('all of them', async () => (await rows.count()) > 1);
  await page.getByRole('searchbox', { name: 'until' }).fill('2020-01-01');
  await page.keyboard.press('Enter');
  await page.getByText('No receipt matches.').waitFor();
  assert.deepEqual(page.complaints.filter((c) => !/400 \(/.test(c)), []);
  await page.context().close();
});

test('a daemon that still loads its model says how far it is, and the page goes on by itself', async () => {
  const starting = { status: 503, contentType: 'application/json', body: JSON.stringify({ error: { code: 'DRAINING', message: 'the server is still starting' } }) };
  const load = { tasks: [{ id: 't_1', kind: 'load', what: 'large.gguf', done: 450, total: 1000, unit: 'permille', since: '2026-01-01T00:00:00Z', seconds: 3 }] };
  const routes = { '**/api/v1/events': starting, '**/api/v1/status': starting, '**/api/v1/progress': { status: 200, contentType: 'application/json', body: JSON.stringify(load) } };
  const page = await open(browser, `${daemon.url}/#/receipts`, { live: false, routes });
  await page.getByRole('heading', { level: 1, name: 'kvasird is starting' }).waitFor();
  await page.getByRole('progressbar', { name: 'Loading large.gguf' }).waitFor();
  await page.locator('.top .badge', { hasText: 'starting, 45' }).waitFor();
  assert.deepEqual(await wrongs(page), []);
  assert.equal(await page.getByText('Nothing was heard since').count(), 0);
  for (const url of Object.keys(routes)) await page.unroute(url);
  await page.locator('.top .badge', { hasText: 'live' }).waitFor();
  await page.getByRole('heading', { level: 1, name: 'Receipts' }).waitFor();
  await page.context().close();
});

test('where two users exist one edits and checks, the other approves, and then it is activated', async () => {
  const entry = (name, rights) => ({ name, sha256: createHash('sha256').update(`secret of ${name}`).digest('hex'), rights });
  const config = { auth: { mode: 'token', tokens: [entry('annie', ['viewer', 'operator']), entry('bob', ['viewer', 'operator', 'approver'])] } };
  const two = await Daemon.start({ config });
  try {
    const [annie, bob] = await Promise.all(['annie', 'bob'].map((name) => open(browser, `${two.url}/#/policies/release`, { token: `secret of ${name}` })));
    await annie.locator('.cm-content').click();
    await annie.keyboard.press('Control+a');
    await annie.keyboard.insertText(HOLDS);
    await annie.getByRole('button', { name: 'Check', exact: true }).click();
    await annie.locator('.replay').getByText(/recorded answers would change/).waitFor();
    await annie.locator('.cm-deletedChunk').first().waitFor(); // the difference beside the replay
    await annie.getByRole('button', { name: 'Activate', exact: true }).click();
    await dialog(annie).getByRole('button', { name: 'Activate' }).click();
    await notes(annie).getByText(/Activate: FORBIDDEN/).waitFor();
    await notes(annie).getByText(/somebody else approves it below/).waitFor();
    await dialog(annie).getByRole('button', { name: 'Cancel' }).click();
    await bob.reload();
    await bob.getByRole('button', { name: /^Approve: holds/ }).click();
    await dialog(bob).getByRole('button', { name: 'Approve' }).click();
    await notes(bob).getByText('now APPROVED').waitFor();
    await annie.reload();
    await annie.getByRole('button', { name: /^Activate: holds/ }).click();
    await dialog(annie).getByRole('button', { name: 'Activate' }).click();
    await notes(annie).getByText('now ACTIVE').waitFor();
    await annie.getByRole('row', { name: /holds ACTIVE/ }).waitFor();
    assert.deepEqual(annie.complaints.filter((c) => !/403 \(/.test(c)), []);
    await annie.context().close();
    await bob.context().close();
  } finally {
    await two.stop();
  }
});
