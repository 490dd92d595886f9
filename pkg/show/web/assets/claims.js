// The view of all claims.

import { address, el } from './dom.js';
import { ofNamespace } from './colours.js';
import { age } from './format.js';
import { matches } from './model.js';
import { VirtualList } from './virtual.js';

const height = 40, heightNarrow = 64;

export class ClaimList {
  constructor(container) {
    this.container = container;
    this.list = new VirtualList(container, {
      attributes: { role: 'table', 'aria-label': 'Claims' },
      draw: ({ claim }) => row(claim),
    });
  }

  set(claims, words) {
    const narrow = this.container.clientWidth < 640;
    this.container.classList.toggle('narrow', narrow);
    const rows = claims.filter((c) => matches(c.text, words)).map((claim) => ({
      id: `${claim.namespace}/${claim.name}`, claim, version: claim, height: narrow ? heightNarrow : height,
    }));
    this.list.set(rows);
    return { found: rows.length };
  }

  close() {
    this.list.close();
  }
}

function row(c) {
  const cell = (name, ...content) => el('span', { class: name, role: 'cell' }, ...content);
  return el('div', { class: 'row claim', role: 'row', 'data-claim': `${c.namespace}/${c.name}` },
    cell('who', el('i', { class: `swatch ${ofNamespace(c.namespace)}` }),
      el('a', { href: address('claim', c.namespace, c.name) }, `${c.namespace}/${c.name}`)),
    cell(`badge ${c.state}`, c.state),
    cell('devices', c.node ? `${c.node}: ${(c.devices ?? []).join(', ')}` : 'no devices'),
    cell('pods', (c.pods ?? []).length > 0 ? (c.pods ?? []).join(', ') : '–'),
    cell('age', age(c.created)));
}
