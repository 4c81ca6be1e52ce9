// create.js — the form for a new rollout, made from the pipelines' own parameter lists.
import { metrics } from 'tables:c';
import { post } from './api.js';
import { confirm } from './dialog.js';
import { notify } from './notice.js';
import { chip, contractChip, loaded } from './parts.js';
import { invalidate, mustBeFresh, resource, takeRollout } from './state.js';
import { h } from './vdom.js';

const STEPS = [
  { stage: 'SHADOW', fraction: 0, min_seconds: 30 },
  { stage: 'CANARY', fraction: 0.1, min_seconds: 60 },
  { stage: 'RAMP', fraction: 0.5, min_seconds: 60 },
  { stage: 'FULL', fraction: 1, min_seconds: 0 },
];
const isNumber = (p) => p.type !== 'string' && p.type !== 'bool' && p.type !== 'enum';

function fresh(pipeline, list) {
  const p = list.find((x) => x.name === pipeline) ?? list.find((x) => x.built) ?? list[0];
  return {
    p,
    params: Object.fromEntries((p?.params ?? []).map((x) => [x.name, x.type === 'bool' ? Boolean(x.default) : x.default])),
    name: p?.name ?? '',
    gates: gatesOf(p?.exactness === 'exact'),
  };
}

// Every candidate of a contract has the metrics with its small letter; those with the capital may be asked for.
function gatesOf(exact) {
  const letter = exact ? 'e' : 'a';
  return metrics
    .filter((m) => m.contracts.toLowerCase().includes(letter))
    .map((m) => ({ m, always: m.contracts.includes(letter), on: m.contracts.includes(letter), threshold: m.threshold, min_n: m.min_n }));
}

