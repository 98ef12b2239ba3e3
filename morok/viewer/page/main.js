// The page: the head, the way from an address to a view, keys, themes, and the first hint.

import { readIndex, run } from "./data.js";
import { empty, h, link, seconds, visible, work } from "./dom.js";
import { codePage } from "./code.js";
import { kernelsPage } from "./kernels.js";
import { kernelPage } from "./kernel.js";
import { timelinePage } from "./timeline.js";
import { comparePage, errorsPage, findPage, rulesPage, searchPage } from "./others.js";

const PAGES = [
  ["code", "Your code", codePage], ["kernels", "Kernels", kernelsPage], ["timeline", "Timeline and memory", timelinePage],
  ["rules", "Rules", rulesPage], ["search", "Search", searchPage], ["compare", "Compare", comparePage], ["errors", "Errors", errorsPage],
];
const KEYS = [
  ["1 … 7", "the pages"], ["/", "the search box"], ["j, k", "next and previous kernel; next and previous change in a list"], ["[, ]", "previous and next stage that changed something"],
  ["o, s, c", "a kernel's overview, stages, code"], ["t", "dark or light"], ["Backspace", "back"], ["?", "this list"], ["Esc", "closes it"],
];

function route() { return new URLSearchParams(location.hash.slice(1)); }

function pageOf(where) {
  if (where.has("kernel")) return "kernel";
  if (where.has("find")) return "find";
  if (where.has("file")) return "code";
  const page = where.get("page");
  return page ?? (run.index.errors.length ? "errors" : "code");
}

let turn = 0;

async function show() {
  const own = ++turn, where = route(), page = pageOf(where), main = document.getElementById("main");
  for (const a of document.querySelectorAll("#head nav a")) {
    const current = a.dataset.page === page || (page === "kernel" && a.dataset.page === "kernels");
    if (current) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  let content;
  try {
    const make = { kernel: kernelPage, find: findPage, ...Object.fromEntries(PAGES.map(([name, , f]) => [name, f])) }[page];
    content = make ? await make(where, show) : empty(`There is no page “${visible(page)}”.`, link("page=code", "Your code"));
  } catch (error) {
    console.error(error);
    content = empty("This view could not be drawn.", `${error.message}. The file may be cut off, or written by another version; write it again with morok view.`);
  }
  if (own !== turn) return; // another address was chosen meanwhile
  main.replaceChildren(...[content].flat(3).filter(Boolean));
  main.className = `page-${page}`;
  if (!where.has("line")) scrollTo(0, 0);
}

function head() {
  const index = run.index;
  const find = h("input", { type: "search", id: "find", placeholder: "search  /", "aria-label": "search kernels, lines and rules", value: route().get("find") ?? "" });
  find.addEventListener("input", () => { history.replaceState(null, "", `#find=${encodeURIComponent(find.value)}`); show(); });
  find.addEventListener("keydown", (e) => { if (e.key === "Escape") { find.blur(); } });
  const used = Object.entries(index.knobs).map(([k, v]) => `${k}=${v}`).join(" ");
  const about = `${seconds(index.seconds)} · ${index.system} · Python ${index.python} · morok ${index.morok}${used ? ` · ${used}` : ""}`;
  document.getElementById("head").append(
    h("div", { class: "name" }, h("strong", {}, visible(index.title)), h("span", { class: "faint", title: about }, ` ${about}`)),
    h("nav", { "aria-label": "pages" }, PAGES.filter(([name]) => name !== "errors" || index.errors.length).map(([name, title], i) => h("a", { href: `#page=${name}`, "data-page": name, title: `key: ${i + 1}` }, title,
      name === "errors" ? h("span", { class: "mark bad" }, String(index.errors.length)) : null))),
    h("div", { class: "tools" }, find, h("button", { type: "button", id: "theme", title: "key: t", onclick: () => theme(true) }, "dark / light"), h("button", { type: "button", id: "help", title: "key: ?", onclick: help }, "keys")));
}

// --- what is remembered between visits; a page from a disk may not be allowed to

function remembered(key) { try { return localStorage.getItem(`morok-${key}`); } catch { return null; } }
function remember(key, value) { try { localStorage.setItem(`morok-${key}`, value); } catch { /* then not */ } }

function theme(change = false) {
  const known = remembered("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const now = document.documentElement.dataset.theme ?? known;
  const next = change ? (now === "dark" ? "light" : "dark") : known;
  document.documentElement.dataset.theme = next;
  if (change) { remember("theme", next); dispatchEvent(new Event("resize")); show(); }
}

function hint() {
  if (remembered("seen")) return;
  const box = h("div", { class: "hint", role: "note" },
    h("p", {}, "This is one run of a program, from your lines to machine code. Click a coloured line to see its kernels and their assembly; ",
      link("page=kernels", "Kernels"), " shows what each costs beside what the machine allows; a kernel’s stages show every rewrite with its rule and proof. Press ? for keys."),
    h("button", { type: "button", onclick: () => { remember("seen", "1"); box.remove(); } }, "understood"));
  document.getElementById("hint").append(box);
}

function help() {
  const old = document.querySelector("dialog");
  if (old) { old.close(); old.remove(); return; }
  const box = h("dialog", { "aria-label": "keys" }, h("h2", {}, "Keys"), h("dl", { class: "keys" }, KEYS.map(([key, what]) => [h("dt", {}, key), h("dd", {}, what)])), h("button", { type: "button", onclick: () => { box.close(); box.remove(); } }, "close"));
  document.body.append(box);
  box.addEventListener("close", () => box.remove());
  box.showModal();
}

function keys(event) {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const pages = PAGES.filter(([name]) => name !== "errors" || run.index.errors.length);
  const where = route(), kernel = where.get("kernel");
  const go = (target) => { location.hash = target; };
  const press = (id) => document.getElementById(id)?.click();
  const known = {
    "/": () => document.getElementById("find").focus(), "?": help, t: () => theme(true), j: () => press("next"), k: () => press("previous"), "[": () => press("before"), "]": () => press("after"),
    o: () => kernel && go(`kernel=${kernel}`), s: () => kernel && go(`kernel=${kernel}&stage=all`), c: () => kernel && go(`kernel=${kernel}&view=code`), Backspace: () => history.back(),
  };
  const number = Number(event.key);
  if (number >= 1 && number <= pages.length) go(`page=${pages[number - 1][0]}`);
  else if (known[event.key]) known[event.key]();
  else return;
  event.preventDefault();
}

async function start() {
  theme();
  try {
    await readIndex();
  } catch (error) {
    document.getElementById("main").replaceChildren(empty("The data of this page cannot be read.", `${error.message}. It needs a browser of 2023 or later (DecompressionStream), and the whole file.`));
    return;
  }
  head();
  hint();
  addEventListener("hashchange", show);
  addEventListener("keydown", keys);
  await show();
  await new Promise(requestAnimationFrame);
  window.morokReady = performance.now(); // since the page was asked for
  window.morokWork = work;
  document.documentElement.dataset.ready = "1";
}

start();
