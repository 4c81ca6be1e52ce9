// vdom.test.mjs — patching a page must give what drawing it afresh gives, and keep the elements that stay.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { launch, root } from './harness.mjs';

let browser;
let page;

before(async () => {
  browser = await launch();
  page = await browser.newPage();
  const source = await readFile(join(root, 'web/src/vdom.js'), 'utf8');
  await page.evaluate(async (text) => {
    globalThis.vdom = await import(`data:text/javascript,${encodeURIComponent(text)}`);
  }, source);
});
after(() => browser?.close());

test('random trees: patched equals fresh, keyed elements keep their identity', async () => {
  const wrong = await page.evaluate(() => {
    const { h, patch } = globalThis.vdom;
    let seed = 12345;
    const random = (n) => {
      seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff;
      return (seed >> 8) % n;
    };
    const tree = (depth) => {
      const keys = [0, 1, 2, 3, 4, 5].sort(() => random(3) - 1).slice(0, random(7));
      const kids = keys.map((k) =>
        random(3) === 0 || depth === 0
          ? random(2)
            ? `text ${k}`
            : null
          : h(
              ['div', 'p', 'span'][random(3)],
              {
                ...(random(2) ? { key: k } : {}),
                class: random(2) ? `c${random(3)}` : null,
                'data-x': random(2) ? random(9) : undefined,
                style: random(2) ? { width: `${random(99)}px` } : undefined,
              },
              tree(depth - 1),
            ),
      );
      return kids;
    };
    const live = document.createElement('div');
    for (let i = 0; i < 400; i++) {
      const kids = tree(3);
      const before = new Map(
        (live.kvKids ?? []).filter((k) => k.v.props?.key !== undefined).map((k) => [`${k.v.tag} ${k.v.props.key}`, k.el]),
      );
      patch(live, h('x', {}, kids).kids);
      const fresh = document.createElement('div');
      patch(fresh, h('x', {}, kids).kids);
      // An attribute that came and went may leave an empty style behind; that is the same look.
      const text = (el) => el.innerHTML.replaceAll(' style=""', '');
      if (!live.isEqualNode(fresh) && text(live) !== text(fresh)) {
        const sorted = (el) =>
          [...el.querySelectorAll('*')]
            .map(
              (e) =>
                `${e.tagName}${[...e.attributes]
                  .filter((a) => a.value || a.name !== 'style')
                  .map((a) => `${a.name}=${a.value}`)
                  .sort()}`,
            )
            .join();
        if (sorted(live) !== sorted(fresh) || live.textContent !== fresh.textContent)
          return `step ${i}\n${live.innerHTML}\n${fresh.innerHTML}`;
      }
      for (const k of live.kvKids) {
        const was = k.v.props?.key !== undefined && before.get(`${k.v.tag} ${k.v.props.key}`);
        if (was && was !== k.el) return `step ${i}: the element of key ${k.v.props.key} was made anew`;
      }
    }
    return '';
  });
  assert.equal(wrong, '');
});

test('mount finds its element in the page, unmount is called once when it leaves', async () => {
  const calls = await page.evaluate(() => {
    const { h, patch } = globalThis.vdom;
    const log = [];
    const box = document.body.appendChild(document.createElement('div'));
    const view = (n) => [
      h(
        'section',
        {},
        h('div', {
          key: 'm',
          mount: (el) => {
            log.push(`mount ${el.isConnected}`);
            return () => log.push('unmount');
          },
          update: () => log.push('update'),
        }),
        n,
      ),
    ];
    patch(box, view('1'));
    patch(box, view('2'));
    patch(box, []);
    return log;
  });
  assert.deepEqual(calls, ['mount true', 'update', 'unmount']);
});

test('what a person typed stays while the page is redrawn, and follows when the value changes', async () => {
  const values = await page.evaluate(() => {
    const { h, patch } = globalThis.vdom;
    const box = document.body.appendChild(document.createElement('div'));
    const view = (value) => [h('input', { value })];
    patch(box, view('a'));
    const input = box.querySelector('input');
    input.value = 'typed';
    patch(box, view('a'));
    const kept = input.value;
    patch(box, view('b'));
    return [kept, input.value];
  });
  assert.deepEqual(values, ['typed', 'b']);
});
