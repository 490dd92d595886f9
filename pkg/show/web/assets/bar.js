// A GPU drawn to scale: its memory from left to right.

import { el } from './dom.js';
import { ofSegment } from './colours.js';
import { healthOf } from './model.js';
import { part, segments } from './format.js';

export function bar(gpu, named) {
  const health = healthOf(gpu);
  const out = el('span', { class: `bar use-${gpu.use} ${health}`, 'aria-hidden': 'true' });
  if (gpu.memorySlices > 1) out.style.setProperty('--slices', gpu.memorySlices);
  for (const { start, size, allocation } of segments(gpu)) {
    const name = allocation.claim.name;
    const s = el('span', { class: `segment ${ofSegment(gpu, allocation)}` }, named && size >= 0.2 ? name : '');
    s.style.left = `${100 * start}%`;
    s.style.width = `${100 * size}%`;
    out.append(s);
  }
  return out;
}

// label says in words what a bar shows.
export function label(gpu) {
  const held = (gpu.allocations ?? []).map((a) => `${part(a)}: ${a.claim.namespace}/${a.claim.name}`);
  return [`${gpu.name}: ${gpu.summary}`, gpu.condition, ...held].join(', ');
}
