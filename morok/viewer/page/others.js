// Rules, search among candidates, errors, comparison of two runs, and what the search box has found.

import { readOther, run, Table } from "./data.js";
import { bar, copyButton, count, digits, empty, h, link, percent, seconds, visible } from "./dom.js";
import { changesView } from "./changes.js";
import { treeView } from "./graph.js";
import { classOf, kernel, kernelLink, ofRoof, openObligations, placeLink, placeName, sourceText, verdictMark } from "./model.js";

// --- rules

export function rulesPage(route) {
  const rules = Object.entries(run.index.rules);
  if (!rules.length) return empty("No rule has fired.", "Nothing was compiled in this recording.");
  const wanted = (route.get("rule") ?? "").toLowerCase();
  const input = h("input", { type: "search", placeholder: "name or formula", "aria-label": "filter the rules", value: route.get("rule") ?? "" });
  const body = h("tbody", {});
  const fill = () => {
    const word = input.value.trim().toLowerCase();
    body.replaceChildren(...rules.filter(([name, r]) => !word || `${name} ${r.formula}`.toLowerCase().includes(word)).map(([name, r]) => h("tr", {},
      h("td", {}, h("strong", {}, name), h("div", { class: "faint" }, r.place)), h("td", {}, h("pre", { class: "formula" }, r.formula)), h("td", {}, verdictMark(r.verdict), h("div", { class: "faint" }, r.note)), h("td", {}, classOf(r)))));
  };
  input.addEventListener("input", fill);
  fill();
  const proved = rules.filter(([, r]) => r.verdict === "proved").length;
  return h("section", {}, h("div", { class: "title" }, h("h2", {}, count(rules.length, "rule")), input),
    h("p", { class: "faint" }, `Those that fired in this run. ${proved} are proved; lowering steps and approximations are no equations between values; “not yet” means that `, h("code", {}, "morok prove"), " has not run here."),
    h("div", { class: "scroll" }, h("table", { class: "rules" }, h("thead", {}, h("tr", {}, ["rule", "mathematics", "verdict", "class"].map((t) => h("th", {}, t)))), body)));
}

// --- search

export function searchPage() {
  const found = run.index.search;
  if (!found.length) {
    return empty("No search was made.", "BEAM=8, or morok tune script.py, measures candidates for each kernel; record such a run to see what was tried.");
  }
  return found.map((s) => {
    const best = Math.min(...s.candidates.filter((c) => c[2] !== null).map((c) => c[2]));
    const sorted = [...s.candidates].sort((a, b) => (a[2] ?? Infinity) - (b[2] ?? Infinity));
    const target = run.index.rows.find((r) => r.name === s.name && r.place === s.place);
    return h("section", {}, h("h2", {}, target ? kernelLink(target.kernel, s.name) : s.name, h("span", { class: "faint" }, ` ${s.place ?? ""}`)),
      h("p", {}, `${s.searched ? `${count(s.tried, "candidate")} tried, ${s.failed} failed` : "found on disk"}; ${seconds(s.before)} before, ${seconds(s.after)} after, ${digits(s.ratio)} times as fast${s.contended ? "; the machine was busy" : ""}. `, "Chosen: ", h("code", {}, s.opts || "plain loops")),
      sorted.length ? h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["time", "", "predicted cycles", "actions"].map((t) => h("th", {}, t)))),
        h("tbody", {}, sorted.map(([opts, cost, time]) => h("tr", { class: opts === s.opts ? "chosen" : null }, h("td", { class: "number" }, time === null ? "failed" : seconds(time)), h("td", {}, time === null ? null : bar(best / time)), h("td", { class: "number" }, digits(cost)), h("td", {}, h("code", {}, opts || "plain loops"))))))) : null,
      s.complaints.length ? h("details", {}, h("summary", {}, "Why candidates were dropped"), h("ul", {}, s.complaints.map((c) => h("li", {}, visible(c))))) : null);
  });
}

// --- errors

