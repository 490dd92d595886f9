// The details of a GPU, a node, a claim or a pod.

import { address, byId, el } from './dom.js';
import { bar } from './bar.js';
import { command } from './copy.js';
import { ofNamespace } from './colours.js';
import { age, bytes, model, noHolder, part, percent, plural } from './format.js';
import { state, useText } from './model.js';
import { ofGPU } from './usage.js';
import { fill } from './why.js';

const facts = (...rows) => el('dl', { class: 'facts' }, rows.filter(([, value]) => value).map(([name, ...value]) => [el('dt', {}, name), el('dd', {}, ...value)]));
const claimLink = (c) => el('a', { href: address('claim', c.namespace, c.name) }, `${c.namespace}/${c.name}`);
const podLinks = (namespace, pods) => (pods ?? []).map((p, i) => [i > 0 && ', ', el('a', { href: address('pod', namespace, p) }, p)]);
const gpuLink = (g) => el('a', { href: address('gpu', g.node, g.name) }, `${g.node}/${g.name}`);
const swatch = (namespace) => el('i', { class: `swatch ${ofNamespace(namespace)}` });

const pixels = 338; // Of a bar in the panel.

// remedies says why new claims do not get a GPU, and what ends that.
const remedies = (g) => g.remedies?.length > 0 && [el('h3', {}, 'To recover'), g.remedies.map((r) => el('div', { class: 'remedy' },
  el('p', {}, r.cause, '.'), el('p', { class: 'muted' }, r.text[0].toUpperCase(), r.text.slice(1), '.'), r.commands?.map(command)))];

// measured describes the measured use of a GPU.
function measured(g) {
  const u = ofGPU(g);
  return u && [u.utilization !== undefined && percent(u.utilization),
    u.memoryUsedBytes !== undefined && `${bytes(u.memoryUsedBytes)} of memory in use`].filter(Boolean).join(', ');
}

function gpu(nodeName, name) {
  const g = state.nodes.get(nodeName)?.gpus.find((one) => one.name === name);
  if (!g) return;
  const slices = g.memorySlices > 0 && `${g.freeSlices ?? 0} of ${g.memorySlices}${g.fragmented ? `, ${Math.round(100 * g.fragmented)} % fragmented` : ''}`;
  const holders = (g.allocations ?? []).map((a) => el('li', {}, swatch(a.claim.namespace),
    el('div', {}, el('b', {}, part(a)), ' ', claimLink(a.claim),
      el('div', { class: 'muted' }, a.pods?.length ? ['used by ', podLinks(a.claim.namespace, a.pods)] : 'no pod uses it'))));
  return {
    kind: 'GPU', title: g.name,
    content: [
      bar(g, pixels), remedies(g),
      facts(['Use', useText(g)], ['Health', el('span', { class: g.condition === 'ok' ? '' : 'bad' }, g.condition)],
        ['Utilization', measured(g)], ['Node', el('a', { href: address('node', g.node) }, g.node)], ['Model', model(g.product)], ['Memory', g.memoryBytes && bytes(g.memoryBytes)],
        ['Free slices', slices], ['PCI address', g.pciAddress], ['UUID', g.uuid],
        ['Taints', g.taints?.map((t) => `${t.key}=${t.value ?? ''}:${t.effect}`).join(', ')]),
      el('h3', {}, 'Held by'), holders.length > 0 ? el('ul', { class: 'holders' }, holders) : el('p', { class: 'muted' }, noHolder({ connected: state.connected, ...state.status })),
    ],
  };
}

function node(name) {
  const n = state.nodes.get(name);
  if (!n) return;
  return {
    kind: 'Node', title: n.name,
    content: [
      facts(['GPUs', `${n.gpus.length}, ${n.sums.use.free ?? 0} free`], ['Models', n.models], ['Memory', bytes(n.sums.memory)],
        ['Slices', n.incomplete && 'some are missing, as during an update'], ['Unreadable', n.unreadable && plural(n.unreadable, 'device')]),
      el('ul', { class: 'gpulist' }, n.gpus.map((g) => el('li', {},
        el('a', { href: address('gpu', n.name, g.name) }, g.name, el('span', { class: 'muted' }, ` ${useText(g)}${g.condition === 'ok' ? '' : `, ${g.condition}`}`)),
        bar(g, pixels)))),
    ],
  };
}

