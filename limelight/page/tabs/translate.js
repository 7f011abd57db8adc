// Translate: the result as you type, what else could have come at every word, and where the model
// looked while it wrote it.

import { choiceList, popover } from "../alternatives.js";
import { afterPause, ask, stopAsking } from "../asking.js";
import { beamTable, beamTree } from "../beam.js";
import { button, h, replace } from "../dom.js";
import { showPercent } from "../numbers.js";
import { reading } from "../page.js";
import { linkTo, onSelect, select, selected } from "../state.js";
import { shareLine, sharesOf, sharesSaid, wordsOf } from "../words.js";

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
    more: {}, // what was asked for besides, about this answer
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
  view.more = {};
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
  try {
    const answer = await ask(view.page, "translate", "/api/translate", { ...asked, alignment: true });
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
    const words = wordsOf(answer.alignment.source);
    view.reads = { words, line: shareLine(words, "What the model read") };
    replace(view.source, h("h3", { class: "label" }, "What it looks at"), view.reads.line.element);
  }
  const words = answer.parts === 1 && best ? translateWords(view, best) : h("p", { class: "prose", dir: "auto" }, answer.text);
  view.hint = h("p", { class: "hint small soft" }, translateHint(answer));
  replace(view.result, words, view.hint, translateTools(view));
  translateBelow(view);
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
  const words = wordsOf(ended ? [...pieces, "⟨end⟩"] : pieces).map((word) => ({
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
    const places = await translateMore(view, "alternatives", { alternatives: TRANSLATE_CHOICES });
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
    return {
      piece: choice.piece,
      share: choice.probability,
      rest: ends ? " the text would end here" : choice.text.slice(choice.begin.trimStart().length),
      chosen: i === 0 && choice.text === view.answer.text,
      disabled: ends,
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

/** What is asked for besides, once for each answer. */
function translateMore(view, name, wish) {
  const { asked } = view.answer;
  if (!view.more[name]) {
    const answer = ask(view.page, "translate-more", "/api/translate", { ...asked, ...wish }).then((told) => told[name]);
    answer.catch(() => delete view.more[name]);
    view.more[name] = answer;
  }
  return view.more[name];
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

function translateBelow(view) {
  const { outputs } = view.answer;
  const others = outputs.length > 1 ? translateOthers(view, outputs) : null;
  const { beam, temperature } = view.page.model.decode;
  const tree = beam > 1 && !temperature && view.answer.parts === 1 ? translateTree(view) : null;
  replace(view.below, others, tree);
}

function translateOthers(view, outputs) {
  const rows = outputs.map((output) =>
    h(
      "tr",
      null,
      h("td", { class: "n" }, showPercent(Math.exp(output.logprobs.reduce((a, b) => a + b, 0)))),
      h("td", { class: "n" }, output.score.toFixed(3)),
      h("td", { class: "prose-cell", dir: "auto" }, h("a", { href: linkTo({ tab: "explain", text: view.answer.asked.text, target: output.text }) }, output.text || "(nothing)")),
    ),
  );
  const head = [["n", "probability"], ["n", "score"], ["", "translation"]];
  return h(
    "section",
    { class: "panel" },
    h("h2", null, `The ${outputs.length} best that the beam found`),
    h("div", { class: "scroller" }, h("table", { class: "table" }, h("thead", null, h("tr", null, head.map(([kind, name]) => h("th", { class: kind, scope: "col" }, name)))), h("tbody", null, rows))),
    h("p", { class: "small soft" }, "Probability: of the whole text, all its words multiplied. Score: its logarithm over the length penalty; the beam takes the highest. Each leads to Explain."),
  );
}

function translateTree(view) {
  const room = h("div");
  const open = async () => {
    if (!fold.open || view.more.tree) return;
    replace(room, reading("searching once more, and keeping the tree"));
    try {
      const tree = await translateMore(view, "tree", { tree: true });
      const { beam } = view.page.model.decode;
      replace(
        room,
        h("p", { class: "small soft" }, `Each column is one step: the ${beam} best beginnings so far. The number is how likely the piece was after what came before it. The thick way won.`),
        beamTree(tree, view.answer.outputs[0].tokens),
        h("details", { class: "small" }, h("summary", null, "Show as table"), beamTable(tree)),
      );
    } catch (error) {
      view.page.showError(room, error, open);
    }
  };
  const fold = h("details", { class: "panel fold", on: { toggle: open } }, h("summary", null, h("h2", null, "How the beam searched")), room);
  return fold;
}
