// A map of this model as in Figure 1 of the paper, from the bottom up: its stacks, its layers, its
// order of norms. Every part that has a stage links to it; the labels come with the manifest.

import { h } from "../core/dom.js";
import { layersOn, stageNamed, twoSided } from "../core/focus.js";
import { select } from "../core/state.js";

/**
 * @param {Object} focus
 * @returns {HTMLElement}
 */
export function modelMap(focus) {
  const { m } = focus;
  const stacks = m.source.ids.length ? [mapStack(focus, "encoder")] : [];
  if (m.target.ids.length) stacks.push(mapStack(focus, "decoder"));
  return h(
    "div",
    { class: `map${twoSided(m) ? " two" : ""}` },
    h("div", { class: "map-stacks" }, stacks),
    h("p", { class: "soft small map-note" }, "As in Figure 1 of the paper. Read it from the bottom up."),
  );
}

/** The same as a list, for narrow pages. */
export function stageList(focus) {
  const links = focus.m.stages.map(({ name, title }) => h("li", null, mapButton(focus, name, title, { class: "map-link" })));
  return h("ol", { class: "stage-list" }, links);
}

function mapStack(focus, side) {
  const { m } = focus;
  const first = stageNamed(m, "pieces").side === side;
  const last = stageNamed(m, "classifier").side === side;
  const layers = Array.from({ length: layersOn(m, side) }, (_, i) => mapLayer(focus, side, i + 1, first));
  const parts = [
    mapButton(focus, first ? "pieces" : "start"),
    mapButton(focus, first ? "embedding" : null, "embedding"),
    mapButton(focus, first ? "positions" : null, mapPositions(m)),
    h("div", { class: "map-layers" }, layers),
    m.model.norm_order === "pre" && m.model.norm !== "none" ? mapButton(focus, null, "norm") : null,
    first ? mapButton(focus, "stack") : null,
    last ? mapButton(focus, "classifier") : null,
    last && stageNamed(m, "loop") ? mapButton(focus, "loop") : null,
  ];
  return h("div", { class: "map-stack", role: "group", "aria-label": side }, h("div", { class: "map-name soft small" }, side), parts);
}

function mapPositions(m) {
  const kind = m.model.positions;
  return { rotary: "positions (rotary)", learned: "+ positions", none: "no positions" }[kind] ?? "+ sinusoids";
}

/** The chosen layer with all its parts; the others closed. */
function mapLayer(focus, side, number, first) {
  const chosen = number === focus.layer;
  const name = h(
    "button",
    { type: "button", class: "map-layer-name", "aria-pressed": String(chosen), dataset: { key: `${side}-${number}` }, on: { click: () => select({ layer: number }) } },
    `layer ${number}`,
  );
  if (!chosen) return h("div", { class: "map-layer closed" }, name);
  const crossing = side === "decoder" && twoSided(focus.m);
  const parts = [
    mapSub(focus, first ? mapSteps(focus) : [mapButton(focus, "masked")], first),
    crossing ? mapSub(focus, [mapButton(focus, "cross")], false) : null,
    mapSub(focus, [mapButton(focus, first ? "feed-forward" : null, "feed-forward")], false),
  ];
  return h("div", { class: "map-layer" }, parts, name);
}

/** A sub-layer with its residual connection, in this model's order of norms. */
function mapSub(focus, inside, first) {
  const go = first ? "add-norm" : null;
  const { norm_order: order, norm, residual } = focus.m.model;
  const [add, normed] = [residual ? "add" : "", norm === "none" ? "" : "norm"];
  const [before, after] = order === "post" ? ["", [add, normed].filter(Boolean).join(" & ")] : [normed, add];
  const around = (label) => (label ? mapButton(focus, go, label) : null);
  return h("div", { class: "map-sub" }, around(before), inside, around(after || (before || !go ? "" : "no add, no norm")));
}

function mapSteps(focus) {
  const causal = stageNamed(focus.m, "mask").side === "decoder";
  return h(
    "div",
    { class: "map-steps" },
    h("div", { class: "small map-steps-name" }, causal ? "masked attention" : "attention"),
    focus.m.stages.filter(({ section }) => section === "attention").map(({ name }) => (name === "scaling" && !focus.m.model.scaling ? mapButton(focus, name, "not scaled") : mapButton(focus, name))),
  );
}

function mapButton(focus, stage, label = stageNamed(focus.m, stage).label, props = {}) {
  if (!stageNamed(focus.m, stage)) return h("div", { class: "map-part still" }, label);
  return h(
    "button",
    {
      type: "button",
      class: "map-part",
      dataset: { stage, key: `${stage}-${label}` },
      "aria-current": stage === focus.stage ? "step" : null,
      on: { click: () => select({ stage, key: null }) },
      ...props,
    },
    label,
  );
}
