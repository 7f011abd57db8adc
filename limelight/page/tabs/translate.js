// Translate: the result as you type, what else could have come at every word, and where the model
// looked while it wrote it.

import { choiceList, popover } from "../alternatives.js";
import { afterPause, ask, stopAsking } from "../asking.js";
import { button, h, replace } from "../dom.js";
import { showPercent } from "../numbers.js";
import { reading } from "../page.js";
import { bestFound, howSearched } from "../searched.js";
import { onSelect, select, selected } from "../state.js";
import { shareLine, sharesOf, sharesSaid, wordsIn } from "../words.js";

const TRANSLATE_OTHERS = 3;
const TRANSLATE_CHOICES = 6;

export const translateTab = {
  id: "translate",
  title: "Translate",
  fits: (model, page) => model.abilities.includes("translate") && !page.offline,
  mount(place, page) {
    const view = translateView(page);
    place.classList.add("use");
    replace(place, translateLayout(view));
    view.home = place;
    const unsubscribe = onSelect((now, before) => {
      if (now.text !== before.text && now.text !== view.field.value) {
        view.field.value = translateText(page);
        translateBegin(view);
      }
    });
    translateAsk(view);
    return () => {
      unsubscribe();
      view.pause.cancel();
      stopAsking(page, "translate", "translate-more");
    };
  },
};

function translateView(page) {
  const { tags } = page.model;
  const view = {
    page,
    prefix: "", // how the translation must begin, since somebody chose it
    answer: null,
    alternatives: null, // asked for when somebody looks
    field: h("textarea", {
      class: "field prose-field", id: "sentence", name: "source", rows: "3", maxlength: "2000", dir: "auto",
      spellcheck: "false", "aria-label": "Text to translate", value: translateText(page),
    }),
    source: h("div", { class: "under" }),
    result: h("div", { class: "result", "aria-busy": "true" }, reading("translating")),
    below: h("div", { class: "below" }),
    tag: tags.length > 1
      ? h("select", { class: "field", "aria-label": "What is asked of the model" }, tags.map((tag) => h("option", { value: tag }, tag)))
      : null,
  };
  view.pause = afterPause(() => translateBegin(view));
  view.field.addEventListener("input", () => {
    view.result.setAttribute("aria-busy", "true");
    view.pause.soon();
  });
  view.tag?.addEventListener("change", () => translateBegin(view));
  return view;
}

function translateLayout(view) {
  return [
    h("h1", { class: "unseen" }, "Translate"),
    h(
      "div",
      { class: "two-sides" },
      h("section", { class: "card", "aria-label": "Source" }, h("div", { class: "card-head" }, h("h2", null, "You write"), view.tag), view.field, view.source),
      h("section", { class: "card", "aria-label": "Translation" }, h("div", { class: "card-head" }, h("h2", null, "The model writes")), view.result),
    ),
    view.below,
  ];
}

function translateText(page) {
  return selected().text ?? page.example?.text ?? "";
}

/** A new text, or another tag: nothing of the old one holds any more. */
function translateBegin(view) {
  view.prefix = "";
  select({ text: view.field.value, target: null, query: null, key: null, step: null }, { replace: true });
  translateAsk(view);
}

async function translateAsk(view) {
  const { page } = view;
  const text = view.field.value;
  view.alternatives = null;
  stopAsking(page, "translate-more");
  if (!text.trim()) {
    stopAsking(page, "translate");
    view.answer = null;
    replace(view.source);
    replace(view.below);
    replace(view.result, h("p", { class: "soft" }, "Type a sentence: its translation comes as you type."));
    return;
  }
  view.result.setAttribute("aria-busy", "true");
  try {
    view.answer = await translateWithAll(view, text);
    translateShow(view);
  } catch (error) {
    view.page.showError(view.result, error, () => translateAsk(view));
  }
  view.result.removeAttribute("aria-busy");
}

