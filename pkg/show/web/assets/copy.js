// Commands to copy into a terminal.

import { el } from './dom.js';

export function command(text) {
  const code = el('code', {}, text);
  const button = el('button', { type: 'button', class: 'copy', 'aria-label': `Copy ${text}`, onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = 'Copied';
    } catch { // The user copies the selected text.
      getSelection().selectAllChildren(code);
      button.textContent = 'Selected';
    }
    setTimeout(() => (button.textContent = 'Copy'), 2_000);
  } }, 'Copy');
  return el('div', { class: 'command' }, code, button);
}
