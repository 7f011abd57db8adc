// The focus of Explain: the selection as stage, layer, head and token positions of this very trace.
// What is known about a stage (its side and scope) comes with the manifest.

import { select } from "./state.js";

// The stage that makes a value, by the end of the value's name.
const FOCUS_MAKERS = {
  embedding: "embedding", segments: "embedding", positions: "positions", input: "positions",
  query: "queries", key: "queries", value: "queries", q: "queries", k: "queries", v: "queries",
  scores: "scores", scaled: "scaling", masked: "mask", weights: "softmax", mixed: "sum",
  concat: "heads", add: "add-norm", norm: "add-norm",
};

/**
 * How many layers a side has: the decoder of an imported model may have more or fewer.
 * @param {Object} m the manifest
 * @param {string} side
 * @returns {number}
 */
export function layersOn(m, side) {
  return (side === "decoder" ? m.model.decoder_layers : null) ?? m.model.layers;
}

/**
 * The selection in terms of this trace.
 * @param {Object} trace
 * @param {Object} chosen the selection
 */
export function focusOf(trace, chosen) {
  const m = trace.manifest;
  const { name: stage, side, scope, title, extra } = stageNamed(m, chosen.stage) ?? m.stages[0];
  const layer = Math.min(Math.max(1, chosen.layer ?? m.first_look.layer ?? 1), layersOn(m, side));
  const head = Math.min(Math.max(1, chosen.head ?? m.first_look.head ?? 1), m.model.heads ?? 1);
  const rows = { encoder: focusRow(m, "encoder", chosen), decoder: focusRow(m, "decoder", chosen) };
  const use = ["cross", "attention"].includes(stage) ? "cross" : "self";
  return {
    trace, m, stage, side, scope, title, extra, use, layer, head, rows,
    row: rows[side],
    key: chosen.key,
    all: chosen.all,
    at: `${side}.${layer - 1}.${use}`,
    queryTokens: tokensOn(m, side),
    keySide: use === "cross" ? "encoder" : side,
    keyTokens: tokensOn(m, use === "cross" ? "encoder" : side),
  };
}

/** The word at a position of a side, as the shared cursor names it. */
export function wordAt(side, i) {
  return `${side}:${i}`;
}

/** What the facts of a stage depend on: they are requested again only when one of these changes. */
export function stageParameters({ scope, layer, head, side, row }) {
  const within = (name, value) => (scope.includes(name) ? value : null);
  return {
    layer: within("layer", layer),
    head: within("head", head),
    [side === "encoder" ? "source" : "target"]: within("word", row),
  };
}

/** What the manifest says about a stage, where this walk has it. */
export function stageNamed(m, name) {
  return m.stages.find((stage) => stage.name === name);
}

/** The tokens that a stack reads. */
function tokensOn(m, side) {
  return side === "encoder" ? m.source : m.target;
}

/** What a row of a decoder reads and predicts; in an encoder, the word alone. */
export function rowLabel(focus, i) {
  const label = focus.queryTokens.labels[i];
  const next = focus.side === "decoder" ? focus.m.answers.labels[i] : undefined;
  return next === undefined ? label : `${label} → ${next}`;
}

/** What each row of a matrix predicts, or null in an encoder. */
export function nextWords(focus) {
  return focus.side === "decoder" ? focus.m.answers.labels : null;
}

/** Whether there are an encoder and a decoder: the rows of the decoder are then the steps. */
export function twoSided(m) {
  return m.source.ids.length > 0 && m.target.ids.length > 0;
}

/** Choose a word. */
export function chooseRow(m, side, row) {
  if (!twoSided(m)) select({ query: row, step: stepAt(m, row), key: null });
  else select(side === "decoder" ? { step: row, key: null } : { side, query: row, key: null });
}

/** The step that generated a row, or null: a prompt was not generated. */
export function stepAt(m, row) {
  const step = m.steps.findIndex((one) => one.row === row);
  return step < 0 ? null : step;
}

/** The stage that makes a value, and its layer. */
export function makerOf(m, name) {
  const parts = name.split(".");
  const [side, layer, part] = parts;
  const last = parts[parts.length - 1];
  const found = { layer: /^\d+$/.test(layer) ? Number(layer) + 1 : null };
  const second = side === "decoder" && twoSided(m);
  if (m.model.cell) return { layer: null, stage: focusRecurrent(m, name, part ?? layer) };
  if (name === "logits") return { ...found, stage: "classifier" };
  if (part === "cross") return { ...found, stage: "cross" };
  if (part === "feed_forward") return { ...found, stage: "feed-forward" };
  if (second) return { ...found, stage: found.layer ? "masked" : "start" };
  if (parts.length === 2 && last === "output") return { ...found, stage: "stack" };
  if (part === "self" && last === "output") return { ...found, stage: "heads" };
  return { ...found, stage: FOCUS_MAKERS[last] ?? "stack" };
}

function focusRecurrent(m, name, part) {
  if (["embedding", "logits"].includes(part ?? name)) return part === "embedding" ? "embedding" : "classifier";
  if (name.includes(".cross.")) return "attention";
  return name.startsWith("decoder") && twoSided(m) ? "decoder-recurrence" : "recurrence";
}

/** With two stacks, `query` is a row of the side chosen last, and `step` one of the decoder. */
function focusChosen(side, chosen) {
  const decoders = chosen.side === "decoder" || chosen.side === "cross";
  if (side === "encoder") return decoders ? null : chosen.query;
  return chosen.step ?? (decoders ? chosen.query : null);
}

function focusRow(m, side, chosen) {
  const count = tokensOn(m, side).ids.length;
  const row = twoSided(m) ? focusChosen(side, chosen) : chosen.query ?? m.steps[chosen.step]?.row ?? null;
  const first = side === "encoder" ? m.first_look.source : m.first_look.target;
  return Math.max(0, Math.min(count - 1, row ?? first));
}
