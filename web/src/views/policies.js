// views/policies.js — policies: the list, the editor, the difference from ACTIVE, check and activate.
import { post } from '../api.js';
import { confirm } from '../dialog.js';
import { number } from '../format.js';
import { notify, notifyError } from '../notice.js';
import { card, chip, digest, link, loaded, stamp, table } from '../parts.js';
import { changed, invalidate, mustBeFresh, resource, state } from '../state.js';
import { h } from '../vdom.js';

const drafts = new Map(); // kind → text, kept while the tab lives
const checks = new Map(); // kind → {text, ok, message}
const replays = new Map(); // kind → {text, version, asked, changed, faults, changes}
const editors = new Map();
let comparing = false;

const draftKey = (kind) => `kvasir.draft.${kind}`;
function draft(kind) {
  if (!drafts.has(kind)) {
    const kept = sessionStorage.getItem(draftKey(kind));
    if (kept !== null) drafts.set(kind, kept);
  }
  return drafts.get(kind);
}
function setDraft(kind, text, active) {
  if (text === active) {
    drafts.delete(kind);
    sessionStorage.removeItem(draftKey(kind));
  } else {
    drafts.set(kind, text);
    sessionStorage.setItem(draftKey(kind), text);
  }
  changed();
}

/** Makes the text a version and asks it what was asked lately; null when it was replayed before. */
async function replay(kind, text) {
  const v = await post(`policies/${kind}/submit`, { source: text });
  if (v.state === 'DRAFT') await post(`policies/${kind}/check`, { version: v.version });
  if (v.state !== 'DRAFT' && v.state !== 'CHECKED') return null;
  return post(`policies/${kind}/replay`, { version: v.version });
}

// The difference from ACTIVE, in the editor.
function compare(kind, on) {
  comparing = on;
  editors.get(kind)?.compare(on ? current(kind)?.source : null);
}

let checking = false;

async function check(kind, text, dirty) {
  if (checking) return;
  checking = true;
  changed();
  try {
    const ok = await post('policies/check', { kind, source: text });
    checks.set(kind, { text, ok: true, message: `${ok.name} ${ok.version.slice(0, 12)}` });
    const r = dirty ? await replay(kind, text) : null;
    if (dirty) compare(kind, true);
    if (r) replays.set(kind, { ...r, text });
    notify(
      'good',
      `Check: ${kind} is sound`,
      `${ok.name}, version ${ok.version.slice(0, 12)}${r ? `; ${r.changed} of ${r.asked} recorded answers would change` : ''}`,
    );
  } catch (e) {
    checks.set(kind, { text, ok: false, message: `${e.code}: ${e.message}${e.hint ? ` — ${e.hint}` : ''}` });
    notifyError(`Check ${kind}`, e);
  }
  checking = false;
  invalidate(`policies/${kind}/versions`);
  changed();
}

function changedLines(a, b) {
  const count = (lines) => lines.reduce((m, l) => m.set(l, (m.get(l) ?? 0) + 1), new Map());
  const A = count(a.split('\n'));
  const B = count(b.split('\n'));
  let added = 0;
  let gone = 0;
  for (const [l, n] of B) added += Math.max(0, n - (A.get(l) ?? 0));
  for (const [l, n] of A) gone += Math.max(0, n - (B.get(l) ?? 0));
  return { added, gone };
}

function activate(p, text) {
  const { added, gone } = changedLines(p.source, text);
  confirm({
    title: `Activate this ${p.kind} policy?`,
    action: 'Activate',
    body: () => [
      h('p', {}, 'It replaces ', h('strong', {}, p.name), ' ', digest(p.version), ' for every decision from now on.'),
      h(
        'p',
        {},
        `${added} line${added === 1 ? '' : 's'} added, ${gone} removed. The daemon checks it first and refuses it with a reason otherwise.`,
      ),
      replayed(p.kind, text),
    ],
    run: async () => {
      mustBeFresh();
      let now;
      try {
        now = await post(`policies/${p.kind}/activate`, { source: text }, p.version);
      } catch (e) {
        invalidate('policies');
        if (e.code === 'FORBIDDEN' && checks.get(p.kind)?.text === text) e.hint = 'Check has made it a version: somebody else approves it below, then it can be activated';
        if (e.http === 412) e.hint = 'another policy became ACTIVE while you edited; your edit is kept and now compared with that one';
        throw e;
      }
      setDraft(p.kind, undefined, undefined);
      checks.delete(p.kind);
      invalidate('policies');
      notify('good', `Activated ${now.name ?? p.kind}`, `version ${String(now.version ?? '').slice(0, 12)} is ${now.state ?? 'ACTIVE'}`);
    },
  });
}

