// Elements, numbers for people, and lists of which only the visible rows exist. Text is only ever set as text.

export const work = { rows: 0, nodes: 0 }; // rows of lists and nodes of expressions so far: what views cost, for tests

export function h(tag, attributes, ...children) {
  const found = document.createElement(tag);
  return filled(found, attributes, children);
}

export function svg(tag, attributes, ...children) {
  const found = document.createElementNS("http://www.w3.org/2000/svg", tag);
  return filled(found, attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

export function link(target, ...children) {
  return h("a", { href: `#${target}` }, ...children);
}

// --- numbers

export function seconds(s) {
  if (s === null || s === undefined || !isFinite(s)) return "–";
  if (s === 0) return "0";
  const [scale, unit] = s >= 1 ? [1, "s"] : s >= 1e-3 ? [1e3, "ms"] : s >= 1e-6 ? [1e6, "µs"] : [1e9, "ns"];
  return `${digits(s * scale)} ${unit}`;
}

export function digits(x) {
  const size = Math.abs(x);
  return size >= 100 ? x.toFixed(0) : size >= 10 ? x.toFixed(1) : size >= 1 ? x.toFixed(2) : x.toPrecision(2);
}

export function amount(n) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (n >= 1000 && unit < units.length - 1) { n /= 1000; unit++; }
  return `${unit ? digits(n) : n} ${units[unit]}`;
}

export function percent(x) {
  if (x === null || x === undefined || !isFinite(x)) return "–";
  const p = 100 * x;
  return `${p >= 10 ? p.toFixed(0) : p >= 0.1 || p === 0 ? p.toFixed(1) : "<0.1"} %`;
}

export function count(n, word, several = `${word}s`) {
  return `${n.toLocaleString("en")} ${n === 1 ? word : several}`;
}

export function bar(share, title) {
  const width = Math.max(0, Math.min(100, 100 * share));
  return h("span", { class: "bar", title, "aria-hidden": "true" }, h("i", { style: `width:${width.toFixed(2)}%` }));
}

// Characters that change the direction of text would show a source in another order than it has.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

export function visible(text) {
  return text.replace(HIDDEN, (c) => `⟦${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟧`);
}

export function copyButton(text, label = "copy") {
  const button = h("button", { class: "copy", type: "button", title: "to the clipboard" }, label);
  button.addEventListener("click", async (event) => {
    event.stopPropagation();
    const whole = typeof text === "function" ? text() : text;
    let done = true;
    try {
      await navigator.clipboard.writeText(whole);
    } catch {
      const area = h("textarea", { class: "offscreen" });
      area.value = whole;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
    }
    button.textContent = done ? "copied" : "not allowed here";
    setTimeout(() => { button.textContent = label; }, 1200);
  });
  return button;
}

export function empty(title, ...advice) {
  return h("div", { class: "empty" }, h("strong", {}, title), h("p", {}, ...advice));
}

// --- a list of which only the visible rows exist

const AROUND = 8; // rows above and below those in sight

export class VirtualList {
  // `row(i)` makes an element of the height `--row`; `length` may change with `refresh`.
  constructor({ length, row, height = 24, label, className = "" }) {
    Object.assign(this, { length, row, height, pending: false, rendered: new Map(), selected: -1 });
    this.inner = h("div", { class: "rows" });
    this.element = h("div", { class: `virtual ${className}`, tabindex: "0", role: "list", "aria-label": label }, this.inner);
    this.element.addEventListener("scroll", () => this.schedule(), { passive: true });
    this.observer = new ResizeObserver(() => this.schedule());
    this.observer.observe(this.element);
    this.refresh(length);
  }

  refresh(length = this.length) {
    this.length = length;
    this.rendered.clear();
    this.inner.replaceChildren();
    this.inner.style.height = `${this.height * length}px`;
    this.schedule();
  }

  schedule(around = 0) {
    if (this.pending) { this.around = Math.min(this.around, around); return; }
    this.pending = true;
    this.around = around;
    requestAnimationFrame(() => { this.pending = false; this.render(this.around); });
  }

  // What is in sight now, and in the next frame what lies around it.
  render(around = 0) {
    const size = this.height, view = this.element;
    const first = Math.max(0, Math.floor(view.scrollTop / size) - around);
    const last = Math.min(this.length, Math.ceil((view.scrollTop + view.clientHeight) / size) + around);
    for (const [i, element] of this.rendered) {
      if (i < first - AROUND || i >= last + AROUND) { element.remove(); this.rendered.delete(i); }
    }
    for (let i = first; i < last; i++) {
      if (this.rendered.has(i)) continue;
      const element = this.row(i);
      work.rows++;
      element.style.top = `${i * size}px`;
      element.style.height = `${size}px`;
      element.dataset.row = i;
      this.rendered.set(i, element);
      this.inner.append(element);
    }
    if (!around) this.schedule(AROUND);
  }

  // Brings a row into sight, without moving if it is there already.
  show(i) {
    const size = this.height, top = i * size, view = this.element;
    const height = view.clientHeight || 400;
    if (top < view.scrollTop || top + size > view.scrollTop + height) view.scrollTop = Math.max(0, top - height / 3);
    this.schedule();
  }
}
