// All kernels: the roofline, and a table of figures that is the one of `morok bench --roofline`.

import { run } from "./data.js";
import { bar, count, digits, empty, h, percent, seconds, svg } from "./dom.js";
import { coloured, kernel, kernelLink, ofRoof, placeLink, proofMark, sourceText } from "./model.js";

const COLUMNS = [
  ["kernel", (r) => r.name], ["line", (r) => r.place], ["calls", (r) => r.calls], ["time", (r) => r.seconds],
  ["share", (r) => r.share], ["GFLOP/s", (r) => r.ops / r.seconds], ["GB/s", (r) => r.bytes / r.seconds],
  ["roofline", (r) => ofRoof(r)], ["limited by", (r) => r.limit], ["predicted", (r) => predicted(r) ?? -1],
  ["proof", (r) => kernel(r.kernel)?.proof?.status ?? ""],
];
let order = { column: 3, down: true };

export function predicted(row) {
  const found = kernel(row.kernel)?.predicted;
  return found?.seconds ? found.seconds : null;
}

export function kernelsPage() {
  const rows = run.index.rows;
  const idle = run.index.kernels.filter((k) => !rows.some((r) => r.kernel === k.number));
  if (!rows.length && !idle.length) {
    return empty("No kernel was compiled.", "Nothing in the recorded block asked for a value.");
  }
  const poor = rows.filter((r) => r.poor);
  return [
    rows.length ? h("section", {}, h("h2", {}, "Roofline"), limitsText(), aboveText(rows), rooflines(rows)) : null,
    poor.length ? h("section", { class: "card" }, h("h2", {}, "Worth a look"),
      h("p", { class: "faint" }, "Above 2 % of the time and below 30 % of the roofline: neither memory nor arithmetic limits them, unless it is said. A kernel’s page has its loops, its assembly, and how long the compiler’s own model expects it to take."),
      h("ul", {}, poor.map((r) => h("li", {}, kernelLink(r.kernel, r.name), " at ", placeLink(r.at), ": ",
        `${percent(r.share)} of the time at ${percent(ofRoof(r))} of its roofline`, r.limit.startsWith("neither") ? "" : `; limited by ${r.limit}`)))) : null,
    rows.length ? h("section", {}, h("h2", {}, `${count(new Set(rows.map((r) => r.kernel)).size, "kernel")}, by line`), table(rows)) : null,
    idle.length ? h("section", {}, h("h2", {}, "Compiled, but not run here"),
      h("ul", {}, idle.map((k) => h("li", {}, kernelLink(k.number), " ", k.whole ? placeLink(k.at) : h("span", { class: "mark bad" }, "not finished"))))) : null,
  ];
}

function limitsText() {
  return h("ul", { class: "facts" }, Object.entries(run.index.limits).map(([device, l]) => h("li", {},
    `${device} (${run.index.machines[device]}), ${l.measured ? "measured" : "as its description says, not measured"}: `
    + `${digits(l.flops / 1e9)} GFLOP/s, ${digits(l.copy / 1e9)} GB/s to memory`
    + (l.caches.length ? `, ${digits(Math.max(...l.caches.map((c) => c[1])) / 1e9)} GB/s in the caches` : "")
    + l.units.map(([type, rate]) => `, ${type} units ${digits(rate / 1e12)} TFLOP/s`).join(""))));
}

// Limits are measured after the run: a machine that is busy then seems to allow less than kernels have reached.
function aboveText(rows) {
  const above = rows.filter((r) => ofRoof(r) > 1.15 && run.index.limits[r.device]?.measured);
  return above.length ? h("p", { class: "faint" }, `${count(above.length, "row")} above 100 %: the machine was busier while its limits were measured than while these ran, or they computed less than counted; compare rows with one another.`) : null;
}

function rooflines(rows) {
  return Object.keys(run.index.limits).map((device) => drawing(rows.filter((r) => r.device === device && r.ops && r.bytes), run.index.limits[device], device));
}

const WIDE = 720, HIGH = 300, LEFT = 54, BOTTOM = 34, TOP = 24, RIGHT = 10;

