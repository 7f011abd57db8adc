// Classify: class probabilities as you type, and the effect of each word.

import { bars } from "../charts/bars.js";
import { button, h, replace } from "../core/dom.js";
import { show, showPercent } from "../core/numbers.js";
import { afterPause, postLatest, cancelRequests } from "../core/requests.js";
import { onSelect, select, selected } from "../core/state.js";
import { segmentsOf } from "../core/words.js";
import { t } from "../core/texts.js";

const CLASSIFY_WORDS = 60; // more words than this are not tested one by one

export const classifyTab = {
  id: "classify",
  title: "Classify",
  fits: (model, page) => model.abilities.includes("classify") && !page.offline,
  mount(container, page) {
    container.classList.add("use");
    const view = classifyView(page);
    replace(container, h("h1", { class: "unseen" }, t("Classify")), classifyLayout(view));
    const unsubscribe = onSelect((now, before) => {
      if (now.text !== before.text && now.text !== null && now.text !== view.field.value) {
        view.field.value = now.text;
        classifyAsk(view);
      }
    });
    classifyAsk(view);
    return () => {
      unsubscribe();
      view.pause.cancel();
      cancelRequests(page, "classify");
    };
  },
};

function classifyView(page) {
  const view = { page, chart: null };
  view.field = h("textarea", {
    class: "field prose-field", id: "sentence", name: "text", rows: "4", maxlength: "2000", dir: "auto", spellcheck: "false",
    "aria-label": t("Text to classify"), value: selected().text ?? page.example?.text ?? "",
  });
  view.found = h("div");
  view.without = h("div");
  view.pause = afterPause(() => classifyAsk(view));
  view.field.addEventListener("input", () => view.pause.soon());
  return view;
}

function classifyLayout(view) {
  const explain = button(t("Explain this"), () => select({ tab: "explain" }), { class: "button primary" });
  return [
    h(
      "div",
      { class: "two-sides" },
      h("section", { class: "card", "aria-label": t("Text") }, h("h2", null, t("Text")), view.field),
      h("section", { class: "card", "aria-label": t("Classes") }, h("h2", null, t("Classes")), view.found, h("div", { class: "row" }, explain)),
    ),
    view.without,
  ];
}

async function classifyAsk(view) {
  const text = view.field.value;
  select({ text, target: null }, { replace: true });
  if (!text.trim()) {
    cancelRequests(view.page, "classify");
    view.chart = null;
    replace(view.without);
    replace(view.found, h("p", { class: "soft" }, t("Type a text to classify it.")));
    return;
  }
  const words = segmentsOf(text).filter((part) => part.isWord).slice(0, CLASSIFY_WORDS);
  const shorter = words.map((word) => text.slice(0, word.from) + text.slice(word.to));
  try {
    const { classes } = await postLatest(view.page, "classify", "/api/classify", { texts: [text, ...shorter] });
    classifyShow(view, classes[0]);
    classifyWithout(view, text, words, classes);
  } catch (error) {
    view.chart = null;
    view.page.showError(view.found, error, () => classifyAsk(view));
  }
}

/** Always in the same order. */
function classifyShow(view, probabilities) {
  const best = classifyBest(probabilities);
  const items = view.page.model.classes.map((name) => ({ label: name, value: probabilities[name], marked: name === best }));
  if (view.chart) view.chart.set({ items });
  else {
    view.chart = bars({ items, title: t("Classes and their probabilities") });
    replace(view.found, view.chart.element);
  }
  view.page.say(`${best}, ${showPercent(probabilities[best])}`);
}

function classifyBest(probabilities) {
  return Object.keys(probabilities).reduce((a, b) => (probabilities[b] > probabilities[a] ? b : a));
}

/** How the probability of the most likely class changes when a word is removed. */
function classifyWithout(view, text, words, [whole, ...shorter]) {
  const best = classifyBest(whole);
  const changes = shorter.map((probabilities) => whole[best] - probabilities[best]);
  const most = Math.max(...changes.map(Math.abs), 0.05); // a faint change has a faint shade
  const items = words.map((word, i) =>
    h(
      "li",
      { class: `share ${changes[i] < 0 ? "against" : "for"}`, style: { "--share": Math.abs(changes[i]) / most } },
      h("span", { class: "share-word", dir: "auto" }, word.text),
      h("span", { class: "share-number number" }, `${changes[i] < 0 ? "−" : "+"}${show(100 * Math.abs(changes[i]), 1)}`),
    ),
  );
  replace(
    view.without,
    h(
      "section",
      { class: "card" },
      h("h2", null, t("Effect of each word")),
      h("ol", { class: "share-line", "aria-label": t("What each word adds to {0}", [best]) }, items),
      h("p", { class: "small soft" }, t("Each word was removed once and the text classified again. The number is what the word adds to the probability of “{0}”, in percentage points.", [best])),
    ),
  );
}
