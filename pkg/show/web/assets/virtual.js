// A list of many rows, of which only the visible ones exist in the document.

const extra = 300; // Pixels of rows above and below.

export class VirtualList {
  // draw makes the element of a row. Rows with an equal version are not drawn again.
  constructor(container, { attributes = {}, draw }) {
    this.container = container;
    this.draw = draw;
    this.rows = [];
    this.offsets = [0];
    this.shown = new Map();
    this.body = document.createElement('div');
    this.body.className = 'rows';
    for (const [name, value] of Object.entries(attributes)) this.body.setAttribute(name, value);
    container.replaceChildren(this.body);
    this.onScroll = () => this.later();
    container.addEventListener('scroll', this.onScroll, { passive: true });
  }

  // set replaces the rows, each with an id, a version and a height.
  set(rows) {
    this.rows = rows;
    this.offsets = [0];
    for (const row of rows) this.offsets.push(this.offsets.at(-1) + row.height);
    this.body.style.height = `${this.offsets.at(-1)}px`;
    this.body.setAttribute('aria-rowcount', rows.length);
    this.update();
  }

  later() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.update();
    });
  }

  at(y) {
    let low = 0, high = this.rows.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.offsets[middle + 1] > y) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  update() {
    const top = this.container.scrollTop - extra, bottom = this.container.scrollTop + this.container.clientHeight + extra;
    const wanted = new Map();
    for (let i = this.at(top); i < this.rows.length && this.offsets[i] < bottom; i++) wanted.set(this.rows[i].id, i);
    for (const [id, old] of this.shown) {
      if (!wanted.has(id)) {
        this.keepFocus(old.element);
        old.element.remove();
        this.shown.delete(id);
      }
    }
    let before = null;
    for (const [id, i] of wanted) {
      const row = this.rows[i];
      let now = this.shown.get(id);
      if (!now || now.version !== row.version) {
        const element = this.draw(row, i);
        if (now) {
          const focused = now.element.contains(document.activeElement) && document.activeElement.getAttribute('href');
          now.element.replaceWith(element);
          if (focused) element.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
        } else if (before) before.after(element);
        else this.body.prepend(element);
        now = { element, version: row.version };
        this.shown.set(id, now);
      }
      now.element.style.top = `${this.offsets[i]}px`;
      now.element.style.height = `${row.height}px`;
      now.element.setAttribute('aria-rowindex', i + 1);
      before = now.element;
    }
  }

  // keepFocus leaves the focus in the list when a row with it is removed.
  keepFocus(element) {
    if (element.contains(document.activeElement)) this.container.focus({ preventScroll: true });
  }

  // reveal scrolls a row into view.
  reveal(i) {
    const { scrollTop, clientHeight } = this.container;
    if (this.offsets[i] < scrollTop) this.container.scrollTop = this.offsets[i];
    else if (this.offsets[i + 1] > scrollTop + clientHeight) this.container.scrollTop = this.offsets[i + 1] - clientHeight;
    this.update();
    return this.shown.get(this.rows[i]?.id)?.element;
  }

  close() {
    this.container.removeEventListener('scroll', this.onScroll);
    if (this.frame) cancelAnimationFrame(this.frame);
  }
}
