// Which class of colour a GPU or a part of it has.

import { healthOf, useNames, uses } from './model.js';
import { el } from './dom.js';
import { number } from './format.js';

const palette = 8;
const assigned = new Map();

export let by = 'namespace';
export const setBy = (value) => (by = value);

// assign gives colours to namespaces: those with the most GPUs come first, and keep theirs.
export function assign(sums) {
  for (const [name] of Object.entries(sums).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1))) {
    if (assigned.size < palette && !assigned.has(name)) assigned.set(name, assigned.size);
  }
}

export const ofNamespace = (name) => (assigned.has(name) ? `n${assigned.get(name)}` : 'nx');

export function ofSegment(gpu, allocation) {
  if (by === 'use') return `u-${gpu.use}`;
  if (by === 'health') return `h-${healthOf(gpu)}`;
  return ofNamespace(allocation.claim.namespace);
}

const entries = (sums) => Object.entries(sums);

// legend lists the colours with the number of GPUs of each. A click searches for them.
export function legend(sums, query, search) {
  let rows;
  if (by === 'use') rows = uses.filter((u) => sums.use[u]).map((u) => [`u-${u}`, 'use', useNames[u] ?? u, sums.use[u]]);
  else if (by === 'health') {
    rows = ['ok', 'unknown', 'tainted', 'unhealthy'].filter((h) => sums.health[h]).map((h) => [`h-${h}`, 'health', h, sums.health[h]]);
  } else {
    const all = entries(sums.namespace).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
    rows = all.slice(0, 12).map(([n, count]) => [ofNamespace(n), 'namespace', n, count]);
    if (all.length > 12) rows.push(['nx', '', `${number(all.length - 12)} more`, null]);
    if (sums.use.free) rows.push(['u-free', 'use', 'free', sums.use.free]);
  }
  return rows.map(([colour, kind, name, count]) => {
    const term = `${kind}:${name}`.toLowerCase();
    const on = query.includes(term);
    const text = [el('i', { class: `swatch ${colour}` }), name, count === null ? '' : el('b', {}, number(count))];
    return el('li', {}, kind === '' ? el('span', { class: 'chip' }, text)
      : el('button', { type: 'button', class: 'chip', 'aria-pressed': String(on), onclick: () => search(term, on) }, text));
  });
}
