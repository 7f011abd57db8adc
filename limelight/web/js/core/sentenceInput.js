// The text to inspect: an input field, and below it what the model read and generated.

import { button, h, replace } from "./dom.js";
import { sampleFrom } from "./sample.js";
import { onSelect, select, selected } from "./state.js";
import { tagChooser, tagNow } from "./tag.js";
import { t } from "./texts.js";

/**
 * A field for the text, shared by Explain and Attention. In an exported file the text is fixed.
 * @param {Object} page
 * @returns {{element: HTMLElement, leave: function(): void}}
 */
export function sentenceInput(page) {
  if (page.offline) return { element: sentenceFixed(page), leave: () => {} };
  const field = h("input", {
    class: "field sentence-text",
    type: "text",
    id: "sentence",
    name: "sentence",
    autocomplete: "off",
    spellcheck: "false",
    maxlength: "2000",
    required: "",
    pattern: ".*\\S.*",
    title: t("Type a text first"),
    dir: "auto",
    value: sentenceNow(page),
    "aria-label": t("Text to inspect"),
  });
  const tag = tagChooser(page);
  const changes = h("div", { class: "sentence-changes" });
  const remove = () => select({ change: null, sample: null });
  const showChanges = () => replace(changes, sentenceChanges(sentenceChanged(), remove));
  showChanges();
  const form = h(
    "form",
    { class: "sentence", role: "search", on: { submit: (event) => sentenceSent(event, field) } },
    field,
    tag,
    h("button", { class: "button primary", type: "submit" }, t("Inspect")),
    changes,
  );
  const leave = onSelect((now, before) => {
    if (now.text !== before.text) field.value = sentenceNow(page);
    if (tag) tag.value = tagNow(page);
    if (now.change !== before.change || now.sample !== before.sample) showChanges();
  });
  return { element: form, leave };
}

/**
 * What was read and what was generated, as chips; a click chooses a word.
 * @param {Object} manifest
 * @param {{source: ?number, target: ?number, side?: string}} chosen `side`: the stack in focus
 * @param {function(string, number): void} onWord side and position
 */
export function sentenceWords(manifest, chosen, onWord) {
  const { source, target, answers, given } = manifest;
  const rows = [];
  if (source.ids.length) {
    rows.push(sentenceRow(t("reads"), "encoder", source, chosen.source, chosen.side !== "decoder", onWord));
  }
  if (target.ids.length) {
    const label = source.ids.length ? t("generates") : given < target.ids.length - 1 ? t("reads, generates") : t("reads");
    const row = sentenceRow(label, "decoder", target, chosen.target, chosen.side !== "encoder", onWord, given);
    if (answers.ids.length === target.ids.length) {
      row.lastChild.append(h("span", { class: "chip last written" }, answers.labels[answers.ids.length - 1]));
    }
    rows.push(row);
  }
  return h("div", { class: "sentence-words" }, rows);
}

function sentenceRow(label, side, words, chosen, matters, onWord, given = Infinity) {
  const chips = words.labels.map((text, i) =>
    button(text, () => onWord(side, i), {
      class: `chip${words.special[i] ? " special" : ""}${i > given ? " written" : ""}${matters ? "" : " inactive"}`,
      "aria-pressed": i === chosen ? "true" : "false",
      "aria-label": t("{0}, position {1}", [words.pieces[i], i]),
      dir: "auto",
      dataset: { word: `${side}:${i}` },
      title: side === "decoder" && i === 0 && words.special[i] ? t("the mark at the beginning: every text starts with it") : null,
    }),
  );
  return h("div", { class: "sentence-row" }, h("span", { class: "soft small" }, label), h("div", { class: "chips" }, chips));
}

function sentenceNow(page) {
  return selected().text ?? page.example?.text ?? "";
}

function sentenceSent(event, field) {
  event.preventDefault();
  const text = field.value;
  if (!text.trim()) {
    field.focus();
    return;
  }
  select({ text, target: null, query: null, key: null, step: null });
}

function sentenceChanged() {
  const { change, sample } = selected();
  const how = sampleFrom(sample);
  return [
    how && (how.temperature ? t("sampled: temperature {0}, top-k {1}, top-p {2}, seed {3}", [how.temperature, how.top_k || t("all"), how.top_p, how.seed]) : t("greedy")),
    ...(change?.split("\n") ?? []),
  ].filter(Boolean);
}

/** A line that nobody misses: these are not the numbers of the model as it was trained. */
function sentenceChanges(changes, onRemove) {
  if (!changes?.length) return null;
  return h("p", { class: "changed" }, h("strong", null, t("Changed:"), " "), changes.join("  "), onRemove ? button(t("Remove"), onRemove) : null);
}

function sentenceFixed(page) {
  const element = h("div", { class: "sentence-fixed", dir: "auto" }, "…");
  page.trace().then(({ manifest }) => replace(element, `“${manifest.text}”`, sentenceChanges(manifest.changes)), () => {});
  return element;
}
