// Code and assembly: your lines, the list of instructions, and what they became, linked in both directions.

import { run } from "./data.js";
import { copyButton, empty, h, VirtualList, visible } from "./dom.js";
import { coloured, placeLink, placeName } from "./model.js";
import { expr } from "./text.js";

const CONTEXT = 2; // lines around those that matter

export function assemblyView(k, data, route) {
  if (!data.list) return empty("There is no list of instructions.", "The kernel was not finished; its stages tell how far it got.");
  const model = new Model(k, data);
  const chosen = { line: null, instruction: -1, row: -1, text: -1 };
  const panes = [];
  const choose = (next, from) => {
    Object.assign(chosen, { line: null, instruction: -1, row: -1, text: -1, ...next });
    if (chosen.row >= 0) chosen.instruction = model.instructionOfText(model.rows[chosen.row]);
    if (chosen.text >= 0) chosen.instruction = model.instructionOfText(chosen.text);
    if (chosen.instruction >= 0 && !chosen.line) chosen.line = model.place(chosen.instruction);
    for (const pane of panes) pane.update(chosen, pane.name === from);
    tell();
  };
  const status = h("div", { class: "status", "aria-live": "polite" });
  const tell = () => status.replaceChildren(...statusOf(model, chosen));
  const source = sourcePane(model, choose);
  const instructions = listPane("instructions", "Instructions", model.count, (i) => instructionRow(model, i), (c) => model.selectedInstructions(c), (i) => choose({ instruction: i }, "instructions"),
    h("span", {}, copyButton(() => model.listing())));
  const target = targetPane(model, choose);
  panes.push(source, instructions, ...target.panes);
  const view = h("div", { class: "panes" }, source.element, instructions.element, target.element);
  if (route.has("at")) {
    const [file, line] = route.get("at").split(":").map(Number);
    requestAnimationFrame(() => choose({ line: [file, line] }));
  } else if (route.has("instruction")) requestAnimationFrame(() => choose({ instruction: Number(route.get("instruction")) }));
  else requestAnimationFrame(() => choose({ line: k.at ?? k.lines?.[0]?.slice(0, 2) ?? null }));
  return [status, view];
}

class Model {
  constructor(k, data) {
    this.k = k;
    this.data = data;
    this.table = data.table;
    this.list = this.table.src(data.list.node);
    this.count = this.list.length;
    this.number = new Map([...this.list].map((n, i) => [n, i]));
    this.program = data.program ?? null;
    this.text = this.program ? this.program.text.split("\n") : [];
    this.starts = this.program ? this.program.starts : [];
    this.assembly = data.assembly?.text ? data.assembly.text.split("\n") : [];
    this.rows = data.assembly?.rows ?? [];
    this.parents = new Map();
    const { own, rule, before } = data.list.parents;
    for (let i = 0; i < own.length; i++) this.parents.set(own[i], [this.table.strings[rule[i]], before[i]]);
    this.depth = new Int32Array(this.count);
    let depth = 0;
    for (let i = 0; i < this.count; i++) {
      const op = this.table.op(this.list[i]);
      if (op === "END" || op === "ENDIF") depth--;
      this.depth[i] = Math.max(0, depth);
      if (op === "RANGE" || op === "IF") depth++;
    }
    this.verdicts = new Map();
    for (const [i, kind, how] of data.proof?.shown ?? []) this.verdicts.set(i, [...(this.verdicts.get(i) ?? []), [kind, how]]);
    for (const o of data.proof?.open ?? []) this.verdicts.set(o.instruction, [...(this.verdicts.get(o.instruction) ?? []), [o.kind, o.refuted ? "refuted" : "open"]]);
  }

  place(i) {
    const found = this.data.list.places[i];
    return found < 0 ? null : this.table.places[found];
  }

  instructionText(i) {
    const node = this.list[i];
    const arg = this.table.arg(node);
    const src = [...this.table.src(node)].map((s) => this.number.get(s) ?? this.table.op(s)).join(", ");
    return `${this.table.op(node)} ${this.table.type(node)}${arg === null ? "" : ` ${arg}`}${src ? ` (${src})` : ""}`;
  }

  listing() { return Array.from({ length: this.count }, (_, i) => `${String(i).padStart(4)} ${"  ".repeat(this.depth[i])}${this.instructionText(i)}`).join("\n"); }

