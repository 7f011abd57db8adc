// Fill: mask a word, see the candidates for it, and the attention from and to the blank.

import { layerChooser, layerNow, attentionTo, attentionFrom } from "../attention/attentionShares.js";
import { bars } from "../charts/bars.js";
import { button, h, replace } from "../core/dom.js";
import { reading } from "../core/page.js";
import { isPartial, pieceLabels } from "../core/pieces.js";
import { afterPause, postLatest, cancelRequests } from "../core/requests.js";
import { onSelect, select, selected } from "../core/state.js";
import { characterOffsets, segmentsOf, weightLine, wordWeights, wordsIn } from "../core/words.js";
import { t } from "../core/texts.js";

const FILL_BLANK = "___";
const FILL_SHOWN = 8;
const FILL_REQUESTED = 100; // so that the original word is mostly among them

export const fillTab = {
  id: "fill",
  title: "Fill",
  fits: (model, page) => model.abilities.includes("fill") && !page.offline,
  mount(container, page) {
    container.classList.add("use");
    const view = fillView(page);
    replace(container, h("h1", { class: "unseen" }, t("Fill in")), fillLayout(view));
    const unsubscribe = onSelect((now, before) => {
      if (now.text !== before.text && now.text !== null && now.text !== view.field.value) {
        view.field.value = now.text;
        fillBegin(view);
      }
    });
    fillBegin(view);
    return () => {
      unsubscribe();
      view.pause.cancel();
      cancelRequests(page, "fill");
    };
  },
};

function fillView(page) {
  // `hidden`: for every blank the original, as {word, pieces, at}: piece `at` of that word; or null
  const view = { page, hidden: [], at: 0, count: 0 };
  view.field = h("textarea", {
    class: "field prose-field", id: "sentence", name: "text", rows: "2", maxlength: "2000", dir: "auto", spellcheck: "false",
    "aria-label": t("Text with blanks"), value: selected().text ?? fillExample(page),
  });
  view.words = h("p", { class: "prose words fill-words", dir: "auto" });
  view.found = h("div", { class: "fill-found" });
  view.attention = h("div", { class: "fill-attention" });
  view.pause = afterPause(() => fillBegin(view));
  view.field.addEventListener("input", () => view.pause.soon());
  return view;
}

/** The first text has a blank. */
function fillExample(page) {
  const text = page.example?.text ?? "";
  if (text.includes(FILL_BLANK)) return text;
  const words = segmentsOf(text).filter((part) => part.isWord);
  const word = words[Math.floor(words.length / 2)];
  return word ? text.slice(0, word.from) + FILL_BLANK + text.slice(word.to) : text;
}

function fillLayout(view) {
  return [
    h(
      "section",
      { class: "card", "aria-label": t("Text") },
      h("h2", null, t("Mask a word, and the model predicts it")),
      view.words,
      h("p", { class: "small soft" }, t("Click a word to mask it; click a blank to restore its word. Or type ___ yourself:")),
      view.field,
    ),
    h("div", { class: "two-sides" }, view.found, view.attention),
  ];
}

function fillBegin(view) {
  const text = view.field.value;
  const count = text.split(FILL_BLANK).length - 1;
  if (count !== view.hidden.length) view.hidden = Array(count).fill(null);
  view.at = Math.min(view.at, Math.max(0, count - 1));
  select({ text, target: null, query: null, key: null, step: null }, { replace: true });
  fillWords(view, text);
  fillAsk(view, text, count);
}

/** The text as words to mask; each blank with its original. */
function fillWords(view, text) {
  const parts = [];
  let offset = 0;
  text.split(FILL_BLANK).forEach((stretch, i) => {
    if (i) {
      const blank = i - 1;
      parts.push(h("button", { type: "button", class: "word blank", "aria-label": `${t("blank {0}", [i])}${fillWas(view.hidden[blank])}`, on: { click: () => fillShowWord(view, blank) } }, FILL_BLANK));
      offset += FILL_BLANK.length;
    }
    const start = offset;
    for (const part of segmentsOf(stretch)) {
      const from = start + part.from;
      const hide = () => fillHide(view, from, part.text, i);
      parts.push(part.isWord ? h("button", { type: "button", class: "word", title: t("mask this word"), on: { click: hide } }, part.text) : part.text);
    }
    offset += stretch.length;
  });
  replace(view.words, text.trim() ? parts : h("span", { class: "soft" }, t("Type a sentence below.")));
}

