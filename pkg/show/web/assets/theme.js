// The colours of the page: those of the system, or the user's choice.

const names = { auto: 'Theme: system', light: 'Theme: light', dark: 'Theme: dark' };

export function theme(button) {
  let now = 'auto';
  try {
    now = localStorage.getItem('theme') ?? now;
  } catch { /* The browser stores nothing. */ }
  const set = () => {
    if (!Object.hasOwn(names, now)) now = 'auto';
    document.documentElement.style.colorScheme = now === 'auto' ? 'light dark' : now;
    button.textContent = names[now];
  };
  button.addEventListener('click', () => {
    now = { auto: 'dark', dark: 'light', light: 'auto' }[now];
    try {
      localStorage.setItem('theme', now);
    } catch { /* The browser stores nothing. */ }
    set();
  });
  set();
}
