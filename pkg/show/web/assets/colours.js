// Which class of colour a GPU or a part of it has. The legend has the same classes.

import { healthOf, healths, useNames, useOf, uses } from './model.js';
import { el } from './dom.js';
import { number, plural } from './format.js';

const palette = 8;
const assigned = new Map();

export const kinds = ['namespace', 'use', 'health'];
export let by = 'namespace';
export const setBy = (value) => (by = value);

// version changes with the colours of namespaces.
export let version = 0;

const most = (a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1);

// assign gives colours to namespaces, once all are known: those with the most GPUs come first, and keep theirs.
export function assign(sums) {
  for (const [name] of Object.entries(sums).sort(most)) {
    if (assigned.size === palette) return;
    if (!assigned.has(name)) {
      assigned.set(name, assigned.size);
      version++;
    }
  }
}

export const ofNamespace = (name) => (assigned.has(name) ? `n${assigned.get(name)}` : 'nx');

export function ofSegment(gpu, allocation) {
  if (by === 'use') return `u-${gpu.use}`;
  if (by === 'health') return `h-${healthOf(gpu)}`;
  return ofNamespace(allocation.claim.namespace);
}

// marked are the healths with a frame around a GPU, whatever its colour.
const marked = ['tainted', 'unhealthy'];

// ofRest is the class of the memory of a GPU that no claim has. Only memory that a claim can get looks free.
export function ofRest(gpu) {
  const health = healthOf(gpu);
  if (by === 'health') return `h-${health}${marked.includes(health) ? '' : ' rest'}`;
  if (health !== 'ok') return `c-${health}`;
  return useOf(gpu) === 'external' ? 'u-external' : 'u-free';
}

// legend lists the colours with the number of GPUs of each. A click searches for them.
export function legend(sums, query, search) {
  const of = (sums, names, make) => names.filter((n) => sums[n]).map(make);
  let rows;
  const closed = of(sums.closed, healths, (h) => [`c-${h}`, `closed:${h}`, `closed: ${h}`, sums.closed[h]]);
  const held = of(sums.held, marked, (h) => [`held ${h}`, `held:${h}`, `held: ${h}`, sums.held[h]]);
  if (by === 'use') {
    rows = of(sums.use, uses.filter((u) => u !== 'closed'), (u) => [`u-${u}`, `use:${useNames[u] ?? u}`, useNames[u] ?? u, sums.use[u]]);
    rows.push(...closed, ...held);
  } else if (by === 'health') {
    rows = of(sums.health, healths, (h) => [`h-${h}`, `health:${h}`, h, sums.health[h]]);
  } else {
    const all = Object.entries(sums.namespace).sort(most), others = all.filter(([n]) => !assigned.has(n));
    rows = all.filter(([n]) => assigned.has(n)).map(([n, count]) => [ofNamespace(n), `namespace:${n}`, n, count]);
    if (others.length > 0) {
      rows.push(['nx', '', assigned.size > 0 ? plural(others.length, 'other namespace') : plural(others.length, 'namespace'),
        others.reduce((sum, [, count]) => sum + count, 0), others.slice(0, 40).map(([n]) => n).join(', ')]);
    }
    if (sums.use.free) rows.push(['u-free', 'use:free', 'free', sums.use.free]);
    if (sums.use.external) rows.push(['u-external', 'use:external', 'external', sums.use.external]);
    rows.push(...closed, ...held);
  }
  return rows.map(([colour, term, name, count, title]) => {
    const on = query.includes(term.toLowerCase());
    const text = [el('i', { class: `swatch ${colour}` }), name, el('b', {}, number(count))];
    return el('li', {}, term === '' ? el('span', { class: 'chip', title }, text)
      : el('button', { type: 'button', class: 'chip', 'aria-pressed': String(on), onclick: () => search(term, on) }, text));
  });
}
