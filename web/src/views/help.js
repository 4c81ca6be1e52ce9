// views/help.js — what the words mean, which keys there are, what each verb does, every reason code.
import { reasons } from 'tables:c';
import { rolloutVerbs } from '../actions.js';
import { bindings } from '../keys.js';
import { card, chip, meaning, stagePill, table, verdict } from '../parts.js';
import { h } from '../vdom.js';
import { go } from '../router.js';

const STAGE_WORDS = [
  ['OFF', 'The candidate exists. It computes nothing and serves nobody.'],
  ['SHADOW', 'The candidate is computed beside the baseline on sampled units. Its output is never served.'],
  ['CANARY', 'A small share of approximate sessions is served by the candidate.'],
  ['RAMP', 'The share grows, one step at a time.'],
  ['FULL', 'Every session of the cohort is served by the candidate.'],
  [
    'EXACT_BASELINE',
    'Everything is exact again. Reached from anywhere by a failed gate or by your word; from here only a new candidate starts.',
  ],
];
const VERDICT_WORDS = [
  ['PASS', 'The bound lies on the good side of the threshold. Only this advances.'],
  ['FAIL', 'The bound lies on the bad side: the rollout returns to the exact baseline.'],
  ['INCONCLUSIVE', 'There is data; the interval still straddles the threshold.'],
  ['NO_DATA', 'Too little data. No data never advances.'],
];

const spell = (keys) => keys.split(' ').map((k) => h('kbd', {}, k));
const words = (rows, show) =>
  h(
    'dl',
    { class: 'facts' },
    rows.map(([k, text]) => h('div', {}, h('dt', {}, show(k)), h('dd', {}, text))),
  );

function reasonCodes(code) {
  const rows = reasons.filter((r) => !code || r.code.includes(code.toUpperCase()) || r.meaning.includes(code));
  return card(
    'Reason codes',
    null,
    h(
      'label',
      { class: 'field' },
      h('span', {}, 'Code or meaning contains'),
      h('input', {
        type: 'search',
        class: 'first-filter',
        value: code,
        oninput: (e) => go(e.target.value ? `help/reasons/${encodeURIComponent(e.target.value)}` : 'help/reasons', null, true),
      }),
    ),
    table({
      label: 'Reason codes',
      rows,
      key: (r) => r.code,
      current: (r) => r.code === code,
      columns: [
        { head: 'code', cell: (r) => h('code', {}, r.code) },
        { head: 'class', cell: (r) => chip(r.kind) },
        { head: 'http', num: true, cell: (r) => r.http },
        { head: 'meaning', wide: true, cell: (r) => r.meaning },
      ],
    }),
  );
}

export const helpView = {
  title: ([, topic, code]) => (topic === 'reasons' && code ? `Reason ${code}` : 'Help'),
  render([, topic, code]) {
    if (topic === 'reasons') {
      return [
        h('h1', { tabindex: '-1' }, meaning(code) ? code : 'Reason codes'),
        meaning(code)
          ? h(
              'p',
              { class: 'lead' },
              meaning(code),
              '. ',
              h('a', { href: `#/failures?reason=${code}` }, 'Failures with this reason'),
              ' · ',
              h('a', { href: `#/receipts?reason=${code}` }, 'receipts'),
            )
          : null,
        reasonCodes(code ?? ''),
      ];
    }
    return [
      h('h1', { tabindex: '-1' }, 'Help'),
      h(
        'div',
        { class: 'columns even' },
        h(
          'div',
          {},
          card('Stages', null, words(STAGE_WORDS, stagePill)),
          card('Verdicts', null, words(VERDICT_WORDS, verdict)),
          card(
            'When the page is stale',
            null,
            h(
              'p',
              {},
              'The badge says stale when nothing was heard for five seconds; nothing can be changed until news arrive. The way back does not need this page: ',
              h('code', {}, 'kvasir rollout rollback ID'),
              ', or ',
              h('code', {}, 'kill -USR1'),
              ' to kvasird.',
            ),
          ),
        ),
        h(
          'div',
          {},
          card(
            'Keys',
            null,
            table({
              label: 'Keys',
              stack: false,
              rows: bindings(),
              key: (b) => b.keys,
              columns: [
                { head: 'key', cell: (b) => spell(b.keys) },
                { head: 'does', wide: true, cell: (b) => b.help },
              ],
            }),
          ),
          card(
            'Verbs',
            null,
            table({
              label: 'Verbs',
              rows: rolloutVerbs,
              key: (v) => v.verb,
              columns: [
                { head: 'verb', cell: (v) => h('code', {}, v.verb) },
                { head: 'right', cell: (v) => v.right.toLowerCase() },
                { head: 'asks', cell: (v) => ({ SAFE: 'no', ASK: 'yes', DANGER: 'yes, in red' })[v.danger] },
                { head: 'does', wide: true, cell: (v) => v.help },
              ],
            }),
          ),
          h('p', {}, h('a', { href: '#/help/reasons' }, 'All reason codes')),
        ),
      ),
    ];
  },
};
