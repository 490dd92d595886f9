import { address, byId, el } from './dom.js';
import { ClaimList } from './claims.js';
import * as colours from './colours.js';
import { bytes, number, plural } from './format.js';
import { read, write } from './hash.js';
import { apply, claims, complete, nodes, pending, state, total, words } from './model.js';
import { NodeMap } from './map.js';
import { draw as drawNotes } from './notes.js';
import { show } from './panel.js';
import { PendingList } from './pending.js';
import { follow } from './stream.js';
import { theme } from './theme.js';
import { follow as followUse } from './usage.js';

const views = { gpus: { name: 'GPUs', make: NodeMap }, claims: { name: 'Claims', make: ClaimList }, pending: { name: 'Pending', make: PendingList } };
const container = byId('view'), search = byId('search'), panel = byId('panel');

// now is the state that the address holds: the selected object, the tab, the search and the colours.
let now = read(location.hash), list, tab;

// go changes the state. The browser's Back undoes it, except for a change that replaces the last one.
function go(change, replace = false) {
  Object.assign(now, change);
  const next = write(now);
  if (next !== (location.hash || '#')) history[replace ? 'replaceState' : 'pushState'](null, '', next);
  restore();
}

// restore shows the state.
function restore() {
  if (!Object.hasOwn(views, now.tab)) now.tab = 'gpus';
  if (!colours.kinds.includes(now.colour)) now.colour = colours.kinds[0];
  if (search.value !== now.search && search !== document.activeElement) search.value = now.search;
  colours.setBy(now.colour);
  for (const input of byId('colour').querySelectorAll('input')) input.checked = input.value === now.colour;
  if (tab !== now.tab) open(now.tab);
  drawPanel();
  later();
}

// later draws the page in the next frame, however many changes come before it.
let frame;
const later = () => {
  frame ??= requestAnimationFrame(() => {
    frame = undefined;
    draw();
  });
};

const seek = (text, tab = now.tab) => {
  search.value = text;
  go({ search: text, tab });
};

function draw() {
  const all = nodes(), asked = words(now.search), sums = total(all), waiting = pending();
  if (complete()) colours.assign(sums.namespace);
  byId('title').textContent = state.status.title;
  document.title = `GPUs ${state.status.title}`;
  drawState(all.length);
  drawNotes(all);
  drawTotals([
    ['Nodes', number(sums.nodes)], ['GPUs', number(sums.gpus)], ['Free', number(sums.use.free ?? 0), '', 'use:free'],
    ['Unhealthy', number(sums.health.unhealthy ?? 0), sums.health.unhealthy > 0 ? 'bad' : '', 'health:unhealthy'],
    ['Tainted', number(sums.health.tainted ?? 0), sums.health.tainted > 0 ? 'warn' : '', 'health:tainted'],
    ['Memory', bytes(sums.memory)], ['Claims', number(state.claims.size)], ['Pending', number(waiting), waiting > 0 ? 'warn' : '', 'tab'],
  ]);
  setText(byId('tab-gpus'), `GPUs ${number(sums.gpus)}`);
  setText(byId('tab-claims'), `Claims ${number(state.claims.size)}`);
  setText(byId('tab-pending'), `Pending ${number(waiting)}`);
  drawLegend(sums, asked);
  const result = tab === 'gpus' ? list.set(all, asked) : list.set(claims(), asked);
  const searched = tab === 'gpus' ? plural(sums.gpus, 'GPU') : tab === 'pending' ? plural(waiting, 'waiting claim') : plural(state.claims.size, 'claim');
  setText(byId('found'), asked.length === 0 ? '' : `${number(result.found)} of ${searched}`);
  byId('found').classList.toggle('hidden', asked.length === 0);
  drawPanel();
  container.querySelector('[aria-current]')?.removeAttribute('aria-current');
  if (now.kind !== '') container.querySelector(`[href="${CSS.escape(address(now.kind, ...now.names))}"]`)?.setAttribute('aria-current', 'true');
  document.body.dataset.shown = state.shown;
}

const setText = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

function drawState(known) {
  const reading = state.status.reading ?? [];
  const text = !state.connected ? 'No connection: the command may have ended'
    : reading.length > 0 ? `Reading ${reading.join(', ')}${known > 0 ? `: ${plural(known, 'node')} so far` : ''}` : 'Live';
  setText(byId('state'), text);
  byId('state').className = !state.connected ? 'lost' : reading.length > 0 ? 'reading' : 'live';
}