// The replay beside the edit: what would have been answered otherwise.
function replayed(kind, text) {
  const r = replays.get(kind);
  if (!r || r.text !== text) return null;
  return h(
    'div',
    { class: 'replay' },
    h(
      'p',
      {},
      h('strong', {}, `Replay: ${number(r.changed)} of ${number(r.asked)} recorded answers would change`),
      r.faults ? [' ', chip(`${number(r.faults)} faults`, 'fail')] : null,
    ),
    r.changes.length
      ? table({
          label: 'Answers that would change',
          rows: r.changes.map((c, i) => ({ ...c, row_key: i })),
          key: (c) => c.row_key,
          columns: [
            { head: 'receipt', cell: (c) => (c.receipt ? link('receipts', c.receipt) : '–') },
            { head: 'was', cell: (c) => c.was },
            { head: 'would be', cell: (c) => c.now },
            { head: 'where', wide: true, cell: (c) => c.where },
          ],
        })
      : null,
  );
}

function revert(p, v) {
  confirm({
    title: `Go back to ${v.name}?`,
    action: 'Revert',
    body: () => h('p', {}, 'It replaces ', h('strong', {}, p.name), ' ', digest(p.version), ' by ', digest(v.version), ' for every decision from now on.'),
    run: async () => {
      mustBeFresh();
      try {
        const now = await post(`policies/${p.kind}/revert`, { version: v.version }, p.version);
        notify('good', `Reverted ${p.kind}`, `${now.name} is ${now.state}`);
      } finally {
        invalidate('policies');
      }
    },
  });
}

// The way of a version that is not ACTIVE yet: which step comes next, and what it does.
const NEXT = {
  DRAFT: ['check', 'runs it and its tests in a process of its own'],
  CHECKED: ['replay', 'asks it what was decided lately'],
  REPLAYED: ['approve', 'lets it be activated; where two users exist, by somebody else than its author'],
  APPROVED: ['activate', 'it decides from now on'],
  STAGED: ['activate', 'it decides from now on'],
};
const title = (s) => s[0].toUpperCase() + s.slice(1);

function move(p, v) {
  const [verb, does] = NEXT[v.state];
  confirm({
    title: `${title(verb)} ${v.name}?`,
    action: title(verb),
    body: () => [
      h('p', {}, digest(v.version), ` by ${v.author}, now ${v.state}: ${does}.`),
      verb === 'activate' ? h('p', {}, 'It replaces ', h('strong', {}, p.name), ' ', digest(p.version), '.') : null,
    ],
    run: async () => {
      mustBeFresh();
      try {
        const r = await post(`policies/${p.kind}/${verb}`, { version: v.version }, verb === 'activate' ? p.version : undefined);
        const now = r.version?.state ?? r.state;
        notify('good', `${title(verb)}: ${v.name}`, r.asked === undefined ? `now ${now}` : `${r.changed} of ${r.asked} recorded answers would change; now ${now}`);
      } finally {
        invalidate('policies');
      }
    },
  });
}

function nextStep(p, v) {
  const back = v.was_active && v.state !== 'ACTIVE';
  const step = back ? 'revert' : NEXT[v.state]?.[0];
  if (!step) return '';
  return h(
    'button',
    {
      class: 'small',
      'aria-disabled': state.stream.stale ? 'true' : null,
      'aria-label': `${back ? 'Revert to it' : title(step)}: ${v.name} ${v.version.slice(0, 12)}`,
      title: back ? 'it decides again from now on' : NEXT[v.state][1],
      onclick: () => (state.stream.stale ? notify('info', `${title(step)} is not possible`, 'what you see is stale') : back ? revert(p, v) : move(p, v)),
    },
    back ? 'Revert to it' : title(step),
  );
}

function versions(p) {
  return card(
    'Versions',
    null,
    loaded(resource(`policies/${p.kind}/versions`, 15000), (d) =>
      table({
        label: `Versions of the ${p.kind} policy`,
        rows: d.versions,
        key: (v) => v.version,
        current: (v) => v.state === 'ACTIVE',
        columns: [
          { head: 'version', cell: (v) => digest(v.version) },
          { head: 'name', cell: (v) => v.name },
          { head: 'state', cell: (v) => chip(v.state, v.state === 'ACTIVE' ? 'pass' : 'none') },
          { head: 'since', cell: (v) => stamp(v.at) },
          { head: 'author', cell: (v) => v.author },
          { head: 'what happened', wide: true, cell: (v) => v.detail },
          { head: 'next', cell: (v) => nextStep(p, v) },
        ],
      }),
    ),
  );
}

function editorBox(p) {
  const mount = (el) => {
    let gone = false;
    import('./editor.js').then(
      ({ edit }) => {
        if (gone) return;
        const text = draft(p.kind) ?? p.source;
        const e = edit(el, {
          source: text,
          label: `Source of the ${p.kind} policy`,
          onedit: (t) => setDraft(p.kind, t, current(p.kind)?.source),
        });
        editors.set(p.kind, e);
        if (comparing) e.compare(p.source);
        changed();
      },
      () => notify('bad', 'The editor did not load', 'reload the page'),
    );
    return () => {
      gone = true;
      editors.get(p.kind)?.destroy();
      editors.delete(p.kind);
    };
  };
  return h('div', { class: 'editor', key: p.kind, mount });
}

