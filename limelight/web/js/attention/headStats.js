// The entropy of a head, and of all heads of its layer on demand.

import { plainTable } from "../charts/table.js";
import { button, h, replace } from "../core/dom.js";
import { makerOf } from "../core/focus.js";
import { show } from "../core/numbers.js";
import { reading } from "../core/page.js";
import { linkTo } from "../core/state.js";
import { headPart, spreadOf } from "./heads.js";
import { t } from "../core/texts.js";

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
      t("Mean entropy of this head: {0} nats (maximum {1}).", [show(spread.entropy, 2), most]),
      ` ${t("Each query attends to about {0} pieces.", [show(spread.words, 1)])}`,
    ),
    h("p", { class: "small" }, h("a", { href: there }, t("See how these weights are computed"))),
    button(t("All heads of layer {0}", [layer]), showAll, { class: "button attention-compare" }),
    others,
  ];
}

async function headStatsOfLayer(page, trace, { container, at, layer }) {
  replace(container, reading(t("loading all heads of this layer")));
  try {
    const all = await page.busy(trace.tensor(`${at}.weights`, { as: "f16" }));
    const rows = Array.from({ length: all.shape[0] }, (_, i) => {
      const spread = spreadOf(headPart(all, i + 1));
      return [String(i + 1), show(spread.entropy, 2), show(spread.words, 1)];
    });
    const caption = t("Layer {0}: mean entropy of each head", [layer]);
    replace(container, plainTable({ caption, head: [t("head"), t("entropy"), t("effective pieces")], rows }));
  } catch (error) {
    page.showError(container, error, () => headStatsOfLayer(page, trace, { container, at, layer }));
  }
}
