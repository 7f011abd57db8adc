// A translation in words: each can be asked where it looked, and what else could have come.

import { button, h } from "../core/dom.js";
import { showPercent } from "../core/numbers.js";
import { reading } from "../core/page.js";
import { ask } from "../core/requests.js";
import { wordsIn } from "../core/words.js";
import { choiceList, popover } from "./alternatives.js";

const TRANSLATED_CHOICES = 6;
const TRANSLATED_WHAT = "What else could have come here";

/**
 * The best translation, each word a button; those that were fixed first.
 * @param {Object} answer as the service gave it, with what was `asked`
 * @param {{page: Object, home: HTMLElement, light: function(?Object, boolean=): void,
 *   force: function(string): void}} use what to do with a word that is pointed at, and with the
 *   beginning of a translation that somebody chose
 * @returns {HTMLElement}
 */
export function translatedWords(answer, use) {
  const [best] = answer.outputs;
  const { alignment, asked } = answer;
  const pieces = alignment ? alignment.target : best.tokens;
  const told = { answer, use, pieces, given: pieces.length - best.tokens.length, held: null, alternatives: null };
  const ended = best.logprobs.length > best.tokens.length;
  const words = wordsIn(ended ? [...pieces, "⟨end⟩"] : pieces).map((word) => ({
    ...word,
    given: word.places[0] < told.given,
    chance: Math.exp(word.places.reduce((sum, place) => sum + (best.logprobs[place - told.given] ?? 0), 0)),
  }));
  const line = words.map((word, i) => [i && /^\s/.test(word.text) ? " " : "", translatedWord(told, word)]);
  const fixed = !alignment && asked.prefix ? h("span", { class: "word given" }, asked.prefix) : null;
  return h("p", { class: "prose words", dir: "auto" }, fixed, line);
}

function translatedWord(told, word) {
  const { light } = told.use;
  const unsure = !word.given && word.chance < 0.5;
  const kind = ["word", word.special && "special", word.given && "given", unsure && "unsure"];
  const item = h(
    "button",
    {
      type: "button",
      class: kind.filter(Boolean).join(" "),
      "aria-haspopup": word.given ? null : "listbox",
      "aria-description": word.given ? "fixed by you; press to let the model choose from here on" : `${showPercent(word.chance)} sure`,
      on: {
        click: () => (word.given ? translatedRelease(told, word) : translatedChoices(told, word, item)),
        pointerenter: () => light(word),
        focus: () => light(word, true),
        pointerleave: () => light(told.held),
        blur: () => light(told.held),
      },
    },
    word.text.trim(),
  );
  return item;
}

/** Take a fixed word back, and all after it. */
function translatedRelease(told, word) {
  told.use.force(told.pieces.slice(0, word.places[0]).join(""));
}

/** What else could have come at this word: for its first piece, and on demand for the others. */
async function translatedChoices(told, word, item) {
  const { page, home, light } = told.use;
  told.held = word; // its light stays on while the list is open
  const pop = popover(home, item.getBoundingClientRect(), {
    title: TRANSLATED_WHAT,
    onClose: () => {
      told.held = null;
      light(null);
    },
  });
  pop.fill(reading("asking what else could have come here"));
  pop.element.focus();
  light(word);
  const leave = () => {
    pop.close();
    if (item.isConnected) item.focus();
  };
  const show = (places, place) => {
    const list = translatedList(told, places[place - told.given], place, { pop, leave });
    const title = h("h3", { class: "label" }, `${TRANSLATED_WHAT}, and how it would go on`);
    pop.fill(title, translatedPieces(told, word, place, (other) => show(places, other)), list);
    list.focus();
  };
  try {
    const places = await translatedAlternatives(told);
    if (pop.isOpen()) show(places, word.places[0]);
  } catch (error) {
    page.showError(pop.element, error);
  }
}

/** For every place of the answer what else could have come: asked for once, when somebody looks. */
function translatedAlternatives(told) {
  if (!told.alternatives) {
    const asked = { ...told.answer.asked, alternatives: TRANSLATED_CHOICES };
    const answer = ask(told.use.page, "translate-more", "/api/translate", asked).then((said) => said.alternatives);
    answer.catch(() => { told.alternatives = null; });
    told.alternatives = answer;
  }
  return told.alternatives;
}

function translatedPieces(told, word, at, show) {
  if (word.places.length < 2) return null;
  const chips = word.places.map((place) => button(told.pieces[place].trim() || "·", () => show(place), { class: "chip", "aria-pressed": String(place === at) }));
  return h("div", { class: "chips piece-choice" }, h("span", { class: "small soft" }, "of its pieces:"), chips);
}

function translatedList(told, choices, place, { pop, leave }) {
  const options = choices.map((choice) => {
    const ends = /^⟨.+⟩$/.test(choice.piece);
    const half = /<[0-9A-F]{2}>$/.test(choice.piece); // of a character, which comes whole behind it
    const shown = choice.begin.trimStart().length - (half ? ([...choice.begin].at(-1)?.length ?? 0) : 0);
    const broken = choice.begin.includes("\ufffd"); // no text begins like this
    return {
      piece: choice.piece,
      share: choice.probability,
      rest: ends ? " the text would end here" : choice.text.slice(shown),
      chosen: choice.piece === (told.pieces[place] ?? "⟨end⟩"),
      disabled: ends || broken,
    };
  });
  const onChoose = (i) => {
    pop.close();
    told.use.force(choices[i].begin);
  };
  return choiceList({ title: TRANSLATED_WHAT, options, onLeave: leave, onChoose });
}
