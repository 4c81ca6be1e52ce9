// vdom.js — describes elements as plain values and patches the page to match, so that focus, selection and scroll survive live updates.

const SVG = 'http://www.w3.org/2000/svg';

/** An element: h('p', {class: 'x', onclick: f}, 'text', …). Null and false children vanish. */
export function h(tag, props, ...kids) {
  return { tag, props: props ?? {}, kids: kids.flat(Infinity).filter((k) => k !== null && k !== undefined && k !== false) };
}

const waiting = []; // elements made in this patch whose mount() is due

const keyOf = (v) => v.props?.key;
const sameKind = (a, b) => (a.tag === undefined ? b.tag === undefined : a.tag === b.tag && keyOf(a) === keyOf(b));
const asNode = (k) => (typeof k === 'object' ? k : { text: String(k) });

function setProp(el, name, value, old) {
  if (name === 'key' || name === 'mount' || name === 'update') return;
  if (name.startsWith('on')) {
    el[name] = value ?? null;
    return;
  }
  if (value === old) return;
  if (name === 'style') {
    // through the CSSOM: the content policy forbids style attributes
    for (const k of Object.keys(old ?? {})) if (!(k in (value ?? {}))) el.style.removeProperty(k);
    for (const [k, v] of Object.entries(value ?? {})) if (old?.[k] !== v) el.style.setProperty(k, v);
  } else if (name === 'value' || name === 'checked' || name === 'open' || name === 'indeterminate') {
    if (el[name] !== value) el[name] = value ?? (name === 'value' ? '' : false);
  } else if (value === null || value === undefined || value === false) {
    el.removeAttribute(name);
  } else {
    el.setAttribute(name, value === true ? '' : value);
  }
}

function create(v, svg) {
  if (v.tag === undefined) return document.createTextNode(v.text);
  const inSvg = svg || v.tag === 'svg';
  const el = inSvg ? document.createElementNS(SVG, v.tag) : document.createElement(v.tag);
  const late = v.tag === 'select' || v.tag === 'option'; // a select's value needs its options first
  if (!late) for (const [k, x] of Object.entries(v.props)) setProp(el, k, x);
  if (v.props.mount) waiting.push([el, v.props.mount]);
  else patchKids(el, v.kids, inSvg);
  if (late) for (const [k, x] of Object.entries(v.props)) setProp(el, k, x);
  return el;
}

function update(el, v, old, svg) {
  if (v.tag === undefined) {
    if (v.text !== old.text) el.data = v.text;
    return;
  }
  if (!v.props.mount) patchKids(el, v.kids, svg || v.tag === 'svg');
  for (const k of Object.keys(old.props)) if (!(k in v.props)) setProp(el, k, undefined, old.props[k]);
  for (const [k, x] of Object.entries(v.props)) setProp(el, k, x, old.props[k]);
  v.props.update?.(el);
}

function remove(el) {
  release(el);
  el.remove();
}

function release(el) {
  el.kvUnmount?.();
  for (const k of el.kvKids ?? []) release(k.el);
}

function patchKids(parent, kids, svg) {
  const old = parent.kvKids ?? [];
  const keyed = new Map(old.filter((o) => keyOf(o.v) !== undefined).map((o) => [keyOf(o.v), o]));
  const loose = old.filter((o) => keyOf(o.v) === undefined);
  const used = new Set();
  const next = [];
  let cursor = 0;
  for (const kid of kids) {
    const v = asNode(kid);
    let hit = keyOf(v) !== undefined ? keyed.get(keyOf(v)) : undefined;
    if (keyOf(v) === undefined) {
      let at = cursor;
      while (at < loose.length && !sameKind(loose[at].v, v)) at++;
      if (at < loose.length) {
        hit = loose[at];
        cursor = at + 1;
      }
    } else if (hit && !sameKind(hit.v, v)) hit = undefined;
    if (hit && !used.has(hit)) {
      used.add(hit);
      next.push({ v, el: hit.el, old: hit.v });
    } else next.push({ v, el: create(v, svg) });
  }
  for (const o of old) if (!used.has(o)) remove(o.el);
  let place = parent.firstChild;
  for (const n of next) {
    if (n.el === place) place = place.nextSibling;
    else parent.insertBefore(n.el, place);
    if (n.old) update(n.el, n.v, n.old, svg);
  }
  parent.kvKids = next.map(({ v, el }) => ({ v, el }));
}

/** Makes the children of `parent` what `kids` describes, then mounts what is new: `mount(el)` finds its element in the page. */
export function patch(parent, kids) {
  patchKids(parent, kids, false);
  for (const [el, mount] of waiting.splice(0)) if (el.isConnected) el.kvUnmount = mount(el);
}
