// Your code: every line with its time, its bytes and its kernels.

import { run } from "./data.js";
import { amount, bar, copyButton, count, empty, h, link, percent, seconds, visible } from "./dom.js";
import { coloured, kernel, kernelLink, lineAt, lineTable, ofRoof, placeName, sourceText } from "./model.js";

const MOST_LINES = 3000, NEAR = 20; // of longer files only what lies near to lines that made kernels is shown

export function codePage(route) {
  const files = run.index.files;
  if (!files.length) {
    return empty("No line of yours has made a kernel.", "The recorded block has to compute something: call .realize(), .numpy() or .item() in it.");
  }
  const costs = files.map((_, f) => [...lineTable().values()].filter((l) => l.place[0] === f).reduce((all, l) => all + l.seconds, 0));
  const chosen = route.has("file") ? Number(route.get("file")) : Math.max(0, costs.indexOf(Math.max(...costs)));
  const file = files[chosen] ?? files[0];
  const named = new Set([...lineTable().values()].map((l) => l.place[0]));
  const shown = files.map((_, i) => i).filter((i) => i === chosen || files[i].lines.length || named.has(i)); // others have made memory only
  const line = route.has("line") ? Number(route.get("line")) : 0;
  return [
    dearest(),
    h("section", {},
      h("div", { class: "title" }, h("h2", {}, "Your code"),
        shown.length > 1 ? tabs(files, shown, chosen, costs) : h("span", { class: "faint path" }, visible(file.path)),
        copyButton(() => file.lines.join("\n"), "copy file")),
      listing(file, chosen, line)),
  ];
}

function dearest() {
  const lines = [...lineTable().values()].filter((l) => l.seconds > 0).sort((a, b) => b.seconds - a.seconds).slice(0, 5);
  if (!lines.length) return empty("Nothing has run.", "Kernels were compiled, but none was timed in this recording.");
  return h("section", { class: "card" },
    h("h2", {}, "What costs most"),
    h("ol", { class: "dearest" }, lines.map((l) => h("li", { style: coloured(l.place) },
      h("span", { class: "number" }, percent(l.share)), bar(l.share),
      h("span", { class: "number" }, seconds(l.seconds)),
      link(`file=${l.place[0]}&line=${l.place[1]}`, placeName(l.place)), sourceText(l.place)))));
}

function tabs(files, shown, chosen, costs) {
  return h("nav", { class: "tabs", "aria-label": "files" }, shown.map((i) => h("a", {
    href: `#file=${i}`, "aria-current": i === chosen ? "page" : null, title: visible(files[i].path),
  }, visible(files[i].name), costs[i] ? h("span", { class: "faint" }, ` ${seconds(costs[i])}`) : null)));
}

function listing(file, number, chosen) {
  const head = h("div", { class: "line head" }, ["share", "time", "bytes", "kernels", "", ""].map((t) => h("span", {}, t)));
  if (!file.lines.length) {
    const known = [...lineTable().values()].filter((l) => l.place[0] === number).sort((a, b) => a.place[1] - b.place[1]);
    return [empty("The text of this file is not there.", "It was typed into a prompt, made by a program, or has gone since."),
      h("ul", {}, known.map((l) => h("li", {}, `${placeName(l.place)}: `, l.seconds ? `${seconds(l.seconds)}, ` : "", [...l.inside].map((n, i) => [i ? ", " : "", kernelLink(n)]))))];
  }
  const opened = new Set(chosen ? [chosen] : []);
  const body = h("div", { class: "listing", role: "list" }, head);
  const rows = new Map();
  let before = 0;
  for (const line of linesShown(file, number)) {
    if (line > before + 1) body.append(h("div", { class: "gap" }, `⋮ ${count(line - before - 1, "line")}`));
    before = line;
    rows.set(line, lineRow(number, line, file.lines[line - 1], () => toggle(line)));
    body.append(rows.get(line));
  }
  if (before < file.lines.length) body.append(h("div", { class: "gap" }, `⋮ ${count(file.lines.length - before, "line")}`));
  const toggle = (line) => {
    const row = rows.get(line);
    const next = row.nextElementSibling;
    if (next?.classList.contains("details")) { next.remove(); row.setAttribute("aria-expanded", "false"); return; }
    row.after(lineDetails([number, line]));
    row.setAttribute("aria-expanded", "true");
    history.replaceState(null, "", `#file=${number}&line=${line}`);
  };
  for (const line of opened) if (rows.has(line) && lineAt([number, line])) toggle(line);
  if (rows.has(chosen)) {
    rows.get(chosen).classList.add("chosen");
    requestAnimationFrame(() => rows.get(chosen).scrollIntoView({ block: "center" }));
  }
  return body;
}

function linesShown(file, number) {
  const all = file.lines.map((_, i) => i + 1);
  if (all.length <= MOST_LINES) return all;
  const near = new Set();
  for (const { place } of lineTable().values()) {
    if (place[0] === number) for (let l = place[1] - NEAR; l <= place[1] + NEAR; l++) near.add(l);
  }
  return all.filter((line) => near.has(line));
}

function lineRow(file, number, text, open) {
  const found = lineAt([file, number]);
  const cells = [
    h("span", { class: "number" }, found?.seconds ? [percent(found.share), bar(found.share)] : ""),
    h("span", { class: "number" }, found?.seconds ? seconds(found.seconds) : ""),
    h("span", { class: "number" }, found?.bytes ? amount(found.bytes) : ""),
    h("span", { class: "number" }, found ? String(found.inside.size) : ""),
    h("span", { class: "where" }, String(number)),
    h("code", { class: "source", dir: "ltr" }, visible(text) || " "),
  ];
  if (!found) return h("div", { class: "line", role: "listitem" }, cells);
  const row = h("div", {
    class: `line live${found.seconds ? "" : " fused"}`, role: "listitem", tabindex: "0", "aria-expanded": "false", style: coloured([file, number]),
    "data-line": number, title: "its kernels",
  }, cells);
  row.addEventListener("click", () => { if (!String(getSelection())) open(); });
  row.addEventListener("keydown", (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); open(); } });
  return row;
}

// The kernels of a line, with a way to each one's code.
export function lineDetails(place) {
  const found = lineAt(place);
  const own = new Map();
  for (const row of found.rows) own.set(row.kernel, row);
  const rest = [...found.inside].filter((n) => !own.has(n) && kernel(n)?.lines);
  const target = (n) => `kernel=${n}&view=code&at=${place[0]}:${place[1]}`;
  const item = (n, row) => h("li", {}, kernelLink(n), " ",
    row ? h("span", {}, `${seconds(row.seconds)} in ${count(row.calls, "call")}, ${percent(ofRoof(row))} of its roofline `) : null,
    kernel(n)?.whole ? h("a", { href: `#${target(n)}`, class: "button" }, "assembly") : null);
  return h("div", { class: "details" },
    own.size ? h("div", {}, h("strong", {}, "Kernels named after this line"), h("ul", {}, [...own].map(([n, row]) => item(n, row)))) : null,
    rest.length ? h("div", {}, h("strong", {}, own.size ? "It is also computed in" : "It is fused into"),
      h("ul", {}, rest.slice(0, 40).map((n) => item(n, null))),
      rest.length > 40 ? h("p", { class: "faint" }, `and ${rest.length - 40} more`) : null) : null);
}