// drawTotals shows the numbers. A click on one with a term searches for it.
let totalsKey = '';
function drawTotals(rows) {
  const key = JSON.stringify(rows);
  if (key === totalsKey) return;
  totalsKey = key;
  const onclick = (term) => () => (term === 'tab' ? go({ tab: 'pending' }) : seek(term, 'gpus'));
  byId('totals').replaceChildren(...rows.map(([name, value, style, term]) => el('div', { class: style || null }, el('dt', {}, name),
    el('dd', {}, term && value !== '0' ? el('button', { type: 'button', title: term === 'tab' ? 'Show them' : `Search for ${term}`, onclick: onclick(term) }, value) : value))));
}

let legendKey = '';
function drawLegend(sums, asked) {
  const key = JSON.stringify([colours.by, colours.version, sums[colours.by], sums.use, sums.closed, sums.held, asked]);
  if (key === legendKey) return;
  legendKey = key;
  byId('legend').replaceChildren(...colours.legend(sums, asked, (term, on) => {
    const rest = now.search.split(/\s+/).filter((w) => w !== '' && w.toLowerCase() !== term.toLowerCase());
    seek((on ? rest : [...rest, term]).join(' '));
  }));
}

function drawPanel() {
  document.body.classList.toggle('detailed', show(now.kind, now.names, close));
}

// close leaves the details, and returns to their GPU.
function close() {
  const from = address(now.kind, ...now.names);
  go({ kind: '', names: [] });
  (container.querySelector(`[href="${CSS.escape(from)}"]`) ?? container.querySelector('[tabindex="0"]') ?? search).focus();
}

function open(name) {
  tab = name;
  document.body.dataset.tab = name;
  list?.close();
  for (const one of byId('tabs').children) {
    const on = one.id === `tab-${name}`;
    one.setAttribute('aria-selected', String(on));
    one.tabIndex = on ? 0 : -1;
  }
  container.className = name;
  container.scrollTop = 0;
  container.setAttribute('aria-labelledby', `tab-${name}`);
  list = new views[name].make(container);
}

byId('tabs').append(...Object.entries(views).map(([name, { name: text }]) => el('button', {
  type: 'button', role: 'tab', id: `tab-${name}`, 'aria-controls': 'view', onclick: () => go({ tab: name }),
  onkeydown: (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const all = Object.keys(views), next = all[(all.indexOf(name) + step + all.length) % all.length];
    go({ tab: next });
    byId(`tab-${next}`).focus();
  },
}, text)));

for (const by of colours.kinds) {
  byId('colour').append(el('label', {}, el('input', { type: 'radio', name: 'colour', value: by, onchange: () => go({ colour: by }) }), by));
}

// A browser limits how often an address can change, so it follows the keys after a pause.
let typing;
search.addEventListener('input', () => {
  now.search = search.value;
  later();
  clearTimeout(typing);
  typing = setTimeout(() => go({ search: now.search.trim() }, true), 300);
});
byId('skip').addEventListener('click', (event) => {
  event.preventDefault();
  event.stopPropagation();
  (container.querySelector('[tabindex="0"]') ?? container).focus();
});
// A link selects an object, and keeps the rest of the state.
document.addEventListener('click', (event) => {
  const link = event.target instanceof Element && event.target.closest('a[href^="#"]');
  if (!link || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  const { kind, names } = read(link.getAttribute('href'));
  go({ kind, names });
  if (!panel.hidden && !panel.contains(document.activeElement)) panel.focus({ preventScroll: true });
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && !panel.hidden) close();
  else if (event.key === '/' && !(event.target instanceof HTMLInputElement)) {
    event.preventDefault();
    search.focus();
  }
});
for (const moved of ['popstate', 'hashchange']) {
  addEventListener(moved, () => {
    now = read(location.hash);
    search.value = now.search;
    restore();
  });
}
new ResizeObserver(later).observe(container);
container.tabIndex = -1;
theme(byId('theme'));
search.value = now.search;
restore();

let drawn = 0;
follow((line) => {
  apply(line);
  state.connected = true;
  // While the cluster arrives, ten drawings a second are enough.
  if (line.shown || performance.now() - drawn > 100) {
    drawn = performance.now();
    later();
  }
}, () => {
  state.connected = false;
  later();
});
// Utilization waits until the cluster is read, which it would slow down.
followUse(() => (!state.connected || !complete() ? [] : [...new Set([...(now.kind === 'gpu' || now.kind === 'node' ? [now.names[0]] : []), ...(list.onScreen?.() ?? [])])]), later);
