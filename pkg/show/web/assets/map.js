// The view of nodes and their GPUs.

import { address, el } from './dom.js';
import { bar, label } from './bar.js';
import { by, version as colours } from './colours.js';
import { healthOf, matches } from './model.js';
import { percent } from './format.js';
import { at, ofGPU } from './usage.js';
import { width } from './text.js';
import { VirtualList } from './virtual.js';

// The sizes of rows in pixels. least is the least width of a GPU, line the height of a line of the head.
const sizes = {
  large: { row: 46, least: 76, gap: 14, line: 20, name: 14, small: 12 },
  small: { row: 22, least: 40, gap: 4, line: 20, name: 13, small: 12 },
};
// More rows than these are small. Heads that need a larger part of the width stand above their GPUs.
const manyRows = 100, widest = 0.36;
const space = 12, between = 10, edge = 20, narrowEdge = 12, narrow = 640;

const freeText = (node) => `${node.sums.use.free ?? 0} of ${node.gpus.length} free`;

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
    let found = 0;
    const rows = [];
    for (const node of nodes) {
      const gpus = words.length === 0 ? node.gpus : node.gpus.filter((g) => matches(g.text, words));
      if (words.length > 0 && gpus.length === 0) continue;
      found += gpus.length;
      rows.push({ id: node.name, node, gpus });
    }
    const size = rows.length > manyRows ? 'small' : 'large';
    const form = this.form(rows, size);
    const key = `${by} ${colours} ${words.join(' ')} ${form.per} ${form.size} ${form.stacked} ${Math.round(form.pixels)}`;
    for (const row of rows) {
      const lines = Math.max(1, Math.ceil(row.gpus.length / form.per));
      row.form = form;
      row.headLines = form.stacked ? this.headLines(row.node, form) : 0;
      row.height = row.headLines * form.line + Math.max(lines * form.row, form.stacked || size === 'small' ? 0 : 2 * form.line) + form.gap;
      row.version = this.version(row.node, key);
    }
    this.container.dataset.size = size;
    this.container.classList.toggle('stacked', form.stacked);
    this.container.style.setProperty('--head', `${form.head}px`);
    this.container.style.setProperty('--name', `${form.names}px`);
    this.container.style.setProperty('--free', `${form.frees}px`);
    this.list.set(rows);
    return { found, nodes: rows.length };
  }

  // form measures the heads, so that names of nodes and models are shown in full.
  form(rows, size) {
    const one = sizes[size], all = this.container.clientWidth - 2 * (this.container.clientWidth < narrow ? narrowEdge : edge);
    let names = 0, frees = 0, models = 0;
    for (const { node } of rows) {
      node.widths ??= {};
      node.widths[size] ??= [width(node.name, one.name, 600), width(freeText(node), one.small), width(node.models, one.small)];
      const [name, free, model] = node.widths[size];
      names = Math.max(names, name);
      frees = Math.max(frees, free);
      models = Math.max(models, model);
    }
    const head = size === 'small' ? names + models + frees + 2 * space : Math.max(names + space + frees, models);
    const stacked = all < narrow || head > widest * all;
    const left = stacked ? all : all - head - 16;
    const columns = Math.max(1, Math.floor((left + between) / (one.least + between)));
    const per = 2 ** Math.floor(Math.log2(Math.min(columns, 8))); // Equal lines, as boards have 1, 2, 4 or 8 GPUs.
    return { ...one, size, all, head, names, frees, stacked, per, pixels: (left - (per - 1) * between) / per };
  }

  // headLines is the number of lines of a head above its GPUs. A name wider than the page has several.
  headLines(node, { all, size }) {
    const [name, free, model] = node.widths[size];
    if (name + free + model + 2 * space <= all) return 1;
    return Math.ceil(name / all) + (free + model + space <= all ? 1 : 1 + Math.ceil(model / all));
  }

  // version is equal as long as a row looks the same.
  version(node, text) {
    const key = `${text} ${at(node.name)}`;
    if (node.drawn?.key !== key) node.drawn = { key, node };
    return node.drawn;
  }

  draw({ node, gpus, form, headLines }, i) {
    const grid = el('div', { class: 'gpus', role: 'presentation' }, gpus.map((g, j) => this.gpu(node, gpus, g, j, form, i)));
    grid.style.setProperty('--per', form.per);
    const head = el('div', { class: `head${headLines > 1 ? ' wrapped' : ''}`, role: 'rowheader' },
      el('a', { class: 'name', href: address('node', node.name) }, node.name),
      el('span', { class: 'free', title: 'GPUs that a new claim can get as a whole' }, freeText(node)),
      el('span', { class: 'model' }, node.models));
    if (form.stacked) head.style.height = `${headLines * form.line}px`;
    return el('div', { class: 'row', role: 'row', 'data-node': node.name }, head, grid);
  }

  gpu(node, gpus, g, j, { per, pixels, size }, i) {
    const group = node.groups?.find((one) => one.members.includes(g.name));
    const linked = (k) => group && Math.floor(k / per) === Math.floor(j / per) && group.members.includes(gpus[k]?.name);
    const wraps = (k) => group && !linked(k) && group.members.includes(gpus[k]?.name); // to another line
    const classes = ['gpu', group && 'group', linked(j - 1) && 'from', linked(j + 1) && 'to', wraps(j - 1) && 'back', wraps(j + 1) && 'on'].filter(Boolean).join(' ');
    const current = this.at.node === i && this.at.gpu === j;
    const used = ofGPU(g)?.utilization;
    return el('div', { class: classes, role: 'gridcell' },
      el('a', { href: address('gpu', node.name, g.name), 'aria-label': label(g), title: label(g), tabindex: current ? 0 : -1, 'data-gpu': g.name },
        bar(g, size === 'small' ? 0 : pixels),
        size === 'large' && el('span', { class: 'caption', 'aria-hidden': 'true' }, el('span', {}, g.name.replace(/^gpu-0000-/, '').replace(/-00-0$/, '')),
          g.condition !== 'ok' ? el('em', { class: healthOf(g) }, g.condition) : (used > 0 || used === 0 && g.allocations?.length > 0) && el('span', { class: 'percent' }, percent(used)))));
  }

  // onScreen names the nodes of the rows that exist.
  onScreen() {
    return [...this.list.shown.keys()];
  }

  // key moves the focus with the arrows, Home, End, Page Up and Page Down.
  key(event) {
    const rows = this.list.rows;
    const page = Math.max(1, Math.floor(this.container.clientHeight / (rows[0]?.height ?? 50)) - 1);
    const { form: { per } = { per: 1 }, gpus = [] } = rows[this.at.node] ?? {};
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