  // The instruction that a line of the text belongs to; -1: none.
  instructionOfText(line) {
    const starts = this.starts;
    if (!starts.length || line < starts[0] || line >= starts[starts.length - 1]) return -1;
    let low = 0, high = starts.length - 1;
    while (high - low > 1) { const middle = (low + high) >> 1; if (starts[middle] <= line) low = middle; else high = middle; }
    return low;
  }

  same(a, b) { return a && b && a[0] === b[0] && a[1] === b[1]; }

  selectedInstructions(c) {
    if (c.instruction >= 0) return new Set([c.instruction]);
    const found = new Set();
    if (c.line) for (let i = 0; i < this.count; i++) if (this.same(this.place(i), c.line)) found.add(i);
    return found;
  }

  selectedText(c) {
    const found = new Set();
    for (const i of this.selectedInstructions(c)) for (let l = this.starts[i]; l < this.starts[i + 1]; l++) found.add(l);
    if (c.text >= 0) found.add(c.text);
    return found;
  }

  selectedRows(c) {
    const text = this.selectedText(c), found = new Set();
    this.rows.forEach((line, i) => { if (line >= 0 && text.has(line)) found.add(i); });
    if (c.row >= 0) found.add(c.row);
    return found;
  }

  placeOfText(line) {
    const i = this.instructionOfText(line);
    return i < 0 ? null : this.place(i);
  }
}

function statusOf(model, c) {
  if (c.instruction < 0 && !c.line) return ["Choose a line, an instruction or a line of assembly: what belongs to it is marked in the other columns."];
  const rows = model.selectedRows(c).size, n = model.selectedInstructions(c).size;
  const found = [h("span", {}, c.line ? [placeLink(c.line), " "] : "no line of yours ",
    n === 0 ? "has no instruction of its own: it says where values lie, which is part of how others count places" : n === 1 ? h("span", {}, `→ instruction ${[...model.selectedInstructions(c)][0]} `) : `→ ${n} instructions `, n && model.assembly.length ? `→ ${rows} of ${model.assembly.length} lines of assembly` : "")];
  if (c.instruction >= 0) {
    const node = model.list[c.instruction];
    const chain = [];
    for (let n2 = node; model.parents.has(n2) && chain.length < 12;) { const [rule, before] = model.parents.get(n2); chain.push([rule, before]); n2 = before; }
    const proofs = model.verdicts.get(c.instruction) ?? [];
    found.push(h("div", {}, h("code", {}, visible(expr(model.table, node, 160)))));
    if (proofs.length) found.push(h("div", {}, proofs.map(([kind, how]) => [h("span", { class: `mark ${how === "refuted" ? "bad" : how === "open" ? "warn" : "good"}` }, `${kind}: ${how === "refuted" || how === "open" ? how : `proved by ${how}`}`), " "])));
    else if (["LOAD", "STORE"].includes(model.table.op(node))) found.push(h("div", { class: "faint" }, accessText(model.data.proof)));
    if (chain.length) found.push(h("div", { class: "faint" }, "made by ", chain.map(([rule, before], i) => [i ? " ← " : "", h("span", { title: visible(expr(model.table, before)) }, rule)])));
  }
  return found;
}

function accessText(proof) {
  if (!proof || proof.status === "not asked") return `access not asked: ${proof?.why ?? "nothing was proved"}`;
  if (proof.status === "in part") return "access of registers, or not asked: the time for proofs was over (morok view --prove)";
  return "access of registers or local memory: nothing to show";
}

// A pane with a list. `selected` says which rows belong to what is chosen.
function listPane(name, title, length, row, selected, choose, ...tools) {
  let marks = new Set();
  const list = new VirtualList({
    length, height: 20, label: title, className: "code",
    row: (i) => { const element = row(i); element.classList.toggle("chosen", marks.has(i)); element.addEventListener("click", () => choose(i)); return element; },
  });
  let at = 0;
  list.element.addEventListener("keydown", (e) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    if (step === undefined) return;
    e.preventDefault();
    at = Math.min(length - 1, Math.max(0, at + step));
    choose(at);
    list.show(at);
  });
  return {
    name, list,
    element: h("section", { class: `pane ${name}` }, h("div", { class: "title" }, title ? h("h3", {}, title) : null, ...tools), list.element),
    update(chosen, own) {
      marks = selected(chosen);
      for (const [i, element] of list.rendered) element.classList.toggle("chosen", marks.has(i));
      if (!own && marks.size) { at = Math.min(...marks); list.show(at); }
    },
  };
}

