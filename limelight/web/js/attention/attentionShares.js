// Attention rows and columns of a trace, averaged over heads.

import { h } from "../core/dom.js";
import { select, selected } from "../core/state.js";
import { t } from "../core/texts.js";

/**
 * The attention to show for a model: cross-attention if it has one, else self-attention.
 * @param {Object} manifest
 * @returns {{side: string, part: string, keys: Object}} and its key tokens
 */
export function mainAttention(manifest) {
  const two = manifest.source.ids.length > 0 && manifest.target.ids.length > 0;
  if (two) return { side: "decoder", part: "cross", keys: manifest.source };
  if (manifest.target.ids.length) return { side: "decoder", part: "self", keys: manifest.target };
  return { side: "encoder", part: "self", keys: manifest.source };
}

/**
 * The chosen layer, from 1, or else the last.
 * @param {number} layers
 */
export function layerNow(layers) {
  const { layer } = selected();
  return layer && layer <= layers ? layer : layers;
}

/**
 * The attention weights of one query, averaged over the heads of a layer; they sum to 1.
 * @param {Trace} trace
 * @param {{side: string, part: string}} at
 * @param {number} layer from 1
 * @param {number} row
 * @returns {Promise<Float64Array>}
 */
export async function attentionFrom(trace, at, layer, row) {
  const name = `${at.side}.${layer - 1}.${at.part}.weights`;
  const { values, shape } = await trace.tensor(name, { rows: [row, row + 1] });
  const width = shape.at(-1);
  const heads = values.length / width;
  return Float64Array.from({ length: width }, (_, key) => {
    let sum = 0;
    for (let head = 0; head < heads; head += 1) sum += values[head * width + key];
    return sum / heads;
  });
}

/**
 * The weights of every query on one key position, averaged over the heads of a layer.
 * @param {Trace} trace
 * @param {{side: string, part: string}} at
 * @param {number} layer from 1
 * @param {number} position
 * @returns {Promise<Float64Array>}
 */
export async function attentionTo(trace, at, layer, position) {
  const { values, shape } = await trace.tensor(`${at.side}.${layer - 1}.${at.part}.weights`);
  const [heads, rows, width] = shape;
  return Float64Array.from({ length: rows }, (_, row) => {
    let sum = 0;
    for (let head = 0; head < heads; head += 1) sum += values[(head * rows + row) * width + position];
    return sum / heads;
  });
}

/**
 * A chooser of the layer; the choice is shared with all tabs.
 * @param {number} layers
 * @param {function(): void} onChange
 */
export function layerChooser(layers, onChange) {
  const now = layerNow(layers);
  const options = Array.from({ length: layers }, (_, i) => h("option", { value: String(i + 1), selected: i + 1 === now }, t("layer {0}", [i + 1])));
  const choose = h("select", {
    class: "field small-field",
    "aria-label": t("Layer whose attention is shown"),
    on: {
      change: () => {
        select({ layer: Number(choose.value) }, { replace: true });
        onChange();
      },
    },
  }, options);
  return choose;
}
