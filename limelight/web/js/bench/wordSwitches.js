// Words to hide and to force, and a form for any other value.

import { button, h } from "../core/dom.js";
import { showPercent } from "../core/numbers.js";
import { changeAt, toggleChange } from "./changes.js";
import { t } from "../core/texts.js";

const WORDS_OFFERED = 6;

/**
 * What the model reads; a click hides a token, as if it were padding.
 * @param {Object} manifest
 */
export function sourceSwitches(manifest) {
  const prompt = !manifest.source.ids.length;
  const { labels } = prompt ? manifest.target : manifest.source;
  const count = prompt ? manifest.given + 1 : labels.length;
  const chips = labels.slice(0, count).map((label, i) => {
    const place = `source:${i + 1}`;
    const hidden = changeAt(place) !== null;
    return h("button", { type: "button", class: hidden ? "chip gone-word" : "chip", role: "switch", "aria-checked": String(!hidden), "aria-label": t("{0}, token {1} of the source", [label, i + 1]), dir: "auto", dataset: { key: place }, on: { click: () => toggleChange(`${place}=hide`) } }, label);
  });
  return [h("p", { class: "label" }, t("reads: a click hides a token")), h("div", { class: "chips" }, chips)];
}

/**
 * The generated tokens; each one opens a list of the most likely others and a field for any word.
 * @param {Object} manifest of the unchanged model
 */
export function targetChoices(manifest) {
  const { steps, answers, target } = manifest;
  if (!target.ids.length || !steps.length) return null;
  const spaced = steps.some(({ chosen }) => chosen[1].startsWith(" "));
  const menus = steps.map((step, i) => {
    const place = `target:${i + 1}`;
    const forced = changeAt(place);
    const force = (word) => toggleChange(`${place}=${word}`);
    const others = step.top
      .map(([, piece, share]) => ({ word: piece.trim(), share, fits: !spaced || i === 0 || piece.startsWith(" ") }))
      .filter(({ word, fits }) => fits && word && !/^[⟨<].*[⟩>]$/.test(word))
      .slice(0, WORDS_OFFERED);
    const field = h("input", { class: "field small-field", type: "text", placeholder: t("another word"), "aria-label": t("Another word as token {0}", [i + 1]), maxlength: "60" });
    return h(
      "details",
      { class: "force", name: "force" },
      h("summary", { class: forced ? "chip forced" : "chip", dir: "auto", dataset: { key: place }, "aria-label": t("{0}, token {1} that is generated", [answers.labels[step.row], i + 1]) }, forced ?? answers.labels[step.row]),
      h(
        "div",
        { class: "popover force-menu" },
        others.map(({ word, share }) => button([word, " ", showPercent(share)].join(""), () => force(word), { class: "chip", "aria-pressed": String(word === forced) })),
        h("form", { class: "row", on: { submit: (event) => { event.preventDefault(); if (field.value.trim()) force(field.value.trim()); } } }, field, h("button", { class: "button small", type: "submit" }, t("Force"))),
      ),
    );
  });
  return [h("p", { class: "label" }, t("generates: a click forces another word")), h("div", { class: "chips" }, menus)];
}

/**
 * Any value by its name: zero, scaled, or copied from another sentence.
 * @param {Object} manifest
 */
export function valueForm(manifest) {
  const names = Object.keys(manifest.tensors);
  const value = h("input", { class: "field", list: "bench-values", value: names.find((name) => name.endsWith("norm")) ?? names[0], "aria-label": t("Value"), maxlength: "100" });
  const action = h("select", { class: "field", "aria-label": t("Action") }, [["zero", t("set to 0")], ["scale", t("scale by")], ["from", t("copy from the text")]].map(([id, label]) => h("option", { value: id }, label)));
  const more = h("input", { class: "field", type: "text", "aria-label": t("Factor or text"), maxlength: "400", hidden: true });
  action.addEventListener("change", () => {
    more.hidden = action.value === "zero";
    more.value = action.value === "scale" ? "0.5" : "";
  });
  const submit = (event) => {
    event.preventDefault();
    const what = action.value === "zero" ? "zero" : `${action.value}:${more.value.trim()}`;
    if (!what.endsWith(":")) toggleChange(`${value.value.trim()}=${what}`);
  };
  return h(
    "form",
    { class: "row value-form", on: { submit } },
    h("span", { class: "soft small" }, t("a value")),
    value,
    h("datalist", { id: "bench-values" }, names.map((name) => h("option", { value: name }))),
    action, more,
    h("button", { class: "button", type: "submit" }, t("Change")),
  );
}
