// The parts of a model, derived from its configuration.

import { showCount } from "../core/numbers.js";

/**
 * @typedef {{kind: "box", title: string, note: string, look: string, cross?: boolean}
 *   | {kind: "add", note: string} | {kind: "around", parts: Part[], after: Part[]}
 *   | {kind: "stack", times: number, parts: Part[]} | {kind: "word", text: string}} Part
 *   from the bottom up; `around`: a residual connection around `parts`, followed by `after`
 * @typedef {{title: string, parts: Part[], gives?: string}} Side
 */

/**
 * The stacks of a model, from the bottom up.
 * @param {Object} model the answer of /api/model
 * @returns {Side[]}
 */
export function architectureOf({ config, classes }) {
  if (config.family.startsWith("recurrent")) return recurrentSides(config);
  const encoder = {
    title: "Encoder",
    parts: [
      madeOf.read("source tokens"),
      ...madeOf.entry(config),
      madeOf.stack(config, ["self"]),
      ...madeOf.last(config),
    ],
  };
  if (config.family === "encoder-only")
    return [{ title: "Encoder", parts: [...encoder.parts, ...madeOf.heads(config, classes)] }];
  const alone = config.family === "decoder-only";
  const layers = madeOf.stack(config, alone ? ["masked"] : ["masked", "cross"]);
  const decoder = {
    title: "Decoder",
    parts: [
      madeOf.read(alone ? "tokens so far" : "output so far"),
      ...madeOf.entry(config),
      layers,
      ...madeOf.last(config),
      ...madeOf.classifier(config),
    ],
  };
  return alone ? [decoder] : [{ ...encoder, gives: "keys and values" }, decoder];
}

/**
 * The same as text, for screen readers.
 * @param {Side[]} sides
 * @returns {string}
 */
export function architectureText(sides) {
  const describe = ({ kind, title, note, text, times, parts, after }) => {
    if (kind === "word") return text;
    if (kind === "box") return `${title}${note ? ` (${note})` : ""}`;
    if (kind === "add") return `plus ${note}`;
    const inside = parts.map(describe).join(", ");
    if (kind === "stack") return `${times} times: [${inside}]`;
    return [`${inside}, plus the residual`, ...after.map(describe)].join(", then ");
  };
  return sides.map(({ title, parts }) => `${title}, from the bottom up: ${parts.map(describe).join("; ")}`).join(". ");
}

const madeOf = {
  read: (text) => ({ kind: "word", text }),

  /** Embedding and positions. */
  entry(config) {
    const scaled = config.family === "encoder-decoder" ? ` × √${config.d_model}` : "";
    const parts = [
      box("Embedding", `${showCount(config.vocab)} × ${showCount(config.d_model)}${scaled}`, "embed"),
    ];
    if (["sinusoidal", "learned"].includes(config.positions)) parts.push({ kind: "add", note: `${config.positions} positions` });
    if (config.family !== "encoder-only") return parts;
    return [...parts, { kind: "add", note: "segment" }, ...madeOf.norm(config)];
  },

  norm: (config) => (config.norm === "none" ? [] : [box(config.norm === "rms" ? "RMS norm" : "Layer norm", "", "norm")]),

  stack(config, attentions) {
    const parts = [...attentions.map((which) => madeOf.attention(config, which)), madeOf.feed(config)];
    const times = (attentions.length > 1 ? config.decoder_layers : 0) || config.layers;
    return { kind: "stack", times, parts: parts.flatMap((part) => madeOf.around(config, part)) };
  },

  /** A residual connection, if there is one, pre-norm or post-norm. */
  around(config, part) {
    const norm = madeOf.norm(config);
    const [parts, after] = config.norm_order === "pre" ? [[...norm, part], []] : [[part], norm];
    return config.residual ? [{ kind: "around", parts, after }] : [...parts, ...after];
  },

  attention(config, which) {
    if (which === "masked" && config.decoder_cell === "ssru") return box("SSRU", `width ${config.d_model}, one token at a time`, "feed");
    const title = { self: "Self-attention", masked: "Masked self-attention", cross: "Cross-attention" }[
      which
    ];
    const groups =
      config.kv_heads && config.kv_heads !== config.heads ? `, ${config.kv_heads} KV heads` : "";
    const turned = config.positions === "rotary" && which !== "cross" ? ", rotary positions" : "";
    const note = `${config.heads} heads of ${config.d_model / config.heads}${groups}${turned}${config.scaling ? "" : ", not scaled"}`;
    return { ...box(title, note, "attention"), cross: which === "cross" };
  },

  feed(config) {
    const inner = config.d_ff || 4 * config.d_model;
    const way = `${showCount(config.d_model)} → ${showCount(inner)} → ${showCount(config.d_model)}`;
    return box("Feed-forward", `${way}, ${config.activation}`, "feed");
  },

  /** A pre-norm model has one more norm at the end. */
  last: (config) => (config.norm_order === "pre" ? madeOf.norm(config) : []),

  classifier(config) {
    const shared = config.tied ? ", tied to the embedding" : "";
    const linear = box(
      "Linear",
      `${showCount(config.d_model)} → ${showCount(config.vocab)}${shared}`,
      "head",
    );
    return [linear, box("Softmax", "", "head"), { kind: "word", text: "next token" }];
  },

  heads(config, classes) {
    if (config.classes) {
      const first = box("Linear, tanh", "of the first token", "head");
      return [
        first,
        box("Linear", `${config.d_model} → ${config.classes} classes`, "head"),
        box("Softmax", "", "head"),
        { kind: "word", text: (classes ?? []).join(" or ") || "class" },
      ];
    }
    const inner = box(config.norm === "none" ? "Linear" : "Linear, norm", `${config.d_model} → ${config.d_model}, ${config.activation}`, "head");
    return [
      inner,
      ...madeOf.classifier(config).slice(0, 2),
      { kind: "word", text: "masked token" },
    ];
  },
};

function box(title, note, style) {
  return { kind: "box", title, note, style };
}

/** Recurrent models: at most one attention layer. */
function recurrentSides(config) {
  const cells = (title) => ({
    kind: "stack",
    times: config.layers,
    parts: [box(title, `width ${config.d_model}, one token at a time`, "feed")],
  });
  const name = config.cell.toUpperCase();
  const classifier = madeOf.classifier(config);
  const embed = box("Embedding", `${showCount(config.vocab)} × ${showCount(config.d_model)}`, "embed");
  if (config.family === "recurrent-decoder-only")
    return [{ title: "Decoder", parts: [madeOf.read("tokens so far"), embed, cells(name), ...classifier] }];
  const crossing = config.attention
    ? [{ ...box("Additive attention", "over the encoder's states", "attention"), cross: true }]
    : [];
  return [
    {
      title: "Encoder",
      gives: config.attention ? "states" : "last state",
      parts: [madeOf.read("source tokens"), embed, cells(`${name}, bidirectional`)],
    },
    {
      title: "Decoder",
      parts: [madeOf.read("output so far"), embed, cells(name), ...crossing, ...classifier],
    },
  ];
}
