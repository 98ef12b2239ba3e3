// Graphs: drawn in layers where they are small, a tree that unfolds where they are not.

import { h, svg, visible } from "./dom.js";
import { coloured, placeName } from "./model.js";
import { describe, expr } from "./text.js";

export const MOST_DRAWN = 300;
const WIDE = 150, HIGH = 34, GAP_X = 14, GAP_Y = 28;

// `changed` has nodes that are marked.
export function graphView(table, root, changed = new Set()) {
  const nodes = table.below(root, MOST_DRAWN);
  if (nodes.length > MOST_DRAWN) {
    return h("div", {}, h("p", { class: "faint" }, `More than ${MOST_DRAWN} nodes: as a tree that unfolds.`), treeView(table, root, changed));
  }
  return h("div", { class: "scroll graph" }, layered(table, root, nodes, changed));
}

// Layers by the longest way from the root, ordered by where their users lie.
function layered(table, root, nodes, changed) {
  const small = (n) => table.op(n) === "CONST"; // written into the nodes that use them
  const shown = nodes.filter((n) => !small(n) || n === root);
  const layer = new Map(shown.map((n) => [n, 0]));
  for (const n of [...shown].reverse()) {
    for (const s of table.src(n)) if (layer.has(s)) layer.set(s, Math.max(layer.get(s), layer.get(n) + 1));
  }
  const layers = [];
  for (const n of [...shown].reverse()) (layers[layer.get(n)] ??= []).push(n);
  const users = new Map(shown.map((n) => [n, []]));
  for (const n of shown) for (const s of table.src(n)) if (users.has(s)) users.get(s).push(n);
  const x = new Map();
  const put = (row) => row.forEach((n, i) => x.set(n, (i - (row.length - 1) / 2) * (WIDE + GAP_X)));
  layers.forEach(put);
  for (let round = 0; round < 4; round++) {
    for (const row of layers) {
      const mean = (n) => { const above = users.get(n); return above.length ? above.reduce((a, u) => a + x.get(u), 0) / above.length : x.get(n); };
      row.sort((a, b) => mean(a) - mean(b));
      put(row);
    }
  }
  const widest = Math.max(...layers.map((row) => row.length));
  const width = widest * (WIDE + GAP_X) + GAP_X, height = layers.length * (HIGH + GAP_Y) + GAP_Y;
  const cx = (n) => x.get(n) + width / 2, cy = (n) => GAP_Y / 2 + layer.get(n) * (HIGH + GAP_Y);
  const edges = [];
  for (const n of shown) {
    for (const s of new Set(table.src(n))) {
      if (!x.has(s) || n === s) continue;
      const a = [cx(n), cy(n) + HIGH], b = [cx(s), cy(s)], middle = (a[1] + b[1]) / 2;
      edges.push(svg("path", { d: `M${a[0]},${a[1]} C${a[0]},${middle} ${b[0]},${middle} ${b[0]},${b[1]}` }));
    }
  }
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
