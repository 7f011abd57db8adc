// The attention of the token before the caret, highlighted in the text.

import { h, replace, visible } from "../core/dom.js";
import { layersOn } from "../core/focus.js";
import { largestOf } from "../core/numbers.js";
import { characterOffsets, weightLine, wordWeights, weightsText, wordsIn } from "../core/words.js";
import { layerChooser, layerNow, attentionFrom } from "./attentionShares.js";
import { t } from "../core/texts.js";

const HIGHLIGHT_MOST = 48; // words with a number; the shades are for all

/**
 * Highlight the text by the attention of the token before the caret, and list the weights below.
 * @param {Object} view of the Write tab
 * @param {string} text
 * @param {function(): void} again for another layer
 */
export async function highlightAttention(view, text, again) {
  const { page, editor } = view;
  if (!text.trim()) {
    replace(view.attention);
    return;
  }
  if (view.traced?.text !== text) view.traced = await highlightTrace(view, text);
  const { manifest } = view.traced.trace;
  const characters = characterOffsets(view.traced.read);
  const skipped = text.length - view.traced.read.length;
  const spans = manifest.target.spans.map((span) => span && { from: skipped + characters[span[0]], to: skipped + characters[span[1]] });
  const caret = editor.field.selectionStart;
  const row = spans.findLastIndex((span) => span && span.from < Math.max(1, caret));
  if (row < 0) {
    editor.shade([]);
    replace(view.attention, h("p", { class: "small soft" }, t("The text at the cursor is outside the context of the model.")));
    return;
  }
  const layer = layerNow(layersOn(manifest, "decoder"));
  const shares = await page.busy(attentionFrom(view.traced.trace, { side: "decoder", part: "self" }, layer, row));
  // It may be about another word by now; but while the model writes, the last one that is known is shown.
  if (view.control ? !editor.field.value.startsWith(text) : editor.field.value !== text || editor.field.selectionStart !== caret) return;
  const here = spans[row];
  editor.shade(spans.flatMap((span, i) => (span && i <= row ? [{ ...span, share: shares[i], here: i === row }] : [])));
  highlightWeights(view, manifest, { row, shares, layer, again }, here ? text.slice(here.from, here.to) : "");
}

/**
 * Trace the text without generating; of a text that is too long, its end. How much fits is estimated
 * from the lengths of the pieces, and reduced when the service rejects it.
 */
async function highlightTrace(view, text) {
  view.perPiece ??= (0.6 * view.pieces.join("").length) / view.pieces.length;
  for (;;) {
    const limit = Math.max(view.page.model.config.max_len - 2, 1);
    const read = text.slice(-Math.max(limit, Math.floor(limit * view.perPiece)));
    try {
      const request = { model: view.page.model.name, text: read, target: "" };
      return { text, read, trace: await view.page.busy(view.control ? view.page.api.traceMeanwhile(request) : view.page.api.trace(request)) };
    } catch (error) {
      if (![400, 413].includes(error.status) || view.perPiece < 1) throw error;
      view.perPiece *= 0.75;
    }
  }
}

function highlightWeights(view, manifest, { row, shares, layer, again }, word) {
  const read = manifest.target.pieces.slice(0, row + 1);
  const all = wordsIn(read, manifest.target.special.slice(0, row + 1));
  const ofAll = wordWeights(all, shares);
  const shown = highlightStrongest(ofAll);
  const [words, ofWords] = [shown.map((i) => all[i]), shown.map((i) => ofAll[i])];
  const line = weightLine(words, t("What “{0}” attends to", [word]));
  line.show(ofWords);
  const some = shown.length < all.length ? ` ${t("Shown: the {0} largest of {1} words.", [shown.length, all.length])}` : "";
  replace(
    view.attention,
    h("div", { class: "card-head" }, h("h3", { class: "label" }, t("What “{0}” attends to", [visible(word.trim() || word)])), layerChooser(layersOn(manifest, "decoder"), again)),
    h("div", { class: "shares-scroll", tabindex: "0", role: "group", "aria-label": t("{0} attends to {1}", [word.trim(), weightsText(words, ofWords)]) }, line.element),
    h("p", { class: "small soft" }, t("Attention of the token before the cursor, averaged over the heads of layer {0}; the highlight above shows the same weights. Future tokens are masked.", [layer]), some),
  );
}

/** All words, or of many the largest weights, in the order of the text. */
function highlightStrongest(shares) {
  if (shares.length <= HIGHLIGHT_MOST) return shares.map((_, i) => i);
  return largestOf(shares, HIGHLIGHT_MOST).sort((a, b) => a - b);
}
