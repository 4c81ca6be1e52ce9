// views/policies.js — policies: the list, the editor, the difference from ACTIVE, check and activate.
import { post } from '../api.js';
import { confirm } from '../dialog.js';
import { number } from '../format.js';
import { notify, notifyError } from '../notice.js';
import { card, chip, digest, loaded, stamp, table } from '../parts.js';
import { changed, invalidate, mustBeFresh, resource, state } from '../state.js';
import { h } from '../vdom.js';

const drafts = new Map(); // kind → text, kept while the tab lives
const checks = new Map(); // kind → {text, ok, message}
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

async function check(kind, text) {
  try {
    const ok = await post('policies/check', { kind, source: text });
    checks.set(kind, { text, ok: true, message: `${ok.name} ${ok.version.slice(0, 12)}` });
    notify('good', `Check: ${kind} is sound`, `${ok.name}, version ${ok.version.slice(0, 12)}`);
  } catch (e) {
    checks.set(kind, { text, ok: false, message: `${e.code}: ${e.message}${e.hint ? ` — ${e.hint}` : ''}` });
    notifyError(`Check ${kind}`, e);
  }
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
    ],
    run: async () => {
      mustBeFresh();
      const now = await post(`policies/${p.kind}/activate`, { source: text });
      setDraft(p.kind, undefined, undefined);
      checks.delete(p.kind);
      invalidate('policies');
      notify('good', `Activated ${now.name ?? p.kind}`, `version ${String(now.version ?? '').slice(0, 12)} is ${now.state ?? 'ACTIVE'}`);
    },
  });
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

const current = (kind) => resource(`policies/${kind}`).data;

function one(kind) {
  return loaded(resource(`policies/${encodeURIComponent(kind)}`), (p) => {
    const text = draft(kind) ?? p.source;
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
                comparing = e.target.checked;
                editors.get(kind)?.compare(comparing ? p.source : null);
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
          h('button', { class: 'check', onclick: () => check(kind, draft(kind) ?? p.source) }, 'Check'),
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