function sourcePane(model, choose) {
  const wanted = new Map();
  for (const [file, line] of model.k.lines ?? []) {
    if (!wanted.has(file)) wanted.set(file, new Set());
    for (let l = line - CONTEXT; l <= line + CONTEXT; l++) if (l >= 1 && l <= run.index.files[file].lines.length) wanted.get(file).add(l);
  }
  const own = new Set((model.k.lines ?? []).map(([f, l]) => `${f}:${l}`));
  const rows = new Map();
  const body = h("div", { class: "sourcebox", tabindex: "0" });
  for (const [file, lines] of wanted) {
    body.append(h("div", { class: "filename" }, visible(run.index.files[file].name)));
    let before = 0;
    for (const l of [...lines].sort((a, b) => a - b)) {
      if (before && l > before + 1) body.append(h("div", { class: "gap" }, "⋮"));
      before = l;
      const place = [file, l], live = own.has(`${file}:${l}`);
      const row = h(live ? "button" : "div", { class: `coderow${live ? " live" : ""}`, type: live ? "button" : null, style: live ? coloured(place) : null, "data-place": `${file}:${l}` },
        h("span", { class: "where" }, String(l)), h("code", { class: "source", dir: "ltr" }, visible(run.index.files[file].lines[l - 1])));
      if (live) { row.addEventListener("click", () => choose({ line: place }, "source")); rows.set(`${file}:${l}`, row); }
      body.append(row);
    }
  }
  if (!wanted.size) body.append(empty("No line of yours.", "The kernel comes from inside of morok, or provenance was off (MOROK_PROVENANCE)."));
  return {
    name: "source",
    element: h("section", { class: "pane lines" }, h("div", { class: "title" }, h("h3", {}, "Your lines")), body),
    update(chosen, mine) {
      for (const row of rows.values()) row.classList.remove("chosen");
      const row = chosen.line && rows.get(`${chosen.line[0]}:${chosen.line[1]}`);
      if (row) { row.classList.add("chosen"); if (!mine) row.scrollIntoView({ block: "nearest" }); }
    },
  };
}

function instructionRow(model, i) {
  const place = model.place(i);
  const proofs = model.verdicts.get(i);
  const bad = proofs?.some(([, how]) => how === "refuted" || how === "open");
  return h("div", { class: "coderow", style: coloured(place), title: placeName(place), "data-instruction": i },
    h("span", { class: "where" }, String(i)), h("span", { class: "proof" }, proofs ? (bad ? "✗" : "✓") : ""),
    h("code", { dir: "ltr", style: `padding-left:${model.depth[i]}em` }, visible(model.instructionText(i))));
}

function targetPane(model, choose) {
  const both = Boolean(model.assembly.length && model.text.length);
  const tabs = () => both && h("nav", { class: "tabs" }, ["assembly", model.program.language].map((title, i) => h("button", { type: "button", "data-tab": i, onclick: () => show(i) }, title)));
  const code = (name, title, lines, placeOf, selected, pick) => listPane(name, both ? "" : title, lines.length, (i) => h("div", { class: "coderow", style: coloured(placeOf(i)), [`data-${name}`]: i },
    h("span", { class: "where" }, String(i + 1)), h("code", { dir: "ltr" }, visible(lines[i].replace(/\t/g, "  ")))), selected, pick, tabs(), copyButton(() => lines.join("\n")));
  const assembly = model.assembly.length
    ? code("assembly", "Assembly", model.assembly, (i) => model.placeOfText(model.rows[i]), (c) => model.selectedRows(c), (i) => choose({ row: i }, "assembly")) : null;
  const text = model.text.length
    ? code("text", model.program.language, model.text, (i) => model.placeOfText(i), (c) => model.selectedText(c), (i) => choose({ text: i }, "text")) : null;
  const panes = [assembly, text].filter(Boolean);
  const why = model.k.proof?.status === "refuted" ? "The kernel was refused: nothing was made of its instructions." : "This device runs the list of instructions itself.";
  const missing = assembly ? null : empty("No assembly.", model.data.assembly?.missing ?? why);
  const element = h("div", { class: "pane target" }, missing, panes.map((p) => p.element));
  const show = (chosen) => {
    panes.forEach((pane, i) => { pane.element.hidden = i !== chosen; pane.list.schedule(); });
    for (const button of element.querySelectorAll("[data-tab]")) button.setAttribute("aria-pressed", Number(button.dataset.tab) === chosen ? "true" : "false");
  };
  if (both) show(0);
  return { element, panes };
}
