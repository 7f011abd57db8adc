// How a token was chosen: the candidates, and the attention at that step.

import { bars } from "../charts/bars.js";
import { h, replace } from "../core/dom.js";
import { layersOn } from "../core/focus.js";
import { showPercent } from "../core/numbers.js";
import { reading } from "../core/page.js";
import { isPartial, pieceLabelAt } from "../core/pieces.js";
import { linkTo } from "../core/state.js";
import { weightLine, wordWeights, weightsText, wordsIn } from "../core/words.js";
import { mainAttention, layerChooser, layerNow, attentionFrom } from "./attentionShares.js";
import { t } from "../core/texts.js";

const INSPECTOR_CANDIDATES = 8;

/**
 * The steps that generated a span of the output.
 * @param {Object} manifest of a trace
 * @param {number} from in characters of the output
 * @param {number} to
 * @returns {Object[]} steps of the manifest
 */
export function stepsFor(manifest, from, to) {
  const spanOf = (step) => manifest.target.spans[step.row + 1];
  const start = manifest.steps.map(spanOf).find(Boolean)?.[0] ?? 0; // a prompt may come before it
  return manifest.steps.filter((step) => {
    const span = spanOf(step);
    return span && span[0] - start < to && span[1] - start > from;
  });
}

/**
 * Candidates and attention of a word; of a word of several pieces, for each piece.
 * @param {Object} page
 * @param {Trace} trace
 * @param {Object[]} steps
 * @returns {HTMLElement}
 */
export function tokenInspector(page, trace, steps) {
  const body = h("div", { class: "inspector-body" });
  const layers = layersOn(trace.manifest, "decoder");
  let step = steps[0];
  const pieces = steps.length < 2 ? null : h(
    "div",
    { class: "chips piece-choice" },
    h("span", { class: "small soft" }, t("pieces:")),
    steps.map((one) => h("button", { type: "button", class: "chip", title: isPartial(one.chosen[1]) ? t("bytes {0}", [one.chosen[1]]) : null, on: { click: () => { step = one; draw(); } } }, inspectorLabel(trace, one, one.chosen[1]))),
  );
  const draw = () => {
    pieces?.querySelectorAll(".chip").forEach((chip, i) => chip.setAttribute("aria-pressed", String(steps[i] === step)));
    replace(body, inspectorCandidates(trace, step), inspectorAttention(page, trace, step, layers));
  };
  draw();
  return h("div", { class: "inspector" }, pieces, body);
}

function inspectorLabel({ manifest }, step, piece) {
  return pieceLabelAt(manifest.answers.pieces, step.row, piece);
}

function inspectorCandidates(trace, step) {
  const [token, , probability] = step.chosen;
  const shown = step.top.slice(0, INSPECTOR_CANDIDATES);
  const rank = step.top.findIndex(([id]) => id === token);
  if (rank >= INSPECTOR_CANDIDATES || rank < 0) shown.push(step.chosen);
  const items = shown.map(([id, piece, share]) => ({ label: inspectorLabel(trace, step, piece), value: share, marked: id === token, note: id === token ? t("chosen") : "" }));
  const list = bars({ items, title: t("Candidates at this position, with probabilities") });
  const text = rank < 0 ? t("Probability {0}; more than {1} pieces were more likely.", [showPercent(probability), step.top.length]) : rank === 0 ? t("The most likely piece (argmax).") : t("Rank {0}: it was sampled, or the whole text had the higher probability.", [rank + 1]);
  return h("section", null, h("h3", { class: "label" }, t("Candidates at this position")), list.element, h("p", { class: "small soft" }, text));
}

function inspectorAttention(page, trace, step, layers) {
  const at = mainAttention(trace.manifest);
  const words = wordsIn(at.keys.pieces, at.keys.special);
  const line = weightLine(words, t("Attention weights"));
  const note = h("p", { class: "small soft" }, `${t("loading")} …`);
  const draw = async () => {
    try {
      const layer = layerNow(layers);
      const shares = await page.busy(attentionFrom(trace, at, layer, step.row));
      const full = wordWeights(words, Float64Array.from(at.keys.ids, (_, i) => shares[i] ?? 0));
      line.show(full);
      replace(note, at.part === "cross" ? t("Attention of this step to the source, averaged over the heads of layer {0}. It shows what was mixed in, not why the piece was chosen.", [layer]) : t("Attention of this step to all earlier tokens, averaged over the heads of layer {0}. It shows what was mixed in, not why the piece was chosen.", [layer]));
      page.say(t("{0} attends to {1}", [inspectorLabel(trace, step, step.chosen[1]), weightsText(words, full)]));
    } catch (error) {
      page.showError(note, error, draw);
    }
  };
  draw();
  const more = h("a", { class: "small", href: linkTo({ tab: "explain", step: trace.manifest.steps.indexOf(step) }) }, t("Explain stage by stage"));
  return h("section", null, h("div", { class: "card-head" }, h("h3", { class: "label" }, t("Attention")), layerChooser(layers, draw)), line.element, note, more);
}

/** While the trace is loading. */
export function inspectorWaiting() {
  return reading(t("tracing this word"));
}
