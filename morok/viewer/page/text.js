// Nodes for people: one-line mathematics, a line of a tree, and where two graphs differ.

import { work } from "./dom.js";

const TERNARY = 0, COMPARISON = 1, OR = 2, XOR = 3, AND = 4, SHIFT = 5, SUM = 6, PRODUCT = 7, UNARY = 8, ATOM = 9;
const INFIX = {
  ADD: [" + ", SUM], SUB: [" - ", SUM], MUL: ["*", PRODUCT], FDIV: ["/", PRODUCT], FLOORDIV: ["//", PRODUCT],
  FLOORMOD: [" % ", PRODUCT], CDIV: [" ÷ ", PRODUCT], CMOD: [" mod ", PRODUCT], CMPLT: [" < ", COMPARISON],
  CMPEQ: [" == ", COMPARISON], CMPNE: [" != ", COMPARISON], AND: [" & ", AND], OR: [" | ", OR], XOR: [" ^ ", XOR],
  SHL: [" << ", SHIFT], SHR: [" >> ", SHIFT],
};
export const SIGNS = Object.fromEntries(Object.entries(INFIX).map(([op, [sign]]) => [op, sign.trim()]));
const FEW = 4;

function named(table, node) {
  const arg = table.arg(node) ?? "";
  switch (table.op(node)) {
    case "CONST": return arg;
    case "RANGE": return `r${arg.split(" ")[0]}`;
    case "DEFINE_VAR": return arg.replace(/^\('([^']*)'.*$/, "$1");
    case "BIND": return named(table, table.src(node)[0]);
    case "SPECIAL": case "DEFINE_LOCAL": case "DEFINE_REG": return arg.replace(/^'(.*)'$/, "$1");
    case "DEFINE_GLOBAL": return `data${arg}`;
    case "PARAM": return `param${arg.replace(/^\((\d+).*$/, "$1")}`;
    case "BUFFER": return `buffer${table.src(node).length ? table.arg(table.src(node)[0]) ?? "" : ""}`;
    default: return null;
  }
}

let left = 0; // nodes that may still be written: an expression of more would be too long anyway

// A node as [text, how tightly it binds]; what lies deeper than `depth` is an ellipsis.
function written(table, node, depth, limit) {
  work.nodes++;
  if (--left < 0) return ["…", ATOM];
  const name = named(table, node);
  if (name !== null) return [name, name.startsWith("-") ? UNARY : ATOM];
  const src = table.src(node);
  if (depth <= 0 && src.length) return ["…", ATOM];
  const op = table.op(node);
  const inner = (s, strength) => {
    const [text, own] = written(table, s, depth - 1, limit);
    const short = text.length > limit ? "…" : text;
    return own >= strength ? short : `(${short})`;
  };
  if (INFIX[op]) {
    const [sign, strength] = INFIX[op];
    const compares = strength === COMPARISON;
    return [inner(src[0], compares ? strength + 1 : strength) + sign + inner(src[1], strength + 1), strength];
  }
  switch (op) {
    case "NEG": return [`-${inner(src[0], UNARY)}`, UNARY];
    case "NOT": return [`~${inner(src[0], UNARY)}`, UNARY];
    case "WHERE": return [`${inner(src[1], COMPARISON)} if ${inner(src[0], COMPARISON)} else ${inner(src[2], COMPARISON)}`, TERNARY];
    case "CAST": return [`${table.type(node)}(${inner(src[0], TERNARY)})`, ATOM];
    case "LOAD": if (src.length === 1) return written(table, src[0], depth, limit); break;
    case "INDEX": {
      const gated = src.length > 2 && table.type(src[src.length - 1]) === "bool";
      const places = [...src].slice(1, gated ? -1 : undefined).map((s) => inner(s, TERNARY)).join(", ");
      const gate = gated ? ` if ${inner(src[src.length - 1], TERNARY)}` : "";
      return [`${inner(src[0], ATOM)}[${places}${gate}]`, ATOM];
    }
    case "SINK": return [`${src.length} effect${src.length === 1 ? "" : "s"}`, ATOM];
    case "LINEAR": return [`${src.length} instructions`, ATOM];
  }
  const few = [...src].slice(0, FEW).map((s) => inner(s, TERNARY));
  if (src.length > FEW) few.push("…");
  const arg = table.arg(node);
  const shown = arg === null ? "" : `[${arg.length > 40 ? `${arg.slice(0, 40)}…` : arg}]`;
  return [`${op.toLowerCase()}${shown}(${few.join(", ")})`, ATOM];
}

// A node as one line. Where it would get too long, less deep.
export function expr(table, node, limit = 120, depth = 6) {
  if (node < 0) return "";
  if (table.op(node) === "RANGE") {
    return `r${table.arg(node).split(" ")[0]} < ${expr(table, table.src(node)[0], 30, 3)} ${table.arg(node).split(" ")[1]}`;
  }
  for (let d = depth; d > 1; d--) {
    left = limit; // every node is a letter at least
    const [text] = written(table, node, d, limit);
    if (left >= 0 && text.length <= limit) return text;
  }
  left = limit;
  const [text] = written(table, node, 1, limit);
  return text.length > limit ? `${text.slice(0, limit)}…` : text;
}

// A line of a tree.
export function describe(table, node) {
  const arg = table.arg(node);
  return `${table.op(node)} ${table.type(node)}${arg === null ? "" : ` ${arg}`}`;
}

// Where two graphs differ: pairs of nodes at the same place, of which one has become the other.
export function differences(table, before, after, most = 5000) {
  const found = [], seen = new Set(), stack = [[before, after]];
  while (stack.length && found.length < most) {
    const [old, fresh] = stack.pop();
    if (old === fresh) continue;
    const key = old * 0x4000000 + fresh;
    if (seen.has(key)) continue;
    seen.add(key);
    const a = table.src(old), b = table.src(fresh);
    const whole = table.op(old) === "SINK" && table.op(fresh) === "SINK";
    if (a.length === b.length && (table.sameKind(old, fresh) || whole)) {
      for (let i = a.length - 1; i >= 0; i--) stack.push([a[i], b[i]]);
    } else found.push([old, fresh]);
  }
  return found;
}

// The ops near the top of a node.
export function opsOf(table, node, depth = 5) {
  const found = new Set();
  let level = [node];
  const seen = new Set(level);
  for (let d = 0; d < depth && level.length; d++) {
    const next = [];
    for (const n of level) {
      found.add(table.op(n));
      for (const s of table.src(n)) if (!seen.has(s)) { seen.add(s); next.push(s); }
    }
    level = next.slice(0, 400);
  }
  return found;
}

// Two texts as parts [text, differs]: what is common at both ends is not marked.
export function marked(a, b) {
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const word = /[\w.]/;
  while (start > 0 && word.test(a[start - 1])) start--;
  while (end > 0 && word.test(a[a.length - end])) end--;
  const cut = (t) => [[t.slice(0, start), false], [t.slice(start, t.length - end), true], [t.slice(t.length - end), false]];
  return [cut(a), cut(b)];
}
