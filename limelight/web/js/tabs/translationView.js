// A translation as words, with attention and alternatives for each.

import { button, h } from "../core/dom.js";
import { showPercent } from "../core/numbers.js";
import { reading } from "../core/page.js";
import { isPartial, pieceLabels, pieceTexts, spelledAfter } from "../core/pieces.js";
import { postLatest } from "../core/requests.js";
import { wordsIn } from "../core/words.js";
import { choiceList, popover } from "./alternatives.js";
import { t } from "../core/texts.js";

const TRANSLATION_CHOICES = 6;
const translationTitle = () => t("Alternatives at this position");

/**
 * The best translation, each word a button; fixed words come first.
 * @param {Object} answer as the service gave it, with what was `request`
 * @param {{page: Object, home: HTMLElement, light: function(?Object, boolean=): void,
 *   force: function(string): void}} use callbacks to highlight a word and to fix the beginning of
 *   the translation
 * @returns {HTMLElement}
 */
export function translationWords(answer, use) {
  const [best] = answer.outputs;
  const { alignment, request } = answer;
  const pieces = alignment ? alignment.target : best.tokens;
  const state = { answer, use, pieces, given: pieces.length - best.tokens.length, held: null, alternatives: null };
  const ended = best.logprobs.length > best.tokens.length;
  const words = wordsIn(ended ? [...pieces, "⟨end⟩"] : pieces).map((word) => ({
    ...word,
    given: word.positions[0] < state.given,
    probability: Math.exp(word.positions.reduce((sum, position) => sum + (best.logprobs[position - state.given] ?? 0), 0)),
  }));
  const line = words.map((word, i) => [i && /^\s/.test(word.text) ? " " : "", translationWord(state, word)]);
  const fixed = !alignment && request.prefix ? h("span", { class: "word given" }, request.prefix) : null;
  return h("p", { class: "prose words", dir: "auto" }, fixed, line);
}

function translationWord(state, word) {
  const { light } = state.use;
  const unsure = !word.given && word.probability < 0.5;
  const kind = ["word", word.special && "special", word.given && "given", unsure && "unsure"];
  const item = h(
    "button",
    {
      type: "button",
      class: kind.filter(Boolean).join(" "),
      "aria-haspopup": word.given ? null : "listbox",
      "aria-description": word.given ? t("fixed by you; press to let the model continue from here") : t("probability {0}", [showPercent(word.probability)]),
      on: {
        click: () => (word.given ? translationRelease(state, word) : translationChoices(state, word, item)),
        pointerenter: () => light(word),
        focus: () => light(word, true),
        pointerleave: () => light(state.held),
        blur: () => light(state.held),
      },
    },
    word.text.trim(),
  );
  return item;
}

/** Release a fixed word and all after it. */
function translationRelease(state, word) {
  state.use.force(pieceTexts(state.pieces).slice(0, word.positions[0]).join(""));
}

/** Alternatives for the first piece of a word, and on demand for its other pieces. */
async function translationChoices(state, word, item) {
  const { page, home, light } = state.use;
  state.held = word; // its highlight stays while the list is open
  const pop = popover(home, item.getBoundingClientRect(), {
    title: translationTitle(),
    onClose: () => {
      state.held = null;
      light(null);
    },
  });
  pop.fill(reading(t("loading alternatives")));
  pop.element.focus();
  light(word);
  const leave = () => {
    pop.close();
    if (item.isConnected) item.focus();
  };
  const show = (positions, position) => {
    const list = translationList(state, positions[position - state.given], position, { pop, leave });
    const title = h("h3", { class: "label" }, t("Alternatives at this position, and how the text continues"));
    pop.fill(title, translationPieces(state, word, position, (other) => show(positions, other)), list);
    list.focus();
  };
  try {
    const positions = await translationAlternatives(state);
    if (pop.isOpen()) show(positions, word.positions[0]);
  } catch (error) {
    page.showError(pop.element, error);
  }
}

/** Alternatives for every position; requested once, on demand. */
function translationAlternatives(state) {
  if (!state.alternatives) {
    const request = { ...state.answer.request, alternatives: TRANSLATION_CHOICES };
    const answer = postLatest(state.use.page, "translate-more", "/api/translate", request).then((result) => result.alternatives);
    answer.catch(() => { state.alternatives = null; });
    state.alternatives = answer;
  }
  return state.alternatives;
}

function translationPieces(state, word, at, show) {
  if (word.positions.length < 2) return null;
  const labels = pieceLabels(state.pieces);
  const chips = word.positions.map((position) => {
    const piece = state.pieces[position];
    const bytes = isPartial(piece) ? { title: t("bytes {0}", [piece]) } : {};
    return button(labels[position].replace(/^·+(?=.)/, ""), () => show(position), { class: "chip", ...bytes, "aria-pressed": String(position === at) });
  });
  return h("div", { class: "chips piece-choice" }, h("span", { class: "small soft" }, t("pieces:")), chips);
}

function translationList(state, choices, position, { pop, leave }) {
  const { alignment, request } = state.answer;
  const before = [alignment ? "" : (request.prefix ?? ""), ...state.pieces.slice(0, position)];
  const options = choices.map((choice) => {
    const ends = /^⟨.+⟩$/.test(choice.piece);
    const broken = choice.begin.includes("\ufffd"); // no text begins like this
    const half = isPartial(choice.piece) && !broken; // of a character that is complete in `begin`
    return {
      piece: half ? spelledAfter(choice.begin, before) : choice.piece,
      title: isPartial(choice.piece) ? t("bytes {0}", [choice.piece]) : null,
      share: choice.probability,
      rest: ends ? ` ${t("end of the text")}` : choice.text.slice(choice.begin.trimStart().length),
      chosen: choice.piece === (state.pieces[position] ?? "⟨end⟩"),
      disabled: ends || broken,
    };
  });
  const onChoose = (i) => {
    pop.close();
    state.use.force(choices[i].begin);
  };
  return choiceList({ title: translationTitle(), options, onLeave: leave, onChoose });
}
