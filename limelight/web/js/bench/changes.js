// Changes of the model as the URL has them: one line each, in the grammar of `explain --change`.

import { select, selected } from "../core/state.js";
import { t } from "../core/texts.js";

/** The changes that are selected. @returns {string[]} */
export function changesNow() {
  return selected().change?.split("\n") ?? [];
}

/**
 * Add a change, or take it back if it is there. A place has one change: a new one replaces the old one.
 * @param {string} spelling
 * @param {Object} [others] more to select
 */
export function toggleChange(spelling, others = {}) {
  const place = changePlace(spelling);
  const rest = changesNow().filter((one) => changePlace(one) !== place);
  const list = changesNow().includes(spelling) ? rest : [...rest, spelling];
  select({ ...others, change: list.join("\n") || null });
}

/**
 * What is done to a place: "off", "uniform", or null.
 * @param {string} place such as decoder.0.cross@3 or source:2
 */
export function changeAt(place) {
  const found = changesNow().find((one) => changePlace(one) === place);
  return found ? found.slice(place.length + 1) : null;
}

/**
 * A change in words; layers count from 1, as everywhere on the page.
 * @param {string} spelling
 * @param {{source: string[]}} labels of the tokens
 */
export function changeInWords(spelling, labels) {
  const [, where, what] = spelling.match(/^([^=]*)=(.*)$/s) ?? [spelling, spelling, ""];
  const [, side, position] = where.match(/^(source|target):(\d+)$/) ?? [];
  if (side === "source") return t("“{0}” hidden", [(labels.source[position - 1] ?? position).replace(/^·/, "")]);
  if (side === "target") return t("token {0} is “{1}”", [position, what]);
  const [, stack, layer, part, head] = where.match(/^(encoder|decoder)\.(\d+|\*)(?:\.(.*?))?(?:@(\d+))?$/) ?? [];
  if (!stack) return spelling;
  const at = layer === "*" ? t("all layers") : t("layer {0}", [Number(layer) + 1]);
  if (part === "self.masked" && what === "off") return t("no look-ahead mask, {0}", [at]);
  const names = { self: "self-attention", cross: "cross-attention", feed_forward: "feed-forward" };
  return [stack, at, part ? (names[part] ?? part) : null, head ? t("head {0}", [head]) : null].filter(Boolean).join(" ") + `: ${what}`;
}

function changePlace(spelling) {
  return spelling.split("=", 1)[0];
}
