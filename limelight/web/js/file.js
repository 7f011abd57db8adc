// Entry of an exported file: the page over the one trace that the file holds.

import { start } from "./app.js";
import { ApiError, offlineApi } from "./core/api.js";
import { Trace, partsOf } from "./core/trace.js";

/** Stands in for the service: bytes and facts by the paths that a trace requests. */
class FileSource {
  constructor(held) {
    this.held = held;
  }

  async bytes(path) {
    const found = this.whole(path) ?? this.part(path);
    if (!found) throw fileMissing();
    return found;
  }

  async json(path) {
    const found = this.held.facts[path];
    if (!found) throw fileMissing();
    return found;
  }

  whole(path) {
    const { kind, parts, at, size } = this.held.blobs[path] ?? {};
    return parts ? partsOf(this.held[kind === "f32" ? "single" : "small"].slice(at, at + size), parts, kind) : null;
  }

  /** A head or some rows of a value that the file holds whole, or rows from the values of each token. */
  part(path) {
    const [, name, query] = path.match(/^tensor\/([^?]+)(?:\?(.*))?$/) ?? [];
    if (!name) return null;
    const wanted = new URLSearchParams(query ?? "");
    const whole = this.whole(`tensor/${name}`) ?? this.whole(`tensor/${name}?as=f16`);
    const rows = wanted.get("rows")?.split(":").map(Number) ?? null;
    if (whole) return { [name]: fileSlice(whole[name], Number(wanted.get("head")), rows) };
    const count = this.held.manifest.tensors[name]?.shape[0] ?? 0;
    return wanted.get("head") ? null : this.gathered(name, ...(rows ?? [0, count]));
  }

  /** A value assembled from the values of each of its tokens. */
  gathered(name, from, to) {
    const ways = [];
    for (let row = from; row < to; row += 1) {
      const way = this.whole(`token?side=${name.split(".")[0]}&row=${row}`)?.[name];
      if (!way) return null;
      ways.push(way.values);
    }
    if (!ways.length) return null;
    const values = new Float32Array(ways.length * ways[0].length);
    ways.forEach((way, i) => values.set(way, i * way.length));
    return { [name]: { values, shape: [ways.length, ways[0].length], kind: "f32" } };
  }
}

function fileMissing() {
  return new ApiError(
    "not_in_file",
    "this value is not in the file",
    "the file holds one layer and head, and more as far as its size allows; `limelight serve` has all values",
  );
}

function fileBytes(data) {
  return Uint8Array.from(atob(data), (c) => c.charCodeAt(0)).buffer;
}

/** One head (from 1; 0: all) and some rows, counted in the last axis but one. */
function fileSlice(numbers, head, rows) {
  let { values, shape } = numbers;
  if (head) {
    const size = shape.slice(1).reduce((a, b) => a * b, 1);
    values = values.subarray((head - 1) * size, head * size);
    shape = shape.slice(1);
  }
  if (!rows) return { ...numbers, values, shape };
  const [count, wide] = shape.slice(-2);
  const outer = values.length / (count * wide);
  const kept = Math.min(count, rows[1]) - rows[0];
  const taken = new values.constructor(outer * kept * wide);
  for (let o = 0; o < outer; o += 1) {
    const from = (o * count + rows[0]) * wide;
    taken.set(values.subarray(from, from + kept * wide), o * kept * wide);
  }
  return { ...numbers, values: taken, shape: [...shape.slice(0, -2), kept, wide] };
}

/** All facts and numbers. Of 32-bit numbers the file has the first three bytes, each rank by itself. */
async function fileUnpacked({ packed }) {
  const inflated = (name) => new Response(new Blob([fileBytes(packed[name])]).stream().pipeThrough(new DecompressionStream("deflate")));
  const object = async (names) => JSON.parse(`{${(await Promise.all(names.map(async (name) => (await inflated(name)).text()))).join("").slice(0, -1)}}`);
  const bytes = async (name) => new Uint8Array(await (await inflated(name)).arrayBuffer());
  const ranks = await Promise.all(["rank1", "rank2", "rank3"].map(bytes));
  const single = new Uint8Array(4 * ranks[0].length);
  ranks.forEach((rank, n) => rank.forEach((byte, i) => (single[4 * i + n + 1] = byte)));
  const facts = await object(Object.keys(packed).filter((name) => name.startsWith("stop/")));
  return { facts, blobs: await object(["index"]), single: single.buffer, small: (await bytes("small")).buffer };
}

const fileData = JSON.parse(document.getElementById("held").textContent);
const fileHeld = { ...fileData, ...(await fileUnpacked(fileData)) };

start({
  model: fileHeld.model,
  models: [fileHeld.model.name],
  example: { text: fileHeld.manifest.text },
  held: new Trace(fileHeld.manifest, new FileSource(fileHeld)),
  focus: fileHeld.place,
  api: offlineApi(),
  texts: async (code) => fileHeld.texts[code],
});
