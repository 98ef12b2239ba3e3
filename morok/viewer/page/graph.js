// Graphs: drawn in layers where they are small, a tree that unfolds where they are not.

import { h, svg, visible } from "./dom.js";
import { coloured, placeName } from "./model.js";
import { describe, expr } from "./text.js";

export const MOST_DRAWN = 300;
const WIDE = 150, THIN = 4, HIGH = 34, GAP_X = 14, GAP_Y = 28;

// `changed` has nodes that are marked.
export function graphView(table, root, changed = new Set()) {
  const nodes = table.below(root, MOST_DRAWN);
  if (nodes.length > MOST_DRAWN) {
    return h("div", {}, h("p", { class: "faint" }, `More than ${MOST_DRAWN} nodes: as a tree that unfolds.`), treeView(table, root, changed));
  }
  const box = h("div", { class: "scroll graph" }, layered(table, root, nodes, changed));
  requestAnimationFrame(() => { box.scrollLeft = (box.scrollWidth - box.clientWidth) / 2; }); // where the root lies
  return box;
}

// Layers by the longest way from the root, ordered by where their users lie. An edge that passes layers has a thin
// place of its own in each, shared by all that lead to the same node, so that none runs through a box.
function layered(table, root, nodes, changed) {
  const small = (n) => table.op(n) === "CONST"; // written into the nodes that use them
  const shown = nodes.filter((n) => !small(n) || n === root);
  const layer = new Map(shown.map((n) => [n, 0]));
  for (const n of [...shown].reverse()) {
    for (const s of table.src(n)) if (layer.has(s)) layer.set(s, Math.max(layer.get(s), layer.get(n) + 1));
  }
  const layers = [], above = new Map(), links = [];
  const enter = (item, level) => { (layers[level] ??= []).push(item); above.set(item, []); };
  for (const n of [...shown].reverse()) enter(n, layer.get(n));
  const join = (upper, lower) => { if (!above.get(lower).includes(upper)) { above.get(lower).push(upper); links.push([upper, lower]); } };
  for (const n of [...shown].reverse()) {
    for (const s of new Set(table.src(n))) {
      if (!layer.has(s) || n === s) continue;
      let upper = n;
      for (let level = layer.get(n) + 1; level < layer.get(s); level++) {
        const thin = `${s} ${level}`;
        if (!above.has(thin)) enter(thin, level);
        join(upper, thin);
        upper = thin;
      }
      join(upper, s);
    }
  }
  const wide = (item) => (typeof item === "string" ? THIN : WIDE);
  const x = new Map(), rowWidth = (row) => row.reduce((all, item) => all + wide(item) + GAP_X, -GAP_X);
  const put = (row) => { let at = -rowWidth(row) / 2; for (const item of row) { x.set(item, at + wide(item) / 2); at += wide(item) + GAP_X; } };
  layers.forEach(put);
  for (let round = 0; round < 4; round++) {
    for (const row of layers) {
      const mean = new Map(row.map((item) => { const users = above.get(item); return [item, users.length ? users.reduce((all, u) => all + x.get(u), 0) / users.length : x.get(item)]; }));
      row.sort((a, b) => mean.get(a) - mean.get(b));
      put(row);
    }
  }
  const width = Math.max(...layers.map(rowWidth)) + 2 * GAP_X, height = layers.length * (HIGH + GAP_Y) + GAP_Y;
  const level = (item) => (typeof item === "string" ? Number(item.split(" ")[1]) : layer.get(item));
  const cx = (item) => x.get(item) + width / 2, cy = (item) => GAP_Y / 2 + level(item) * (HIGH + GAP_Y);
  const edges = links.map(([upper, lower]) => {
    const [ax, ay, bx, by] = [cx(upper), cy(upper) + HIGH, cx(lower), cy(lower)], middle = (ay + by) / 2;
    return svg("path", { d: `M${ax},${ay} C${ax},${middle} ${bx},${middle} ${bx},${by}${typeof lower === "string" ? ` v${HIGH}` : ""}` });
  });
  const boxes = shown.map((n) => {
    const constants = [...table.src(n)].filter((s) => small(s)).map((s) => table.arg(s));
    const text = visible(`${table.op(n)}${table.arg(n) === null ? "" : ` ${table.arg(n)}`}`);
    const under = visible(`${table.type(n)}${constants.length ? ` · ${constants.join(", ")}` : ""}`);
    const cut = (t) => (t.length > 22 ? `${t.slice(0, 21)}…` : t);
    return svg("g", { transform: `translate(${cx(n) - WIDE / 2},${cy(n)})`, class: `box${changed.has(n) ? " changed" : ""}`, style: coloured(table.place(n)) },
      svg("rect", { width: WIDE, height: HIGH, rx: 5 }),
      svg("text", { x: 8, y: 14 }, cut(text)), svg("text", { x: 8, y: 28, class: "faint" }, cut(under)),
      svg("title", {}, `${visible(describe(table, n))}\n${visible(expr(table, n, 200))}\n${placeName(table.place(n))}`));
  });
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `graph of ${nodes.length} nodes` }, svg("g", { class: "edges" }, ...edges), ...boxes);
}

// A tree that makes its branches when they are opened. A node that was shown before is only named again.
export function treeView(table, root, changed = new Set(), open = 3) {
  const numbers = new Map();
  const item = (node, depth) => {
    const src = table.src(node);
    const again = numbers.has(node);
    if (!again) numbers.set(node, numbers.size + 1);
    const label = h("span", { class: changed.has(node) ? "changed" : null, style: coloured(table.place(node)), title: placeName(table.place(node)) },
      h("span", { class: "dotmark" }), visible(describe(table, node)), src.length ? h("span", { class: "faint" }, ` #${numbers.get(node)}`) : null);
    if (!src.length || again) return h("li", {}, label, again && src.length ? h("span", { class: "faint" }, " ↑ shown above") : null);
    const details = h("details", {}, h("summary", {}, label));
    const fill = () => { if (details.children.length === 1) details.append(h("ul", {}, [...src].slice(0, 200).map((s) => item(s, depth + 1)), src.length > 200 ? h("li", { class: "faint" }, `… ${src.length - 200} more`) : null)); };
    if (depth < open) { details.open = true; fill(); }
    details.addEventListener("toggle", () => details.open && fill());
    return h("li", {}, details);
  };
  return h("ul", { class: "tree" }, item(root, 0));
}
