// Texts of quantities and parts.

export function bytes(n) {
  if (!n) return '–';
  const gi = n / 2 ** 30;
  if (gi >= 2 ** 20) return `${(gi / 2 ** 20).toFixed(2)} PiB`;
  return `${gi >= 1024 ? `${(gi / 1024).toFixed(1)} TiB` : `${gi.toFixed(gi < 10 || gi % 1 > 0.05 ? 1 : 0)} GiB`}`;
}

export const number = (n) => n.toLocaleString('en');
export const plural = (n, noun) => `${number(n)} ${noun}${n === 1 ? '' : 's'}`;
export const percent = (part) => `${Math.round(100 * part)} %`;
export const model = (product) => (product ?? '').replace(/^NVIDIA /, '');

export function age(created) {
  const seconds = Math.floor((Date.now() - Date.parse(created)) / 1000);
  if (!(seconds >= 0)) return '–';
  for (const [unit, size] of [['d', 86400], ['h', 3600], ['min', 60]]) {
    if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${seconds} s`;
}

// part names the part of the GPU that an allocation has.
export function part(a) {
  const out = [];
  if (a.admin) out.push('admin access');
  else if (a.kind === 'mig') out.push(a.profile || a.device);
  else if (a.kind === 'nvlink-group') out.push('group');
  if (a.share && a.shareBytes) out.push(bytes(a.shareBytes));
  if (a.compute) out.push(`${a.compute} % compute`);
  return out.join(', ') || 'whole GPU';
}

// segments places the allocations of a GPU on a line from 0 to 1. Shares of a device follow each other.
export function segments(gpu) {
  const slices = Math.max(gpu.memorySlices ?? 0, 1);
  const ends = new Map();
  const out = [];
  for (const a of gpu.allocations ?? []) {
    let start = 0, size = 1;
    if (a.kind === 'mig') [start, size] = [(a.start ?? 0) / slices, (a.size ?? 0) / slices];
    const capacity = (gpu.memoryBytes ?? 0) * size;
    if (a.share && a.shareBytes > 0 && capacity > 0) {
      const end = start + size;
      start = Math.max(start, ends.get(a.device) ?? 0);
      size = Math.min(end - start, size * Math.min(1, a.shareBytes / capacity));
      ends.set(a.device, start + size);
    }
    size = Math.min(size, 1 - start);
    if (!a.admin && size > 0) out.push({ start, size, allocation: a });
  }
  return out;
}

// noneWaiting is the text of a list without waiting claims. It is only sure if the page has read all claims.
export function noneWaiting({ waiting, connected, reading, notes }) {
  if (waiting > 0) return `The search matches no waiting claim; ${plural(waiting, 'claim')} ${waiting === 1 ? 'waits' : 'wait'} for devices.`;
  if (!connected) return 'Waiting claims are unknown: the page has no connection.';
  if (reading?.length > 0) return `Waiting claims are unknown until ${reading.join(', ')} are read.`;
  if (notes?.length > 0) return 'No claim that the page could read waits for devices: see the notes.';
  return 'No claim waits for devices.';
}

// noHolder is the text of a GPU without claims.
export const noHolder = ({ connected, reading, notes }) => (connected && !reading?.length && !notes?.length
  ? 'No claim has it.' : 'No claim that the page has read has it.');
