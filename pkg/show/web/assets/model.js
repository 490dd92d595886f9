// The cluster as the server describes it.

export const state = { status: { title: '', driver: '', reading: ['the cluster'] }, nodes: new Map(), claims: new Map(), connected: false, shown: false };

const order = new Intl.Collator('en', { numeric: true });
let sortedNodes, sortedClaims;

export const keyOf = (ref) => `${ref.namespace}/${ref.name}`;

export function apply(line) {
  if (line.reset) {
    state.nodes.clear();
    state.claims.clear();
    sortedNodes = sortedClaims = undefined;
    state.shown = false;
  } else if (line.status) {
    state.status = line.status;
  } else if (line.node) {
    if (!state.nodes.has(line.node.name)) sortedNodes = undefined;
    state.nodes.set(line.node.name, describe(line.node));
  } else if (line.claim) {
    if (!state.claims.has(keyOf(line.claim))) sortedClaims = undefined;
    line.claim.text = claimText(line.claim);
    state.claims.set(keyOf(line.claim), line.claim);
  } else if (line.gone?.node !== undefined) {
    state.nodes.delete(line.gone.node);
    sortedNodes = undefined;
  } else if (line.gone?.claim) {
    state.claims.delete(keyOf(line.gone.claim));
    sortedClaims = undefined;
  } else if (line.shown) {
    state.shown = true;
  }
}

export function nodes() {
  sortedNodes ??= [...state.nodes.keys()].sort(order.compare);
  return sortedNodes.map((name) => state.nodes.get(name));
}

export function claims() {
  sortedClaims ??= [...state.claims.keys()].sort(order.compare);
  return sortedClaims.map((key) => state.claims.get(key));
}

// uses are the uses of a GPU, as kubectl gpu ls names them.
export const uses = ['free', 'whole', 'shared', 'cut', 'group', 'external', 'unpublished'];
export const useNames = { shared: 'shares', cut: 'partitions' };
export const healthOf = (gpu) => (gpu.health ? 'unhealthy' : gpu.taints?.length ? 'tainted' : gpu.condition === 'unknown' ? 'unknown' : 'ok');

// describe adds the sums of a node, and the text of each GPU that a search looks at.
function describe(node) {
  node.sums = sums();
  for (const gpu of node.gpus) {
    const health = healthOf(gpu);
    const namespaces = [...new Set((gpu.allocations ?? []).map((a) => a.claim.namespace))];
    add(node.sums.use, gpu.use);
    add(node.sums.health, health);
    for (const n of namespaces) add(node.sums.namespace, n);
    node.sums.memory += gpu.memoryBytes ?? 0;
    if (gpu.use === 'free' && health === 'ok') node.sums.usable++;
    gpu.text = [
      `node:${node.name}`, gpu.name, gpu.pciAddress, gpu.uuid ?? '', gpu.product ?? '', `use:${useNames[gpu.use] ?? gpu.use}`,
      `health:${health}`, gpu.condition, gpu.use === 'free' ? '' : gpu.summary,
      ...namespaces.map((n) => `namespace:${n}`),
      ...(gpu.allocations ?? []).flatMap((a) => [keyOf(a.claim), a.profile ?? '', ...(a.pods ?? []).map((p) => `pod:${p}`)]),
    ].join('\n').toLowerCase();
  }
  return node;
}

// A namespace can have the name of a property that all objects have.
const counts = () => Object.create(null);
const sums = () => ({ use: counts(), health: counts(), namespace: counts(), memory: 0, usable: 0 });
const add = (sums, key) => (sums[key] = (sums[key] ?? 0) + 1);

const claimText = (c) => [
  `namespace:${c.namespace}`, keyOf(c), `state:${c.state}`, c.node ? `node:${c.node}` : '', ...(c.devices ?? []), ...(c.pods ?? []).map((p) => `pod:${p}`),
].join('\n').toLowerCase();

// total adds up the sums of nodes.
export function total(of) {
  const out = { nodes: of.length, gpus: 0, ...sums() };
  for (const { gpus, sums } of of) {
    out.gpus += gpus.length;
    out.memory += sums.memory;
    out.usable += sums.usable;
    for (const by of ['use', 'health', 'namespace']) {
      for (const key in sums[by]) out[by][key] = (out[by][key] ?? 0) + sums[by][key];
    }
  }
  return out;
}

export const words = (query) => query.toLowerCase().split(/\s+/).filter(Boolean);
export const matches = (text, all) => all.every((w) => text.includes(w));
