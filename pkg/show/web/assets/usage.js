// The measured use of the GPUs on screen. The server reads it from the plugins of the nodes that the page asks for, so only a
// visible page asks, for few nodes at a time. Figures that are not read again soon disappear.

// The server reads for one page at a time, so that an answer can wait for another page's reading.
const look = 2_000, pause = 10_000, patience = 20_000, stale = 30_000, retry = 60_000, most = 32;
const known = new Map();
let refused = '', missing = new Map(), after = 0;

// ofGPU is the use of a GPU, or undefined if it is unknown.
export function ofGPU(gpu) {
  const found = known.get(gpu.node);
  return found && Date.now() - found.at < stale ? found.gpus[gpu.name] : undefined;
}

// at changes when the use of a node does.
export const at = (node) => {
  const found = known.get(node);
  return found && Date.now() - found.at < stale ? found.at : 0;
};

// note says what is not measured, and why, or is empty.
export function note() {
  if (refused) return `The utilization of GPUs is not shown: ${refused}`;
  const [first] = missing;
  if (!first) return '';
  return `The utilization of ${missing.size === 1 ? `the GPUs of ${first[0]}` : `${missing.size} nodes`} is not shown: ${first[1]}`;
}

async function ask(nodes) {
  const query = new URLSearchParams(nodes.map((n) => ['node', n]));
  const response = await fetch(`api/use?${query}`, { cache: 'no-store', signal: AbortSignal.timeout(patience) });
  if (!response.ok) throw new Error((await response.text()).trim());
  const answer = await response.json(), now = Date.now();
  refused = answer.refused ?? '';
  for (const n of nodes) {
    known.set(n, { at: now, gpus: answer.nodes?.[n] ?? {} });
    if (!refused && answer.missing?.[n]) missing.set(n, answer.missing[n]);
    else missing.delete(n);
  }
}

// follow keeps the use of the nodes that onScreen names, and calls changed after each answer.
export function follow(onScreen, changed) {
  const step = async () => {
    const now = Date.now(), names = document.visibilityState === 'visible' && now >= after ? onScreen() : [];
    const due = names.filter((n) => now - (known.get(n)?.at ?? 0) >= pause).sort((a, b) => (known.get(a)?.at ?? 0) - (known.get(b)?.at ?? 0)).slice(0, most);
    if (due.length > 0) {
      try {
        await ask(due);
      } catch (error) {
        known.clear();
        missing = new Map();
        refused = `the page's server did not answer: ${error.message}`;
      }
      if (refused) {
        known.clear();
        after = now + retry;
      }
      for (const n of missing.keys()) if (!names.includes(n)) missing.delete(n);
      changed();
    }
    setTimeout(step, look);
  };
  step();
}
