// One kernel: its figures, its stages with every change, and the way to its code.

import { chunk, run } from "./data.js";
import { amount, copyButton, count, digits, empty, h, link, percent, seconds, visible } from "./dom.js";
import { assemblyView } from "./assembly.js";
import { graphView, treeView } from "./graph.js";
import { fastest, kernel, kernelLink, ofRoof, openObligations, placeLink, proofMark, rowsOf, sourceText, total } from "./model.js";
import { changesOf, changesView } from "./changes.js";
import { differences } from "./text.js";

export async function kernelPage(route) {
  const number = Number(route.get("kernel"));
  const k = kernel(number);
  if (!k) return empty(`There is no kernel ${number}.`, link("page=kernels", "All kernels"));
  if (k.chunk < 0) {
    return [heading(k), overview(k, null), empty("How it was made is not in this recording.",
      "It was compiled before the recording began, or its device runs graphs as they are. Record from the start to see its stages.")];
  }
  const data = await chunk(k.chunk);
  const shared = k.graph >= 0 ? await chunk(k.graph) : null;
  const view = route.get("view") ?? (route.has("stage") ? "stages" : "overview");
  const body = view === "code" ? assemblyView(k, data, route) : view === "stages" ? stagesView(k, data, shared, route) : [overview(k, data), shortStages(k, data, shared)];
  return [heading(k, view, data), body];
}

function heading(k, view, data) {
  const numbers = run.index.kernels.map((other) => other.number);
  const at = numbers.indexOf(k.number);
  const tab = (name, target, text) => h("a", { href: `#kernel=${k.number}${target}`, "aria-current": view === name ? "page" : null }, text);
  return h("section", { class: "title" },
    h("h2", {}, `Kernel ${k.number}: `, h("code", {}, k.name)), copyButton(k.name),
    k.at ? h("span", {}, placeLink(k.at), " ", sourceText(k.at)) : null,
    data ? h("nav", { class: "tabs", "aria-label": "views of the kernel" }, tab("overview", "", "overview"), tab("stages", "&stage=all", "stages and rewrites"), tab("code", "&view=code", "code and assembly")) : null,
    h("span", { class: "walk" },
      at > 0 ? h("a", { href: `#kernel=${numbers[at - 1]}${view && view !== "overview" ? `&view=${view}` : ""}`, id: "previous", title: "key: k" }, "← previous") : null,
      at < numbers.length - 1 ? h("a", { href: `#kernel=${numbers[at + 1]}${view && view !== "overview" ? `&view=${view}` : ""}`, id: "next", title: "key: j" }, "next →") : null));
}

// --- overview

function fact(name, ...value) { return h("div", { class: "fact" }, h("dt", {}, name), h("dd", {}, ...value)); }

function overview(k, data) {
  const sum = total(k.number);
  return h("div", { class: "columns" },
    h("section", { class: "card" }, h("h3", {}, "Figures"), sum ? figures(k, sum) : h("p", {}, "It was not run in this recording.")),
    h("section", { class: "card" }, h("h3", {}, "Why this kernel"), reasons(k)),
    h("section", { class: "card" }, h("h3", {}, "Loops"), actions(k), facts(k)),
    h("section", { class: "card" }, h("h3", {}, "Is it safe?"), proof(k, data)));
}

function figures(k, sum) {
  const guess = k.predicted;
  return h("dl", { class: "figures" },
    fact("time", `${seconds(sum.seconds)} in ${count(sum.calls, "call")}, ${percent(sum.share)} of all kernels${fastest(k.number) === null ? "" : `; the fastest call ${seconds(fastest(k.number))}`}`),
    fact("arithmetic", `${digits(sum.ops / sum.seconds / 1e9)} GFLOP/s · ${sum.ops.toLocaleString("en")} operations`),
    fact("memory", `${digits(sum.bytes / sum.seconds / 1e9)} GB/s · ${amount(sum.bytes)} that it must touch`),
    fact("roofline", h("span", { class: ofRoof(sum) < 0.3 ? "low" : null }, percent(ofRoof(sum))), ` · at best ${seconds(sum.roof)}, by its ${sum.bound}`),
    fact("limited by", limitText(k, sum)),
    fact("predicted", guess ? (guess.seconds ? `${seconds(guess.seconds)} a call; measured ${seconds(sum.seconds / sum.calls)}, ${digits(sum.seconds / sum.calls / guess.seconds)} times that` : `${digits(guess.cycles)} cycles`) : "–"),
    rowsOf(k.number).length > 1 ? fact("lines", rowsOf(k.number).map((r) => h("div", {}, placeLink(r.at), ` ${seconds(r.seconds)} in ${count(r.calls, "call")}`))) : null,
    k.compile !== undefined ? fact("compiled in", `${seconds(k.compile)} of stages, ${count(k.changes, "rewrite")}, ${count(k.instructions, "instruction")}`) : null);
}