export function errorsPage() {
  if (!run.index.errors.length) return empty("No error.", "An error inside of the recorded block would be shown here, with the stage and the rewrites that led to it.");
  return run.index.errors.map((e) => {
    const table = new Table(e.graphs);
    const last = e.stopped[e.stopped.length - 1];
    const unfinished = run.index.kernels.filter((k) => !k.whole && k.chunk >= 0);
    const ran = new Set(run.index.rows.map((r) => r.kernel));
    const here = run.index.kernels.filter((k) => k.whole && !ran.has(k.number) && e.place && placeName(k.at) === e.place);
    const asked = ["CompileError", "ProofError"].includes(e.type); // or what is open has nothing to do with it
    const refuted = run.index.kernels.filter((k) => k.proof?.status === "refuted" || (asked && k.proof?.status === "open"));
    return h("section", { class: "failure" }, h("h2", {}, e.type, " ", copyButton(`${e.type}: ${e.message}`)),
      h("p", { class: "message" }, visible(e.message), e.place ? h("span", { class: "faint" }, ` (at ${e.place})`) : null),
      e.frames.length ? h("div", {}, h("h3", {}, "Your lines that led to it"), h("ol", {}, e.frames.map((f) => h("li", {}, placeLink(f), " ", sourceText(f))))) : null,
      e.stopped.length ? h("div", {}, h("h3", {}, "What the compiler was at"), h("ol", {}, e.stopped.map((c) => h("li", {}, [c.kind, c.number, c.name].filter(Boolean).join(" "), c.place ? h("span", { class: "faint" }, ` ${c.place}`) : null, c.changes ? `, after ${count(c.changes, "rewrite")}` : "")))) : null,
      here.length ? h("p", {}, "Compiled for that line, but not run: ", here.map((k, i) => [i ? ", " : "", kernelLink(k.number)])) : null,
      unfinished.length ? h("p", {}, "Not finished: ", unfinished.map((k, i) => [i ? ", " : "", kernelLink(k.number)])) : null,
      refuted.map((k) => h("div", {}, h("h3", {}, "Not proved: ", kernelLink(k.number)), openObligations(k, 5))),
      h("p", { class: "advice" }, e.advice),
      last && last.rules.length ? h("div", {}, h("h3", {}, e.cycle ? "The last rewrites: the round is here" : "The last rewrites"),
        changesView([...last.rules].map((rule, i) => ({ stage: { number: last.number, name: last.name }, table, by: table.strings[rule], kind: "rule", place: "", old: last.old[i], fresh: last.new[i] })).slice(-200), new URLSearchParams(), null)) : null,
      last ? h("details", {}, h("summary", {}, "The graph that it began with"), treeView(table, last.before)) : null);
  });
}

// --- two runs

export function comparePage(route, again) {
  const other = run.other;
  const input = h("input", { type: "file", accept: ".html,text/html", "aria-label": "another page" });
  const say = h("p", { class: "status", "aria-live": "polite" });
  input.addEventListener("change", async () => {
    try {
      run.other = await readOther(await input.files[0].text());
      again();
    } catch (error) { say.textContent = `This file cannot be compared: ${error.message}.`; }
  });
  const choose = h("p", {}, "Another page that ", h("code", {}, "morok view"), " has written: ", input);
  if (!other) return [h("h2", {}, "Two runs"), choose, say, empty("Nothing to compare with yet.", "Open another run's file above (it stays on this machine), or write both into one page: morok view --compare before.html after.html -o both.html")];
  return [h("h2", {}, `${visible(other.title)} → ${visible(run.index.title)}`), choose, say, comparison(other, run.index)];
}

function named(index) {
  const found = new Map();
  for (const r of index.rows) {
    const text = r.at ? (index.files[r.at[0]].lines[r.at[1] - 1] ?? "").trim() : "";
    const key = `${r.name}\n${text}`;
    const old = found.get(key);
    found.set(key, old ? { ...old, seconds: old.seconds + r.seconds, calls: old.calls + r.calls, roof: old.roof + r.roof } : { ...r, text });
  }
  return found;
}

