// The drawing of this model that stays on screen: its stacks, its layers, its order of norms, from left
// to right; upright on phones. Every part that has a stage leads to it; the labels come with the manifest.

import { colourOf, redrawWithTheme } from "../charts/colour.js";
import { h } from "../core/dom.js";
import { layersOn, stageNamed, twoSided } from "../core/focus.js";
import { select } from "../core/state.js";

const MAP_THUMBS = 8; // layers; with more there is no room for pictures

/**
 * @param {Object} focus
 * @returns {HTMLElement}
 */
export function modelMap(focus) {
  const { m } = focus;
  const stacks = m.source.ids.length ? [mapStack(focus, "encoder")] : [];
  if (m.target.ids.length) stacks.push(mapStack(focus, "decoder"));
  return h("div", { class: `map${twoSided(m) ? " two" : ""}` }, stacks);
}

/** The stages as a list. */
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
    mapButton(focus, first ? "pieces" : "start", first ? "pieces" : "⟨start⟩"),
    mapButton(focus, first ? "embedding" : null, "embedding"),
    mapButton(focus, first ? "positions" : null, mapPositions(m)),
    h("div", { class: "map-layers" }, layers),
    m.model.norm_order === "pre" && m.model.norm !== "none" ? mapButton(focus, null, "norm") : null,
    first ? mapButton(focus, "stack", "output") : null,
    last ? mapButton(focus, "classifier", m.classes.length ? "class" : "softmax") : null,
    last && stageNamed(m, "loop") ? mapButton(focus, "loop", "loop ↺") : null,
  ];
  return h("div", { class: "map-stack", role: "group", "aria-label": side }, h("div", { class: "map-name soft small" }, side), parts);
}

function mapPositions(m) {
  const kind = m.model.positions;
  return { rotary: "(rotary)", learned: "+ place", none: "no place" }[kind] ?? "+ waves";
}

/** The chosen layer with all its parts; the others closed, with what their head attends to. */
function mapLayer(focus, side, number, first) {
  const chosen = number === focus.layer;
  const name = h(
    "button",
    { type: "button", class: "map-layer-name", title: `layer ${number}`, "aria-pressed": String(chosen), dataset: { key: `${side}-${number}` }, on: { click: () => select({ layer: number }) } },
    h("span", { class: "unseen" }, "layer "),
    String(number),
    mapThumb(focus, side, number),
  );
  if (!chosen) return h("div", { class: "map-layer closed" }, name);
  const crossing = side === "decoder" && twoSided(focus.m);
  const parts = [
    mapSub(focus, first ? mapSteps(focus) : [mapButton(focus, "masked", "self")], first),
    crossing ? mapSub(focus, [mapButton(focus, "cross", "cross-attention")], false) : null,
    mapSub(focus, [mapButton(focus, first ? "feed-forward" : null, "feed-forward")], false),
  ];
  return h("div", { class: "map-layer" }, name, parts);
}

/** The attention of the chosen head in this layer, 16 x 16 pixels or fewer. */
function mapThumb(focus, side, number) {
  const { m, trace, head } = focus;
  const use = side === "decoder" && twoSided(m) ? "cross" : "self";
  const at = `${side}.${number - 1}.${use}`;
  if (!m.thumbs[at] || layersOn(m, side) > MAP_THUMBS) return null;
  const canvas = h("canvas", { class: "map-thumb", width: "1", height: "1" });
  const draw = async () => {
    const { values, shape: [, rows, columns] } = (await trace.thumbs())[at];
    [canvas.width, canvas.height] = [columns, rows];
    const image = canvas.getContext("2d").createImageData(columns, rows);
    image.data.fill(255);
    for (let i = 0; i < rows * columns; i += 1) image.data.set(colourOf(values[(head - 1) * rows * columns + i], { kind: "share", low: 0, high: 255 }), 4 * i);
    canvas.getContext("2d").putImageData(image, 0, 0);
  };
  draw().catch(() => canvas.remove()); // a file may be without them
  redrawWithTheme(canvas, () => draw().catch(() => {}));
  return canvas;
}

/** A sub-layer with its residual connection, in this model's order of norms. */
function mapSub(focus, inside, first) {
  const go = first ? "add-norm" : null;
  const { norm_order: order, norm, residual } = focus.m.model;
  const [add, normed] = [residual ? "add" : "", norm === "none" ? "" : "norm"];
  const [before, after] = order === "post" ? ["", [add, normed].filter(Boolean).join(" & ")] : [normed, add];
  const around = (label) => (label ? mapButton(focus, go, label) : null);
  return h("div", { class: residual ? "map-sub residual" : "map-sub" }, around(before), inside, around(after || (before || !go ? "" : "no add, no norm")));
}

function mapSteps(focus) {
  const steps = focus.m.stages.filter(({ section }) => section === "attention");
  return h("div", { class: "map-steps" }, steps.map(({ name }) => (name === "scaling" && !focus.m.model.scaling ? mapButton(focus, name, "not scaled") : mapButton(focus, name))));
}

function mapButton(focus, stage, label = stageNamed(focus.m, stage).label, props = {}) {
  const found = stageNamed(focus.m, stage);
  if (!found) return h("div", { class: "map-part still" }, h("span", null, label));
  return h(
    "button",
    {
      type: "button",
      class: "map-part",
      title: found.title,
      dataset: { stage, key: `${stage}-${label}` },
      "aria-current": stage === focus.stage ? "step" : null,
      on: { click: () => select({ stage, key: null }) },
      ...props,
    },
    h("span", null, label),
  );
}