function fillWas(was) {
  if (!was) return "";
  return was.pieces.length === 1 ? `, ${t("originally {0}", [was.word])}` : `, ${t("originally {0}, piece {1} of {2}", [pieceLabels(was.pieces)[was.at], was.at + 1, was.word])}`;
}

/** The model predicts pieces: a word of several pieces gets one blank for each. */
async function fillHide(view, from, word, blanksBefore) {
  const text = view.field.value;
  const pieces = await fillPieces(view, text, from, word);
  if (view.field.value !== text) return;
  view.hidden.splice(blanksBefore, 0, ...pieces.map((_, at) => ({ word, pieces, at })));
  view.at = blanksBefore;
  fillSet(view, text.slice(0, from) + FILL_BLANK.repeat(pieces.length) + text.slice(from + word.length));
  if (pieces.length > 1) view.page.say(t("{0} has {1} pieces: one blank for each", [word, pieces.length]));
}

/** The pieces of this word; one piece where the trace is not available. */
async function fillPieces(view, text, from, word) {
  try {
    const { source } = (await view.page.trace()).manifest;
    const positions = characterOffsets(text);
    const within = source.spans.flatMap((span, i) => (span && positions[span[0]] < from + word.length && positions[span[1]] > from ? [i] : []));
    return within.length > 1 ? within.map((i) => source.pieces[i].trim()) : [word];
  } catch {
    return [word];
  }
}

/** Restore the word of a blank; a typed blank is chosen instead. */
function fillShowWord(view, blank) {
  const was = view.hidden[blank];
  if (was) fillPut(view, blank - was.at, was.word, was.pieces.length);
  else {
    view.at = blank;
    fillAttention(view);
  }
}

/** Insert a candidate; a part of a character has no text of its own. */
function fillChoose(view, blank, text) {
  if (isPartial(text)) view.page.say(t("{0} is part of a character: its text depends on the pieces beside it, so it cannot be inserted alone", [text]));
  else fillPut(view, blank, text);
}

/** Replace blanks by a word, or one blank by a piece. */
function fillPut(view, blank, word, blanks = 1) {
  const parts = view.field.value.split(FILL_BLANK);
  const before = parts.slice(0, blank + 1).join(FILL_BLANK);
  const after = parts.slice(blank + blanks).join(FILL_BLANK);
  const [first] = view.hidden.splice(blank, blanks);
  if (first && blanks < first.pieces.length) view.hidden = view.hidden.map((was) => (was?.pieces === first.pieces ? fillAlone(was) : was));
  fillSet(view, before + word + after);
  view.page.say(t("{0} inserted", [word]));
}

/** What is left of a word of which a piece was chosen: each of its pieces is for itself. */
function fillAlone({ pieces, at }) {
  return { word: pieces[at], pieces: [pieces[at]], at: 0 };
}

function fillSet(view, text) {
  view.field.value = text;
  fillBegin(view);
  view.words.querySelectorAll(".blank")[view.at]?.focus();
}

async function fillAsk(view, text, count) {
  if (!count) {
    cancelRequests(view.page, "fill");
    replace(view.attention);
    replace(view.found, h("p", { class: "soft" }, t("No word is masked: click one above.")));
    return;
  }
  if (view.count !== count) replace(view.found, reading(t("predicting")));
  view.count = count;
  try {
    const { blanks } = await postLatest(view.page, "fill", "/api/fill", { text, count: FILL_REQUESTED });
    replace(view.found, blanks.map((candidates, i) => fillCard(view, candidates, i, blanks.length)));
    fillAttention(view);
  } catch (error) {
    view.page.showError(view.found, error, () => fillAsk(view, text, count));
  }
}