// What limits it. The roofline counts bytes and operations on floats; the compiler's model counts instructions.
function limitText(k, sum) {
  if (!run.index.limits[sum.device]?.measured) return "not known: nothing was measured on a machine; times of the emulator are those of NumPy";
  const best = fastest(k.number);
  if (sum.limit.startsWith("neither") && best !== null && best * sum.calls < sum.seconds / 3) {
    return `something else than the kernel, most of the time: its fastest call took ${seconds(best)}, ${percent(sum.roof / sum.calls / best)} of the roofline, the average one ${seconds(sum.seconds / sum.calls)}. First calls take longer, and so do all on a machine that is busy`;
  }
  const model = k.predicted?.seconds ? k.predicted.seconds * sum.calls / sum.seconds : 0;
  if (!sum.limit.startsWith("neither") || !model) return sum.limit;
  if (model >= 0.5) return `its instructions: the compiler’s model counts ${percent(Math.min(1, model))} of the measured time for them, of which the roofline counts only operations on floats`;
  return `${sum.limit}; the compiler’s model expects ${digits(1 / model)} times the speed too: caches, waiting threads, a first call, or a machine that was busy`;
}

// What it stores is memory for a reason, and so is what it reads.
function reasons(k) {
  const kept = k.kept;
  const readers = [], writers = new Map();
  for (const plan of run.index.plans) {
    plan.steps.forEach(([number, , , reads], i) => {
      if (number === k.number) for (const r of reads) writers.set(plan.steps[r][0], plan.steps[r]);
      if (reads.some((r) => plan.steps[r][0] === k.number)) readers.push(number);
    });
  }
  const notes = run.index.notes.filter((n) => n.at && (k.lines ?? []).some(([f, l]) => f === n.at[0] && l === n.at[1]));
  return h("div", {},
    kept ? h("p", {}, "It stores ", h("code", {}, visible(kept.value)), kept.reasons.length ? [" in memory, because ", h("strong", {}, kept.reasons.join("; ")), "."] : "."
    ) : h("p", { class: "faint" }, "What it stores was asked for."),
    readers.length ? h("p", {}, "Read by ", [...new Set(readers)].map((n, i) => [i ? ", " : "", kernelLink(n)]), ": not fused into ", readers.length > 1 ? "them" : "it", " for that reason.") : h("p", { class: "faint" }, "No other kernel of the recording reads it."),
    writers.size ? h("div", {}, h("p", {}, "It reads what these have stored:"), h("ul", {}, [...writers.keys()].map((n) => h("li", {}, kernelLink(n), " ",
      kernel(n)?.kept?.reasons.length ? h("span", {}, "kept because ", kernel(n).kept.reasons.join("; ")) : h("span", { class: "faint" }, "an output"))))) : null,
    h("p", {}, k.lines?.length > 1 ? ["Fused from ", count(k.lines.length, "line"), ": ", k.lines.slice(0, 12).map(([f, l], i) => [i ? ", " : "", placeLink([f, l])]), k.lines.length > 12 ? " …" : ""] : null),
    notes.length ? h("ul", {}, notes.slice(0, 6).map((n) => h("li", {}, `${n.text} at `, placeLink(n.at), ": ", h("code", {}, visible(n.value))))) : null);
}

function actions(k) {
  return k.actions?.length
    ? h("div", {}, h("p", {}, "Actions of the optimiser, in order:"), h("ol", { class: "actions" }, k.actions.map((a) => h("li", {}, h("code", {}, a)))))
    : h("p", {}, "Plain loops: the optimiser did nothing.");
}

function facts(k) {
  const entries = Object.entries(k.facts ?? {});
  return entries.length ? h("dl", { class: "figures" }, entries.map(([name, value]) => fact(name, name.includes("bytes") ? amount(value) : String(value)))) : null;
}

function proof(k, data) {
  const p = k.proof;
  if (!p || p.status === "not asked") {
    return h("div", {}, proofMark(k), h("p", {}, p?.why ?? "", " PROVE=1 proves every kernel while it is compiled; `morok view --prove` all of a run."));
  }
  const wrong = (kind) => p.open.filter((o) => o.kind === kind).length;
  const kinds = Object.entries(p.kinds).map(([kind, n]) => {
    const [word, rest] = { bounds: ["access", "in bounds"], width: ["index", "wide enough"], domain: ["operand", "with a result"], race: ["pair", "without a race"] }[kind] ?? [kind, ""];
    return `${count(n - wrong(kind), word, { access: "accesses", index: "indices" }[word])} ${rest}`;
  });
  const how = Object.entries(p.how).map(([name, n]) => (["refuted", "open"].includes(name) ? `${n} ${name}` : `${n} by ${name}`));
  const glance = ["accesses", "in part"].includes(p.status);
  return h("div", {}, proofMark(k), h("p", {}, kinds.join(", "), p.left ? `; ${count(p.left, "question")} left` : "", "."), h("p", { class: "faint" }, how.join(", ")),
    glance ? h("p", { class: "faint" }, "The time for proofs was over: what is left would take longer than a glance. morok view --prove asks all.") : null,
    openObligations(k, 20),
    data?.list ? h("p", {}, "Each access has its verdict beside it in ", link(`kernel=${k.number}&view=code`, "code and assembly"), ".") : null);
}

// --- stages

