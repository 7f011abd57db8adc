// The tag of a model trained on several tasks; it is put before every source.

import { h } from "./dom.js";
import { select, selected } from "./state.js";
import { language } from "./texts.js";
import { t } from "./texts.js";

/**
 * The chosen tag; "" for a model without tags.
 * @param {{model: Object, example: ?Object}} page
 * @returns {string}
 */
export function tagNow({ model, example }) {
  const { tags = [] } = model;
  return tags.includes(selected().tag) ? selected().tag : example?.tag || (tags[0] ?? "");
}

/**
 * A chooser whose choice all tabs share; null where there is nothing to choose.
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
    { class: "field", "aria-label": t("Task tag"), on: { change } },
    tags.map((tag) => h("option", { value: tag, selected: tag === tagNow(page) }, `→ ${tagName(tag)}`)),
  );
  return choose;
}

/** A language by its name: "German" for de. */
function tagName(tag) {
  return /^[a-z]{2}$/.test(tag) ? new Intl.DisplayNames([language()], { type: "language" }).of(tag) : tag;
}
