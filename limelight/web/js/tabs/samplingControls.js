// Sampling: temperature, top-k, top-p, and the exact next-token probabilities, without a request.

import { bars } from "../charts/bars.js";
import { h, replace, visible } from "../core/dom.js";
import { samplingSliders } from "../core/samplingSliders.js";
import { samplingProbabilities, entropy, showCount, showPercent, softmax } from "../core/numbers.js";
import { t } from "../core/texts.js";

const SAMPLING_SHOWN = 12;

/**
 * Sliders for temperature, top-k and top-p, and the probabilities they give.
 * @param {Object} model as the service describes it
 * @returns {{element: HTMLElement, settings: function(): Object,
 *   show: function(ArrayLike<number>, string[], string): void, live: function(Object[], string): void, wait: function(): void}}
 */
export function samplingControls(model) {
  const { decode } = model;
  const state = { logits: null, pieces: [], shares: null };
  const chart = bars({ items: [], title: t("Next-token probabilities") });
  const summary = h("p", { class: "small soft sampling-summary" });
  const after = h("p", { class: "sampling-after small", dir: "auto" });
  const draw = () => state.logits && samplingDraw(state, chart, summary, settings());
  const sliders = samplingSliders(decode, draw);
  const settings = () => ({ ...sliders.settings(), min_p: decode.min_p ?? 0 });
  const repeats = decode.repetition_penalty !== 1 || decode.no_repeat_ngram
    ? h("p", { class: "small soft" }, t("The recipe of this model also penalises repetition when generating; the bars do not include that."))
    : null;
  const element = h(
    "section",
    { class: "card sampling", "aria-label": t("Next token") },
    h("h2", null, t("Next token")),
    after, chart.element, summary,
    sliders.element,
    repeats,
  );
  return {
    element,
    settings,
    /** Show the logits of every piece after this text. */
    show(logits, pieces, text) {
      Object.assign(state, { logits, pieces, shares: softmax(logits) });
      replace(after, `${t("after")} `, h("q", { dir: "auto" }, samplingTail(text)));
      element.removeAttribute("aria-busy");
      draw();
    },
    /** While text is generated: the most likely pieces of the last step. */
    live(top, text) {
      state.logits = null;
      replace(after, `${t("chosen in")} `, h("q", { dir: "auto" }, samplingTail(text)));
      element.removeAttribute("aria-busy");
      chart.set({ items: top.map(({ piece, share }) => ({ label: visible(piece), value: share })), full: Math.max(...top.map(({ share }) => share), 0.05) });
      replace(summary, t("The most likely pieces of each step, as it is generated."));
    },
    /** Mark the numbers as outdated: the text has changed. */
    wait() {
      element.setAttribute("aria-busy", "true");
    },
  };
}

function samplingTail(text) {
  const tail = Array.from(text).slice(-36).join("");
  const shown = tail.replaceAll("\n", "⏎").replace(/ $/, "·");
  return tail.length < text.length ? `…${shown}` : shown;
}

function samplingDraw(state, chart, summary, how) {
  const { logits, pieces, shares } = state;
  const probabilities = samplingProbabilities(logits, { temperature: how.temperature, topK: how.top_k, topP: how.top_p, minP: how.min_p });
  const order = Array.from(logits.keys()).sort((a, b) => logits[b] - logits[a] || a - b).slice(0, SAMPLING_SHOWN);
  const items = order.map((i) => ({
    label: visible(pieces[i] ?? `⟨unused ${i}⟩`),
    value: probabilities[i],
    faint: probabilities[i] === 0,
    note: Math.abs(probabilities[i] - shares[i]) > 5e-4 ? t("was {0}", [showPercent(shares[i])]) : "",
  }));
  chart.set({ items, full: Math.max(...items.map((item) => item.value), 0.05) });
  const kept = probabilities.reduce((count, share) => count + (share > 0), 0);
  const choices = Math.exp(entropy(probabilities));
  replace(summary, t("{0} of {1} pieces can be sampled; perplexity {2}. “Was”: before temperature, top-k and top-p.", [showCount(kept), showCount(logits.length), choices < 10 ? choices.toFixed(1) : showCount(Math.round(choices))]));
}
