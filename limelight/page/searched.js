// What a beam found, and how it searched.

import { beamTable, beamTree } from "./beam.js";
import { h } from "./dom.js";
import { show, showPercent, total } from "./numbers.js";
import { linkTo } from "./state.js";

/**
 * The best texts with their scores; each leads to its explanation.
 * @param {string} text the source
 * @param {{text: string, score: number, logprobs: number[]}[]} outputs the best first
 * @returns {HTMLElement}
 */
export function bestFound(text, outputs) {
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
    { class: "best-found" },
    h("div", { class: "scroller" }, h("table", { class: "table" }, h("thead", null, head), h("tbody", null, rows))),
    h("p", { class: "small soft" }, "Probability: of the whole text, all its pieces multiplied. Score: the logarithm of that over the length penalty; the highest wins."),
  );
}

/**
 * The search step by step, as a tree and as a table.
 * @param {Object[][]} tree
 * @param {string[]} best the pieces of the text that won
 * @returns {HTMLElement}
 */
export function howSearched(tree, best) {
  return h(
    "details",
    { class: "panel fold", open: true },
    h("summary", null, h("h2", null, "How the beam searched")),
    h("p", { class: "small soft" }, `Each column is a step: the ${tree[0].length} best beginnings so far, each going on from one of the step before. The number is how likely the piece was there. Dashed: a text that ended. The thick way won.`),
    beamTree(tree, best),
    h("details", { class: "small" }, h("summary", null, "Show as table"), beamTable(tree)),
  );
}
