// A map of this very model, as Figure 1 of the paper draws it, from the bottom up: its stacks, its
// layers, its order of norms. Every part that has a stop leads there.

import { h } from "../core/dom.js";
import { sideOf, twoSided } from "../core/focus.js";
import { select } from "../core/state.js";

const MAP_STEPS = [
  ["queries", "q, k, v"],
  ["scores", "q · k"],
  ["scaling", "÷ √d"],
  ["mask", "mask"],
  ["softmax", "softmax"],
  ["sum", "Σ w v"],
  ["heads", "heads"],
];

/**
 * @param {Object} where
 * @returns {HTMLElement}
 */
export function modelMap(where) {
  const { m } = where;
  const stacks = m.source.ids.length ? [mapStack(where, "encoder")] : [];
  if (m.target.ids.length) stacks.push(mapStack(where, "decoder"));
  return h(
    "div",
    { class: `map${twoSided(m) ? " two" : ""}` },
    h("div", { class: "map-stacks" }, stacks),
    h("p", { class: "soft small map-note" }, "As in Figure 1 of the paper: read it from the bottom up."),
  );
}

/** The same as a list, for narrow pages. */
export function stopList(where, titles) {
  const known = where.m.stops.map((name) =>
    h("li", null, mapButton(where, name, titles[name] ?? name, { class: "map-link" })),
  );
  return h("ol", { class: "stop-list" }, known);
}

function mapStack(where, side) {
  const { m } = where;
  const first = sideOf(m, "pieces") === side;
  const last = sideOf(m, "classifier") === side;
  const layers = Array.from({ length: m.model.layers }, (_, i) => mapLayer(where, side, i + 1, first));
  const parts = [
    mapButton(where, first ? "pieces" : "start", first ? "pieces" : "⟨start⟩, shifted"),
    mapButton(where, first ? "embedding" : null, "embedding"),
    mapButton(where, first ? "positions" : null, mapPlaces(m)),
    h("div", { class: "map-layers" }, layers),
    m.model.norm_order === "pre" ? mapButton(where, null, "norm") : null,
    first ? mapButton(where, "stack", last ? "top state" : "one vector a token") : null,
    last ? mapButton(where, "classifier", "linear · softmax") : null,
    last && m.stops.includes("loop") ? mapButton(where, "loop", "next word ↺") : null,
  ];
  return h("div", { class: "map-stack", role: "group", "aria-label": side }, h("div", { class: "map-name soft small" }, side), parts);
}

function mapPlaces(m) {
  const kind = m.model.positions;
  return kind === "rotary" ? "places (by turning)" : kind === "learned" ? "+ places" : "+ waves";
}

/** The chosen layer with all its parts; the others closed. */
function mapLayer(where, side, number, first) {
  const chosen = number === where.layer;
  const name = h(
    "button",
    { type: "button", class: "map-layer-name", "aria-pressed": String(chosen), dataset: { key: `${side}-${number}` }, on: { click: () => select({ layer: number }) } },
    `layer ${number}`,
  );
  if (!chosen) return h("div", { class: "map-layer closed" }, name);
  const crossing = side === "decoder" && twoSided(where.m);
  const parts = [
    mapSub(where, first ? mapSteps(where) : [mapButton(where, "masked", "masked attention")], first),
    crossing ? mapSub(where, [mapButton(where, "cross", "asks the encoder")], false) : null,
    mapSub(where, [mapButton(where, first ? "feed-forward" : null, "feed-forward")], false),
  ];
  return h("div", { class: "map-layer" }, parts, name);
}

/** A sub-layer with its residual connection, in this model's order of norms. */
function mapSub(where, inside, first) {
  const go = first ? "add-norm" : null;
  const post = where.m.model.norm_order === "post";
  const parts = post
    ? [inside, mapButton(where, go, "add & norm")]
    : [mapButton(where, go, "norm"), inside, mapButton(where, go, "add")];
  return h("div", { class: "map-sub" }, parts);
}

function mapSteps(where) {
  const causal = sideOf(where.m, "mask") === "decoder";
  return h(
    "div",
    { class: "map-steps" },
    h("div", { class: "small map-steps-name" }, causal ? "masked attention" : "attention"),
    MAP_STEPS.map(([stop, label]) => mapButton(where, stop, label)),
  );
}

function mapButton(where, stop, label, props = {}) {
  const known = stop !== null && where.m.stops.includes(stop);
  if (!known) return h("div", { class: "map-part still" }, label);
  return h(
    "button",
    {
      type: "button",
      class: "map-part",
      dataset: { stop, key: `${stop}-${label}` },
      "aria-current": stop === where.stop ? "step" : null,
      on: { click: () => select({ stop, key: null }) },
      ...props,
    },
    label,
  );
}
