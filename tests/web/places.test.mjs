// places.test.mjs — what the web console shows: every place, in both looks, on a phone, from keys, as news arrive.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { browser, daemon, dialog, live, open, opening, spilt, until, visit, wrongs } from './harness.mjs';

const LIMIT_BYTES = 350 * 1024;
const FIRST_PAINT_MS = 1000;

opening({}, () => live(daemon));

test('the page is small, paints at once and breaks no content policy', async () => {
  for (const f of ['', 'icon.svg', 'app.js', 'app.css', 'editor.js']) {
    const reply = await fetch(`${daemon.url}/${f}`, { headers: { 'accept-encoding': 'identity' } });
    assert.equal(reply.status, 200, f);
    assert.match(reply.headers.get('content-security-policy') ?? '', /default-src 'self'/);
    assert.doesNotMatch(reply.headers.get('content-security-policy'), /unsafe/);
    await reply.arrayBuffer();
  }
  const page = await open(browser, `${daemon.url}/`);
  await page.locator('.hero').waitFor(); // plots, bars and intervals set styles
  await visit(page, 'policies/release');
  await page.locator('.cm-content').waitFor();
  const bytes = await page.evaluate(() =>
    performance
      .getEntriesByType('resource')
      .filter((r) => /\.(js|css|svg)$/.test(r.name))
      .reduce((a, r) => a + r.encodedBodySize, 0),
  );
  assert.ok(bytes > 10000 && bytes < LIMIT_BYTES, `${bytes} bytes over the wire`);
  // By the processor time of the page's own thread, with an empty cache: what the page needs, not what else the machine does.
  const fresh = await open(browser, 'about:blank', { live: false });
  const client = await fresh.context().newCDPSession(fresh);
  await client.send('Performance.enable', { timeDomain: 'threadTicks' });
  await fresh.goto(`${daemon.url}/`);
  await fresh.waitForFunction(() => performance.getEntriesByName('first-contentful-paint').length);
  const { metrics } = await client.send('Performance.getMetrics');
  const worked = metrics.find((m) => m.name === 'TaskDuration').value * 1000;
  assert.ok(worked > 0 && worked < FIRST_PAINT_MS, `painted after ${worked} ms of work`);
  await fresh.context().close();
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test('every place opens by its address, has a heading and is accessible in both looks', async () => {
  const r = await live(daemon);
  const { receipts } = await daemon.api('receipts?limit=1');
  const places = [
    '',
    'rollouts',
    `rollouts/${r.id}`,
    'receipts',
    `receipts/${receipts[0].id}`,
    'failures',
    'policies',
    'policies/release',
    'sessions',
    'compare',
    'audit',
    'credits',
    'tiers',
    'pipelines',
    'pipelines/quest',
    'log',
    'help',
    'help/reasons/INDEX_MISS',
  ];
  const look = async (colorScheme, where, rules) => {
    const page = await open(browser, `${daemon.url}/`, { colorScheme });
    for (const place of where) {
      await visit(page, place);
      assert.deepEqual(await wrongs(page, rules), [], `${colorScheme} #/${place}`);
      assert.deepEqual(await spilt(page), [], `#/${place}`);
    }
    assert.deepEqual(page.complaints, []);
    await page.context().close();
  };
  // The looks differ in colours alone, and a few places have all of them.
  await Promise.all([look('light', places), look('dark', ['', 'receipts', 'policies', 'tiers', 'pipelines', 'help'], ['color-contrast'])]);
});

test('a paused session shows with its age, what became of its rows, and what it waits for', async () => {
  const post = (path, body) => fetch(`${daemon.url}/v1/${path}`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) });
  const answer = post('completions', { prompt: 'The keeper of the gate said', max_tokens: 900, ignore_eos: true, kvasir: { session: 'agent-web' } });
  await until('paused', async () => (await post('sessions/agent-web/pause', { call_id: 'call-web', action: 'discard' })).status === 200);
  assert.equal((await (await answer).json()).choices[0].finish_reason, 'pause');
  const page = await open(browser, `${daemon.url}/#/credits`);
  const row = page.getByRole('region', { name: 'Paused sessions' }).getByRole('row', { name: /agent-web/ });
  await row.getByText('TOKEN_ONLY').waitFor();
  for (const text of ['discard', 'call-web', 'UNSEEN']) await row.getByText(text, { exact: true }).waitFor();
  await page.getByRole('region', { name: 'Credits' }).getByRole('row', { name: /pinned/ }).waitFor();
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test('nothing is cut off on a phone', async () => {
  const page = await open(browser, `${daemon.url}/`, { viewport: { width: 390, height: 844 } });
  for (const place of ['', 'receipts', 'failures', 'sessions', 'credits', 'audit', 'compare', 'pipelines', 'tiers', 'policies/release', 'help']) {
    await visit(page, place);
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 390, `#/${place} scrolls sideways`);
    assert.deepEqual(await spilt(page), [], `#/${place}`);
  }
  assert.ok(await page.locator('.top').getByRole('button', { name: 'Roll back' }).isVisible(), 'the way back is in sight');
  await page.context().close();
});

test('news arrive by the stream, without a request of their own', async () => {
  const page = await open(browser, `${daemon.url}/`);
  const published = page.locator('.tile', { hasText: 'Published' }).locator('dd');
  await published.waitFor();
  const asked = [];
  page.on('request', (q) => {
    if (q.url().includes('/api/v1/status')) asked.push(q.url());
  });
  const old = await published.innerText();
  await until('the published tokens move', async () => {
    await daemon.complete('web-live');
    return (await published.innerText()) !== old;
  });
  assert.deepEqual(asked, []);
  await page.context().close();
});

test('the stream closes while the page is hidden and resumes after the last event', async () => {
  const page = await open(browser, `${daemon.url}/`);
  const hide = (hidden) =>
    page.evaluate((h) => {
      Object.defineProperty(document, 'hidden', { configurable: true, get: () => h });
      document.dispatchEvent(new Event('visibilitychange'));
    }, hidden);
  // An event with an id must have come before there is something to resume after.
  await daemon.complete('web-hidden');
  await visit(page, 'receipts');
  await until('a receipt', async () => (await page.locator('main tbody tr').count()) > 0);
  const ended = page.waitForEvent('requestfailed', (q) => q.url().endsWith('/api/v1/events'));
  await hide(true);
  await ended;
  const again = page.waitForRequest((q) => q.url().endsWith('/api/v1/events'));
  await hide(false);
  const headers = await (await again).allHeaders();
  assert.match(headers['last-event-id'] ?? '', /^\d+$/);
  await page.locator('.top .badge', { hasText: 'live' }).waitFor();
  await page.context().close();
});

test('look and zone follow the system, then the operator, and are remembered', async () => {
  const page = await open(browser, `${daemon.url}/`, { colorScheme: 'dark' });
  const luminance = () =>
    page.evaluate(() =>
      getComputedStyle(document.body)
        .backgroundColor.match(/\d+/g)
        .slice(0, 3)
        .reduce((a, x) => a + Number(x), 0),
    );
  assert.ok((await luminance()) < 200, 'dark as the system says');
  await page.getByRole('button', { name: /^look:/ }).click();
  await until('light by choice', async () => (await luminance()) > 600);
  assert.match(await page.locator('footer').innerText(), /\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (CET|CEST|GMT[+]\d)/);
  await page.getByRole('button', { name: 'local time' }).click();
  await until('UTC', async () => /UTC$/.test(await page.locator('footer').innerText()));
  await page.reload();
  await page.locator('footer').waitFor();
  assert.ok((await luminance()) > 600, 'still light');
  assert.match(await page.locator('footer').innerText(), /UTC$/);
  await page.context().close();
});

test('keys alone: places, palette, help, and a dialog that keeps and returns the focus', async () => {
  const page = await open(browser, `${daemon.url}/`);
  await page.locator('.hero').waitFor();
  const at = () => page.evaluate(() => location.hash);
  await page.keyboard.press('g');
  await page.keyboard.press('f');
  await until('failures', async () => (await at()) === '#/failures');
  await until('the heading has the focus', () => page.evaluate(() => document.activeElement?.tagName === 'H1'));
  await page.keyboard.press('?');
  await until('help', async () => (await at()) === '#/help');
  await page.keyboard.press('Control+k');
  await dialog(page).getByRole('combobox').waitFor();
  await page.keyboard.type('go to tiers');
  await page.keyboard.press('Enter');
  await until('tiers', async () => (await at()) === '#/tiers');
  await dialog(page).waitFor({ state: 'detached' });
  await page.keyboard.press('g');
  await page.keyboard.press('o');
  await until('overview', async () => (await at()) === '#/');
  const button = page.locator('.hero').getByRole('button', { name: 'Roll back' });
  await button.focus();
  await page.keyboard.press('Enter');
  await dialog(page).waitFor();
  for (let i = 0; i < 6; i++) {
    await page.keyboard.press('Tab');
    // Between its last and first element a browser may pass through its own frame: then nothing of the page has the focus.
    assert.ok(
      await page.evaluate(() => document.activeElement === document.body || Boolean(document.activeElement.closest('dialog'))),
      'the focus stays inside',
    );
  }
  await page.keyboard.press('Escape');
  await until('closed', async () => (await dialog(page).count()) === 0);
  assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Roll back');
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test('ten thousand receipts: the newest show, older ones are one click away, and the graph of reasons is clicked through', async () => {
  const last = async () => (await daemon.api('receipts?limit=1')).receipts[0].id;
  for (let missing; (missing = 10000 - (await last())) > 0; ) await daemon.completeMany(missing / 2, 'many'); // each leaves two
  const page = await open(browser, `${daemon.url}/#/receipts`);
  await page.locator('main tbody tr').nth(49).waitFor();
  assert.ok((await page.locator('main tbody tr').count()) <= 100, 'a page of rows, not all of them');
  const first = Number(await page.locator('main tbody tr a').first().innerText());
  await page.getByRole('link', { name: 'Older' }).click();
  await page.getByText(/^Before \d+/).waitFor();
  await page.locator('main tbody tr').nth(49).waitFor();
  assert.ok(Number(await page.locator('main tbody tr a').first().innerText()) < first);
  const { receipts } = await daemon.api('receipts?kind=TRANSITION&limit=1');
  await visit(page, `receipts/${receipts[0].id}`);
  const node = page.locator('svg.chain a.node').first();
  await node.focus();
  const href = await node.getAttribute('href');
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { level: 1, name: `Receipt ${href.split('/').at(-1)}` }).waitFor();
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test('a tournament stands above the pipelines: ranks, ties, what never holds the mass, and what is not known yet', async () => {
  const { pipelines } = await daemon.api('pipelines');
  const known = { mass: 0.905, mass_low: 0.89, mass_high: 0.92, bytes: 32768, bytes_low: 30000, bytes_high: 36000, share: 0.3, rows: 190.4 };
  const none = Object.fromEntries(Object.keys(known).map((k) => [k, null]));
  const entry = (pipeline, verdict, rank, more) => ({ pipeline, verdict, rank, params: {}, budget: 'budget_rows', at: 169.25, ...more });
  const tournament = {
    state: 'RUNNING',
    pipelines: [],
    mass: 0.9,
    fraction: 0.01,
    units: 467,
    limit: 2000,
    dropped: 12,
    dense_bytes: 110000,
    entries: [entry('pqcache', 'RANKED', 1, known), entry('quest', 'TIE', null, known), entry('magicpig', 'SHORT', null, { ...none, mass: 0.6 }), entry('sparq', 'NO_DATA', null, none)],
  };
  const page = await open(browser, `${daemon.url}/`, { routes: { '**/api/v1/pipelines': { json: { pipelines, tournament } } } });
  await visit(page, 'pipelines');
  const card = page.getByRole('region', { name: 'Tournament', exact: true });
  const rows = await card.locator('tbody tr').allInnerTexts();
  assert.equal(rows.length, 4);
  assert.match(rows[0], /^1\s+pqcache\s+RANKED\s+32\sKiB\s\(.+…/);
  assert.match(rows[1], /^–\s+quest\s+TIE/);
  assert.match(rows[2], /magicpig\s+SHORT\s+–/);
  assert.match(rows[3], /sparq\s+NO_DATA\s+–/);
  await page.getByText('467 of 2,000 units, 12 dropped').waitFor();
  assert.deepEqual(await wrongs(page), []);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});
