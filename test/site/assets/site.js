// Search over window.pages, which search.js sets, and the choice between light and dark.
(() => {
  const root = document.documentElement, base = root.dataset.root;
  const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  if (stored()) root.dataset.theme = stored();
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* a page from a file has no storage */ }
  });

  // Versions of other directories, newest first.
  const version = document.getElementById("version"), here = version.value;
  version.replaceChildren(...(window.versions?.includes(here) ? window.versions : [here]).map((v) => new Option(v, v, v === here, v === here)));
  version.addEventListener("change", () => { location.href = `${base}../${version.value}/index.html`; });

  const input = document.getElementById("search"), found = document.getElementById("found");
  const show = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const hits = !words.length ? [] : window.pages.map((page) => {
      const title = page.title.toLowerCase(), text = page.text.toLowerCase();
      const score = words.map((w) => (title.includes(w) ? 10 : 0) + (text.includes(w) ? 1 : 0));
      return { page, score: score.includes(0) ? 0 : score.reduce((a, b) => a + b) };
    }).filter((hit) => hit.score).sort((a, b) => b.score - a.score).slice(0, 20);
    found.replaceChildren(...hits.map(({ page }) => {
      const item = document.createElement("li"), link = document.createElement("a"), where = document.createElement("small");
      const at = Math.max(0, page.text.toLowerCase().indexOf(words[0]) - 40);
      link.href = base + page.url;
      link.textContent = page.title;
      where.textContent = page.text.slice(at, at + 120);
      link.append(where);
      item.append(link);
      return item;
    }));
  };
  input.addEventListener("input", show);
  input.form.addEventListener("submit", (event) => {
    event.preventDefault();
    found.querySelector("a")?.click();
  });
})();
