// console.test.mjs — what an operator does in the web console, done in a real browser against the real daemon.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import { browser, Daemon, daemon, dialog, live, notes, open, opening, until, wrongs } from './harness.mjs';

// Sound when it is checked, with one gate; faulty on a rollout, which has several.
const FAULTY = `return { api = 1, name = "faulty", release = function(stage, gates, history)
  if #gates > 1 then error("on purpose") end
  return { action = "HOLD", reason = "one gate" }
end }\n`;

/** Counts the clicks it makes. */
function clicker() {
  let n = 0;
  return {
    click: async (locator) => {
      await locator.click();
      n++;
    },
    get count() {
      return n;
    },
  };
}

const stage = (page) => page.locator('.top .stage b');

opening({}, () => live(daemon));

test('a refused verb says why, a safe one reports what it did', async () => {
  const r = await live(daemon);
  const page = await open(browser, `${daemon.url}/#/rollouts/${r.id}`);
  const controls = page.locator('.controls');
  await controls.getByText(/cannot be used now/).waitFor();
  const refused = controls.getByRole('button', { disabled: true }).first();
  assert.ok((await refused.getAttribute('title')).length > 3, 'a disabled button says why');
  await refused.click({ force: true });
  await notes(page)
    .getByText(/is not possible/)
    .waitFor();
  await controls.getByRole('button', { name: 'Pause' }).click();
  await notes(page).getByText(`Pause: ${r.name}`).waitFor();
  await page.locator('.hero').getByText('paused', { exact: true }).waitFor();
  assert.equal((await daemon.api(`rollouts/${r.id}`)).paused, true);
  await controls.getByRole('button', { name: 'Resume' }).click();
  await notes(page).getByText(`Resume: ${r.name}`).waitFor();
  await until('resumed', async () => (await daemon.api(`rollouts/${r.id}`)).paused === false);
  await page.context().close();
});

