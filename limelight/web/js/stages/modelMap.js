// The drawing of this model that stays on screen: its stacks, its layers, its order of norms, from left
// to right; upright on phones. Every part that has a stage leads to it; the labels come with the manifest.

import { colourOf, redrawWithTheme } from "../charts/colour.js";
import { h } from "../core/dom.js";
import { layersOn, stageNamed, twoSided } from "../core/focus.js";
import { select } from "../core/state.js";
import { t } from "../core/texts.js";
import { CLASSIFIER_WEIGHTS, embeddingWeights } from "./learning.js";
import { lessonDone } from "./lesson.js";

const MAP_THUMBS = 8; // layers; with more there is no room for pictures
const MAP_LAYERS = 12; // with more, only the first, the last and those around the chosen one are drawn

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
  const done = lessonDone();
  const links = focus.m.stages.map(({ name, title }) => h("li", null, mapButton(focus, name, `${t(title)}${done.includes(name) ? " ✓" : ""}`, { class: "map-link" })));
  return h("ol", { class: "stage-list" }, links);
}

function mapStack(focus, side) {
  const { m } = focus;
  const first = stageNamed(m, "pieces").side === side;
  const last = stageNamed(m, "classifier").side === side;
  const recurrent = Boolean(m.model.cell);
  const layer = recurrent ? mapCell : mapLayer;
  const layers = mapShown(layersOn(m, side), focus.layer).map((n) => (n < 0 ? mapGap(-n) : layer(focus, side, n, first)));
  const parts = [
    mapButton(focus, first ? "pieces" : "start", first ? t("pieces") : t("⟨start⟩")),
    mapButton(focus, first ? "embedding" : null, t("embedding"), mapWeights(embeddingWeights(side === "encoder" ? "source" : "target"))),
    recurrent ? null : mapButton(focus, first ? "positions" : null, mapPositions(m)),
    h("div", { class: "map-layers" }, layers),
    recurrent && last ? stageNamed(m, "attention") && mapButton(focus, "attention") : null,
    m.model.norm_order === "pre" && m.model.norm !== "none" ? mapButton(focus, null, t("norm")) : null,
    first && !recurrent ? mapButton(focus, "stack", t("output")) : null,
    last ? mapButton(focus, "classifier", m.classes.length ? t("class") : "softmax", mapWeights(CLASSIFIER_WEIGHTS)) : null,
    last && stageNamed(m, "loop") ? mapButton(focus, "loop", `${t("loop")} ↺`) : null,
    last && stageNamed(m, "loss") ? mapButton(focus, "loss", t("loss")) : null,
    last && stageNamed(m, "learning") ? mapButton(focus, "learning", `← ${t("learn")}`) : null,
  ];
  return h("div", { class: "map-stack", role: "group", "aria-label": t(side) }, h("div", { class: "map-name soft small" }, t(side)), parts);
}

function mapPositions(m) {
  const kind = m.model.positions;
  return { rotary: t("(rotary)"), learned: t("+ position"), none: t("no positions") }[kind] ?? t("+ waves");
}

/** Which weights a part has, for the gradient that is drawn over it. */
function mapWeights(weights) {
  return { dataset: { weights } };
}

/** Numbers of the layers that are drawn; a negative one stands for so many that are not. */
function mapShown(count, chosen) {
  const all = Array.from({ length: count }, (_, i) => i + 1);
  const shown = count > MAP_LAYERS ? all.filter((n) => n === 1 || n === count || Math.abs(n - chosen) <= 2) : all;
  return shown.flatMap((n, i) => (i && n - shown[i - 1] > 1 ? [shown[i - 1] + 1 - n, n] : [n]));
}

function mapGap(count) {
  return h("div", { class: "map-gap soft", title: t("{0} more layers", [count]) }, `… ${count}`);
}

/** A layer of a recurrent network is one part: it reads token after token. */
function mapCell(focus, side, number, first) {
  const stage = first ? "recurrence" : "decoder-recurrence";
  const part = mapButton(focus, stage, `${focus.m.model.cell.toUpperCase()} ${number} ↻`, { "aria-current": stage === focus.stage && number === focus.layer ? "step" : null, on: { click: () => select({ stage, layer: number, key: null }) } });
  return h("div", { class: "map-layer" }, part);
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
  const weights = `${side}.layers.${number - 1}.`;
  if (!chosen) return h("div", { class: "map-layer closed", ...mapWeights(weights) }, name);
  const crossing = side === "decoder" && twoSided(focus.m);
  const parts = [
    mapSub(focus, first ? mapSteps(focus) : [mapButton(focus, "masked", t("self"))], first, mapWeights(`${weights}self_attention.,${weights}self_cell.`)),
    crossing ? mapSub(focus, [mapButton(focus, "cross", t("cross-attention"))], false, mapWeights(`${weights}cross_attention.`)) : null,
    mapSub(focus, [mapButton(focus, first ? "feed-forward" : null, t("feed-forward"))], false, mapWeights(`${weights}feed_forward.`)),
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
function mapSub(focus, inside, first, props) {
  const go = first ? "add-norm" : null;
  const { norm_order: order, norm, residual } = focus.m.model;
  const [add, normed] = [residual ? t("add") : "", norm === "none" ? "" : t("norm")];
  const [before, after] = order === "post" ? ["", [add, normed].filter(Boolean).join(" & ")] : [normed, add];
  const around = (label) => (label ? mapButton(focus, go, label) : null);
  return h("div", { class: residual ? "map-sub residual" : "map-sub", ...props }, around(before), inside, around(after || (before || !go ? "" : t("no add, no norm"))));
}

function mapSteps(focus) {
  const steps = focus.m.stages.filter(({ section }) => section === "attention");
  return h("div", { class: "map-steps" }, steps.map(({ name }) => (name === "scaling" && !focus.m.model.scaling ? mapButton(focus, name, t("not scaled")) : mapButton(focus, name))));
}

function mapButton(focus, stage, label = t(stageNamed(focus.m, stage).label), props = {}) {
  const found = stageNamed(focus.m, stage);
  if (!found) return h("div", { class: "map-part still", ...props }, h("span", null, label));
  return h(
    "button",
    {
      type: "button",
      class: "map-part",
      title: t(found.title),
      "aria-current": stage === focus.stage ? "step" : null,
      on: { click: () => select({ stage, key: null }) },
      ...props,
      dataset: { stage, key: `${stage}-${label}`, ...props.dataset },
    },
    h("span", null, label),
  );
}