/** With everything that can be told; a long text, or a model without attention, has less of it. */
async function translateWithAll(view, text) {
  const asked = translateAsked(view, text);
  const { beam, temperature } = view.page.model.decode;
  try {
    const all = { ...asked, alignment: true, tree: beam > 1 && !temperature };
    const answer = await ask(view.page, "translate", "/api/translate", all);
    return { ...answer, asked, note: "" };
  } catch (error) {
    if (error.status !== 400) throw error;
    const answer = await ask(view.page, "translate", "/api/translate", asked);
    return { ...answer, asked, note: error.message };
  }
}

function translateAsked(view, text) {
  const { beam, temperature } = view.page.model.decode;
  const nbest = temperature ? 1 : Math.min(beam, TRANSLATE_OTHERS);
  return { text, nbest, ...(view.prefix ? { prefix: view.prefix } : {}), ...(view.tag ? { tag: view.tag.value } : {}) };
}

function translateShow(view) {
  const { answer, page } = view;
  const [best] = answer.outputs;
  replace(view.source);
  if (answer.alignment) {
    const words = wordsIn(answer.alignment.source);
    view.reads = { words, line: shareLine(words, "What the model read") };
    replace(view.source, h("h3", { class: "label" }, "What it looks at"), view.reads.line.element);
  }
  const words = answer.parts === 1 && best ? translateWords(view, best) : h("p", { class: "prose", dir: "auto" }, answer.text);
  view.hint = h("p", { class: "hint small soft" }, translateHint(answer));
  replace(view.result, words, view.hint, translateTools(view), answer.outputs.length > 1 ? bestFound(answer.asked.text, answer.outputs) : null);
  replace(view.below, answer.tree?.length ? howSearched(answer.tree, best.tokens) : null);
  page.say(`translation: ${answer.text}`);
}

function translateHint(answer) {
  if (answer.parts > 1) return `The text is too long for the model to read at once: it was translated in ${answer.parts} parts.`;
  if (answer.note) return `${answer.note[0].toUpperCase()}${answer.note.slice(1)}.`;
  return "Point at a word to see where the model looked while writing it. Click it to see what else could have come.";
}

/** The translation, each word a button; those that were fixed first. */
function translateWords(view, best) {
  const { alignment, asked } = view.answer;
  const pieces = alignment ? alignment.target : best.tokens;
  const given = pieces.length - best.tokens.length;
  const ended = best.logprobs.length > best.tokens.length;
  const words = wordsIn(ended ? [...pieces, "⟨end⟩"] : pieces).map((word) => ({
    ...word,
    given: word.places[0] < given,
    chance: Math.exp(word.places.reduce((sum, place) => sum + (best.logprobs[place - given] ?? 0), 0)),
  }));
  const line = words.map((word, i) => [i && /^\s/.test(word.text) ? " " : "", translateWord(view, word, given)]);
  const fixed = !alignment && asked.prefix ? h("span", { class: "word given" }, asked.prefix) : null;
  return h("p", { class: "prose words", dir: "auto" }, fixed, line);
}

function translateWord(view, word, given) {
  const sure = word.given ? "fixed by you" : `${showPercent(word.chance)} sure`;
  const kind = ["word", word.special ? "special" : "", word.given ? "given" : "", !word.given && word.chance < 0.5 ? "unsure" : ""];
  const item = h(
    "button",
    {
      type: "button",
      class: kind.filter(Boolean).join(" "),
      "aria-haspopup": word.given ? null : "listbox",
      "aria-description": sure,
      on: {
        click: () => (word.given ? translateRelease(view, word) : translateChoices(view, word, given, item)),
        pointerenter: () => translateLight(view, word),
        focus: () => translateLight(view, word, true),
        pointerleave: () => translateLight(view, null),
        blur: () => translateLight(view, null),
      },
    },
    word.text.trim(),
  );
  return item;
}

