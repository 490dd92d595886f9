// A GPU drawn to scale: its memory from left to right, and its utilization as a line below.

import { el } from './dom.js';
import { ofRest, ofSegment } from './colours.js';
import { healthOf, useText } from './model.js';
import { part, percent, segments } from './format.js';
import { ofGPU } from './usage.js';
import { width } from './text.js';

const padding = 12, least = 64;

// bar draws a GPU in a place of so many pixels. Names of claims appear where they fit, or most of them.
export function bar(gpu, pixels) {
  const out = el('span', { class: `bar use-${gpu.use} ${healthOf(gpu)} ${ofRest(gpu)}`, 'aria-hidden': 'true' });
  if (gpu.memorySlices > 1) out.style.setProperty('--slices', gpu.memorySlices);
  for (const { start, size, allocation } of segments(gpu)) {
    const name = allocation.claim.name, place = size * pixels - padding;
    const s = el('span', { class: `segment ${ofSegment(gpu, allocation)}` }, place >= Math.min(width(name, 11), least) ? name : '');
    s.style.left = `${100 * start}%`;
    s.style.width = `${100 * size}%`;
    out.append(s);
  }
  const used = ofGPU(gpu)?.utilization;
  if (used > 0) {
    const line = el('i', { class: 'load' });
    line.style.width = `${100 * Math.min(1, used)}%`;
    out.append(line);
  }
  return out;
}

// label says in words what a bar shows.
export function label(gpu) {
  const held = (gpu.allocations ?? []).map((a) => `${part(a)}: ${a.claim.namespace}/${a.claim.name}`);
  const used = ofGPU(gpu)?.utilization;
  return [`${gpu.name}: ${useText(gpu)}`, gpu.condition, ...held, ...(used === undefined ? [] : [`utilization ${percent(used)}`])].join(', ');
}
