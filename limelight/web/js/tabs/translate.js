// Translate: the result as you type, alternatives at every word, and its attention to the source.

import { wasReplaced } from "../core/api.js";
import { copyButton } from "../bench/share.js";
import { button, h, replace } from "../core/dom.js";
import { showCount, showPercent } from "../core/numbers.js";
import { reading } from "../core/page.js";
import { afterPause, postLatest, cancelRequests } from "../core/requests.js";
import { onSelect, select, selected } from "../core/state.js";
import { tagChooser, tagNow } from "../core/tag.js";
import { weightLine, wordWeights, weightsText, wordsIn } from "../core/words.js";
import { hypothesesTable, beamSearchPanel } from "./beamResult.js";
import { translationWords } from "./translationView.js";
import { t } from "../core/texts.js";

const TRANSLATE_OTHERS = 3;
const TRANSLATE_MOST = 2000; // characters
const TRANSLATE_SLOW = 2000; // milliseconds, after which one can cancel

export const translateTab = {
  id: "translate",
  title: "Translate",
  fits: (model, page) => model.abilities.includes("translate") && model.kind !== "dialogues" && !page.offline,
  mount(container, page) {
    const view = translateView(page);
    container.classList.add("use");
    replace(container, translateLayout(view));
    view.home = container;
    const unsubscribe = onSelect((now, before) => {
      if ((now.prefix ?? "") !== view.prefix && now.text === before.text) {
        view.prefix = now.prefix ?? "";
        translateAsk(view);
        return;
      }
      const another = now.text !== before.text && now.text !== view.field.value;
      if (!another && (!view.tag || view.tag.value === tagNow(page))) return;
      view.field.value = translateText(page);
      if (view.tag) view.tag.value = tagNow(page);
      translateBegin(view);
    });
    translateAsk(view);
    return () => {
      unsubscribe();
      view.pause.cancel();
      cancelRequests(page, "translate", "translate-more");
    };
  },
};

function translateView(page) {
  const view = {
    page,
    prefix: selected().prefix ?? "", // fixed beginning of the translation, chosen by the user
    answer: null,
    reads: null, // the source as words with their weights
    field: h("textarea", {
      class: "field prose-field", id: "sentence", name: "source", rows: "3", dir: "auto",
      spellcheck: "false", "aria-label": t("Text to translate"), value: translateText(page),
    }),
    source: h("div", { class: "under" }),
    counter: h("p", { class: "small soft counter" }),
    result: h("div", { class: "result", "aria-busy": "true" }, reading(t("translating"))),
    search: h("div", { class: "search" }),
    tag: tagChooser(page, () => translateBegin(view)),
  };
  view.pause = afterPause(() => translateBegin(view));
  view.field.addEventListener("input", () => {
    translateCount(view);
    view.result.setAttribute("aria-busy", "true");
    view.pause.soon();
  });
  return view;
}

function translateLayout(view) {
  return [
    h("h1", { class: "unseen" }, t("Translate")),
    h(
      "div",
      { class: "two-sides" },
      h("section", { class: "card", "aria-label": t("Source") }, h("div", { class: "card-head" }, h("h2", null, t("Source")), view.tag), view.field, view.counter, view.source),
      h("section", { class: "card", "aria-label": t("Translation") }, h("div", { class: "card-head" }, h("h2", null, t("Translation"))), view.result),
    ),
    view.search,
  ];
}

/** How long the text is, from half of the limit on. */
function translateCount(view) {
  const { length } = view.field.value;
  view.counter.textContent = length > TRANSLATE_MOST / 2 ? t("{0} of {1} characters", [length, TRANSLATE_MOST].map(showCount)) : "";
  view.counter.classList.toggle("bad", length > TRANSLATE_MOST);
}

/** A text beyond the limit is not cut in silence. */
function translateTooLong(view, text) {
  const cut = () => {
    view.field.value = text.slice(0, TRANSLATE_MOST).replace(/\s+\S*$/, "");
    translateBegin(view);
  };
  const words = text.trim().split(/\s+/).length;
  replace(
    view.result,
    h("p", null, `${t("This text has {0} characters ({1} words); the page translates {2} at most. For files, use:", [text.length, words, TRANSLATE_MOST].map(showCount))} `, h("code", null, "limelight translate --input FILE")),
    button(t("Translate the beginning"), cut, { class: "button primary" }),
  );
}

function translateText(page) {
  return selected().text ?? page.example?.text ?? "";
}

/** A new text or tag: drop the state of the old one. */
function translateBegin(view) {
  view.prefix = "";
  const text = view.field.value;
  const inLink = text.length <= TRANSLATE_MOST ? { text } : {}; // a link has its limits too
  select({ ...inLink, target: null, prefix: null, query: null, key: null, step: null }, { replace: true });
  translateAsk(view);
}

async function translateAsk(view) {
  const { page } = view;
  const text = view.field.value;
  cancelRequests(page, "translate-more");
  if (!text.trim()) {
    cancelRequests(page, "translate");
    view.answer = null;
    replace(view.source);
    replace(view.search);
    replace(view.result, h("p", { class: "soft" }, t("Type a sentence to translate it.")));
    return;
  }
  translateCount(view);
  if (text.length > TRANSLATE_MOST) {
    cancelRequests(page, "translate");
    view.result.removeAttribute("aria-busy");
    translateTooLong(view, text);
    return;
  }
  view.result.setAttribute("aria-busy", "true");
  const slow = setTimeout(() => translateWaiting(view), TRANSLATE_SLOW);
  try {
    view.answer = await translateWithAll(view, text);
    translateShow(view);
  } catch (error) {
    if (wasReplaced(error)) return; // a newer request is still running
    view.page.showError(view.result, error, () => translateAsk(view));
  } finally {
    clearTimeout(slow);
  }
  view.result.removeAttribute("aria-busy");
}

