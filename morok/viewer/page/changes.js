// Every rewrite: a list of which only the visible rows exist, and one of them in two columns.

import { run } from "./data.js";
import { copyButton, count, empty, h, link, VirtualList, visible } from "./dom.js";
import { classOf, coloured, placeLink, verdictMark } from "./model.js";
import { describe, differences, expr, marked, opsOf, SIGNS } from "./text.js";
import { treeView } from "./graph.js";

const known = new WeakMap(); // by the steps of a stage: differences of large graphs take a while

// The changes of a stage: {stage, table, rule or name, old, new}.
export function changesOf(stage) {
  if (!known.has(stage.steps)) known.set(stage.steps, findChanges(stage));
  return known.get(stage.steps);
}

function findChanges(stage) {
  const { table } = stage.data;
  const found = [];
  const add = (by, kind, place, old, fresh) => found.push({ stage, table, by, kind, place, old, fresh });
  for (const step of stage.steps) {
    if (step.kind === "rules") {
      for (let i = 0; i < step.rules.length; i++) add(table.strings[step.rules[i]], "rule", "", step.old[i], step.new[i]);
    } else if (step.kind === "action") found.push({ stage, table, by: step.name, kind: "action", place: step.place, gone: step.gone ?? [], come: step.come ?? [], old: step.before, fresh: step.after });
    else if (step.after >= 0) for (const [old, fresh] of differences(table, step.before, step.after)) add(step.name, "function", step.place, old, fresh);
  }
  if (!stage.steps.length && stage.before >= 0 && stage.after >= 0 && stage.before !== stage.after) {
    for (const [old, fresh] of differences(table, stage.before, stage.after)) add(stage.name, "function", stage.place, old, fresh);
  }
  return found;
}

export function texts(change) {
  if (!change.texts) {
    const { table } = change;
    if (change.kind === "action") {
      const show = (nodes) => nodes.map((n) => expr(table, n, 60)).join(", ") || "–";
      change.texts = [show(change.gone), show(change.come)];
    } else {
      change.texts = pair(table, change.old, change.fresh, 120, 6);
    }
  }
  return change.texts;
}

// Both sides as text. Where the difference lies too deep for that, the first nodes that differ.
function pair(table, old, fresh, limit, depth) {
  let a = expr(table, old, limit, depth), b = expr(table, fresh, limit, depth);
  if (a === b && fresh >= 0) {
    const [[x, y] = [old, fresh]] = differences(table, old, fresh, 1);
    [a, b] = [expr(table, x, limit, depth), expr(table, y, limit, depth)];
    if (a === b) [a, b] = [describe(table, x), describe(table, y)];
  }
  return [visible(a), visible(b)];
}

// The line of a change. Inside of a kernel it is one of the kernel's: equal nodes are one, and may name another's.
function place(change, k) {
  const own = (found) => (found && (!k?.lines || !change.stage.data.list || k.lines.some(([f, l]) => f === found[0] && l === found[1])) ? found : null);
  return own(change.table.place(change.old)) ?? (change.fresh >= 0 ? own(change.table.place(change.fresh)) : null);
}

function parts(pieces) {
  return pieces.map(([text, differs]) => (differs && text ? h("mark", {}, text) : text));
}

