// What several pages ask of the run: rows of a kernel, kernels of a line, colours of lines, targets of links.

import { run } from "./data.js";
import { h, link, visible } from "./dom.js";

export function kernel(number) {
  return run.index.kernels.find((k) => k.number === number);
}

export function rowsOf(number) {
  return run.index.rows.filter((r) => r.kernel === number);
}

// All calls of a kernel together, whatever lines they are named after.
export function total(number) {
  const rows = rowsOf(number);
  const sum = (key) => rows.reduce((all, row) => all + row[key], 0);
  if (!rows.length) return null;
  const longest = rows.reduce((a, b) => (a.seconds >= b.seconds ? a : b));
  return {
    calls: sum("calls"), seconds: sum("seconds"), ops: sum("ops"), bytes: sum("bytes"), share: sum("share"), roof: sum("roof"),
    bound: longest.bound, limit: longest.limit, poor: rows.some((r) => r.poor), device: longest.device,
  };
}

// Seconds of the fastest of several calls; null if there are too few, or the timeline ends before them.
export function fastest(number) {
  const { kernel: which, micros } = run.index.runs;
  const own = micros.filter((_, i) => which[i] === number);
  return own.length > 1 ? Math.min(...own) / 1e6 : null;
}

export function ofRoof(row) { return row.seconds ? row.roof / row.seconds : 0; }

const key = (place) => `${place[0]}:${place[1]}`;
let lines = null;

// Per line: the rows that are named after it, and the kernels that compute something of it.
export function lineTable() {
  if (lines) return lines;
  lines = new Map();
  const at = (place) => {
    if (!lines.has(key(place))) lines.set(key(place), { place, seconds: 0, share: 0, bytes: 0, ops: 0, rows: [], inside: new Set() });
    return lines.get(key(place));
  };
  for (const row of run.index.rows) {
    if (!row.at) continue;
    const line = at(row.at);
    line.seconds += row.seconds;
    line.share += row.share;
    line.bytes += row.bytes;
    line.ops += row.ops;
    line.rows.push(row);
    line.inside.add(row.kernel);
  }
  for (const k of run.index.kernels) {
    for (const [file, number] of k.lines ?? []) at([file, number]).inside.add(k.number);
  }
  return lines;
}

export function lineAt(place) { return lineTable().get(key(place)); }

export function placeName(place) {
  if (!place) return "an unknown line";
  return `${run.index.files[place[0]]?.name ?? "?"}:${place[1]}`;
}

export function sourceLine(place) {
  return place ? run.index.files[place[0]]?.lines[place[1] - 1] ?? "" : "";
}

export function placeLink(place) {
  return place ? link(`file=${place[0]}&line=${place[1]}`, placeName(place)) : h("span", { class: "faint" }, "–");
}

export function sourceText(place) {
  return h("code", { class: "source", dir: "ltr" }, visible(sourceLine(place).trim()));
}

export function kernelLink(number, ...children) {
  const k = kernel(number);
  return link(`kernel=${number}`, ...(children.length ? children : [k ? k.name : "a copy"]));
}

// A colour per line of the source: hues far apart for lines that lie side by side.
export function hue(place) {
  return place ? (place[0] * 67 + place[1] * 137.5) % 360 : null;
}

export function coloured(place) {
  const found = hue(place);
  return found === null ? "" : `--hue:${found.toFixed(0)}`;
}

// How exact an equation is; lowering steps and approximations are none.
export function classOf(rule) {
  return ["lowering", "approximation"].includes(rule.verdict) ? "" : rule.class;
}

export function verdictMark(verdict) {
  const kind = { proved: "good", refuted: "bad", open: "warn", "not yet": "warn" }[verdict] ?? "plain";
  return h("span", { class: `mark ${kind}` }, verdict || "unknown");
}

// What could not be shown about a kernel, with the way to each instruction.
export function openObligations(k, most) {
  const found = k.proof.open ?? [];
  if (!found.length) return null;
  return h("ul", {}, found.slice(0, most).map((o) => h("li", {}, h("span", { class: `mark ${o.refuted ? "bad" : "warn"}` }, o.refuted ? "wrong" : "open"), " ", visible(o.text),
    o.instruction >= 0 ? [" ", link(`kernel=${k.number}&view=code&instruction=${o.instruction}`, `instruction ${o.instruction}`)] : null)));
}

export function proofMark(k) {
  const status = k?.proof?.status ?? "not asked";
  const kind = { proved: "good", accesses: "good", refuted: "bad", open: "warn" }[status] ?? "plain";
  const shown = { accesses: "accesses proved", "in part": "proved in part" }[status] ?? status;
  return h("span", { class: `mark ${kind}`, title: k?.proof?.why ?? "" }, shown);
}
