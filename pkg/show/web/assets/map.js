// The view of nodes and their GPUs.

import { address, el } from './dom.js';
import { bar, label } from './bar.js';
import { by } from './colours.js';
import { matches } from './model.js';
import { model } from './format.js';
import { VirtualList } from './virtual.js';

const sizes = { large: { row: 46, least: 76 }, small: { row: 22, least: 40 } };
const manyNodes = 200;

export class NodeMap {
  constructor(container) {
    this.container = container;
    this.at = { node: 0, gpu: 0 };
    this.list = new VirtualList(container, {
      attributes: { role: 'grid', 'aria-label': 'GPUs by node. The arrow keys move.' },
      draw: (row, i) => this.draw(row, i),
    });
    this.onKey = (event) => this.key(event);
    container.addEventListener('keydown', this.onKey);
  }

  // set shows the GPUs with all the words.
  set(nodes, words) {
    const size = nodes.length > manyNodes ? 'small' : 'large';
    const { row, least } = sizes[size];
    const narrow = this.container.clientWidth < 640;
    const head = narrow ? (size === 'small' ? 20 : 26) : 0;
    const width = this.container.clientWidth - (narrow ? 24 : size === 'small' ? 190 : 250);
    const columns = Math.max(1, Math.floor(width / least));
    const rows = [];
    let found = 0;
    for (const node of nodes) {
      const shown = node.gpus.filter((g) => matches(g.text, words));
      if (words.length > 0 && shown.length === 0) continue;
      found += shown.length;
      const per = 2 ** Math.floor(Math.log2(Math.min(columns, 8))); // Equal lines, as boards have 1, 2, 4 or 8 GPUs.
      const lines = Math.max(1, Math.ceil(shown.length / per));
      rows.push({
        id: node.name, node, gpus: shown, per, size, height: head + lines * row + (size === 'large' ? 14 : 4),
        version: this.version(node, words, per, size, narrow),
      });
    }
    this.container.dataset.size = size;
    this.container.classList.toggle('narrow', narrow);
    this.list.set(rows);
    return { found, nodes: rows.length };
  }

  // version is equal as long as a row looks the same.
  version(node, words, per, size, narrow) {
    const key = `${by} ${words.join(' ')} ${per} ${size} ${narrow}`;
    if (node.drawn?.key !== key) node.drawn = { key, node };
    return node.drawn;
  }

  draw({ node, gpus, per }, i) {
    const grid = el('div', { class: 'gpus', role: 'presentation' }, gpus.map((g, j) => this.gpu(node, gpus, g, j, per, i)));
    grid.style.setProperty('--per', per);
    const models = [...new Set(node.gpus.map((g) => model(g.product)).filter(Boolean))].join(', ');
    const notes = [node.incomplete && 'slices are missing', node.unreadable && `${node.unreadable} unreadable devices`].filter(Boolean);
    return el('div', { class: 'row', role: 'row', 'data-node': node.name },
      el('div', { class: 'head', role: 'rowheader' },
        el('a', { class: 'name', href: address('node', node.name), title: node.name }, node.name),
        el('span', { class: 'free', title: 'GPUs without a holder' }, `${node.sums.usable} of ${node.gpus.length} free`),
        el('span', { class: 'model' }, models || '–'),
        notes.length > 0 && el('span', { class: 'note' }, notes.join(', '))),
      grid);
  }

  gpu(node, gpus, g, j, per, i) {
    const group = node.groups?.find((one) => one.members.includes(g.name));
    const linked = (k) => group && Math.floor(k / per) === Math.floor(j / per) && group.members.includes(gpus[k]?.name);
    const classes = ['gpu', group && 'group', linked(j - 1) && 'from', linked(j + 1) && 'to'].filter(Boolean).join(' ');
    const current = this.at.node === i && this.at.gpu === j;
    return el('div', { class: classes, role: 'gridcell' },
      el('a', { href: address('gpu', node.name, g.name), 'aria-label': label(g), title: label(g), tabindex: current ? 0 : -1, 'data-gpu': g.name },
        bar(g, true),
        el('span', { class: 'caption', 'aria-hidden': 'true' }, g.name.replace(/^gpu-0000-/, '').replace(/-00-0$/, ''),
          g.condition !== 'ok' && el('em', {}, g.condition))));
  }

  // key moves the focus with the arrows, Home, End, Page Up and Page Down.
  key(event) {
    const rows = this.list.rows;
    const page = Math.max(1, Math.floor(this.container.clientHeight / (rows[0]?.height ?? 50)) - 1);
    const { per = 1, gpus = [] } = rows[this.at.node] ?? {};
    const down = this.at.gpu + per < gpus.length, up = this.at.gpu - per >= 0;
    const moves = {
      ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: down ? [0, per] : [1, 0], ArrowUp: up ? [0, -per] : [-1, 0],
      PageDown: [page, 0], PageUp: [-page, 0], Home: [0, -this.at.gpu], End: [0, gpus.length - 1 - this.at.gpu],
    };
    const move = moves[event.key];
    if (!move || event.altKey || event.metaKey || rows.length === 0) return;
    event.preventDefault();
    if (event.ctrlKey && event.key === 'Home') move[0] = -rows.length;
    if (event.ctrlKey && event.key === 'End') move[0] = rows.length;
    const node = Math.min(Math.max(this.at.node + move[0], 0), rows.length - 1);
    const gpu = Math.min(Math.max(this.at.gpu + move[1], 0), Math.max(rows[node].gpus.length - 1, 0));
    this.focus(node, gpu);
  }

  focus(node, gpu) {
    this.container.querySelector('[data-gpu][tabindex="0"]')?.setAttribute('tabindex', -1);
    this.at = { node, gpu };
    const cell = this.list.reveal(node)?.querySelectorAll('[data-gpu]')[gpu];
    cell?.setAttribute('tabindex', 0);
    cell?.focus({ preventScroll: true });
  }

  close() {
    this.container.removeEventListener('keydown', this.onKey);
    this.list.close();
  }
}