// Another ACTIVE text has arrived while this one is open: differences are shown against it.
const compared = new Map();
function follow(kind, p) {
  if (compared.get(kind) !== p.version && comparing) editors.get(kind)?.compare(p.source);
  compared.set(kind, p.version);
}

const current = (kind) => resource(`policies/${kind}`).data;

function one(kind) {
  return loaded(resource(`policies/${encodeURIComponent(kind)}`), (p) => {
    const text = draft(kind) ?? p.source;
    follow(kind, p);
    const dirty = text !== p.source;
    const c = checks.get(kind);
    const stale = state.stream.stale;
    const why = stale ? 'what you see is stale' : !dirty ? 'nothing differs from ACTIVE' : '';
    return [
      h(
        'div',
        { class: 'row spread' },
        h(
          'p',
          { class: 'row' },
          h('strong', {}, p.name),
          chip(p.state, p.state === 'ACTIVE' ? 'pass' : 'none'),
          digest(p.version),
          h('span', { class: 'muted' }, 'since ', stamp(p.activated_at)),
          p.faults ? chip(`${number(p.faults)} faults`, 'fail') : null,
          dirty ? chip('edited', 'warn') : null,
        ),
        h(
          'div',
          { class: 'row' },
          h(
            'label',
            { class: 'toggle' },
            h('input', {
              type: 'checkbox',
              checked: comparing,
              onchange: (e) => {
                compare(kind, e.target.checked);
                changed();
              },
            }),
            ' Difference from ACTIVE',
          ),
          h(
            'button',
            {
              'aria-disabled': dirty ? null : 'true',
              title: dirty ? '' : 'nothing differs from ACTIVE',
              onclick: () => {
                if (dirty) {
                  editors.get(kind)?.setText(p.source);
                  notify('info', 'The edit is gone', 'the text is ACTIVE again; undo brings it back');
                }
              },
            },
            'Discard edit',
          ),
          h(
            'button',
            { class: 'check', 'aria-busy': checking ? 'true' : null, onclick: () => check(kind, draft(kind) ?? p.source, dirty) },
            checking ? 'Checking…' : 'Check',
          ),
          h(
            'button',
            {
              class: 'primary activate',
              'aria-disabled': why ? 'true' : null,
              title: why,
              onclick: () => (why ? notify('info', 'Activate is not possible', why) : activate(p, draft(kind))),
            },
            'Activate',
          ),
        ),
      ),
      c
        ? h(
            'p',
            { class: `health ${c.text !== text ? 'none' : c.ok ? 'pass' : 'fail'}` },
            h('span', { class: 'glyph', 'aria-hidden': 'true' }, c.ok ? '✓' : '✗'),
            h('strong', {}, c.text !== text ? 'Checked before the last edit' : c.ok ? 'Sound' : 'Refused'),
            h('span', {}, c.message),
          )
        : null,
      replayed(kind, text),
      editorBox(p),
      h(
        'p',
        { class: 'muted' },
        'A policy is a pure function of its argument: no files, no clock, no network. Escape, then Tab leaves the editor.',
      ),
    ];
  });
}

export const policiesView = {
  title: ([, kind]) => (kind ? `Policy ${kind}` : 'Policies'),
  render([, kind]) {
    const list = resource('policies', 15000);
    return [
      h('h1', { tabindex: '-1' }, kind ? `${kind[0].toUpperCase()}${kind.slice(1)} policy` : 'Policies'),
      kind ? card('Source', h('a', { class: 'button', href: '#/policies' }, 'All policies'), one(kind)) : null,
      kind && current(kind) ? versions(current(kind)) : null,
      kind
        ? null
        : card(
            'Versions',
            null,
            loaded(list, (d) =>
              table({
                label: 'Policies',
                rows: d.policies,
                key: (p) => p.kind + p.version,
                current: (p) => p.state === 'ACTIVE',
                columns: [
                  { head: 'kind', cell: (p) => h('a', { href: `#/policies/${p.kind}` }, p.kind) },
                  { head: 'name', cell: (p) => p.name },
                  { head: 'version', cell: (p) => digest(p.version) },
                  { head: 'state', cell: (p) => chip(p.state, p.state === 'ACTIVE' ? 'pass' : 'none') },
                  { head: 'activated', cell: (p) => stamp(p.activated_at) },
                  { head: 'faults', num: true, cell: (p) => (p.faults ? h('span', { class: 'fail-text' }, number(p.faults)) : '0') },
                ],
              }),
            ),
          ),
    ];
  },
};
