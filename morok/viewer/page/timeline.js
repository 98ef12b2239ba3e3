// Timeline and memory: which kernel ran when, and where intermediate results lie in the arena.

import { run } from "./data.js";
import { amount, count, empty, h, percent, seconds, svg } from "./dom.js";
import { hue, kernel, kernelLink, placeName, rowsOf } from "./model.js";

export function timelinePage(route) {
  return [timeline(), memory(route)];
}

function laneNames() {
  const runs = run.index.runs;
  const names = new Map();
  for (let i = 0; i < runs.start.length; i++) {
    const name = `${runs.device[i] ?? ""}${runs.thread.length ? ` thread ${runs.thread[i]}` : ""}`;
    if (!names.has(name)) names.set(name, names.size);
  }
  return names;
}

// A time of the axis, in microseconds, with as many digits as tell it from the next one.
function tick(micros, step) {
  const [scale, unit] = step >= 1e6 ? [1e6, "s"] : step >= 1e3 ? [1e3, "ms"] : [1, "µs"];
  return `${(Math.round(micros / step) * step / scale).toLocaleString("en", { maximumFractionDigits: 3 })} ${unit}`;
}

function timeline() {
  const runs = run.index.runs;
  if (!runs.start.length) return empty("Nothing has run.", "The timeline shows kernels that ran while it was recorded.");
  const names = laneNames();
  const lane = (i) => names.get(`${runs.device[i] ?? ""}${runs.thread.length ? ` thread ${runs.thread[i]}` : ""}`);
  const all = [runs.start[0], Math.max(...runs.start.map((s, i) => s + runs.micros[i]))];
  const view = { from: all[0], to: all[1] };
  const LANE = 34, TOP = 20;
  const canvas = h("canvas", { class: "timeline", tabindex: "0", role: "img", "aria-label": "kernels in time; arrows move, plus and minus zoom, Enter opens the kernel" });
  const info = h("p", { class: "status", "aria-live": "polite" }, "Hover or use the arrow keys; click or Enter opens the kernel; wheel, + and − zoom.");
  let chosen = -1;
  const height = TOP + LANE * names.size + 4;
  const draw = () => {
    const width = canvas.clientWidth || 800, ratio = devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const g = canvas.getContext("2d"), style = getComputedStyle(document.body);
    g.scale(ratio, ratio);
    g.clearRect(0, 0, width, height);
    g.font = "11px system-ui, sans-serif";
    const x = (t) => (t - view.from) / (view.to - view.from) * width;
    g.fillStyle = style.getPropertyValue("--faint");
    const step = 10 ** Math.floor(Math.log10((view.to - view.from) / 4));
    const nice = [1, 2, 5, 10].map((m) => m * step).find((m) => (view.to - view.from) / m <= 8) ?? 10 * step;
    for (let t = all[0] + Math.ceil((view.from - all[0]) / nice) * nice; t <= view.to; t += nice) {
      g.fillRect(x(t), 14, 1, height);
      g.fillText(tick(t - all[0], nice), x(t) + 3, 11);
    }
    const dark = document.documentElement.dataset.theme === "dark";
    let last = [];
    for (let i = 0; i < runs.start.length; i++) {
      const a = x(runs.start[i]), b = x(runs.start[i] + runs.micros[i]);
      if (b < 0 || a > width) continue;
      const y = TOP + lane(i) * LANE;
      if (b - a < 0.4 && last[lane(i)] > a - 0.6 && i !== chosen) continue; // nothing that one could see
      last[lane(i)] = b;
      const k = kernel(runs.kernel[i]);
      const own = hue(rowsOf(runs.kernel[i])[0]?.at ?? k?.at);
      g.fillStyle = own === null ? style.getPropertyValue("--faint") : `hsl(${own} 55% ${dark ? 45 : 70}%)`;
      g.fillRect(a, y, Math.max(0.8, b - a - 0.5), LANE - 6);
      if (i === chosen) { g.strokeStyle = style.getPropertyValue("--text"); g.lineWidth = 2; g.strokeRect(a, y, Math.max(2, b - a), LANE - 6); }
      if (b - a > 46) { g.fillStyle = style.getPropertyValue("--text"); g.save(); g.beginPath(); g.rect(a, y, b - a - 3, LANE); g.clip(); g.fillText(k?.name ?? runs.name[i], a + 4, y + 17); g.restore(); }
    }
  };
  const tell = () => {
    if (chosen < 0) return;
    const n = runs.kernel[chosen], k = kernel(n);
    info.replaceChildren(n >= 0 ? kernelLink(n) : runs.name[chosen], ` at ${placeName(rowsOf(n)[0]?.at ?? k?.at)}: ${seconds(runs.micros[chosen] / 1e6)}, run ${chosen + 1} of ${runs.start.length}`);
  };
  const choose = (i) => { chosen = i; tell(); draw(); };
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    const t = view.from + (event.clientX - box.left) / box.width * (view.to - view.from);
    const y = Math.floor((event.clientY - box.top - TOP) / LANE), slack = (view.to - view.from) / box.width * 3;
    let best = -1, near = slack;
    for (let i = 0; i < runs.start.length; i++) {
      if (lane(i) !== y) continue;
      const away = Math.max(runs.start[i] - t, t - runs.start[i] - runs.micros[i], 0);
      if (away <= near) { near = away; best = i; if (away === 0) break; }
    }
    return best;
  };
  const zoom = (factor, middle = (view.from + view.to) / 2) => {
    const span = Math.min(all[1] - all[0], Math.max(1, (view.to - view.from) * factor)), part = (middle - view.from) / (view.to - view.from);
    view.from = Math.min(Math.max(all[0], middle - span * part), all[1] - span);
    view.to = view.from + span;
    draw();
  };
  const move = (part) => {
    const span = view.to - view.from;
    view.from = Math.min(Math.max(all[0], view.from + part * span), all[1] - span);
    view.to = view.from + span;
    draw();
  };
  const open = () => { if (chosen >= 0 && runs.kernel[chosen] >= 0) location.hash = `kernel=${runs.kernel[chosen]}`; };
  canvas.addEventListener("mousemove", (e) => { const i = at(e); if (i >= 0 && i !== chosen) choose(i); });
  canvas.addEventListener("click", (e) => { const i = at(e); if (i >= 0) { choose(i); open(); } });
  canvas.addEventListener("wheel", (e) => {
    e.preventDefault();
    const box = canvas.getBoundingClientRect();
    if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) move(e.deltaX / box.width);
    else zoom(e.deltaY > 0 ? 1.25 : 0.8, view.from + (e.clientX - box.left) / box.width * (view.to - view.from));
  }, { passive: false });
  canvas.addEventListener("keydown", (e) => {
    const known = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (known) {
      choose(Math.min(runs.start.length - 1, Math.max(0, chosen + known)));
      if (runs.start[chosen] < view.from || runs.start[chosen] > view.to) move((runs.start[chosen] - (view.from + view.to) / 2) / (view.to - view.from));
    } else if (e.key === "+" || e.key === "=") zoom(0.6);
    else if (e.key === "-") zoom(1.7);
    else if (e.key === "Enter") open();
    else return;
    e.preventDefault();
  });
  canvas.style.height = `${height}px`;
  new ResizeObserver(draw).observe(canvas);
  requestAnimationFrame(draw);
  const busy = runs.micros.reduce((a, b) => a + b, 0);
  return h("section", {}, h("div", { class: "title" }, h("h2", {}, "Timeline"),
    h("button", { type: "button", onclick: () => zoom(0.5) }, "zoom in"), h("button", { type: "button", onclick: () => zoom(2) }, "zoom out"), h("button", { type: "button", onclick: () => { view.from = all[0]; view.to = all[1]; draw(); } }, "all")),
  h("p", { class: "faint" }, `${count(runs.all, "run")} of kernels${runs.all > runs.start.length ? `, the first ${runs.start.length.toLocaleString("en")} shown` : ""}; kernels are busy for ${percent(busy / (all[1] - all[0]))} of the time shown, the rest is Python and compiling.`),
  names.size > 1 ? h("ul", { class: "facts" }, [...names.keys()].map((n, i) => h("li", {}, `row ${i + 1}: ${n}`))) : null,
  canvas, info);
}

