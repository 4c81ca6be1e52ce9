// dialog.js — modal dialogs: one at a time, focus kept inside and given back afterwards.
import { h, patch } from './vdom.js';
import { draw as drawNotes, notifyError } from './notice.js';

let current = null;

/** Opens a dialog. `body()` returns its content and is called at every redraw; `look`: '', 'danger', 'wide', 'palette'. */
export function open({ title, body, look = '', onclose, focus = '[autofocus]' }) {
  current?.close();
  const el = document.createElement('dialog');
  const back = document.activeElement;
  el.className = look;
  el.setAttribute('aria-label', typeof title === 'function' ? title() : title);
  const self = {
    el,
    draw() {
      patch(el, [
        h('div', { class: 'sheet' }, look === 'palette' ? null : h('h2', {}, typeof title === 'function' ? title() : title), body(self)),
      ]);
    },
    close() {
      el.close();
    },
  };
  el.addEventListener('close', () => {
    if (current === self) current = null;
    drawNotes(); // back to the page
    patch(el, []);
    el.remove();
    if (back?.isConnected) back.focus();
    onclose?.();
  });
  el.addEventListener('pointerdown', (e) => {
    // outside the sheet
    if (e.target === el) el.close();
  });
  document.body.append(el);
  current = self;
  self.draw();
  el.showModal();
  (el.querySelector(focus) ?? el.querySelector('button, input, select'))?.focus();
  return self;
}

export const redraw = () => current?.draw();
export const isOpen = () => current !== null;

/** Asks before it acts. `run` makes the change and may return content that then stays to be read; without it the dialog closes. */
export function confirm({ title, doneTitle = title, body, action, look = '', run, focusCancel = false, focusSelector, onclose }) {
  let busy = false;
  let result = null;
  return open({
    title: () => (result ? doneTitle : title),
    look,
    onclose,
    focus: focusSelector ?? (focusCancel ? '.cancel' : '.confirm'),
    body: (self) =>
      result
        ? [
            h('div', { class: 'outcome', role: 'status' }, typeof result === 'function' ? result() : result),
            h(
              'div',
              { class: 'row end' },
              h('button', { key: 'close', class: 'primary', mount: labelled('Close', () => self.close(), true) }),
            ),
          ]
        : [
            body(),
            h(
              'div',
              { class: 'row end' },
              h('button', { class: 'cancel', onclick: () => self.close() }, 'Cancel'),
              h(
                'button',
                {
                  class: `confirm ${look === 'danger' ? 'danger' : 'primary'}`,
                  'aria-busy': busy ? 'true' : null,
                  'aria-disabled': busy ? 'true' : null,
                  onclick: async () => {
                    if (busy) return;
                    busy = true;
                    self.draw();
                    try {
                      result = await run();
                      if (!result) {
                        self.close();
                        return;
                      }
                    } catch (e) {
                      notifyError(action, e);
                    }
                    busy = false;
                    if (current === self) self.draw();
                  },
                },
                busy ? `${action}…` : action,
              ),
            ),
          ],
  });
}

// A button that takes the focus when it appears.
function labelled(text, onclick, focus) {
  return (el) => {
    el.textContent = text;
    el.onclick = onclick;
    if (focus) el.focus();
  };
}
