// One traced text. The manifest is there from the start; tensors are loaded on demand and cached.
// The same class reads from the service and from an exported file.

/**
 * Numbers with a shape, row after row. `kind` says how exact they are: f32 for digits, f16 for
 * colours, u8 for thumbnails.
 * @typedef {{values: Float32Array|Uint8Array, shape: number[], kind: string}} Numbers
 */

export class Trace {
  /**
   * @param {Object} manifest
   * @param {{bytes: function(string): Promise<Object<string, Numbers>>,
   *   json: function(string): Promise<Object>}} source
   */
  constructor(manifest, source) {
    this.manifest = manifest;
    this.source = source;
    this.kept = new Map();
  }

  /**
   * All of equation 1 at one head (from 1): q, k, v, scores, masked, weights, mixed.
   * @param {string} at an attention, such as decoder.2.cross
   * @param {number} head
   * @returns {Promise<Object<string, Numbers>>}
   */
  attentionHead(at, head) {
    return this.read(`focus?at=${at}&head=${head}`);
  }

  /** Thumbnails of all heads, for each attention. @returns {Promise<Object<string, Numbers>>} */
  thumbs() {
    return this.read("thumbs");
  }

  /**
   * Any value by its name; of it one head (from 1), or rows from one up to another.
   * @param {string} name
   * @param {{head?: number, rows?: [number, number], as?: string}} [which]
   * @returns {Promise<Numbers>}
   */
  async tensor(name, which = {}) {
    const params = new URLSearchParams();
    if (which.head) params.set("head", String(which.head));
    if (which.rows) params.set("rows", which.rows.join(":"));
    if (which.as && which.as !== "f32") params.set("as", which.as);
    const query = decodeURIComponent(params.toString());
    return (await this.read(`tensor/${name}${query ? `?${query}` : ""}`))[name];
  }

  /** The logits of the whole vocabulary at one row. @returns {Promise<Numbers>} */
  async logits(row) {
    return (await this.read(`logits?row=${row}`)).logits;
  }

  /** Every value of one token, by name. @returns {Promise<Object<string, Numbers>>} */
  token(side, row) {
    return this.read(`token?side=${side}&row=${row}`);
  }

  /**
   * A stage of the walk as data: title, what, formulas, checks, notes.
   * @param {string} name
   * @param {{layer?: number, head?: number, source?: number, target?: number}} [at]
   */
  stage(name, at = {}) {
    const params = new URLSearchParams();
    for (const key of ["layer", "head", "source", "target"]) {
      if (at[key] !== null && at[key] !== undefined) params.set(key, String(at[key]));
    }
    const query = params.toString();
    return this.once(`stop/${name}${query ? `?${query}` : ""}`, (path) => this.source.json(path));
  }

  /** Tokens on a plane, by their embeddings. @returns {Promise<Object>} */
  map(side) {
    return this.once(`map?side=${side}`, (path) => this.source.json(path));
  }

  /** The walk as one HTML file, and which share of it fitted. @returns {Promise<{html: string, holds: number}>} */
  file() {
    return this.source.json("html");
  }

  /** The same as an animated SVG, of a layer and a head if they are given. @returns {Promise<string>} */
  async film(at) {
    const params = new URLSearchParams(Object.entries(at).filter(([, value]) => value));
    return (await this.source.json(`animation?${params}`)).svg;
  }

  /** Each head off once: what the answer loses. @returns {Promise<{answer: string, heads: [string, number, number][]}>} */
  heads() {
    return this.once("heads", (path) => this.source.json(path));
  }

  read(path) {
    return this.once(path, (params) => this.source.bytes(params));
  }

  once(path, load) {
    if (!this.kept.has(path)) {
      const answer = load(path);
      answer.catch(() => this.kept.delete(path));
      this.kept.set(path, answer);
    }
    return this.kept.get(path);
  }
}

/**
 * Bytes as numbers by name.
 * @param {ArrayBuffer} buffer
 * @param {[string, number[]][]} parts names and shapes, in order
 * @param {string} kind f32, f16 or u8
 * @returns {Object<string, Numbers>}
 */
export function partsOf(buffer, parts, kind) {
  const found = {};
  let offset = 0;
  for (const [name, shape] of parts) {
    const count = shape.reduce((a, b) => a * b, 1);
    const size = { f32: 4, f16: 2, u8: 1 }[kind];
    const bytes = buffer.slice(offset, offset + count * size);
    found[name] = { values: traceDecoded(bytes, kind), shape, kind };
    offset += count * size;
  }
  if (offset !== buffer.byteLength) throw new Error("the response has another size than announced");
  return found;
}

function traceDecoded(bytes, kind) {
  if (kind === "u8") return new Uint8Array(bytes);
  const view = new DataView(bytes);
  const size = kind === "f32" ? 4 : 2;
  const values = new Float32Array(bytes.byteLength / size);
  for (let i = 0; i < values.length; i += 1) {
    values[i] = kind === "f32" ? view.getFloat32(4 * i, true) : traceHalf(view.getUint16(2 * i, true));
  }
  return values;
}

/** A half-precision number; browsers read these themselves only since 2025. */
function traceHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
