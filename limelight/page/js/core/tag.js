// What is asked of a model that learned several things: its tag goes before every source.

import { h } from "./dom.js";
import { select, selected } from "./state.js";

/**
 * The tag that holds now; "" for a model without any.
 * @param {{model: Object, example: ?Object}} page
 * @returns {string}
 */
export function tagNow({ model, example }) {
  const { tags = [] } = model;
  return tags.includes(selected().tag) ? selected().tag : example?.tag || (tags[0] ?? "");
}

/**
 * A chooser that all tabs share what is chosen in; null where there is nothing to choose.
 * @param {Object} page
 * @param {function(): void} [onChange]
 * @returns {?HTMLSelectElement}
 */
export function tagChooser(page, onChange = () => {}) {
  const { tags } = page.model;
  if (tags.length < 2) return null;
  const change = () => {
    select({ tag: choose.value, target: null, query: null, key: null, step: null });
    onChange();
  };
  const choose = h(
    "select",
    { class: "field", "aria-label": "What is asked of the model", on: { change } },
    tags.map((tag) => h("option", { value: tag, selected: tag === tagNow(page) }, `→ ${tag}`)),
  );
  return choose;
}
