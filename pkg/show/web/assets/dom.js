// Elements are made from names and texts only: names of objects are never parsed as HTML.

export function el(tag, attributes = {}, ...children) {
  const out = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) out.addEventListener(name.slice(2), value);
    else out.setAttribute(name, value === true ? '' : value);
  }
  out.append(...children.flat(Infinity).filter((c) => c !== undefined && c !== null && c !== false));
  return out;
}

export const byId = (id) => document.getElementById(id);

// address is a link to an object on this page.
export const address = (kind, ...names) => '#' + [kind, ...names].map(encodeURIComponent).join('/');