function comparison(before, after) {
  const a = named(before), b = named(after);
  const keys = [...new Set([...a.keys(), ...b.keys()])];
  const each = (r) => (r ? r.seconds / r.calls : null);
  const sum = (rows) => [...rows.values()].reduce((all, r) => all + r.seconds, 0);
  const rows = keys.map((key) => [a.get(key), b.get(key)]).sort((x, y) => Math.abs((y[1]?.seconds ?? 0) - (y[0]?.seconds ?? 0)) - Math.abs((x[1]?.seconds ?? 0) - (x[0]?.seconds ?? 0)));
  const mark = (x, y) => (!x ? h("span", { class: "mark plain" }, "new") : !y ? h("span", { class: "mark plain" }, "gone")
    : h("span", { class: each(y) < 0.95 * each(x) ? "better" : each(y) > 1.05 * each(x) ? "worse" : "" }, `${digits(each(x) / each(y))}×`));
  return h("div", {}, h("p", {}, `All kernels: ${seconds(sum(a))} → ${seconds(sum(b))}. Above 1× is faster than before; times are of one call.`),
    h("p", { class: "faint" }, `${run.other.system}, Python ${run.other.python}, morok ${run.other.morok} → ${run.index.system}, Python ${run.index.python}, morok ${run.index.morok}`),
    h("div", { class: "scroll" }, h("table", { class: "compare" }, h("thead", {}, h("tr", {}, ["kernel", "line", "before", "after", "", "of roofline", "calls"].map((t) => h("th", {}, t)))),
      h("tbody", {}, rows.map(([x, y]) => h("tr", {}, h("td", {}, y && y.kernel >= 0 ? kernelLink(y.kernel, y.name) : (x ?? y).name), h("td", {}, h("code", { class: "source", dir: "ltr" }, visible((y ?? x).text))),
        h("td", { class: "number" }, seconds(each(x))), h("td", { class: "number" }, seconds(each(y))), h("td", { class: "number" }, mark(x, y)), h("td", { class: "number" }, `${x ? percent(ofRoof(x)) : "–"} → ${y ? percent(ofRoof(y)) : "–"}`), h("td", { class: "number" }, `${x?.calls ?? 0} → ${y?.calls ?? 0}`)))))));
}

// --- the search box

export function findPage(route) {
  const word = (route.get("find") ?? "").trim().toLowerCase();
  if (!word) return empty("Nothing to look for.", "Type a part of a kernel's name, of a line of yours, of a rule or an action into the box above (key: /).");
  const kernels = run.index.kernels.filter((k) => `${k.number} ${k.name} ${(k.actions ?? []).join(" ")}`.toLowerCase().includes(word));
  const rules = Object.entries(run.index.rules).filter(([name, r]) => `${name} ${r.formula}`.toLowerCase().includes(word));
  const lines = [];
  run.index.files.forEach((file, f) => file.lines.forEach((text, i) => { if (lines.length < 200 && text.toLowerCase().includes(word)) lines.push([f, i + 1]); }));
  const section = (title, items, make) => (items.length ? h("section", {}, h("h2", {}, `${title} (${items.length})`), h("ul", {}, items.slice(0, 60).map((i) => h("li", {}, make(i)))), items.length > 60 ? h("p", { class: "faint" }, `and ${items.length - 60} more`) : null) : null);
  if (!kernels.length && !rules.length && !lines.length) return empty(`Nothing has “${visible(word)}” in it.`, "Kernels, actions, rules and your lines were looked at. Rewrites are filtered on a kernel's page.");
  return [section("Kernels", kernels, (k) => [kernelLink(k.number), " ", placeLink(k.at), " ", h("span", { class: "faint" }, (k.actions ?? []).join(" "))]),
    section("Your lines", lines, (p) => [placeLink(p), " ", sourceText(p)]),
    section("Rules", rules, ([name, r]) => [link(`page=rules&rule=${encodeURIComponent(name)}`, name), " ", verdictMark(r.verdict), " ", h("code", {}, r.formula.slice(0, 160))])];
}