function gateRows(form) {
  const field = (g, k, lo, hi) =>
    h('input', {
      type: 'number',
      step: 'any',
      min: lo,
      max: hi,
      disabled: !g.on || lo === hi,
      'aria-label': `${g.m.name} ${k}`,
      value: String(g[k]),
      oninput: (e) => {
        g[k] = Number(e.target.value);
      },
    });
  return h(
    'div',
    { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Gates of the new rollout' },
    h(
      'table',
      { class: 'form' },
      h(
        'thead',
        {},
        h(
          'tr',
          {},
          ['gate', 'passes when', 'threshold', 'at least, samples'].map((t) => h('th', { scope: 'col' }, t)),
        ),
      ),
      h(
        'tbody',
        {},
        form.gates.map((g) =>
          h(
            'tr',
            { key: g.m.name },
            h(
              'td',
              {},
              h(
                'label',
                { class: 'toggle', title: g.m.help },
                h('input', {
                  type: 'checkbox',
                  checked: g.on,
                  disabled: g.always,
                  onchange: (e) => {
                    g.on = e.target.checked;
                    form.draw();
                  },
                }),
                ' ',
                h('code', {}, g.m.name),
              ),
            ),
            h('td', { class: 'muted nowrap' }, `${g.m.comparison === '<=' ? '≤' : g.m.comparison} threshold`),
            h('td', {}, field(g, 'threshold', g.m.lowest, g.m.highest)),
            h('td', {}, field(g, 'min_n', 1, null)),
          ),
        ),
      ),
    ),
  );
}

function parameter(form, spec) {
  const range = isNumber(spec) && spec.min !== null && spec.min !== undefined ? `${spec.min} … ${spec.max}` : '';
  const value = form.params[spec.name];
  const input =
    spec.type === 'bool'
      ? h('input', {
          type: 'checkbox',
          checked: Boolean(value),
          onchange: (e) => {
            form.params[spec.name] = e.target.checked;
          },
        })
      : h('input', {
          type: isNumber(spec) ? 'number' : 'text',
          min: range ? spec.min : null,
          max: range ? spec.max : null,
          step: spec.type === 'int' ? 1 : 'any',
          value: String(value ?? ''),
          oninput: (e) => {
            form.params[spec.name] = isNumber(spec) ? Number(e.target.value) : e.target.value;
          },
        });
  return h(
    'label',
    { class: 'field', key: `${form.p.name}.${spec.name}` },
    h('span', {}, h('code', {}, spec.name), spec.unit ? ` (${spec.unit})` : ''),
    input,
    h('small', {}, [spec.help, range, spec.source].filter(Boolean).join(' · ')),
  );
}

function stepRows(form) {
  return h(
    'div',
    { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Steps of the new rollout' },
    h(
      'table',
      { class: 'form' },
      h(
        'thead',
        {},
        h(
          'tr',
          {},
          ['stage', 'percent', 'at least, seconds', 'more'].map((t) => h('th', { scope: 'col' }, t)),
        ),
      ),
      h(
        'tbody',
        {},
        form.steps.map((s, i) =>
          h(
            'tr',
            { key: s.key ?? s.stage + i },
            h('td', {}, s.stage),
            h(
              'td',
              {},
              s.stage === 'CANARY' || s.stage === 'RAMP'
                ? h('input', {
                    type: 'number',
                    min: 1,
                    max: 100,
                    'aria-label': `${s.stage} percent`,
                    value: String(Math.round(s.fraction * 100)),
                    oninput: (e) => {
                      s.fraction = Number(e.target.value) / 100;
                    },
                  })
                : `${s.fraction * 100}`,
            ),
            h(
              'td',
              {},
              h('input', {
                type: 'number',
                min: 0,
                'aria-label': `${s.stage} seconds`,
                value: String(s.min_seconds),
                oninput: (e) => {
                  s.min_seconds = Number(e.target.value);
                },
              }),
            ),
            h(
              'td',
              {},
              s.stage === 'RAMP'
                ? h(
                    'button',
                    {
                      type: 'button',
                      class: 'plain',
                      'aria-label': 'one more ramp step',
                      onclick: () => {
                        form.steps.splice(i + 1, 0, {
                          stage: 'RAMP',
                          fraction: Math.min(1, s.fraction + 0.25),
                          min_seconds: s.min_seconds,
                          key: `ramp${Math.random()}`,
                        });
                        form.draw();
                      },
                    },
                    '+ step',
                  )
                : null,
              s.stage === 'RAMP' && form.steps.filter((x) => x.stage === 'RAMP').length > 1
                ? h(
                    'button',
                    {
                      type: 'button',
                      class: 'plain',
                      'aria-label': `without the ramp step at ${Math.round(s.fraction * 100)} percent`,
                      onclick: () => {
                        form.steps.splice(i, 1);
                        form.draw();
                      },
                    },
                    '− step',
                  )
                : null,
            ),
          ),
        ),
      ),
    ),
  );
}

function fields(form, pipelines) {
  const exact = form.p?.exactness === 'exact';
  return [
    h(
      'div',
      { class: 'grid' },
      h(
        'label',
        { class: 'field' },
        h('span', {}, 'Pipeline'),
        h(
          'select',
          {
            value: form.p?.name,
            class: 'pipeline',
            onchange: (e) => {
              Object.assign(form, fresh(e.target.value, pipelines));
              form.draw();
            },
          },
          pipelines.map((p) =>
            h('option', { value: p.name, key: p.name, disabled: !p.built }, `${p.title ?? p.name}${p.built ? '' : ' — not built'}`),
          ),
        ),
      ),
      h(
        'label',
        { class: 'field' },
        h('span', {}, 'Name of the candidate'),
        h('input', {
          type: 'text',
          maxlength: 64,
          value: form.name,
          oninput: (e) => {
            form.name = e.target.value;
          },
        }),
      ),
    ),
    h(
      'p',
      { class: 'row' },
      contractChip(exact ? 'exact' : 'approximate'),
      form.p?.built === false ? chip('not built', 'warn') : null,
      h(
        'span',
        { class: 'muted' },
        exact ? 'Bit-identical logits are its gate.' : 'Only requests whose contract says approximate may receive it.',
      ),
    ),
    h(
      'fieldset',
      {},
      h('legend', {}, 'Parameters'),
      form.p?.params?.length
        ? h(
            'div',
            { class: 'grid' },
            form.p.params.map((s) => parameter(form, s)),
          )
        : h('p', { class: 'muted' }, 'This pipeline has none.'),
    ),
    h('fieldset', {}, h('legend', {}, 'Steps'), stepRows(form)),
    h('fieldset', {}, h('legend', {}, 'Gates'), gateRows(form)),
    h(
      'fieldset',
      {},
      h('legend', {}, 'Cohort'),
      h(
        'div',
        { class: 'grid' },
        h(
          'label',
          { class: 'field' },
          h('span', {}, 'Tenants'),
          h('input', {
            type: 'text',
            placeholder: 'all',
            value: form.tenants,
            oninput: (e) => {
              form.tenants = e.target.value;
            },
          }),
          h('small', {}, 'names, separated by commas'),
        ),
        h(
          'label',
          { class: 'field' },
          h('span', {}, 'Classes'),
          h('input', {
            type: 'text',
            placeholder: 'all',
            value: form.classes,
            oninput: (e) => {
              form.classes = e.target.value;
            },
          }),
          h('small', {}, 'names, separated by commas'),
        ),
      ),
    ),
    h('p', { class: 'muted' }, 'It starts at OFF: creation moves no traffic.'),
  ];
}

const words = (s) =>
  s
    .split(',')
    .map((x) => x.trim())
    .filter(Boolean);

/** Opens the form; `pipeline` is the one to begin with. */
export function create(pipeline, onclose) {
  const form = { p: null, params: {}, name: '', gates: [], steps: STEPS.map((s) => ({ ...s })), tenants: '', classes: '', draw: () => {} };
  const r = resource('pipelines');
  const dialog = confirm({
    title: 'New rollout',
    action: 'Create',
    look: 'wide',
    focusSelector: 'select.pipeline',
    onclose,
    body: () =>
      loaded(r, (d) => {
        if (!form.p) Object.assign(form, fresh(pipeline, d.pipelines));
        return fields(form, d.pipelines);
      }),
    run: async () => {
      mustBeFresh();
      const made = await post('rollouts', {
        name: form.name,
        pipeline: form.p.name,
        params: form.params,
        contract: form.p.exactness === 'exact' ? 'exact' : 'approximate',
        cohort: { tenants: words(form.tenants), classes: words(form.classes) },
        steps: form.steps.map(({ stage, fraction, min_seconds }) => ({ stage, fraction, min_seconds })),
        gates: form.gates.filter((g) => g.on).map((g) => ({ metric: g.m.name, threshold: g.threshold, min_n: g.min_n })),
      });
      takeRollout(made);
      invalidate('rollouts');
      notify('good', `Created ${made.name}`, `${made.id} is at OFF`);
      location.hash = `#/rollouts/${made.id}`;
    },
  });
  form.draw = () => dialog.draw();
  return dialog;
}
