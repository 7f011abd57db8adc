// How a head spreads its attention, and the other heads of its layer when somebody asks.

import { plainTable } from "../charts/table.js";
import { button, h, replace } from "../core/dom.js";
import { makerOf } from "../core/focus.js";
import { show } from "../core/numbers.js";
import { reading } from "../core/page.js";
import { linkTo } from "../core/state.js";
import { headPart, spreadOf } from "./heads.js";

/**
 * @param {Object} page
 * @param {Object} trace
 * @param {{block: Object, layer: number, head: number, weights: Object}} data
 * @returns {HTMLElement[]}
 */
export function headStats(page, trace, { block, layer, head, weights }) {
  const spread = spreadOf(weights);
  const most = show(Math.log(weights.shape[1]), 2);
  const others = h("div", {});
  const showAll = () => headStatsOfLayer(page, trace, { container: others, at: block.layers[layer - 1], layer });
  const { stage } = makerOf(trace.manifest, `${block.layers[layer - 1]}.weights`);
  const there = linkTo({ tab: "explain", stage, side: block.id, step: null, layer, head });
  return [
    h(
      "p",
      { class: "attention-entropy" },
      `Entropy of this head: ${show(spread.entropy, 2)} nats of at most ${most}. `,
      `It looks at about ${show(spread.words, 1)} pieces at a time.`,
    ),
    h("p", { class: "small" }, h("a", { href: there }, "See how these weights are computed")),
    button(`All heads of layer ${layer}`, showAll, { class: "button attention-compare" }),
    others,
  ];
}

async function headStatsOfLayer(page, trace, { container, at, layer }) {
  replace(container, reading("reading all heads of this layer"));
  try {
    const all = await page.busy(trace.tensor(`${at}.weights`, { as: "f16" }));
    const rows = Array.from({ length: all.shape[0] }, (_, i) => {
      const spread = spreadOf(headPart(all, i + 1));
      return [String(i + 1), show(spread.entropy, 2), show(spread.words, 1)];
    });
    const caption = `Layer ${layer}: how widely each head looks`;
    replace(container, plainTable({ caption, head: ["head", "entropy", "pieces"], rows }));
  } catch (error) {
    page.showError(container, error, () => headStatsOfLayer(page, trace, { container, at, layer }));
  }
}
