// The notes about the page as a whole: what it does not show, and nodes that it does not show in full.

import { address, byId, el } from './dom.js';
import { number, plural } from './format.js';
import { state } from './model.js';
import { note } from './usage.js';

const most = 3; // Names in a note.

function about(nodes, what, word) {
  if (nodes.length === 0) return [];
  const names = nodes.slice(0, most).map((n, i) => [i > 0 && ', ', el('a', { href: address('node', n.name) }, n.name)]);
  const more = nodes.length > most && ` and ${number(nodes.length - most)} more (search for note:${word})`;
  return [el('li', {}, names, more, `: ${what}`)];
}

let shown = '';

export function draw(nodes) {
  const incomplete = nodes.filter((n) => n.incomplete), unreadable = nodes.filter((n) => n.unreadable);
  const use = note(), general = state.status.notes ?? [];
  const key = JSON.stringify([general, use, incomplete.map((n) => n.name), unreadable.map((n) => [n.name, n.unreadable])]);
  if (key === shown) return;
  shown = key;
  const devices = unreadable.reduce((sum, n) => sum + n.unreadable, 0);
  const items = [
    ...general.map((text) => el('li', {}, text)),
    ...(use ? [el('li', {}, use)] : []),
    ...about(incomplete, 'slices are missing, as during an update. No claim gets a device until all are written.', 'incomplete'),
    ...about(unreadable, `${plural(devices, 'device')} with a name that driver ${state.status.driver} does not give. Another program writes slices with its name.`, 'unreadable'),
  ];
  const notes = byId('notes');
  if (notes.hidden && items.length > 0) notes.open = innerWidth > 700;
  notes.hidden = items.length === 0;
  byId('notes-title').textContent = `Notes ${number(items.length)}`;
  byId('notes-list').replaceChildren(...items);
}