export function changesView(changes, route, k) {
  if (!changes.length) return h("p", { class: "faint" }, "No changes to show.");
  let shown = changes;
  const filter = h("input", { type: "search", placeholder: "rule, op or text", "aria-label": "filter the changes", value: route.get("filter") ?? "" });
  const removed = h("select", { "aria-label": "changes that remove an op" }, h("option", { value: "" }, "removes …"));
  const summary = h("span", { class: "faint" });
  const detail = h("div", { class: "detail", "aria-live": "polite" });
  const fit = () => { list.element.style.height = `min(40vh, ${26 * Math.max(3, shown.length) + 20}px)`; };
  const list = new VirtualList({ length: 0, height: 26, label: "changes", className: "changes", row: (i) => row(shown[i], i) });
  const row = (change, i) => {
    const [a, b] = marked(...texts(change));
    const element = h("div", { class: `change${i === list.selected ? " chosen" : ""}`, role: "listitem", style: coloured(place(change, k)), onclick: () => choose(i) },
      h("span", { class: "number faint" }, String(i)), h("span", { class: "by", title: change.by }, change.by),
      h("code", { class: "old", dir: "ltr" }, parts(a)), h("code", { class: "new", dir: "ltr" }, parts(b)));
    return element;
  };
  const choose = (i) => {
    list.rendered.get(list.selected)?.classList.remove("chosen");
    list.selected = i;
    list.rendered.get(i)?.classList.add("chosen");
    detail.replaceChildren(changeDetail(shown[i], k));
    list.show(i);
  };
  list.element.addEventListener("keydown", (e) => {
    const step = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[e.key];
    if (step === undefined || !shown.length) return;
    e.preventDefault();
    e.stopPropagation();
    choose(Math.min(shown.length - 1, Math.max(0, list.selected + step)));
  });
  const tell = () => { summary.textContent = shown.length === changes.length ? count(changes.length, "change") : `${shown.length.toLocaleString("en")} of ${count(changes.length, "change")}`; };
  let turn = 0;
  // In slices, so that nothing waits: a filter over ten thousand changes writes ten thousand expressions.
  const apply = async () => {
    const own = ++turn;
    const word = filter.value.trim().toLowerCase(), op = removed.value;
    if (!word && !op) { shown = changes; list.selected = -1; fit(); list.refresh(shown.length); tell(); return; }
    const found = [];
    let began = performance.now();
    for (const change of changes) {
      if ((!op || removes(change, op)) && (!word || matches(change, word))) found.push(change);
      if (performance.now() - began > 8) {
        summary.textContent = "looking …";
        await new Promise((done) => setTimeout(done));
        if (own !== turn) return;
        began = performance.now();
      }
    }
    shown = found;
    list.selected = -1;
    fit();
    list.refresh(shown.length);
    tell();
    if (shown.length) choose(0);
    else detail.replaceChildren(empty("No change fits.", "A filter looks at the names of rules and at both expressions."));
  };
  filter.addEventListener("input", apply);
  removed.addEventListener("change", apply);
  fit();
  list.refresh(shown.length);
  tell();
  if (filter.value) apply();
  else choose(Math.min(changes.length - 1, Number(route.get("change") ?? 0)));
  // Last: it may be done at once, and what it shows is to stay.
  fillOps(changes, removed, () => {
    const op = route.get("removes");
    if (!op) return;
    removed.value = op;
    if (removed.value !== op) { removed.append(h("option", { value: op }, `removes ${visible(op)} (0)`)); removed.value = op; }
    apply();
  });
  return h("div", { class: "changebox" }, h("div", { class: "filters" }, filter, removed, summary), list.element, detail);
}

function matches(change, word) {
  return change.by.toLowerCase().includes(word) || texts(change).some((t) => t.toLowerCase().includes(word));
}

function removes(change, op) {
  if (change.kind === "action" || change.fresh < 0) return false;
  if (!change.gone_ops) {
    const after = opsOf(change.table, change.fresh);
    change.gone_ops = [...opsOf(change.table, change.old)].filter((o) => !after.has(o));
  }
  return change.gone_ops.includes(op);
}

// Which ops some change removes; found in slices, after the list is there.
async function fillOps(changes, select, then) {
  const found = new Map();
  let began = performance.now();
  for (const change of changes) {
    removes(change, "");
    for (const op of change.gone_ops ?? []) found.set(op, (found.get(op) ?? 0) + 1);
    if (performance.now() - began > 8) { await new Promise((done) => setTimeout(done)); began = performance.now(); }
  }
  select.append(...[...found].sort((a, b) => a[0] < b[0] ? -1 : 1).map(([op, n]) => h("option", { value: op }, `removes ${op}${SIGNS[op] ? `  ${SIGNS[op]}` : ""} (${n})`)));
  then();
}

export function ruleBox(name) {
  const rule = run.index.rules[name];
  if (!rule) return null;
  return h("div", { class: "rule" },
    h("div", {}, h("strong", {}, name), " ", verdictMark(rule.verdict), " ", h("span", { class: "faint" }, classOf(rule)), " ", copyButton(name)),
    h("pre", { class: "formula" }, rule.formula),
    h("div", { class: "faint" }, rule.place, rule.note ? ` · ${rule.note}` : ""));
}

function changeDetail(change, k) {
  const { table } = change;
  const long = change.kind === "action" ? texts(change) : pair(table, change.old, change.fresh, 600, 10);
  const [a, b] = marked(...long);
  const where = place(change, k);
  const tree = (node) => (node >= 0 ? h("details", {}, h("summary", {}, "as a tree"), treeView(table, node, new Set(), 4)) : null);
  return h("div", {},
    change.kind === "rule" ? ruleBox(change.by) : h("div", { class: "rule" }, h("strong", {}, change.by), h("span", { class: "faint" }, ` ${change.kind}${change.place ? ` · ${change.place}` : ""}`)),
    h("div", { class: "two" },
      h("div", {}, h("div", { class: "faint" }, "before ", copyButton(long[0])), h("pre", { class: "old" }, parts(a)), tree(change.old)),
      h("div", {}, h("div", { class: "faint" }, "after ", copyButton(long[1])), h("pre", { class: "new" }, parts(b)), tree(change.fresh))),
    h("p", { class: "faint" }, k ? ["stage ", link(`kernel=${k.number}&stage=${change.stage.number}`, `${change.stage.number} ${change.stage.name}`), " · "] : null, "your line ", placeLink(where)));
}
