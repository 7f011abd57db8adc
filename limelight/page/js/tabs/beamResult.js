// What a beam found, and how it searched.

import { beamTable, beamTree } from "../charts/beam.js";
import { saveSvgAsPng } from "../charts/savePng.js";
import { button, h } from "../core/dom.js";
import { show, showPercent, total } from "../core/numbers.js";
import { linkTo } from "../core/state.js";

/**
 * The best texts with their scores; each leads to its explanation.
 * @param {string} text the source
 * @param {{text: string, score: number, logprobs: number[]}[]} outputs the best first
 * @returns {HTMLElement}
 */
export function hypothesesTable(text, outputs) {
  const rows = outputs.map((output) =>
    h(
      "tr",
      null,
      h("td", { class: "prose-cell", dir: "auto" }, h("a", { href: linkTo({ tab: "explain", text, target: output.text }) }, output.text || "(nothing)")),
      h("td", { class: "n" }, showPercent(Math.exp(total(output.logprobs)))),
      h("td", { class: "n" }, show(output.score)),
    ),
  );
  const head = h("tr", null, h("th", { scope: "col" }, `the beam's ${outputs.length} best`), h("th", { class: "n", scope: "col" }, "probability"), h("th", { class: "n", scope: "col" }, "score"));
  return h(
    "div",
    { class: "hypotheses" },
    h("div", { class: "scroller" }, h("table", { class: "table" }, h("thead", null, head), h("tbody", null, rows))),
    h("p", { class: "small soft" }, "Probability: of the whole text, all its pieces multiplied. Score: the logarithm of that over the length penalty; the highest wins."),
  );
}

/**
 * The search step by step, as a tree, a table and a picture.
 * @param {Object[][]} tree
 * @param {string[]} best the pieces of the text that won
 * @param {string} credit which model searched, and for what
 * @returns {HTMLElement}
 */
export function beamSearchPanel(tree, best, credit) {
  const drawing = beamTree(tree, best);
  const save = () => saveSvgAsPng(drawing.querySelector("svg"), { title: "How the beam searched", credit });
  return h(
    "details",
    { class: "panel fold", open: true },
    h("summary", null, h("h2", null, "How the beam searched")),
    h("p", { class: "small soft" }, `Each column is a step: the ${tree[0].length} best beginnings so far, each going on from one of the step before. The number is how likely the piece was there. Dashed: a text that ended. The thick way won.`),
    drawing,
    button("Save picture", save, { class: "button quiet small" }),
    beamResultTable(tree),
  );
}

/** A table has a row for every place: it is made when somebody wants it. */
function beamResultTable(tree) {
  const fold = h("details", { class: "small" }, h("summary", null, "Show as table"));
  fold.addEventListener("toggle", () => fold.append(beamTable(tree)), { once: true });
  return fold;
}
