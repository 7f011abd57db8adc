// Where somebody looks: the selection as places in this very trace, with defaults that tell most.

import { select } from "./state.js";

const WHERE_ATTENDING = ["queries", "scores", "scaling", "mask", "softmax", "sum", "heads"];
const WHERE_LAYERED = [...WHERE_ATTENDING, "add-norm", "feed-forward", "masked", "cross"];
const WHERE_HEADED = ["queries", "scores", "scaling", "mask", "softmax", "sum", "heads", "masked", "cross"];
const WHERE_WRITING = ["start", "masked", "cross", "classifier", "loop", "follow", "teacher", "beam"];
const WHERE_PLACELESS = ["pieces", "loop", "follow", "teacher", "beam"];

// What makes a value, by the end of its name.
const WHERE_MADE = {
  embedding: "embedding", segments: "embedding", positions: "positions", input: "positions",
  query: "queries", key: "queries", value: "queries", q: "queries", k: "queries", v: "queries",
  scores: "scores", scaled: "scaling", masked: "mask", weights: "softmax", mixed: "sum",
  concat: "heads", add: "add-norm", norm: "add-norm",
};

/**
 * The selection in terms of this trace.
 * @param {Object} trace
 * @param {Object} chosen the selection
 */
export function whereNow(trace, chosen) {
  const m = trace.manifest;
  const stop = m.stops.includes(chosen.stop) ? chosen.stop : m.stops[0];
  const side = sideOf(m, stop);
  const layer = Math.min(Math.max(1, chosen.layer ?? 1), m.model.layers);
  const head = Math.min(Math.max(1, chosen.head ?? 1), m.model.heads);
  const rows = { encoder: whereRow(m, "encoder", chosen), decoder: whereRow(m, "decoder", chosen) };
  const use = stop === "cross" ? "cross" : "self";
  return {
    trace, m, stop, side, use, layer, head, rows,
    row: rows[side],
    key: chosen.key,
    all: chosen.all,
    at: `${side}.${layer - 1}.${use}`,
    layered: WHERE_LAYERED.includes(stop),
    headed: WHERE_HEADED.includes(stop),
    asking: wordsOn(m, side),
    answering: wordsOn(m, use === "cross" ? "encoder" : side),
  };
}

/** What of a place matters for the facts of a stop: nothing else has to be asked for anew. */
export function placeOf(where) {
  const placed = !WHERE_PLACELESS.includes(where.stop);
  return {
    layer: where.layered ? where.layer : null,
    head: where.headed ? where.head : null,
    source: placed && where.side === "encoder" ? where.row : null,
    target: placed && where.side === "decoder" ? where.row : null,
  };
}

/** Which stack a stop is about. */
export function sideOf(m, stop) {
  const last = m.target.ids.length ? "decoder" : "encoder";
  return WHERE_WRITING.includes(stop) ? last : m.source.ids.length ? "encoder" : "decoder";
}

/** The tokens that a stack reads. */
export function wordsOn(m, side) {
  return side === "encoder" ? m.source : m.target;
}

/** What a row of a decoder reads and predicts; in an encoder, only the word. */
export function rowLabel(where, i) {
  const said = where.asking.labels[i];
  const next = where.side === "decoder" ? where.m.answers.labels[i] : undefined;
  return next === undefined ? said : `${said} → ${next}`;
}

/** What each row of the matrix is to find, or null in an encoder. */
export function nextWords(where) {
  return where.side === "decoder" ? where.m.answers.labels : null;
}

/** Whether a decoder stands beside an encoder: its rows are then the steps of writing. */
export function twoSided(m) {
  return m.source.ids.length > 0 && m.target.ids.length > 0;
}

/** Choose a word. */
export function chooseRow(m, side, row) {
  if (!twoSided(m)) select({ query: row, step: stepAt(m, row), key: null });
  else select(side === "decoder" ? { step: row, key: null } : { side, query: row, key: null });
}

/** The step of writing that a row belongs to, or null: a prompt was not written. */
export function stepAt(m, row) {
  const step = m.steps.findIndex((one) => one.row === row);
  return step < 0 ? null : step;
}

/** The stop that makes a value, and the layer it is in: where a number comes from. */
export function makerOf(m, name) {
  const parts = name.split(".");
  const [side, layer, part] = parts;
  const last = parts[parts.length - 1];
  const found = { layer: /^\d+$/.test(layer) ? Number(layer) + 1 : null };
  const second = side === "decoder" && twoSided(m);
  if (name === "logits") return { ...found, stop: "classifier" };
  if (part === "cross") return { ...found, stop: "cross" };
  if (part === "feed_forward") return { ...found, stop: "feed-forward" };
  if (second) return { ...found, stop: found.layer ? "masked" : "start" };
  if (parts.length === 2 && last === "output") return { ...found, stop: "stack" };
  if (part === "self" && last === "output") return { ...found, stop: "heads" };
  return { ...found, stop: WHERE_MADE[last] ?? "stack" };
}

/** With two stacks, `query` is a row of the side that was looked at last, and `step` the decoder's. */
function whereAsked(side, chosen) {
  const theirs = chosen.side === "decoder" || chosen.side === "cross";
  if (side === "encoder") return theirs ? null : chosen.query;
  return chosen.step ?? (theirs ? chosen.query : null);
}

function whereRow(m, side, chosen) {
  const count = wordsOn(m, side).ids.length;
  const asked = twoSided(m) ? whereAsked(side, chosen) : chosen.query ?? m.steps[chosen.step]?.row ?? null;
  const first = side === "encoder" ? m.first_look.source : m.first_look.target;
  return Math.max(0, Math.min(count - 1, asked ?? first));
}
