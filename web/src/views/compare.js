// views/compare.js — one prompt answered by the baseline and by the candidate, token by token. Both are asked for by their pipelines’ names.
import { infer } from '../api.js';
import { number, percent } from '../format.js';
import { notify, notifyError } from '../notice.js';
import { card, chip, table } from '../parts.js';
import { changed, state } from '../state.js';
import { h } from '../vdom.js';

const TOKENS = 32;
const SERVING = ['CANARY', 'RAMP', 'FULL'];

let prompt = 'The river ran';
let running = false;
let found = null;

const ask = (contract, pipeline) =>
  infer('completions', {
    model: state.status.model.name,
    prompt,
    max_tokens: TOKENS,
    temperature: 0,
    logprobs: 1,
    kvasir: { contract, pipeline },
  });

async function run() {
  if (running || !state.status) return;
  running = true;
  changed();
  try {
    const release = state.status.release;
    const serves = SERVING.includes(release.stage);
    const base = await ask('exact', 'resident');
    const other = await ask('approximate', serves ? release.pipeline : 'resident');
    const [a, b] = [base, other].map((x) => x.choices[0].logprobs);
    const rows = Array.from({ length: Math.max(a.tokens.length, b.tokens.length) }, (_, i) => ({
      i: i + 1,
      baseline: a.tokens[i],
      candidate: b.tokens[i],
      p: a.token_logprobs[i],
      q: b.token_logprobs[i],
      same: a.tokens[i] === b.tokens[i],
    }));
    const first = rows.findIndex((r) => !r.same);
    found = { rows, same: first < 0 ? rows.length : first, served: serves && other.kvasir.pipeline === release.pipeline, base: base.kvasir, other: other.kvasir, release };
    notify('good', 'Compared', `${found.same} of ${rows.length} tokens are the same before the first difference`);
  } catch (e) {
    notifyError('Compare', e);
  }
  running = false;
  changed();
}

const token = (t) => (t === undefined ? '–' : h('code', {}, JSON.stringify(t)));

export const compareView = {
  title: () => 'Compare',
  render: () => [
    h('h1', { tabindex: '-1' }, 'Compare'),
    card(
      'One prompt, both arms',
      null,
      h(
        'form',
        {
          class: 'filters',
          onsubmit: (e) => {
            e.preventDefault();
            run();
          },
        },
        h(
          'label',
          { class: 'field' },
          h('span', {}, 'Prompt'),
          h('input', {
            type: 'text',
            class: 'first-filter',
            value: prompt,
            autocomplete: 'off',
            oninput: (e) => {
              prompt = e.target.value;
            },
          }),
        ),
        h('button', { type: 'submit', class: 'primary', 'aria-busy': running ? 'true' : null }, running ? 'Both arms generate…' : 'Compare'),
      ),
      h('p', { class: 'muted' }, `Greedy, at most ${TOKENS} tokens. The requests count like any other, in figures and gates too.`),
    ),
    found
      ? card(
          found.served
            ? `${found.base.pipeline} beside ${found.other.pipeline} at ${found.release.stage} ${percent(found.release.fraction)}`
            : 'No candidate served: both columns are the baseline',
          null,
          h(
            'p',
            {},
            found.same === found.rows.length
              ? chip('✓ the same tokens', 'pass')
              : chip(`≠ from token ${found.same + 1}`, 'warn', 'after the first difference the contexts differ too'),
          ),
          table({
            label: 'Tokens of both arms',
            rows: found.rows,
            key: (r) => r.i,
            stack: false,
            columns: [
              { head: 'token', num: true, cell: (r) => r.i },
              { head: 'baseline', cell: (r) => token(r.baseline) },
              { head: 'logprob', num: true, cell: (r) => number(r.p) },
              { head: 'same', cell: (r) => (r.same ? '=' : h('strong', { class: 'warn-text' }, '≠')) },
              { head: 'candidate', cell: (r) => token(r.candidate) },
              { head: 'logprob', num: true, cell: (r) => number(r.q) },
            ],
          }),
        )
      : null,
  ],
};
