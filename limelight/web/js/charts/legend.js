// The colour legend, on screen and in saved pictures.

import { h } from "../core/dom.js";
import { show } from "../core/numbers.js";
import { colourOf, theme } from "./colour.js";
import { paintStripes } from "./matrixPainter.js";

const LEGEND_STEPS = 128;
export const LEGEND_HEIGHT = 34; // pixels of a painted one

/**
 * A legend beside a matrix.
 * @param {Element} container
 * @param {{scale: Object, hidden: ArrayLike<number> | null, values: ArrayLike<number>}} shown
 * @param {string} [hiddenMeans]
 */
export function showLegend(container, shown, hiddenMeans = "masked") {
  const [low, high] = legendEnds(shown.scale);
  const ramp = h("canvas", { class: "legend-ramp", width: LEGEND_STEPS, height: "1", "aria-hidden": "true" });
  legendRamp(ramp.getContext("2d"), shown.scale, 0, 1);
  container.replaceChildren(h("span", {}, low), ramp, h("span", {}, high));
  if (!legendHides(shown)) return;
  const swatch = h("canvas", { class: "legend-stripes", width: "18", height: "12", "aria-hidden": "true" });
  const context = swatch.getContext("2d");
  context.fillStyle = paintStripes(context);
  context.fillRect(0, 0, 18, 12);
  container.append(h("span", { class: "legend-hidden" }, swatch, hiddenMeans));
}

/**
 * The same painted, for a saved picture.
 * @param {CanvasRenderingContext2D} context translated to its position
 * @param {Object} shown
 * @param {string} [hiddenMeans]
 */
export function paintLegend(context, shown, hiddenMeans = "masked") {
  const [low, high] = legendEnds(shown.scale);
  context.font = '12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillStyle = theme().soft;
  const start = Math.ceil(context.measureText(low).width) + 8;
  const after = start + LEGEND_STEPS + 8;
  context.fillText(low, 0, 20);
  context.fillText(high, after, 20);
  const swatchX = after + context.measureText(high).width + 28;
  if (legendHides(shown)) {
    context.fillText(hiddenMeans, swatchX + 26, 20);
    context.fillStyle = paintStripes(context);
    context.fillRect(swatchX, 14, 18, 12);
  }
  context.translate(start, 0);
  legendRamp(context, shown.scale, 15, 10);
}

function legendRamp(context, scale, y, height) {
  for (let x = 0; x < LEGEND_STEPS; x += 1) {
    const value = scale.low + (x / (LEGEND_STEPS - 1)) * (scale.high - scale.low);
    context.fillStyle = `rgb(${colourOf(value, scale).join(" ")})`;
    context.fillRect(x, y, LEGEND_STEPS - x, height); // the next one covers all but a step of it
  }
}

function legendEnds(scale) {
  return [show(scale.low), scale.highs ? "row maximum" : show(scale.high)];
}

function legendHides({ hidden, values }) {
  return Boolean(hidden?.some?.(Boolean)) || Array.prototype.includes.call(values, -Infinity);
}
