import { byId, el, parsed } from './dom.js';
import { ClaimList } from './claims.js';
import * as colours from './colours.js';
import { bytes, number, plural } from './format.js';
import { apply, claims, nodes, state, total, words } from './model.js';
import { NodeMap } from './map.js';
import { show } from './panel.js';
import { PendingList } from './pending.js';
import { follow } from './stream.js';
import { theme } from './theme.js';

const views = { gpus: { name: 'GPUs', make: NodeMap }, claims: { name: 'Claims', make: ClaimList }, pending: { name: 'Pending', make: PendingList } };
const container = byId('view'), search = byId('search');
let view = 'gpus', list = new NodeMap(container);

// later draws the page in the next frame, however many changes come before it.
let frame;
const later = () => {
  frame ??= requestAnimationFrame(() => {
    frame = undefined;
    draw();
  });
};

function draw() {
  const all = nodes(), asked = words(search.value), sums = total(all), waiting = claims().filter((c) => c.state === 'pending').length;
  colours.assign(sums.namespace);
  byId('title').textContent = state.status.title;
  document.title = `GPUs ${state.status.title}`;
  drawState(all.length);
  byId('notes').replaceChildren(...(state.status.notes ?? []).map((text) => el('p', {}, text)));
  byId('totals').replaceChildren(...[
    ['Nodes', number(sums.nodes)], ['GPUs', number(sums.gpus)], ['Free', number(sums.usable)],
    ['Unhealthy', number(sums.health.unhealthy ?? 0), sums.health.unhealthy > 0 && 'bad'], ['Tainted', number(sums.health.tainted ?? 0)],
    ['Memory', bytes(sums.memory)], ['Claims', number(state.claims.size)], ['Pending', number(waiting), waiting > 0 && 'warn'],
  ].map(([name, value, style]) => el('div', { class: style || null }, el('dt', {}, name), el('dd', {}, value))));
  setText(byId('tab-gpus'), `GPUs ${number(sums.gpus)}`);
  setText(byId('tab-claims'), `Claims ${number(state.claims.size)}`);
  setText(byId('tab-pending'), `Pending ${number(waiting)}`);
  drawLegend(sums, asked);
  const result = view === 'gpus' ? list.set(all, asked) : list.set(claims(), asked);
  setText(byId('found'), asked.length === 0 ? '' : view === 'gpus' ? `${plural(result.found, 'GPU')} found` : `${plural(result.found, 'claim')} found`);
  byId('found').classList.toggle('hidden', asked.length === 0);
  drawPanel();
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

let legendKey = '';
function drawLegend(sums, asked) {
  const key = JSON.stringify([colours.by, sums[colours.by], sums.use.free, asked]);
  if (key === legendKey) return;
  legendKey = key;
  byId('legend').replaceChildren(...colours.legend(sums, asked, (term, on) => {
    const rest = words(search.value).filter((w) => w !== term);
    search.value = (on ? rest : [...rest, term]).join(' ');
    later();
  }));
}

function drawPanel() {
  const { kind, names } = parsed(location.hash);
  document.body.classList.toggle('detailed', show(kind, names, close));
}

// close leaves the details, and returns to their GPU.
function close() {
  const from = location.hash;
  history.pushState(null, '', '#');
  drawPanel();
  later();
  (container.querySelector(`[href="${CSS.escape(from)}"]`) ?? container.querySelector('[tabindex="0"]') ?? search).focus();
}

function open(name) {
  view = name;
  list.close();
  for (const tab of byId('tabs').children) {
    const on = tab.id === `tab-${name}`;
    tab.setAttribute('aria-selected', String(on));
    tab.tabIndex = on ? 0 : -1;
  }
  container.className = name;
  container.scrollTop = 0;
  container.setAttribute('aria-labelledby', `tab-${name}`);
  list = new views[name].make(container);
  draw();
}

byId('tabs').append(...Object.entries(views).map(([name, { name: text }]) => el('button', {
  type: 'button', role: 'tab', id: `tab-${name}`, 'aria-controls': 'view', onclick: () => open(name),
  onkeydown: (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const all = Object.keys(views), next = all[(all.indexOf(name) + step + all.length) % all.length];
    open(next);
    byId(`tab-${next}`).focus();
  },
}, text)));

for (const by of ['namespace', 'use', 'health']) {
  byId('colour').append(el('label', {}, el('input', {
    type: 'radio', name: 'colour', value: by, checked: by === colours.by, onchange: () => (colours.setBy(by), later()),
  }), by));
}

search.addEventListener('input', later);
byId('skip').addEventListener('click', (event) => {
  event.preventDefault();
  (container.querySelector('[tabindex="0"]') ?? container).focus();
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && !byId('panel').hidden) close();
  else if (event.key === '/' && !(event.target instanceof HTMLInputElement)) {
    event.preventDefault();
    search.focus();
  }
});
addEventListener('hashchange', () => {
  drawPanel();
  later();
  if (!byId('panel').hidden && !byId('panel').contains(document.activeElement)) byId('panel').focus({ preventScroll: true });
});
new ResizeObserver(later).observe(container);
container.tabIndex = -1;
theme(byId('theme'));
open('gpus');

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
