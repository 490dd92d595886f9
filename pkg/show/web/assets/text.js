// Widths of texts, for places that must show them in full.

const context = document.createElement('canvas').getContext('2d');
const known = new Map();
const most = 50_000;
let family;

// width is the width of a text in pixels.
export function width(text, size, weight = 400) {
  family ??= getComputedStyle(document.body).fontFamily;
  const key = `${weight} ${size} ${text}`;
  let out = known.get(key);
  if (out === undefined) {
    if (known.size >= most) known.clear();
    context.font = `${weight} ${size}px ${family}`;
    out = Math.ceil(1.02 * context.measureText(text).width) + 2; // Digits of equal width can be wider.
    known.set(key, out);
  }
  return out;
}
