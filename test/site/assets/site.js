// Search over window.parts, which search.js sets, and the choice between light and dark.
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
    const words = input.value.toLowerCase().split(/[\s?!,]+/).filter(Boolean);
    // Words of few parts count more, and words of titles. A word that no part has makes each score NaN: no hits.
    const counts = words.map((word) => {
      const has = (text) => text.toLowerCase().includes(word);
      const hits = window.parts.map((part) => 3 * has(part.Title) + has(part.Text));
      return hits.map((hit) => hit * Math.log(hits.length / hits.filter(Boolean).length));
    });
    const hits = window.parts.map((part, i) => ({ part, score: counts.reduce((sum, of) => sum + of[i], 0) }))
      .filter((hit) => hit.score).sort((a, b) => b.score - a.score).slice(0, 20);
    found.replaceChildren(...hits.map(({ part }) => {
      const item = document.createElement("li"), link = document.createElement("a"), where = document.createElement("small");
      const at = Math.max(0, part.Text.toLowerCase().indexOf(words[0]) - 40);
      link.href = base + part.URL;
      link.textContent = part.Title;
      where.textContent = part.Text.slice(at, at + 120);
      link.append(where);
      item.append(link);
      return item;
    }));
  };
  input.addEventListener("input", show);
  addEventListener("hashchange", () => found.replaceChildren());
  input.form.addEventListener("submit", (event) => {
    event.preventDefault();
    found.querySelector("a")?.click();
  });
})();