const gpusOf = (test) => [...state.nodes.values()].flatMap((n) => n.gpus.filter((g) => g.allocations?.some(test)));

// plainName is a name that a shell takes as it is.
const plainName = /^[a-z0-9.-]+$/;

function claim(namespace, name) {
  const c = state.claims.get(`${namespace}/${name}`);
  if (!c) return;
  const why = c.state === 'pending' && el('div', { class: 'why' });
  if (why) fill(why, c);
  const own = state.nodes.get(c.node)?.gpus.filter((g) => g.allocations?.some((a) => a.claim.namespace === namespace && a.claim.name === name)) ?? [];
  return {
    kind: 'Claim', title: `${namespace}/${name}`,
    content: [
      facts(['State', el('span', { class: `badge ${c.state}` }, c.state)], ['Created', `${age(c.created)} ago`],
        ['Node', c.node && el('a', { href: address('node', c.node) }, c.node)],
        ['Pods', c.pods?.length && podLinks(namespace, c.pods)],
        ['Devices', c.devices?.length && el('ul', {}, c.devices.map((d) => el('li', {}, d, c.unpublished?.includes(d) && el('em', { class: 'bad' }, ' in no slice'))))]),
      why && [el('h3', {}, 'Why it waits'), why, plainName.test(`${namespace}${name}`) && command(`kubectl gpu why claim/${name} -n ${namespace}`)],
      own.length > 0 && [el('h3', {}, plural(own.length, 'GPU')), el('ul', { class: 'gpulist' }, own.map((g) => el('li', {}, gpuLink(g), bar(g, pixels))))],
    ],
  };
}

function pod(namespace, name) {
  const claims = [...state.claims.values()].filter((c) => c.namespace === namespace && c.pods?.includes(name));
  if (claims.length === 0) return;
  const own = gpusOf((a) => a.claim.namespace === namespace && a.pods?.includes(name));
  return {
    kind: 'Pod', title: `${namespace}/${name}`,
    content: [
      facts(['Node', el('a', { href: address('node', claims[0].node) }, claims[0].node)]),
      el('h3', {}, plural(claims.length, 'claim')),
      el('ul', { class: 'holders' }, claims.map((c) => el('li', {}, swatch(namespace), el('div', {}, claimLink(c), el('div', { class: 'muted' }, (c.devices ?? []).join(', ')))))),
      el('h3', {}, plural(own.length, 'GPU')),
      el('ul', { class: 'gpulist' }, own.map((g) => el('li', {}, gpuLink(g), bar(g, pixels)))),
    ],
  };
}

const kinds = { gpu, node, claim, pod };

// show draws the details of an object, and reports whether there is anything to show.
export function show(kind, names, close) {
  const panel = byId('panel');
  const known = Object.hasOwn(kinds, kind);
  panel.hidden = !known;
  if (!known) return false;
  const found = kinds[kind](...names) ?? { kind: 'Not found', title: names.join('/'), content: [el('p', {}, 'It does not exist any more, or you may not see it.')] };
  const focused = panel.contains(document.activeElement) && document.activeElement.getAttribute('href');
  const { scrollTop } = panel;
  panel.replaceChildren(
    el('header', {}, el('div', {}, el('span', { class: 'kind' }, found.kind), el('h2', {}, found.title)),
      el('button', { type: 'button', class: 'close', 'aria-label': 'Close the details', onclick: close }, '×')),
    ...found.content.flat(Infinity).filter(Boolean));
  panel.scrollTop = scrollTop;
  if (focused) panel.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  return true;
}