// --- memory

function memory(route) {
  const plans = run.index.plans;
  if (!plans.length) return empty("No plan has run.", "Memory is laid out per plan: a realised graph, or a compiled step.");
  const longest = plans.map((p, i) => [p.steps.length, i]).sort((a, b) => b[0] - a[0])[0][1];
  const chosen = route.has("plan") ? Number(route.get("plan")) : longest;
  const plan = plans[chosen] ?? plans[longest];
  const select = h("select", { "aria-label": "plan", onchange: (e) => { location.hash = `page=timeline&plan=${e.target.value}`; } },
    plans.map((p, i) => h("option", { value: i, selected: i === chosen }, `plan ${i}: ${count(p.steps.length, "kernel")}, ${count(p.runs, "run")}`)));
  return h("section", {}, h("div", { class: "title" }, h("h2", {}, "Memory"), plans.length > 1 ? select : null),
    h("p", {}, `Arena ${amount(plan.arena)} for intermediate results (at least ${amount(plan.live)} are alive at once), ${amount(plan.outputs)} of results.`),
    plan.placed.length ? arena(plan) : empty("No intermediate results.", "All values of this plan are inputs or results, or are fused away."));
}

const WIDE = 900, HIGH = 340, LEFT = 70, TOP = 22, BOTTOM = 26;

