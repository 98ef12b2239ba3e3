// The run's data: blocks of deflated bytes in the page, unpacked when somebody looks at them.
// A block is JSON with columns of integers beside it (morok/viewer/columns.py).

const decoder = new TextDecoder();

export async function inflate(base64) {
  const raw = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export function readBlock(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const length = view.getUint32(0, true);
  const columns = 4 + length;
  const data = JSON.parse(decoder.decode(bytes.subarray(4, columns)));
  return withColumns(data, bytes.subarray(columns));
}

function withColumns(value, bytes) {
  if (Array.isArray(value)) {
    for (let i = 0; i < value.length; i++) {
      if (typeof value[i] === "object" && value[i] !== null) value[i] = withColumns(value[i], bytes);
    }
    return value;
  }
  if (typeof value !== "object" || value === null) return value;
  if (value.$ !== undefined) return column(bytes, value.$[0], value.$[1]);
  for (const key of Object.keys(value)) value[key] = withColumns(value[key], bytes);
  return value;
}

function column(bytes, start, count) {
  const found = new Int32Array(count);
  for (let i = 0; i < count; i++) {
    found[i] = bytes[start + i] | (bytes[start + count + i] << 8) | (bytes[start + 2 * count + i] << 16)
      | (bytes[start + 3 * count + i] << 24);
  }
  return found;
}

export const run = { index: null, other: null };
const chunks = new Map();

export async function readIndex() {
  run.index = readBlock(await inflate(document.getElementById("data-index").textContent));
  const other = document.getElementById("data-other");
  if (other) run.other = readBlock(await inflate(other.textContent));
}

// A chunk of a kernel or of a graph of tensors; the second look is free.
export function chunk(number) {
  if (!chunks.has(number)) {
    const block = document.getElementById(`data-chunk-${number}`);
    chunks.set(number, inflate(block.textContent).then((bytes) => prepared(readBlock(bytes))));
  }
  return chunks.get(number);
}

function prepared(data) {
  data.table = new Table(data.graphs);
  return data;
}

// The index of another page that a person has opened.
export async function readOther(text) {
  const found = /<script type="application\/octet-stream" id="data-index">([^<]*)<\/script>/.exec(text);
  if (!found) throw new Error("this is no page that morok view has written");
  return readBlock(await inflate(found[1]));
}

// Nodes by number. Sources come before the nodes that use them.
export class Table {
  constructor(data) {
    this.strings = data.strings;
    this.places = data.places;
    this.kind = data.kind;
    [this.ops, this.types, this.args, this.at] = data.kinds.length ? data.kinds : [[], [], [], []];
    const count = data.kind.length;
    this.first = new Int32Array(count + 1);
    this.sources = new Int32Array(data.src.length);
    let next = 0;
    for (let node = 0; node < count; node++) {
      this.first[node] = next;
      let before = node;
      for (let i = 0; i < data.counts[node]; i++) {
        before -= data.src[next];
        this.sources[next++] = before;
      }
    }
    this.first[count] = next;
  }

  op(node) { return this.strings[this.ops[this.kind[node]]]; }
  type(node) { return this.strings[this.types[this.kind[node]]]; }
  arg(node) {
    const found = this.args[this.kind[node]];
    return found < 0 ? null : this.strings[found];
  }
  place(node) {
    const found = this.at[this.kind[node]];
    return found < 0 ? null : this.places[found];
  }
  src(node) { return this.sources.subarray(this.first[node], this.first[node + 1]); }
  sameKind(a, b) {
    const x = this.kind[a], y = this.kind[b];
    return this.ops[x] === this.ops[y] && this.types[x] === this.types[y] && this.args[x] === this.args[y];
  }

  // All nodes below and the node itself, sources first.
  below(root, most = Infinity) {
    const seen = new Set([root]);
    const stack = [root];
    while (stack.length && seen.size <= most) {
      for (const s of this.src(stack.pop())) {
        if (!seen.has(s)) { seen.add(s); stack.push(s); }
      }
    }
    return [...seen].sort((a, b) => a - b);
  }
}