/** An answer that takes long can be cancelled. */
function translateWaiting(view) {
  const cancel = () => {
    cancelRequests(view.page, "translate");
    view.result.removeAttribute("aria-busy");
    replace(view.result, h("p", { class: "soft" }, t("Cancelled.")), button(t("Translate"), () => translateAsk(view)));
  };
  replace(view.result, reading(t("translating")), button(t("Cancel"), cancel));
}

/** Request alignment and search tree too; a long text, or a model without attention, has none. */
async function translateWithAll(view, text) {
  const request = translateRequest(view, text);
  const { model } = view.page;
  const { beam, temperature } = model.decode;
  try {
    const alignment = model.family === "encoder-decoder"; // others have no cross-attention
    const all = { ...request, alignment, tree: beam > 1 && !temperature };
    const answer = await postLatest(view.page, "translate", "/api/translate", all);
    return { ...answer, request, note: "" };
  } catch (error) {
    if (error.status !== 400) throw error;
    const answer = await postLatest(view.page, "translate", "/api/translate", request);
    return { ...answer, request, note: error.message };
  }
}

function translateRequest(view, text) {
  const { beam, temperature } = view.page.model.decode;
  const nbest = temperature ? 1 : Math.min(beam, TRANSLATE_OTHERS);
  return { text, nbest, ...(view.prefix ? { prefix: view.prefix } : {}), ...(view.tag ? { tag: view.tag.value } : {}) };
}

function translateShow(view) {
  const { answer, page } = view;
  const [best] = answer.outputs;
  replace(view.source);
  view.reads = null;
  if (answer.alignment) {
    const words = wordsIn(answer.alignment.source);
    view.reads = { words, line: weightLine(words, t("Source tokens")) };
    replace(view.source, h("h3", { class: "label" }, t("Attention to the source")), view.reads.line.element);
  }
  const use = { page, home: view.home, light: (word, aloud) => translateLight(view, word, aloud), force: (prefix) => translateForce(view, prefix) };
  const words = answer.parts === 1 && best ? translationWords(answer, use) : h("p", { class: "prose", dir: "auto" }, answer.text);
  view.hint = h("p", { class: "hint small soft" }, translateHint(answer));
  replace(view.result, words, translateTools(view), view.hint, answer.outputs.length > 1 ? hypothesesTable(answer.request.text, answer.outputs) : null);
  replace(view.search, answer.tree?.length ? beamSearchPanel(answer.tree, best.tokens, `${page.model.name}: “${answer.request.text}”`) : null);
  page.say(t("translation: {0}", [answer.text]));
}

function translateHint(answer) {
  if (answer.parts > 1) return t("The text exceeds the context of the model: it was translated in {0} parts.", [answer.parts]);
  if (!answer.alignment && !answer.note) return t("Click a word for alternatives. Dotted words have a probability below 50%.");
  if (answer.note) return `${answer.note[0].toUpperCase()}${answer.note.slice(1)}.`;
  return t("Point at a word to see its attention to the source; click it for alternatives. Dotted words have a probability below 50%.");
}

/** Highlight the attention of a word to the source: the mean over its pieces. */
function translateLight(view, word, aloud = false) {
  const { alignment } = view.answer;
  const rows = word && alignment ? word.positions.map((container) => alignment.weights[container]).filter(Boolean) : [];
  view.hint.textContent = translateHint(view.answer);
  if (!rows.length) {
    view.reads?.line.show(null);
    return;
  }
  const shares = alignment.source.map((_, s) => rows.reduce((sum, row) => sum + row[s], 0) / rows.length);
  const ofWords = wordWeights(view.reads.words, shares);
  view.reads.line.show(ofWords);
  const sure = word.given ? t("fixed by you") : t("probability {0}", [showPercent(word.probability)]);
  view.hint.textContent = t("“{0}”: {1}. Attention to the source, averaged over all heads.", [word.text.trim(), sure]);
  if (aloud) view.page.say(t("{0} attends to {1}", [word.text.trim(), weightsText(view.reads.words, ofWords)]));
}

/** Fix the beginning of the translation; the model continues it. */
function translateForce(view, prefix) {
  view.prefix = prefix;
  select({ text: view.field.value, prefix: prefix || null });
  translateAsk(view).then(() => {
    view.page.say(t("fixed; the translation is now: {0}", [view.answer?.text ?? ""]));
    view.result.querySelector(".word.given:last-of-type, .word")?.focus();
  });
}

function translateTools(view) {
  const { answer, page } = view;
  const target = answer.request.prefix ? answer.text : null;
  return h(
    "div",
    { class: "row" },
    button(t("Explain this"), () => select({ tab: "explain", text: answer.request.text, target }), { class: "button primary" }),
    answer.request.prefix ? button(t("Remove the fixed words"), () => translateForce(view, "")) : null,
    copyButton(page, t("Copy"), () => answer.text, { class: "button quiet" }),
  );
}
