// keys.js — one list of keys: the handler, the help page and the command palette are made from it.
import { act, changingVerbs, whyNot } from './actions.js';
import { open as openDialog, isOpen } from './dialog.js';
import { chosenRollout, state, setPref } from './state.js';
import { h } from './vdom.js';

const goTo = (hash) => () => {
  location.hash = hash;
};

export const PLACES = [
  { name: 'Overview', hash: '#/', key: 'o', path: '' },
  { name: 'Rollouts', hash: '#/rollouts', key: 'r', path: 'rollouts' },
  { name: 'Receipts', hash: '#/receipts', key: 'e', path: 'receipts' },
  { name: 'Failures', hash: '#/failures', key: 'f', path: 'failures' },
  { name: 'Policies', hash: '#/policies', key: 'p', path: 'policies' },
  { name: 'Sessions', hash: '#/sessions', key: 's', path: 'sessions' },
  { name: 'Tiers', hash: '#/tiers', key: 't', path: 'tiers' },
  { name: 'Pipelines', hash: '#/pipelines', key: 'm', path: 'pipelines' },
  { name: 'Compare', hash: '#/compare', key: 'c', path: 'compare' },
  { name: 'Audit', hash: '#/audit', key: 'a', path: 'audit' },
  { name: 'Credits', hash: '#/credits', key: 'd', path: 'credits' },
  { name: 'Log', hash: '#/log', key: 'l', path: 'log' },
  { name: 'Help', hash: '#/help', key: 'h', path: 'help' },
];

/** Whether this daemon has what the place shows. */
export const served = (p) => p.path !== 'credits' || state.credits;

const THEMES = ['auto', 'light', 'dark'];
export const nextTheme = () => setPref('theme', THEMES[(THEMES.indexOf(state.prefs.theme) + 1) % THEMES.length]);

function verbBinding(verb, key, help) {
  return { keys: key, help: `${verb}: ${help}`, run: () => act(chosenRollout(), verb), why: () => whyNot(chosenRollout(), verb) };
}

/** Every binding: {keys, help, run, why}. */
export function bindings() {
  return [
    verbBinding('rollback', 'R', 'return all traffic to the exact baseline before the next token'),
    ...changingVerbs.filter((v) => v.key).map((v) => verbBinding(v.verb, v.key, v.help)),
    { keys: 'c', help: 'create a rollout', run: goTo('#/rollouts/new') },
    ...PLACES.filter(served).map((p) => ({ keys: `g ${p.key}`, help: `go to ${p.name.toLowerCase()}`, run: goTo(p.hash) })),
    { keys: '/', help: 'go to the filter of this page', run: () => document.querySelector('.first-filter')?.focus() },
    { keys: ':', help: 'command palette (also Ctrl K)', run: palette },
    { keys: '?', help: 'this help', run: goTo('#/help') },
  ];
}

const SETTINGS = () => [
  { keys: '', help: `look: now ${state.prefs.theme}, change`, run: nextTheme },
  { keys: '', help: `times: now ${state.prefs.utc ? 'UTC' : 'local'}, change`, run: () => setPref('utc', !state.prefs.utc) },
  { keys: '', help: `single-key shortcuts: now ${state.prefs.keys ? 'on' : 'off'}, change`, run: () => setPref('keys', !state.prefs.keys) },
];

export function palette() {
  let text = '';
  let at = 0;
  const all = [
    ...bindings(),
    ...SETTINGS(),
    ...[...state.rollouts.values()].map((r) => ({ keys: '', help: `open rollout ${r.name} ${r.id}`, run: goTo(`#/rollouts/${r.id}`) })),
  ];
  const found = () => {
    const want = text.toLowerCase().split(/\s+/).filter(Boolean);
    const hits = all.filter((b) => want.every((w) => b.help.toLowerCase().includes(w)));
    // A bare number is a receipt.
    return /^\d+$/.test(text.trim())
      ? [{ keys: '', help: `open receipt ${text.trim()}`, run: goTo(`#/receipts/${text.trim()}`) }, ...hits]
      : hits;
  };
  const choose = (self, b) => {
    self.close();
    b?.run();
  };
  openDialog({
    title: 'Commands',
    look: 'palette',
    focus: 'input',
    body: (self) => {
      const hits = found();
      at = Math.max(0, Math.min(at, hits.length - 1));
      return [
        h('input', {
          type: 'text',
          role: 'combobox',
          'aria-expanded': 'true',
          'aria-controls': 'commands',
          'aria-activedescendant': hits.length ? `command-${at}` : null,
          'aria-label': 'Command, rollout or receipt number',
          placeholder: 'Command, rollout or receipt number',
          autocomplete: 'off',
          oninput: (e) => {
            text = e.target.value;
            at = 0;
            self.draw();
          },
          onkeydown: (e) => {
            if (e.key === 'ArrowDown') at++;
            else if (e.key === 'ArrowUp') at--;
            else if (e.key === 'Enter') {
              e.preventDefault();
              choose(self, hits[at]);
              return;
            } else return;
            e.preventDefault();
            self.draw();
            self.el.querySelector('[aria-selected=true]')?.scrollIntoView({ block: 'nearest' });
          },
        }),
        h(
          'ul',
          { id: 'commands', role: 'listbox', 'aria-label': 'Commands' },
          hits.map((b, i) =>
            h(
              'li',
              { id: `command-${i}`, role: 'option', 'aria-selected': i === at ? 'true' : 'false', onclick: () => choose(self, b) },
              h('span', {}, b.help, b.why?.() ? h('small', { class: 'muted' }, ` — ${b.why()}`) : null),
              h('span', {}, b.keys ? b.keys.split(' ').map((k) => h('kbd', {}, k)) : null),
            ),
          ),
        ),
        hits.length ? null : h('p', { class: 'empty' }, 'Nothing matches.'),
      ];
    },
  });
}

const SEQUENCE_MS = 1200;
let prefix = '';
let prefixAt = 0;

// Inside the editor's shadow root the event's target is its host.
const typing = (e) =>
  e
    .composedPath()
    .some((el) => el instanceof HTMLElement && (el.isContentEditable || ['INPUT', 'TEXTAREA', 'SELECT'].includes(el.tagName)));

export function listen() {
  document.addEventListener('keydown', (e) => {
    if ((e.ctrlKey || e.metaKey) && e.key.toLowerCase() === 'k') {
      e.preventDefault();
      if (!isOpen()) palette();
      return;
    }
    if (e.ctrlKey || e.metaKey || e.altKey || e.key.length !== 1 || isOpen() || typing(e) || !state.prefs.keys) return;
    const now = Date.now();
    const keys = prefix && now - prefixAt < SEQUENCE_MS ? `${prefix} ${e.key}` : e.key;
    prefix = '';
    if (e.key === 'g' && keys === 'g') {
      prefix = 'g';
      prefixAt = now;
      return;
    }
    const b = bindings().find((x) => x.keys === keys);
    if (b) {
      e.preventDefault();
      b.run();
    }
  });
}
