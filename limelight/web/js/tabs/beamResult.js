// The result of beam search: the best hypotheses and the search tree.

import { beamTable, beamTree } from "../charts/beam.js";
import { saveSvgAsPng } from "../charts/savePng.js";
import { button, h } from "../core/dom.js";
import { show, showPercent, total } from "../core/numbers.js";
import { linkTo } from "../core/state.js";
import { t } from "../core/texts.js";

/**
 * The best hypotheses with their scores, linked to Explain.
 * @param {string} text the source
 * @param {{text: string, score: number, logprobs: number[]}[]} outputs the best first
 * @returns {HTMLElement}
 */
export function hypothesesTable(text, outputs) {
  const rows = outputs.map((output) =>
    h(
      "tr",
      null,
      h("td", { class: "prose-cell", dir: "auto" }, h("a", { href: linkTo({ tab: "explain", text, target: output.text }) }, output.text || "(empty)")),
      h("td", { class: "n" }, showPercent(Math.exp(total(output.logprobs)))),
      h("td", { class: "n" }, show(output.score)),
    ),
  );
  const head = h("tr", null, h("th", { scope: "col" }, t("{0} best hypotheses", [outputs.length])), h("th", { class: "n", scope: "col" }, t("probability")), h("th", { class: "n", scope: "col" }, t("score")));
  return h(
    "div",
    { class: "hypotheses" },
    h("div", { class: "scroller" }, h("table", { class: "table" }, h("thead", null, head), h("tbody", null, rows))),
    h("p", { class: "small soft" }, t("Probability: the product over all pieces. Score: the log-probability divided by the length penalty; the highest score wins.")),
  );
}

/**
 * The search step by step, as a tree, a table and a PNG.
 * @param {Object[][]} tree
 * @param {string[]} best the pieces of the best hypothesis
 * @param {string} credit which model searched, and for what
 * @returns {HTMLElement}
 */
export function beamSearchPanel(tree, best, credit) {
  const drawing = beamTree(tree, best);
  const save = () => saveSvgAsPng(drawing.querySelector("svg"), { title: t("Beam search"), credit });
  return h(
    "details",
    { class: "panel fold", open: true },
    h("summary", null, h("h2", null, t("Beam search"))),
    h("p", { class: "small soft" }, t("Each column is a step with the {0} best hypotheses (beam size {0}); each continues one of the previous step. The percentage is the probability of the piece. Dashed: finished hypotheses. Thick line: the best one.", [tree[0].length])),
    drawing,
    button(t("Save PNG"), save, { class: "button quiet small" }),
    beamResultTable(tree),
  );
}

/** The table is built on demand. */
function beamResultTable(tree) {
  const fold = h("details", { class: "small" }, h("summary", null, t("Show as table")));
  fold.addEventListener("toggle", () => fold.append(beamTable(tree)), { once: true });
  return fold;
}
