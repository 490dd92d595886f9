// Why claims wait. Each question makes the server read the cluster, so it is asked once for each claim, one at a time.

import { el } from './dom.js';
import { age } from './format.js';
import { keyOf } from './model.js';

const answers = new Map();
let last = Promise.resolve();

async function ask(claim) {
  const query = new URLSearchParams({ namespace: claim.namespace, name: claim.name });
  const response = await fetch(`api/why?${query}`, { cache: 'no-store' });
  if (!response.ok) throw new Error((await response.text()).trim());
  return response.json();
}

// fill shows the answer about a claim in an element, and asks for it if there is none yet.
export function fill(target, claim) {
  const key = keyOf(claim);
  let known = answers.get(key);
  if (!known || known.created !== claim.created) {
    known = { created: claim.created, at: undefined };
    answers.set(key, known);
    last = known.answer = last.then(() => ask(claim)).catch((error) => ({ summary: `The question failed: ${error.message}` }));
    known.answer.then(() => (known.at = new Date().toISOString()));
  }
  target.replaceChildren(el('p', { class: 'muted' }, 'Asking the allocator…'));
  known.answer.then((answer) => target.replaceChildren(...lines(answer),
    el('p', { class: 'muted' }, `asked ${age(known.at)} ago `,
      el('button', { type: 'button', class: 'link', onclick: () => (answers.delete(key), fill(target, claim)) }, 'Ask again'))));
}

function lines(answer) {
  const nodes = (list) => (list?.length ? ` (${list.slice(0, 3).join(', ')}${list.length > 3 ? ` and ${list.length - 3} more` : ''})` : '');
  return [
    el('p', { class: 'summary' }, answer.summary),
    answer.reasons?.length > 0 && el('ul', {}, answer.reasons.map((r) => el('li', {}, r.text + nodes(r.nodes)))),
    answer.cures?.length > 0 && [el('h4', {}, 'It could run'),
      el('ul', { class: 'cures' }, answer.cures.map((c) => el('li', {}, c.text + nodes(c.nodes))))],
    answer.notes?.length > 0 && [el('h4', {}, 'Notes'), el('ul', {}, answer.notes.map((n) => el('li', {}, n)))],
  ].flat().filter(Boolean);
}
