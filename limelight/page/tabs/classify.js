// Classify: the probability of every class, as you type.

import { afterPause, ask, stopAsking } from "../asking.js";
import { bars } from "../bars.js";
import { button, h, replace } from "../dom.js";
import { showPercent } from "../numbers.js";
import { onSelect, select, selected } from "../state.js";

export const classifyTab = {
  id: "classify",
  title: "Classify",
  fits: (model, page) => model.abilities.includes("classify") && !page.offline,
  mount(place, page) {
    place.classList.add("use");
    const view = classifyView(page);
    replace(place, h("h1", { class: "unseen" }, "Classify"), classifyLayout(view));
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
      stopAsking(page, "classify");
    };
  },
};

function classifyView(page) {
  const view = { page, chart: null };
  view.field = h("textarea", {
    class: "field prose-field", id: "sentence", name: "text", rows: "4", maxlength: "2000", dir: "auto", spellcheck: "false",
    "aria-label": "Text to classify", value: selected().text ?? page.example?.text ?? "",
  });
  view.found = h("div");
  view.pause = afterPause(() => classifyAsk(view));
  view.field.addEventListener("input", () => view.pause.soon());
  return view;
}

function classifyLayout(view) {
  return h(
    "div",
    { class: "two-sides" },
    h("section", { class: "card", "aria-label": "Text" }, h("h2", null, "You write"), view.field),
    h("section", { class: "card", "aria-label": "Classes" }, h("h2", null, "The model finds"), view.found, h("div", { class: "row" }, button("Explain this", () => select({ tab: "explain" })))),
  );
}

async function classifyAsk(view) {
  const text = view.field.value;
  select({ text, target: null }, { replace: true });
  if (!text.trim()) {
    stopAsking(view.page, "classify");
    view.chart = null;
    replace(view.found, h("p", { class: "soft" }, "Type a sentence: its class comes as you type."));
    return;
  }
  try {
    const { classes } = await ask(view.page, "classify", "/api/classify", { texts: [text] });
    classifyShow(view, classes[0]);
  } catch (error) {
    view.chart = null;
    view.page.showError(view.found, error, () => classifyAsk(view));
  }
}

/** Always in the same order, so that a bar grows and shrinks in its place. */
function classifyShow(view, chances) {
  const best = Object.keys(chances).reduce((a, b) => (chances[b] > chances[a] ? b : a));
  const items = view.page.model.classes.map((name) => ({ label: name, value: chances[name], marked: name === best }));
  if (view.chart) view.chart.set({ items });
  else {
    view.chart = bars({ items, title: "Classes and their probabilities" });
    replace(view.found, view.chart.element);
  }
  view.page.say(`${best}, ${showPercent(chances[best])}`);
}