test('a policy is edited, compared, refused with its reason, checked and activated', async () => {
  const before = await daemon.api('policies/release');
  const page = await open(browser, `${daemon.url}/#/policies/release`);
  const content = page.locator('.cm-content');
  await content.click();
  await page.keyboard.press('Control+a');
  await page.keyboard.insertText('return { syntax error');
  await page.getByRole('button', { name: 'Check' }).click();
  await page
    .locator('main .health.fail')
    .getByText(/POLICY_/)
    .waitFor();
  await notes(page)
    .getByRole('button', { name: /Dismiss/ })
    .first()
    .click();
  await content.click();
  await page.keyboard.press('Control+a');
  await page.keyboard.insertText(`${before.source.trimEnd()}\n-- seen ${Date.now()}\n`);
  await page.getByText('Difference from ACTIVE').click();
  await page.locator('.cm-changedLine').first().waitFor();
  await page.getByRole('button', { name: 'Check' }).click();
  await page.locator('main .health.pass').waitFor();
  await page.getByRole('button', { name: 'Activate' }).click();
  await dialog(page).getByRole('button', { name: 'Activate' }).click();
  await notes(page)
    .getByText(/^Activated/)
    .waitFor();
  const now = await daemon.api('policies/release');
  assert.match(now.source, /-- seen \d+/);
  assert.notEqual(now.version, before.version);
  assert.deepEqual(
    page.complaints.filter((c) => !/400 \(/.test(c)),
    [],
  );
  await page.context().close();
});

test('a policy is live five clicks after one decides to edit it, its replay seen', async () => {
  const before = await daemon.api('policies/release');
  const page = await open(browser, `${daemon.url}/`);
  const c = clicker();
  await c.click(page.locator('.places').getByRole('link', { name: 'Policies' }));
  await c.click(page.locator('main').getByRole('link', { name: 'release', exact: true }));
  await page.locator('.cm-content').click(); // the edit itself is not counted
  await page.keyboard.press('Control+End');
  await page.keyboard.insertText(`-- by clicks ${Date.now()}\n`);
  await c.click(page.getByRole('button', { name: 'Check', exact: true }));
  await page.locator('.replay').getByText(/recorded answers would change/).waitFor();
  await c.click(page.getByRole('button', { name: 'Activate' }));
  assert.match(await dialog(page).innerText(), /Replay: \d+ of \d+ recorded answers/);
  await c.click(dialog(page).getByRole('button', { name: 'Activate' }));
  await notes(page).getByText(/^Activated/).waitFor();
  assert.ok(c.count <= 8, `${c.count} clicks`);
  const old = page.locator('main tr').filter({ has: page.getByRole('button', { name: `copy digest ${before.version.slice(0, 12)}` }) });
  await old.getByRole('button', { name: 'Revert to it' }).click();
  await dialog(page).getByRole('button', { name: 'Revert' }).click();
  await until('reverted', async () => (await daemon.api('policies/release')).version === before.version);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test('two operators at once: the slower one is told, keeps the edit and sees what is new', async () => {
  const r = await live(daemon);
  const [mine, theirs] = [await open(browser, `${daemon.url}/#/policies/release`), await open(browser, `${daemon.url}/#/rollouts/${r.id}`)];
  const refused = (page) => page.complaints.filter((x) => !/412 \(/.test(x));
  // A rollout: one dialog stands open while the other operator pauses.
  await theirs.getByRole('button', { name: 'Skip' }).click();
  await dialog(theirs).waitFor();
  const now = await daemon.api(`rollouts/${r.id}`);
  await daemon.api(`rollouts/${r.id}/${now.paused ? 'resume' : 'pause'}`, {}, { 'if-match': String(now.version) });
  await dialog(theirs).getByRole('button', { name: 'Skip' }).click();
  await notes(theirs).getByText(/VERSION_CONFLICT/).waitFor();
  assert.equal((await daemon.api(`rollouts/${r.id}`)).live, true);
  await dialog(theirs).getByRole('button', { name: 'Cancel' }).click();
  const back = now.paused ? 'Pause' : 'Resume';
  await until('the newest state shows', async () => (await theirs.locator('.controls').getByRole('button', { name: back }).getAttribute('aria-disabled')) === null);
  await theirs.locator('.controls').getByRole('button', { name: back }).click();
  await notes(theirs).getByText(`${back}: ${r.name}`).waitFor();
  // A policy: both edit the same one.
  const { source } = await daemon.api('policies/release');
  await mine.locator('.cm-content').click();
  await mine.keyboard.press('Control+End');
  await mine.keyboard.insertText('-- mine\n');
  await daemon.api('policies/release/activate', { source: `${source}-- theirs\n` }, { 'If-Match': '*' });
  await mine.getByRole('button', { name: 'Activate' }).click();
  await dialog(mine).getByRole('button', { name: 'Activate' }).click();
  await notes(mine).getByText(/VERSION_CONFLICT/).waitFor();
  assert.match((await daemon.api('policies/release')).source, /-- theirs/);
  await dialog(mine).getByRole('button', { name: 'Cancel' }).click();
  assert.match(await mine.locator('.cm-content').innerText(), /-- mine/);
  await mine.getByText('Difference from ACTIVE').click();
  await mine.locator('.cm-deletedChunk').getByText('-- theirs').waitFor();
  await daemon.api('policies/release/activate', { source }, { 'If-Match': '*' });
  assert.deepEqual([...refused(mine), ...refused(theirs)], []);
  await mine.context().close();
  await theirs.context().close();
});

test('both arms answer one prompt side by side', async () => {
  const page = await open(browser, `${daemon.url}/#/compare`);
  await page.getByLabel('Prompt').fill('The river ran');
  await page.keyboard.press('Enter');
  await page.getByRole('table', { name: /Tokens/ }).or(page.locator('main tbody tr')).nth(4).waitFor({ timeout: 30000 });
  await page.getByText(/the same tokens|from token \d+/).waitFor();
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test('the receipt behind a failure is at most four clicks away and the chain verifies', async () => {
  const { source } = await daemon.api('policies/release');
  await daemon.api('policies/release/activate', { source: FAULTY }, { 'If-Match': '*' });
  try {
    await until('a failure', async () => (await daemon.api('failures?limit=5')).failures.length > 0, 30000);
  } finally {
    await daemon.api('policies/release/activate', { source }, { 'If-Match': '*' });
  }
  const page = await open(browser, `${daemon.url}/`);
  const c = clicker();
  await c.click(page.getByRole('link', { name: 'Failures', exact: true }));
  const row = page.locator('main tbody tr').first();
  await row.waitFor();
  await c.click(row.getByRole('link', { name: /^receipt/ }));
  await page.getByText('What it rests on').waitFor();
  await page.getByRole('heading', { level: 1, name: /^Receipt \d+/ }).waitFor();
  assert.ok(c.count <= 4, `${c.count} clicks`);
  await c.click(page.getByRole('button', { name: 'Verify the chain' }));
  await notes(page).getByText('Receipts verify').waitFor();
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test('an armed fault is said on every page, disarmed where failures are, and a run shows what it checked', async () => {
  const lab = await Daemon.start({ extra: ['--set', 'faults.enabled=true'] });
  try {
    await lab.api('faults/bit_flip', { scope: { tenant: 'acme' } });
    const page = await open(browser, `${lab.url}/`);
    await page.getByText('Faults are armed').waitFor();
    await page.getByRole('link', { name: 'The failure lab' }).click();
    const card = page.getByRole('region', { name: 'Failure lab' });
    const row = (name) => card.getByRole('row', { name: new RegExp(`^${name}`) });
    assert.match(await row('bit_flip').innerText(), /tenant acme/);
    await row('bit_flip').getByRole('button', { name: 'Disarm' }).click();
    await page.getByText('Faults are armed').waitFor({ state: 'detached' });
    await row('clock_jump').getByRole('button', { name: 'Run' }).click();
    await row('clock_jump').getByText('PASS').waitFor();
    await row('clock_jump').getByText('hold,').click();
    await row('clock_jump').getByText(/receipts verify/).waitFor();
    assert.equal(await row('kill').getByRole('button', { name: 'Run' }).isDisabled(), true);
    assert.deepEqual(await wrongs(page), []);
    assert.deepEqual(page.complaints, []);
    await page.context().close();
  } finally {
    await lab.stop();
  }
});

test('going back leaves the form of a new rollout behind', async () => {
  const page = await open(browser, `${daemon.url}/#/receipts`);
  await page.getByRole('heading', { level: 1, name: 'Receipts' }).waitFor();
  await page.evaluate(() => {
    location.hash = '#/rollouts/new';
  });
  await dialog(page).getByText('Parameters').waitFor();
  await page.goBack();
  await page.getByRole('heading', { level: 1, name: 'Receipts' }).waitFor();
  await dialog(page).waitFor({ state: 'hidden' });
  assert.ok(page.url().endsWith('#/receipts'));
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test('a rollout is created from its pipeline’s own parameters', async () => {
  const page = await open(browser, `${daemon.url}/#/rollouts/new?pipeline=quest`);
  const form = dialog(page);
  await form.getByText('Parameters').waitFor();
  const { pipelines } = await daemon.api('pipelines');
  const quest = pipelines.find((p) => p.name === 'quest');
  for (const p of quest.params) await form.locator('code', { hasText: p.name }).first().waitFor();
  assert.deepEqual(await wrongs(page), []);
  const name = `web-${Date.now()}`;
  await form.getByLabel('Name of the candidate').fill(name);
  const made = page.waitForResponse((q) => q.request().method() === 'POST' && q.url().endsWith('/api/v1/rollouts'));
  await form.getByRole('button', { name: 'Create' }).click();
  const reply = await made;
  if (reply.ok()) {
    await notes(page).getByText(`Created ${name}`).waitFor();
    await page.getByRole('heading', { level: 1, name }).waitFor();
  } else {
    // one candidate at a time: then the reason is shown and the form stays
    await notes(page)
      .getByText(/^Create: [A-Z_]+/)
      .waitFor();
    assert.ok(await form.isVisible());
  }
  await page.context().close();
});

test('a rollback takes two clicks, says what it does before and what it did after', async () => {
  const r = await live(daemon);
  const page = await open(browser, `${daemon.url}/`);
  await page.locator('.hero').waitFor();
  const c = clicker();
  await c.click(page.locator('.top').getByRole('button', { name: 'Roll back' }));
  const before = await dialog(page).innerText();
  for (const word of [r.name, 'EXACT BASELINE', '%', 'active sequence']) assert.ok(before.includes(word), `the question names ${word}`);
  assert.deepEqual(await wrongs(page), []);
  await c.click(dialog(page).getByRole('button', { name: 'Roll back' }));
  await dialog(page).getByText('Fenced', { exact: true }).waitFor();
  assert.equal(c.count, 2);
  const done = await dialog(page).innerText();
  for (const word of ['Fenced', 'Durable', 'Unsent', 'epoch']) assert.ok(done.includes(word), `the answer names ${word}`);
  await until('the stage is shown', async () => (await stage(page).innerText()) === 'EXACT BASELINE');
  assert.equal((await daemon.api(`rollouts/${r.id}`)).stage, 'EXACT_BASELINE');
  await page.keyboard.press('Enter'); // the focus is on Close
  await until('closed', async () => (await dialog(page).count()) === 0);
  await page.getByText('OPERATOR_ROLLBACK').first().waitFor();
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test(
  'a daemon that wants a token is asked with one; without the right an action is refused aloud',
  { skip: process.env.KVASIR_URL ? 'needs a daemon of its own' : false },
  async () => {
    const entry = (name, rights) => ({ name, sha256: createHash('sha256').update(`secret of ${name}`).digest('hex'), rights });
    const locked = await Daemon.start({ config: { auth: { mode: 'token', tokens: [entry('vera', ['viewer'])] } } });
    try {
      const page = await open(browser, `${locked.url}/#/rollouts`, { live: false });
      await dialog(page)
        .getByLabel(/asks for a token/)
        .fill('wrong');
      await dialog(page).getByRole('button', { name: 'Use it' }).click();
      await dialog(page)
        .getByLabel(/asks for a token/)
        .fill('secret of vera'); // refused, so asked again
      await dialog(page).getByRole('button', { name: 'Use it' }).click();
      await page.locator('.top .badge', { hasText: 'live' }).waitFor();
      await page.getByRole('button', { name: 'Freeze' }).click();
      await dialog(page).getByRole('button', { name: 'Freeze' }).click();
      await notes(page).getByText('Freeze: FORBIDDEN').waitFor();
      await page.context().close();
    } finally {
      await locked.stop();
    }
  },
);

test(
  'a server that stops makes the page stale: nothing can be changed until it is back',
  { skip: process.env.KVASIR_URL ? 'needs a daemon of its own' : false },
  async () => {
    const page = await open(browser, `${daemon.url}/`);
    await live(daemon);
    await page.locator('.top').getByRole('button', { name: 'Roll back' }).waitFor();
    await daemon.kill();
    await page.locator('.top .badge.stale').waitFor({ timeout: 9000 });
    await page.getByText('Nothing was heard since').waitFor();
    const button = page.locator('.top').getByRole('button', { name: 'Roll back' });
    assert.equal(await button.getAttribute('aria-disabled'), 'true');
    const sent = [];
    page.on('request', (q) => {
      if (q.method() === 'POST') sent.push(q.url());
    });
    await button.click({ force: true });
    await notes(page).getByText('Rollback is not possible').waitFor();
    assert.deepEqual(sent, []);
    await daemon.run();
    await page.locator('.top .badge', { hasText: 'live' }).waitFor({ timeout: 15000 });
    assert.equal(await page.getByText('Nothing was heard since').count(), 0);
    await page.context().close();
  },
);