function drawing(rows, limits, device) {
  if (!rows.length) return null;
  const intensity = (r) => r.ops / r.bytes, rate = (r) => r.ops / r.seconds;
  const top = Math.max(limits.flops, ...limits.units.map((u) => u[1]), ...rows.map(rate)) * 1.6;
  const xs = rows.map(intensity), ys = rows.map(rate);
  const lowX = Math.min(0.05, ...xs) / 1.5, highX = Math.max(limits.flops / limits.copy * 4, ...xs) * 1.5;
  const lowY = Math.max(Math.min(limits.flops / 300, ...ys) / 1.5, top / 1e5); // what is lower lies on the floor
  const x = (v) => LEFT + (WIDE - LEFT - RIGHT) * Math.log(v / lowX) / Math.log(highX / lowX);
  const y = (v) => HIGH - BOTTOM - (HIGH - BOTTOM - TOP) * Math.log(Math.max(v, lowY) / lowY) / Math.log(top / lowY);
  const roofs = [["memory", limits.copy], ...(limits.caches.length ? [["caches", Math.max(...limits.caches.map((c) => c[1]))]] : [])];
  const lines = roofs.map(([name, width]) => {
    const knee = limits.flops / width;
    return svg("g", { class: `roof ${name}` },
      svg("polyline", { points: [[lowX, lowX * width], [knee, limits.flops], [highX, limits.flops]].map(([a, b]) => `${x(a)},${y(b)}`).join(" ") }),
      svg("text", { x: x(lowX) + 22, y: y(lowX * width) + 10 }, name));
  });
  const ticks = (low, high) => { const found = []; for (let e = Math.ceil(Math.log10(low)); 10 ** e <= high; e++) found.push(10 ** e); return found; };
  const axes = [
    ...ticks(lowX, highX).map((v) => svg("g", { class: "tick" }, svg("line", { x1: x(v), x2: x(v), y1: TOP, y2: HIGH - BOTTOM }), svg("text", { x: x(v), y: HIGH - BOTTOM + 14, "text-anchor": "middle" }, v < 1 ? String(+v.toPrecision(1)) : v.toLocaleString("en")))),
    ...ticks(lowY, top).map((v) => svg("g", { class: "tick" }, svg("line", { x1: LEFT, x2: WIDE - RIGHT, y1: y(v), y2: y(v) }), svg("text", { x: LEFT - 5, y: y(v) + 4, "text-anchor": "end" }, `${+(v / 1e9).toPrecision(1)}`))),
    svg("text", { x: (WIDE + LEFT) / 2, y: HIGH - 4, "text-anchor": "middle" }, "operations per byte"),
    svg("text", { x: 4, y: 12, class: "unit" }, "GFLOP/s"),
  ];
  const dots = [...rows].sort((a, b) => b.share - a.share).map((r) => svg("a", { href: `#kernel=${r.kernel}`, "aria-label": `${r.name} at ${r.place}` },
    svg("circle", { cx: x(intensity(r)), cy: y(rate(r)), r: 3.5 + 16 * Math.sqrt(r.share), class: r.poor ? "dot poor" : "dot", style: coloured(r.at) },
      svg("title", {}, `${r.name} at ${r.place}\n${percent(r.share)} of the time, ${percent(ofRoof(r))} of its roofline\n${digits(rate(r) / 1e9)} GFLOP/s, ${digits(r.bytes / r.seconds / 1e9)} GB/s`))));
  return h("figure", { class: "scroll" }, svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, class: "roofline", role: "img", "aria-label": `roofline of ${device}` }, ...axes, ...lines, ...dots),
    h("figcaption", {}, "A dot is a kernel, as large as its share of the time and in the colour of its line; a red ring: worth a look. The nearer to the roof the better."));
}

function table(rows) {
  const host = h("div", { class: "scroll" });
  const draw = () => {
    const by = COLUMNS[order.column][1];
    const sorted = [...rows].sort((a, b) => (by(a) < by(b) ? 1 : by(a) > by(b) ? -1 : 0) * (order.down ? 1 : -1));
    host.replaceChildren(h("table", { class: "kernels" },
      h("thead", {}, h("tr", {}, COLUMNS.map(([name], i) => h("th", { "aria-sort": i === order.column ? (order.down ? "descending" : "ascending") : null, class: i > 1 && i < 8 ? "number" : null },
        h("button", { type: "button", onclick: () => { order = { column: i, down: i === order.column ? !order.down : i > 1 }; draw(); } }, name, i === order.column ? (order.down ? " ↓" : " ↑") : ""))))),
      h("tbody", {}, sorted.map(tableRow))));
  };
  draw();
  return host;
}

function tableRow(r) {
  const guess = predicted(r);
  return h("tr", { class: r.poor ? "poor" : null, style: coloured(r.at), "data-kernel": r.kernel },
    h("td", {}, r.kernel >= 0 ? kernelLink(r.kernel, r.name) : r.name),
    h("td", { class: "lineof" }, placeLink(r.at), " ", r.at ? sourceText(r.at) : null),
    h("td", { class: "number" }, r.calls.toLocaleString("en")),
    h("td", { class: "number" }, seconds(r.seconds)),
    h("td", { class: "number" }, percent(r.share), bar(r.share)),
    h("td", { class: "number" }, digits(r.ops / r.seconds / 1e9)),
    h("td", { class: "number" }, digits(r.bytes / r.seconds / 1e9)),
    h("td", { class: `number ${ofRoof(r) < 0.3 ? "low" : ""}` }, percent(ofRoof(r))),
    h("td", {}, r.limit.startsWith("neither") ? h("span", { title: r.limit }, "neither") : r.limit.split(":")[0]),
    h("td", { class: "number", title: "what the compiler's own model says of one call, and measured over predicted" }, guess ? `${seconds(guess)} · ${digits(r.seconds / r.calls / guess)}×` : "–"),
    h("td", {}, proofMark(kernel(r.kernel))));
}