// Bytes in use by each kernel. What a kernel writes in place of what it reads counts once. `placed` is in order of offsets.
function aliveBytes(plan) {
  const alive = new Float64Array(plan.steps.length), end = new Float64Array(plan.steps.length);
  for (const [offset, bytes, first, last] of plan.placed) {
    for (let i = first; i <= last; i++) {
      alive[i] += Math.max(0, offset + bytes - Math.max(offset, end[i]));
      end[i] = Math.max(end[i], offset + bytes);
    }
  }
  return alive;
}

function arena(plan) {
  const steps = plan.steps.length, top = Math.max(plan.arena, 1);
  const x = (i) => LEFT + (WIDE - LEFT) * i / steps, y = (b) => TOP + (HIGH - TOP - BOTTOM) * (1 - b / top);
  const alive = aliveBytes(plan);
  const peak = alive.indexOf(Math.max(...alive));
  const boxes = plan.placed.map(([offset, bytes, first, last, writer]) => {
    const step = plan.steps[writer];
    return svg("a", { href: step && step[0] >= 0 ? `#kernel=${step[0]}` : "#page=timeline" }, svg("rect", {
      x: x(first), width: Math.max(1, x(last + 1) - x(first) - 0.5), y: y(offset + bytes), height: Math.max(1, y(offset) - y(offset + bytes) - 0.5),
      class: "life", style: step?.[2] ? `--hue:${hue(step[2]).toFixed(0)}` : "",
    }, svg("title", {}, `${amount(bytes)} at ${offset.toLocaleString("en")}, from kernel ${first} to ${last}\nwritten by ${step ? step[1] : "?"} at ${step ? placeName(step[2]) : "?"}`)));
  });
  const line = [...alive].map((b, i) => `${x(i)},${y(b)} ${x(i + 1)},${y(b)}`).join(" ");
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((p) => svg("g", { class: "tick" }, svg("line", { x1: LEFT, x2: WIDE, y1: y(p * top), y2: y(p * top) }), svg("text", { x: LEFT - 5, y: y(p * top) + 4, "text-anchor": "end" }, amount(Math.round(p * top)))));
  return h("figure", { class: "scroll" }, svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, class: "arena", role: "img", "aria-label": "live ranges in the arena" }, ...ticks, ...boxes,
    svg("polyline", { points: line, class: "alive" }),
    svg("line", { x1: x(peak), x2: x(peak), y1: 4, y2: HIGH - BOTTOM, class: "peak" }),
    svg("text", { x: Math.min(WIDE - 150, x(peak) + 4), y: 14 }, `peak: ${amount(alive[peak])} at kernel ${peak}`),
    svg("text", { x: (WIDE + LEFT) / 2, y: HIGH - 6, "text-anchor": "middle" }, `the plan's kernels in order, 0 … ${steps - 1}`)),
  h("figcaption", {}, "A box is a buffer: as wide as it lives, as high as its bytes, where it lies in the arena, in the colour of the line that writes it. The line is what is alive in all; a kernel may write in place of what it reads. At the peak: ",
    kernelLink(plan.steps[peak][0], plan.steps[peak][1]), "."));
}
