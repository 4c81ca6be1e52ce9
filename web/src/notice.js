// notice.js — what every click reports: a visible note, spoken through the live regions of the page.
import { h, patch } from './vdom.js';
import { clock } from './format.js';

const KEEP_MS = 7000;
const notes = [];
let serial = 0;
let box = null;

// An open dialog makes the rest of the page inert; notes and live regions move into it and back.
function rehome() {
  const home = document.querySelector('dialog[open]') ?? document.body;
  for (const el of [box, document.getElementById('polite'), document.getElementById('assertive')])
    if (el.parentNode !== home) home.append(el);
}

export function draw() {
  if (!box) {
    box = document.createElement('section');
    box.className = 'notes';
    box.setAttribute('aria-label', 'Results');
  }
  rehome();
  patch(
    box,
    notes.map((n) =>
      h(
        'div',
        { key: n.id, class: `note ${n.kind}` },
        h('span', { class: 'glyph', 'aria-hidden': 'true' }, n.kind === 'good' ? '✓' : n.kind === 'bad' ? '✗' : 'i'),
        h('div', {}, h('strong', {}, n.title), n.text ? h('p', {}, n.text) : null, h('time', {}, clock(n.at))),
        h('button', { class: 'plain', 'aria-label': `Dismiss: ${n.title}`, onclick: () => drop(n.id) }, '×'),
      ),
    ),
  );
}

function drop(id) {
  const at = notes.findIndex((n) => n.id === id);
  if (at >= 0) notes.splice(at, 1);
  draw();
}

export function say(text, urgent = false) {
  const region = document.getElementById(urgent ? 'assertive' : 'polite');
  region.textContent = '';
  setTimeout(() => {
    region.textContent = text;
  }, 30); // emptied first, or the same words twice would be spoken once
}

/** kind: good, bad, info. Bad notes stay until they are dismissed. */
export function notify(kind, title, text = '') {
  const id = ++serial;
  notes.push({ id, kind, title, text, at: new Date() });
  while (notes.length > 4) notes.shift();
  draw();
  say(text ? `${title}. ${text}` : title, kind === 'bad');
  if (kind !== 'bad') setTimeout(() => drop(id), KEEP_MS);
}

export function notifyError(what, e) {
  notify('bad', `${what}: ${e.code ?? 'failed'}`, [e.message, e.hint].filter(Boolean).join(' — '));
}
