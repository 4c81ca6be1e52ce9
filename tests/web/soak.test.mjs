// soak.test.mjs — views switched again and again under traffic: memory, elements, listeners and streams stay where they were. KVASIR_SOAK_S makes it longer.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { browser, daemon, open, opening, visit } from './harness.mjs';

const SECONDS = Number(process.env.KVASIR_SOAK_S ?? 2);
const PLACES = ['', 'rollouts', 'receipts', 'failures', 'policies/release', 'sessions', 'tiers', 'pipelines/quest', 'credits', 'audit', 'log', 'help'];
const WARM_ROUNDS = 2;

opening();

test('nothing grows while views are switched under traffic', async () => {
  await daemon.api('rollouts', { name: 'soak', pipeline: 'quest', params: {}, contract: 'approximate' });
  let going = true;
  const traffic = (async () => {
    for (let n = 0; going; n++) await daemon.complete(`soak-${n % 20}`);
  })();
  const page = await open(browser, `${daemon.url}/`);
  const streams = new Set();
  page.on('request', (q) => q.url().endsWith('/api/v1/events') && streams.add(q));
  for (const ended of ['requestfinished', 'requestfailed']) page.on(ended, (q) => streams.delete(q));
  const client = await page.context().newCDPSession(page);
  await client.send('Performance.enable');

  const round = async () => {
    for (const place of PLACES) {
      await visit(page, place);
    }
    await page.keyboard.press('Control+k');
    await page.keyboard.press('Escape');
  };
  const measure = async () => {
    await page.evaluate(() => {
      location.hash = '#/help';
    });
    await page.locator('.view[data-path="help"] h1').waitFor();
    for (let i = 0; i < 3; i++) await client.send('HeapProfiler.collectGarbage');
    const { metrics } = await client.send('Performance.getMetrics');
    return Object.fromEntries(metrics.map((m) => [m.name, m.value]));
  };

  for (let i = 0; i < WARM_ROUNDS; i++) await round();
  const first = await measure();
  const end = Date.now() + SECONDS * 1000;
  let rounds = 0;
  for (; Date.now() < end || rounds < 2; rounds++) await round();
  const last = await measure();
  going = false;
  await traffic;
  const seen = `after ${rounds} rounds: ${['Nodes', 'JSEventListeners', 'JSHeapUsedSize'].map((k) => `${k} ${first[k]} → ${last[k]}`).join(', ')}`;
  assert.ok(last.Nodes < first.Nodes * 1.1 + 200, seen);
  assert.ok(last.JSEventListeners < first.JSEventListeners * 1.1 + 50, seen);
  assert.ok(last.JSHeapUsedSize < first.JSHeapUsedSize + 4e6, seen);
  assert.ok(streams.size <= 1, `${streams.size} event streams are open`);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});
