// A switch for every head and every sub-layer, each with a thumbnail of what the head attends to.

import { attentionBlocks } from "../attention/heads.js";
import { colourOf, redrawWithTheme } from "../charts/colour.js";
import { h } from "../core/dom.js";
import { layersOn } from "../core/focus.js";
import { show } from "../core/numbers.js";
import { changeAt } from "./changes.js";
import { t } from "../core/texts.js";

/**
 * @param {Object} manifest
 * @param {Object<string, {values: ArrayLike<number>, shape: number[]}>} thumbs of all heads
 * @param {{effects: ?Map<string, number>, chosen: string, onHead: function(Object): void, onPart: function(string): void}} use
 *   `effects`: what the answer loses without each head; `chosen`: the head whose matrix is shown
 * @returns {HTMLElement}
 */
export function headSwitches(manifest, thumbs, use) {
  const most = use.effects ? Math.max(...[...use.effects.values()].map(Math.abs), 1e-9) : 0;
  return h("div", { class: "switch-blocks" }, attentionBlocks(manifest).map((block) => switchTable(manifest, block, thumbs, { ...use, most })));
}

/** A switch for the feed-forward sub-layer of every layer, and for every layer. */
export function layerSwitches(manifest, onPart) {
  const sides = ["encoder", "decoder"].filter((side) => manifest[side === "encoder" ? "source" : "target"].ids.length);
  const rows = sides.flatMap((side) => Array.from({ length: layersOn(manifest, side) }, (_, layer) => {
    const name = sides.length > 1 ? `${t(side)} ${t("layer {0}", [layer + 1])}` : t("layer {0}", [layer + 1]);
    const parts = [[`${side}.${layer}`, t("all of it")], [`${side}.${layer}.feed_forward`, t("feed-forward")]];
    return h("div", { class: "switch-layer" }, h("span", { class: "soft small" }, name), parts.map(([place, label]) => switchPart(place, label, `${name}, ${label}`, onPart)));
  }));
  return h("div", { class: "switch-layers" }, rows);
}

function switchTable(manifest, block, thumbs, use) {
  const heads = manifest.model.heads;
  const numbers = Array.from({ length: heads }, (_, i) => h("th", { scope: "col", class: "soft small" }, String(i + 1)));
  const rows = block.layers.map((at, layer) =>
    h(
      "tr",
      null,
      h("th", { scope: "row", class: "small" }, switchPart(at, t("layer {0}", [layer + 1]), t("{0}, layer {1}, all heads", [block.name, layer + 1]), use.onPart)),
      Array.from({ length: heads }, (_, i) => h("td", null, switchHead(block, { at, layer: layer + 1, head: i + 1 }, thumbs[at], use))),
    ),
  );
  return h("table", { class: "switch-table" }, h("caption", null, block.name), h("thead", null, h("tr", null, h("td", { class: "soft small" }, "head"), numbers)), h("tbody", null, rows));
}

function switchPart(place, label, title, onPart) {
  const off = changeAt(place) !== null;
  return h(
    "button",
    { type: "button", class: off ? "switch-part off" : "switch-part", role: "switch", "aria-checked": String(!off), "aria-label": title, dataset: { key: place }, on: { click: () => onPart(place) } },
    label,
  );
}

function switchHead(block, { at, layer, head }, thumb, use) {
  const place = `${at}@${head}`;
  const state = changeAt(place) ?? changeAt(at);
  const effect = use.effects?.get(place);
  const title = t("{0}, layer {1}, head {2}", [block.name, layer, head]);
  const lost = effect === undefined ? "" : effect < 0 ? t("without it, log p of the answer rises by {0}", [show(-effect)]) : t("without it, log p of the answer falls by {0}", [show(effect)]);
  const canvas = h("canvas", { width: String(thumb.shape[2]), height: String(thumb.shape[1]), "aria-hidden": "true" });
  switchPaint(canvas, thumb, head);
  redrawWithTheme(canvas, () => switchPaint(canvas, thumb, head));
  return h(
    "button",
    {
      type: "button",
      class: ["switch-head", state, effect !== undefined && "ranked", effect < 0 && "gains", place === use.chosen && "chosen"].filter(Boolean).join(" "),
      role: "switch",
      "aria-checked": String(state === null),
      "aria-label": [title, state, lost].filter(Boolean).join(", "),
      title: [title, lost].filter(Boolean).join(": "),
      dataset: { key: place },
      style: effect === undefined ? {} : { "--share": Math.sqrt(Math.abs(effect) / use.most) },
      on: { click: () => use.onHead({ place, block: block.id, layer, head }) },
    },
    canvas,
    effect === undefined ? null : h("span", { class: "switch-effect number", "aria-hidden": "true" }, switchNumber(effect)),
  );
}

function switchNumber(effect) {
  const text = Math.abs(effect).toFixed(2);
  return effect < -0.005 ? `−${text}` : text;
}

function switchPaint(canvas, { values, shape }, head) {
  const size = shape[1] * shape[2];
  const own = values.subarray((head - 1) * size, head * size);
  const high = Math.max(1, own.reduce((most, x) => Math.max(most, x), 0));
  const context = canvas.getContext("2d");
  const image = context.createImageData(shape[2], shape[1]);
  own.forEach((x, i) => image.data.set([...colourOf(x, { kind: "share", low: 0, high }), 255], 4 * i));
  context.putImageData(image, 0, 0);
}
