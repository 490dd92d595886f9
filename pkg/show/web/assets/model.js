// The cluster as the server describes it.

import { model } from './format.js';

export const state = { status: { title: '', driver: '', reading: ['the cluster'] }, nodes: new Map(), claims: new Map(), connected: false, shown: false };

const numeric = new Intl.Collator('en', { numeric: true });
// order has no equal names: to the collator, job-1 and job-01 are equal.
const order = (a, b) => numeric.compare(a, b) || (a < b ? -1 : a > b ? 1 : 0);

// Sorted has the keys of a map in their order. A fleet has tens of thousands, so a new one is inserted, and not all sorted again.
class Sorted {
  #map;
  #keys;

  constructor(map) {
    this.#map = map;
  }

  clear() {
    this.#map.clear();
    this.#keys = undefined;
  }

  set(key, value) {
    if (!this.#map.has(key)) this.#keys?.splice(this.#place(key), 0, key);
    this.#map.set(key, value);
  }

  delete(key) {
    if (this.#map.delete(key)) this.#keys?.splice(this.#place(key), 1);
  }

  values() {
    this.#keys ??= [...this.#map.keys()].sort(order);
    return this.#keys.map((key) => this.#map.get(key));
  }

  // #place is the place of a key, also if it is not in the list.
  #place(key) {
    let low = 0, high = this.#keys.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (order(this.#keys[middle], key) < 0) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

const byNode = new Sorted(state.nodes), byClaim = new Sorted(state.claims);

export const keyOf = (ref) => `${ref.namespace}/${ref.name}`;

// complete reports whether the page has all nodes and claims, so that counts of them are right.
export const complete = () => state.shown && !(state.status.reading ?? []).some((r) => r === 'ResourceSlices' || r === 'ResourceClaims' || r === 'the cluster');

export function apply(line) {
  if (line.reset) {
    byNode.clear();
    byClaim.clear();
    state.shown = false;
  } else if (line.status) {
    state.status = line.status;
    state.shown = false; // It precedes the nodes and claims of its batch.
  } else if (line.node) {
    byNode.set(line.node.name, describe(line.node));
  } else if (line.claim) {
    line.claim.text = claimText(line.claim);
    byClaim.set(keyOf(line.claim), line.claim);
  } else if (line.gone?.node !== undefined) {
    byNode.delete(line.gone.node);
  } else if (line.gone?.claim) {
    byClaim.delete(keyOf(line.gone.claim));
  } else if (line.shown) {
    state.shown = true;
  }
}

export const nodes = () => byNode.values();
export const claims = () => byClaim.values();

// pending is the number of claims that wait.
export function pending() {
  let out = 0;
  for (const c of state.claims.values()) out += c.state === 'pending';
  return out;
}

// uses are the uses of a GPU, as kubectl gpu ls names them. A GPU without a holder that new claims cannot get is not free but
// closed.
export const uses = ['free', 'closed', 'whole', 'shared', 'cut', 'group', 'external', 'unpublished'];
export const useNames = { shared: 'shares', cut: 'partitions' };
export const useOf = (gpu) => (gpu.use === 'free' && !gpu.free ? 'closed' : gpu.use);

// useText is the use of a GPU in words: that of kubectl gpu ls, but closed if it only looks free.
export const useText = (gpu) => (useOf(gpu) === 'closed' ? 'closed' : gpu.summary);

export const healths = ['ok', 'unknown', 'tainted', 'unhealthy'];
export const healthOf = (gpu) => (gpu.health ? 'unhealthy' : gpu.taints?.length ? 'tainted' : gpu.condition === 'ok' ? 'ok' : 'unknown');

// describe adds the sums of a node, its models, and the text of each GPU that a search looks at.
function describe(node) {
  node.sums = sums();
  node.models = [...new Set(node.gpus.map((g) => model(g.product)).filter(Boolean))].join(', ') || '–';
  for (const gpu of node.gpus) {
    const health = healthOf(gpu), use = useOf(gpu);
    const namespaces = [...new Set((gpu.allocations ?? []).map((a) => a.claim.namespace))];
    add(node.sums.use, use);
    add(node.sums.health, health);
    if (use === 'closed') add(node.sums.closed, health);
    else if (use !== 'free') add(node.sums.held, health);
    for (const n of namespaces) add(node.sums.namespace, n);
    node.sums.memory += gpu.memoryBytes ?? 0;
    gpu.text = text(
      `node:${node.name}`, gpu.name, gpu.pciAddress, gpu.uuid ?? '', gpu.product ?? '', `use:${useNames[use] ?? use}`,
      `health:${health}`, gpu.condition, gpu.use === 'free' ? '' : gpu.summary, use === 'free' ? '' : `${use === 'closed' ? 'closed' : 'held'}:${health}`,
      node.incomplete ? 'note:incomplete' : '', node.unreadable ? 'note:unreadable' : '',
      ...namespaces.map((n) => `namespace:${n}`),
      ...(gpu.allocations ?? []).flatMap((a) => [keyOf(a.claim), a.profile ?? '', ...(a.pods ?? []).map((p) => `pod:${p}`)]),
    );
  }
  return node;
}

// A namespace can have the name of a property that all objects have.
const counts = () => Object.create(null);
const sums = () => ({ use: counts(), health: counts(), closed: counts(), held: counts(), namespace: counts(), memory: 0 });
const add = (sums, key) => (sums[key] = (sums[key] ?? 0) + 1);

const text = (...words) => `\n${words.join('\n')}\n`.toLowerCase();

const claimText = (c) => text(
  `namespace:${c.namespace}`, keyOf(c), `state:${c.state}`, c.node ? `node:${c.node}` : '', ...(c.devices ?? []), ...(c.pods ?? []).map((p) => `pod:${p}`),
);

// total adds up the sums of nodes.
export function total(of) {
  const out = { nodes: of.length, gpus: 0, ...sums() };
  for (const { gpus, sums } of of) {
    out.gpus += gpus.length;
    out.memory += sums.memory;
    for (const by of ['use', 'health', 'closed', 'held', 'namespace']) {
      for (const key in sums[by]) out[by][key] = (out[by][key] ?? 0) + sums[by][key];
    }
  }
  return out;
}

// exact are the words that match only as a whole: namespace:a does not find namespace:ab.
const exact = /^(namespace|use|health|closed|held|state|note):./;

export const words = (query) => query.toLowerCase().split(/\s+/).filter(Boolean);
export const matches = (text, all) => all.every((w) => text.includes(exact.test(w) ? `\n${w}\n` : w));