export function allStages(k, data, shared) {
  return [...(shared?.stages ?? []).map((s) => ({ ...s, data: shared })), ...data.stages.map((s) => ({ ...s, data }))];
}

function changeCount(stage) { return changesOf(stage).length; }

function shortStages(k, data, shared) {
  const stages = allStages(k, data, shared);
  return h("section", {}, h("h3", {}, "Stages"),
    h("p", { class: "faint" }, "Each with what changed it; a stage without changes is grey."),
    h("div", { class: "stages" }, stages.map((s) => stageLink(k, s))));
}

function stageLink(k, s, current) {
  const n = changeCount(s);
  const idle = !n && s.before === s.after;
  return h("a", { href: `#kernel=${k.number}&stage=${s.number}`, class: `stage${idle ? " idle" : ""}${s.failed ? " failed" : ""}`, "aria-current": current ? "page" : null },
    h("span", { class: "where" }, s.number), h("span", {}, s.name),
    h("span", { class: "number faint" }, s.failed ? "failed here" : n ? count(n, "change") : idle ? "" : "function"),
    h("span", { class: "number faint" }, seconds(s.seconds)));
}

function stagesView(k, data, shared, route) {
  const stages = allStages(k, data, shared);
  const wanted = route.get("stage") ?? "all";
  const chosen = wanted === "all" ? null : stages.find((s) => s.number === wanted);
  const moving = stages.filter((s) => changeCount(s) || s.before !== s.after);
  const at = moving.indexOf(chosen);
  const side = h("nav", { class: "stages side", "aria-label": "stages" },
    h("a", { href: `#kernel=${k.number}&stage=all`, class: "stage", "aria-current": wanted === "all" ? "page" : null }, h("span", {}, "all"), h("span", {}, "every change"), h("span", { class: "number faint" }, count(stages.reduce((n, s) => n + changeCount(s), 0), "change"))),
    stages.map((s) => stageLink(k, s, s === chosen)));
  requestAnimationFrame(() => { // the chosen one into sight, where the list is short
    const current = side.querySelector("[aria-current]");
    if (current && side.scrollHeight > side.clientHeight) side.scrollTop += current.getBoundingClientRect().top - side.getBoundingClientRect().top - side.clientHeight / 3;
  });
  const walk = h("span", { class: "walk" },
    at > 0 ? h("a", { href: `#kernel=${k.number}&stage=${moving[at - 1].number}`, id: "before", title: "key: [" }, `← ${moving[at - 1].name}`) : null,
    chosen && at < moving.length - 1 ? h("a", { href: `#kernel=${k.number}&stage=${moving[at + 1].number}`, id: "after", title: "key: ]" }, `${moving[at + 1].name} →`) : null);
  if (!chosen && wanted !== "all") return h("div", { class: "split" }, side, empty(`Kernel ${k.number} has no stage ${wanted}.`, "Choose one on the left."));
  const body = chosen ? stageBody(k, chosen, route) : h("div", {}, changesView(stages.flatMap((s) => changesOf(s)), route, k));
  return h("div", { class: "split" }, side, h("div", { class: "body" }, walk, body));
}

function stageBody(k, stage, route) {
  const { table } = stage.data;
  const steps = stage.steps.map((step) => h("span", { class: "step" }, step.kind === "rules" ? `rules ${step.name}` : step.name, h("span", { class: "faint" }, ` ${step.kind}${step.place ? ` · ${step.place}` : ""}`)));
  const changed = new Set();
  if (stage.before >= 0 && stage.after >= 0) for (const [, fresh] of differences(table, stage.before, stage.after, 300)) changed.add(fresh);
  const shown = stage.after >= 0 ? stage.after : stage.before;
  const graphs = h("details", { class: "graphs" }, h("summary", {}, `Graph ${stage.after >= 0 ? "after" : "before"} the stage`));
  graphs.addEventListener("toggle", () => {
    if (!graphs.open || graphs.children.length > 1) return;
    const holder = h("div", {});
    const draw = (root, kind) => holder.replaceChildren(kind === "tree" ? treeView(table, root, changed) : graphView(table, root, changed));
    const buttons = [["after", stage.after], ["before", stage.before]].filter(([, root]) => root >= 0).flatMap(([name, root]) => [
      h("button", { type: "button", onclick: () => draw(root, "graph") }, `${name}, drawn`), h("button", { type: "button", onclick: () => draw(root, "tree") }, `${name}, as a tree`)]);
    graphs.append(h("div", { class: "filters" }, buttons), holder);
    draw(shown, "graph");
  });
  return h("div", {}, h("h3", {}, `${stage.number} ${stage.name}`, stage.place ? h("span", { class: "faint" }, ` ${stage.place}`) : null),
    stage.failed ? h("p", { class: "mark bad" }, "This stage was not finished: an error came.") : null,
    h("p", {}, steps.length ? steps : stage.before === stage.after ? "It changed nothing here." : "A function."),
    stage.tried > stage.steps.length ? h("p", { class: "faint" }, `${stage.tried} actions were tried; those that did not stay are not shown.`) : null,
    changesView(changesOf(stage), route, k), graphs);
}
