// The view of the claims that wait, with the reason of each.

import { address, el } from './dom.js';
import { age, noneWaiting, plural } from './format.js';
import { keyOf, matches, state } from './model.js';
import { fill } from './why.js';

const most = 50;

export class PendingList {
  constructor(container) {
    this.container = container;
    this.cards = new Map();
    this.body = el('div', { class: 'cards' });
    container.replaceChildren(this.body);
    this.seen = new IntersectionObserver((entries) => {
      for (const e of entries.filter((one) => one.isIntersecting)) {
        this.seen.unobserve(e.target);
        fill(e.target, e.target.claim);
      }
    }, { root: container });
  }

  set(claims, words) {
    const waiting = claims.filter((c) => c.state === 'pending');
    const all = waiting.filter((c) => matches(c.text, words));
    const shown = all.slice(0, most);
    const keep = new Set(shown.map(keyOf));
    for (const [key, card] of this.cards) {
      if (!keep.has(key)) {
        card.remove();
        this.cards.delete(key);
      }
    }
    this.rest?.remove();
    shown.forEach((c, i) => {
      const key = keyOf(c);
      if (!this.cards.has(key)) this.cards.set(key, this.card(c));
      const card = this.cards.get(key);
      if (this.body.children[i] !== card) this.body.insertBefore(card, this.body.children[i] ?? null);
    });
    if (all.length !== shown.length || all.length === 0) {
      const { connected, status } = state;
      this.rest = el('p', { class: 'empty' }, all.length === 0 ? noneWaiting({ waiting: waiting.length, connected, ...status })
        : `${plural(all.length - most, 'more claim')}: a search shows them.`);
      this.body.append(this.rest);
    }
    return { found: all.length };
  }

  card(c) {
    const answer = el('div', { class: 'why' });
    answer.claim = c;
    this.seen.observe(answer);
    return el('article', { 'data-claim': keyOf(c) },
      el('h3', {}, el('a', { href: address('claim', c.namespace, c.name) }, keyOf(c)), el('span', { class: 'muted' }, `waits for ${age(c.created)}`)),
      answer);
  }

  close() {
    this.seen.disconnect();
  }
}