/** Light up what the model looked at while it wrote a word: the mean over the word's pieces. */
function translateLight(view, word, aloud = false) {
  const { alignment } = view.answer;
  const rows = word && alignment ? word.places.map((place) => alignment.weights[place]).filter(Boolean) : [];
  view.hint.textContent = translateHint(view.answer);
  if (!rows.length) {
    view.reads?.line.show(null);
    return;
  }
  const shares = alignment.source.map((_, s) => rows.reduce((sum, row) => sum + row[s], 0) / rows.length);
  const ofWords = sharesOf(view.reads.words, shares);
  view.reads.line.show(ofWords);
  const sure = word.given ? "you fixed it" : `the model gave it ${showPercent(word.chance)}`;
  view.hint.textContent = `“${word.text.trim()}”: ${sure}. The shares are the attention from here to the source, the mean of all heads.`;
  if (aloud) view.page.say(`${word.text.trim()} looked at ${sharesSaid(view.reads.words, ofWords)}`);
}

/** What else could have come at this word: for its first piece, and on demand for the others. */
async function translateChoices(view, word, given, item) {
  const back = () => item.isConnected && item.focus();
  const pop = popover(view.home, item.getBoundingClientRect(), { title: "What else could have come here" });
  pop.fill(reading("asking what else could have come here"));
  pop.element.focus();
  try {
    const places = await translateAlternatives(view);
    const show = (place) => {
      const list = translateChoiceList(view, places[place - given], () => { pop.close(); back(); }, pop);
      pop.fill(h("h3", { class: "label" }, "What else could have come here, and how it would go on"), translatePieces(view, word, place, show), list);
      list.focus();
    };
    show(word.places[0]);
  } catch (error) {
    view.page.showError(pop.element, error);
  }
}

function translatePieces(view, word, at, show) {
  if (word.places.length < 2) return null;
  const { alignment, outputs } = view.answer;
  const pieces = alignment ? alignment.target : outputs[0].tokens;
  const chips = word.places.map((place) => button(pieces[place].trim() || "·", () => show(place), { class: "chip", "aria-pressed": String(place === at) }));
  return h("div", { class: "chips piece-choice" }, h("span", { class: "small soft" }, "of its pieces:"), chips);
}

function translateChoiceList(view, choices, leave, pop) {
  const options = choices.map((choice, i) => {
    const ends = /^⟨.+⟩$/.test(choice.piece);
    const half = choice.begin.endsWith("\ufffd"); // of a character: no text begins like this
    return {
      piece: choice.piece,
      share: choice.probability,
      rest: ends ? " the text would end here" : choice.text.slice(choice.begin.trimStart().length),
      chosen: i === 0 && choice.text === view.answer.text,
      disabled: ends || half,
    };
  });
  return choiceList({
    title: "What else could have come here",
    options,
    onLeave: leave,
    onChoose: (i) => {
      pop.close();
      translateForce(view, choices[i].begin);
    },
  });
}

/** Begin the translation like this, and let the model finish it. */
function translateForce(view, prefix) {
  view.prefix = prefix;
  translateAsk(view).then(() => {
    view.page.say(`fixed; the translation is now: ${view.answer?.text ?? ""}`);
    view.result.querySelector(".word.given:last-of-type, .word")?.focus();
  });
}

/** Take a fixed word back, and all after it. */
function translateRelease(view, word) {
  const pieces = view.answer.alignment.target;
  translateForce(view, pieces.slice(0, word.places[0]).join(""));
}

/** For every place of the answer what else could have come: asked for once, when somebody looks. */
function translateAlternatives(view) {
  if (!view.alternatives) {
    const asked = { ...view.answer.asked, alternatives: TRANSLATE_CHOICES };
    const answer = ask(view.page, "translate-more", "/api/translate", asked).then((told) => told.alternatives);
    answer.catch(() => { view.alternatives = null; });
    view.alternatives = answer;
  }
  return view.alternatives;
}

function translateTools(view) {
  const { answer, page } = view;
  const target = answer.asked.prefix || view.tag ? answer.text : null;
  const recurrent = page.model.config.family.startsWith("recurrent");
  return h(
    "div",
    { class: "row" },
    recurrent ? null : button("Explain this", () => select({ tab: "explain", text: answer.asked.text, target }), { class: "button primary" }),
    answer.asked.prefix ? button("Let the model choose again", () => translateForce(view, "")) : null,
    button("Copy", () => navigator.clipboard?.writeText(answer.text).then(() => page.say("copied"), () => {}), { class: "button quiet" }),
  );
}
