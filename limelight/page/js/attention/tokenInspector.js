// "Why this word": what else could have come, and where the model looked when it chose.

import { bars } from "../charts/bars.js";
import { h, replace, visible } from "../core/dom.js";
import { showPercent } from "../core/numbers.js";
import { reading } from "../core/page.js";
import { linkTo } from "../core/state.js";
import { weightLine, wordWeights, weightsText, wordsIn } from "../core/words.js";
import { mainAttention, layerChooser, layerNow, attentionFrom } from "./attentionShares.js";

const INSPECTOR_CANDIDATES = 8;

/**
 * The steps at which a stretch of the written text was chosen.
 * @param {Object} manifest of a trace
 * @param {number} from in characters of what was written
 * @param {number} to
 * @returns {Object[]} steps of the manifest
 */
export function stepsFor(manifest, from, to) {
  const spanOf = (step) => manifest.target.spans[step.row + 1];
  const start = manifest.steps.map(spanOf).find(Boolean)?.[0] ?? 0; // a question may stand before it
  return manifest.steps.filter((step) => {
    const span = spanOf(step);
    return span && span[0] - start < to && span[1] - start > from;
  });
}

/**
 * All about how a word was chosen; a word of several pieces can be looked at piece by piece.
 * @param {Object} page
 * @param {Trace} trace
 * @param {Object[]} steps
 * @returns {HTMLElement}
 */
export function tokenInspector(page, trace, steps) {
  const body = h("div", { class: "inspector-body" });
  const layers = trace.manifest.model.layers;
  let step = steps[0];
  const pieces = steps.length < 2 ? null : h(
    "div",
    { class: "chips piece-choice" },
    h("span", { class: "small soft" }, "written in pieces:"),
    steps.map((one) => h("button", { type: "button", class: "chip", on: { click: () => { step = one; draw(); } } }, visible(one.chosen[1]))),
  );
  const draw = () => {
    pieces?.querySelectorAll(".chip").forEach((chip, i) => chip.setAttribute("aria-pressed", String(steps[i] === step)));
    replace(body, inspectorCandidates(step), inspectorAttention(page, trace, step, layers));
  };
  draw();
  return h("div", { class: "inspector" }, pieces, body);
}

function inspectorCandidates(step) {
  const [token, , probability] = step.chosen;
  const shown = step.top.slice(0, INSPECTOR_CANDIDATES);
  const rank = step.top.findIndex(([id]) => id === token);
  if (rank >= INSPECTOR_CANDIDATES || rank < 0) shown.push(step.chosen);
  const items = shown.map(([id, piece, share]) => ({ label: visible(piece), value: share, marked: id === token, note: id === token ? "chosen" : "" }));
  const list = bars({ items, title: "What could have come here, and how probably" });
  const text = rank < 0 ? `It had ${showPercent(probability)}; more than ${step.top.length} others were likelier.` : rank === 0 ? "It was the likeliest of all." : `It was number ${rank + 1}: the text as a whole was likelier, or it was drawn.`;
  return h("section", null, h("h3", { class: "label" }, "What could have come here"), list.element, h("p", { class: "small soft" }, text));
}

function inspectorAttention(page, trace, step, layers) {
  const at = mainAttention(trace.manifest);
  const words = wordsIn(at.keys.pieces, at.keys.special);
  const line = weightLine(words, "What the model looked at");
  const note = h("p", { class: "small soft" }, "reading …");
  const draw = async () => {
    try {
      const layer = layerNow(layers);
      const shares = await page.busy(attentionFrom(trace, at, layer, step.row));
      const full = wordWeights(words, Float64Array.from(at.keys.ids, (_, i) => shares[i] ?? 0));
      line.show(full);
      replace(note, `Attention from this step to ${at.part === "cross" ? "the source" : "all before it"}: the mean of the heads of layer ${layer}. It shows where the model took from, not why.`);
      page.say(`${visible(step.chosen[1])} looked at ${weightsText(words, full)}`);
    } catch (error) {
      page.showError(note, error, draw);
    }
  };
  draw();
  const more = h("a", { class: "small", href: linkTo({ tab: "explain", step: trace.manifest.steps.indexOf(step) }) }, "Explain every step of it");
  return h("section", null, h("div", { class: "card-head" }, h("h3", { class: "label" }, "What it looked at"), layerChooser(layers, draw)), line.element, note, more);
}

/** While the numbers are on their way. */
export function inspectorWaiting() {
  return reading("reading how this word was chosen");
}