function fillCard(view, candidates, blank, count) {
  const was = view.hidden[blank]?.pieces[view.hidden[blank].at];
  const rank = was ? candidates.findIndex((candidate) => candidate.text === was) : -1;
  const shown = candidates.slice(0, FILL_SHOWN);
  if (rank >= FILL_SHOWN) shown.push(candidates[rank]);
  const items = shown.map(({ text, probability }) => ({ label: text, value: probability, marked: text === was, note: text === was ? t("original") : "" }));
  const list = bars({ items, title: t("Candidates for blank {0}", [blank + 1]), full: Math.max(0.1, items[0].value), onChoose: (i) => fillChoose(view, blank, shown[i].text) });
  return h(
    "section",
    { class: "card" },
    h("h2", null, count > 1 ? t("Blank {0}", [blank + 1]) : t("Candidates for the blank")),
    list.element,
    h("p", { class: "small soft" }, fillRank(was, rank), fillPart(view.hidden[blank]), ` ${t("Click a candidate to insert it.")}`),
  );
}

function fillRank(was, rank) {
  if (!was) return "";
  if (rank < 0) return t("The original, “{0}”, is not among the {1} most likely pieces.", [was, FILL_REQUESTED]);
  return rank === 0 ? t("The original, “{0}”, is the most likely (argmax).", [was]) : t("The original, “{0}”, has rank {1}.", [was, rank + 1]);
}

function fillPart(was) {
  if (!was || was.pieces.length === 1) return "";
  return ` ${t("“{0}” has {1} pieces, so there is one blank for each: {2}.", [was.word, was.pieces.length, pieceLabels(was.pieces).join(" + ")])}`;
}

/** The attention from and to the chosen blank. */
async function fillAttention(view) {
  const { page } = view;
  const text = view.field.value;
  try {
    const trace = await page.trace();
    const { source, model } = trace.manifest;
    const blanks = source.ids.flatMap((id, i) => (id === model.special.mask ? [i] : []));
    const position = blanks[view.at];
    if (position === undefined || view.field.value !== text) return;
    const at = { side: "encoder", part: "self" };
    const layer = layerNow(model.layers);
    const [to, from] = [await page.busy(attentionFrom(trace, at, layer, position)), await page.busy(attentionTo(trace, at, layer, position))];
    if (view.field.value === text) replace(view.attention, fillBothWays(view, source, blanks, { layer, layers: model.layers, to, from }));
  } catch (error) {
    page.showError(view.attention, error, () => fillAttention(view));
  }
}

function fillBothWays(view, source, blanks, { layer, layers, to, from }) {
  const words = wordsIn(source.pieces.map((piece, i) => (blanks.includes(i) ? FILL_BLANK : piece)), source.ids.map((_, i) => source.special[i] || blanks.includes(i)));
  const outgoing = weightLine(words, t("What the blank attends to"));
  outgoing.show(wordWeights(words, to));
  const incoming = weightLine(words, t("What attends to the blank"));
  incoming.show(wordWeights(words, from).map((sum, i) => sum / words[i].positions.length));
  const which = blanks.length > 1
    ? h("div", { class: "chips" }, blanks.map((_, i) => button(t("blank {0}", [i + 1]), () => { view.at = i; fillAttention(view); }, { class: "chip", "aria-pressed": String(i === view.at) })))
    : null;
  return h(
    "section",
    { class: "card" },
    h("div", { class: "card-head" }, h("h2", null, t("Attention from and to the blank")), layerChooser(layers, () => fillAttention(view))),
    which,
    h("h3", { class: "label" }, t("The blank attends to")),
    outgoing.element,
    h("h3", { class: "label" }, t("Attention to the blank")),
    incoming.element,
    h("p", { class: "small soft" }, t("Averaged over the heads of layer {0}. Above: the weights of the blank, which sum to 100%. Below: the weight of each word on the blank. The model is bidirectional: a blank also attends to later tokens.", [layer])),
    h("div", { class: "row" }, button(t("Explain this"), () => select({ tab: "explain" }))),
  );
}
