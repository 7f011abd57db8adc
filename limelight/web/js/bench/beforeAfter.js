// Before and after a change, side by side: the text, the probability of each token, one attention matrix.

import { headOf } from "../attention/heads.js";
import { matrix } from "../charts/matrix.js";
import { h } from "../core/dom.js";
import { showPercent } from "../core/numbers.js";
import { t } from "../core/texts.js";

/**
 * Two texts; words that are only in one of them are marked.
 * @param {{title: string, text: string}} before
 * @param {{title: string, text: string}} after
 */
export function twoTexts(before, after) {
  const [old, now] = textsDifference(before.text, after.text);
  const line = ({ title }, parts, side) => h(
    "div",
    { class: `two-text ${side}` },
    h("span", { class: "label" }, title),
    h("p", { class: "prose", dir: "auto" }, parts.map(({ word, only }) => (only ? h("mark", null, word) : word))),
  );
  return h("div", { class: "two-texts" }, line(before, old, "before"), line(after, now, "after"));
}

/** Words (with the spaces between them) of two texts, and whether each is in only one of them. */
function textsDifference(a, b) {
  const [old, now] = [a, b].map((text) => text.match(/\s+|[^\s]+/g) ?? []);
  const best = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1));
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) best[i][j] = old[i] === now[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
  }
  const found = [[], []];
  const put = (side, word, only) => found[side].push({ word, only: only && word.trim() !== "" });
  let [i, j] = [0, 0];
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      put(0, old[i], false);
      put(1, now[j], false);
      i += 1;
      j += 1;
    } else if (j >= now.length || (i < old.length && best[i + 1][j] >= best[i][j + 1])) put(0, old[i++], true);
    else put(1, now[j++], true);
  }
  return found;
}

/**
 * The tokens of the unchanged answer (or classes), with their probability in both models.
 * @param {[string, number, number, string][]} tokens
 * @param {?[string, string]} names of the two; null: there is one model only
 */
export function twoProbabilities(tokens, names = [t("before"), t("after")]) {
  const one = names === null;
  const bar = (share, kind) => h("span", { class: `pair-bar ${kind}`, style: { "--share": share } });
  const rows = tokens.map(([token, before, after, instead]) => h(
    "tr",
    { class: Math.abs(after - before) >= 0.05 ? "moved" : null },
    h("th", { scope: "row", class: "pair-token", dir: "auto" }, token),
    h("td", { class: "pair-bars", "aria-hidden": "true" }, one ? null : bar(before, "before"), bar(after, "after")),
    one ? null : h("td", { class: "n" }, showPercent(before)),
    h("td", { class: "n" }, showPercent(after)),
    one ? null : h("td", { class: "small", dir: "auto" }, instead === token ? "" : instead),
  ));
  return h(
    "table",
    { class: "table pair-table" },
    h("thead", null, h("tr", null, h("th", { scope: "col" }, t("token")), h("td", null), one ? h("th", { scope: "col", class: "n" }, t("probability")) : [h("th", { scope: "col", class: "n" }, names[0]), h("th", { scope: "col", class: "n" }, names[1]), h("th", { scope: "col" }, t("now most likely"))])),
    h("tbody", null, rows),
  );
}

/**
 * The attention of one head in two traces, on one scale.
 * @param {{trace: Object, title: string, block: Object, layer: number, head: number}[]} sides
 */
export async function twoMatrices(sides) {
  const found = [];
  for (const side of sides) found.push(await headOf(side.trace, side.block, side.layer, side.head));
  return h("div", { class: "two-matrices" }, found.map((head, i) => {
    const { queries, keys, next, weights, hidden, scores } = head;
    const made = matrix({
      rows: queries.labels, columns: keys.labels, next, values: weights.values, hidden,
      scale: { kind: "share", low: 0, high: 1 }, sums: true, title: sides[i].title,
      labels: { row: "query", column: "key", value: "weight" }, also: scores ? [{ name: "score", values: scores }] : [],
      credit: `${sides[i].title} · Limelight`,
    });
    return made.element;
  }));
}
