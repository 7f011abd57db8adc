// Text shaded by attention: what the word before the caret looks at.

import { h, replace, visible } from "../core/dom.js";
import { largestOf } from "../core/numbers.js";
import { characterPlaces, shareLine, sharesOf, sharesSaid, wordsIn } from "../core/words.js";
import { layerChooser, layerNow, looksAt } from "./attentionShares.js";

const SHADING_MOST = 48; // words with a number; the shades are for all

/**
 * Shade the earlier text by what the word before the caret looks at, and write the shares below.
 * @param {Object} view of the Write tab
 * @param {string} text
 * @param {function(): void} again for another layer
 */
export async function shadeByAttention(view, text, again) {
  const { page, editor } = view;
  if (!text.trim()) {
    replace(view.attention);
    return;
  }
  if (view.traced?.text !== text) view.traced = await shadingTrace(view, text);
  const { manifest } = view.traced.trace;
  const characters = characterPlaces(view.traced.read);
  const skipped = text.length - view.traced.read.length;
  const spans = manifest.target.spans.map((span) => span && { from: skipped + characters[span[0]], to: skipped + characters[span[1]] });
  const caret = editor.field.selectionStart;
  const row = spans.findLastIndex((span) => span && span.from < Math.max(1, caret));
  if (row < 0) {
    editor.shade([]);
    replace(view.attention, h("p", { class: "small soft" }, "The model no longer sees the text at the cursor: it is too far back."));
    return;
  }
  const layer = layerNow(manifest.model.layers);
  const shares = await page.busy(looksAt(view.traced.trace, { side: "decoder", part: "self" }, layer, row));
  if (editor.field.value !== text || editor.field.selectionStart !== caret) return; // it is about another word
  const here = spans[row];
  editor.shade(spans.flatMap((span, i) => (span && i <= row ? [{ ...span, share: shares[i], here: i === row }] : [])));
  shadingShares(view, manifest, { row, shares, layer, again }, here ? text.slice(here.from, here.to) : "");
}

/**
 * The text through the model, with nothing written after it; of a text that is too long, the end.
 * How much fits is guessed from the pieces' lengths, and learned.
 */
async function shadingTrace(view, text) {
  view.perPiece ??= (0.6 * view.pieces.join("").length) / view.pieces.length;
  for (;;) {
    const room = Math.max(view.page.model.config.max_len - 2, 1);
    const read = text.slice(-Math.max(room, Math.floor(room * view.perPiece)));
    try {
      const asked = { model: view.page.model.name, text: read, target: "" };
      return { text, read, trace: await view.page.busy(view.page.api.trace(asked)) };
    } catch (error) {
      if (![400, 413].includes(error.status) || view.perPiece < 1) throw error;
      view.perPiece *= 0.75;
    }
  }
}

function shadingShares(view, manifest, { row, shares, layer, again }, word) {
  const read = manifest.target.pieces.slice(0, row + 1);
  const all = wordsIn(read, manifest.target.special.slice(0, row + 1));
  const ofAll = sharesOf(all, shares);
  const shown = shadingStrongest(ofAll);
  const [words, ofWords] = [shown.map((i) => all[i]), shown.map((i) => ofAll[i])];
  const line = shareLine(words, `What ${word} looks at`);
  line.show(ofWords);
  const some = shown.length < all.length ? ` Of ${all.length} words, the ${shown.length} strongest.` : "";
  replace(
    view.attention,
    h("div", { class: "card-head" }, h("h3", { class: "label" }, "What ", h("q", { dir: "auto" }, visible(word.trim() || word)), " looks at"), layerChooser(manifest.model.layers, again)),
    h("div", { class: "shares-room", tabindex: "0", role: "group", "aria-label": `${word.trim()} looks at ${sharesSaid(words, ofWords)}` }, line.element),
    h("p", { class: "small soft" }, `The word before the cursor; the mean of the heads of layer ${layer}. The same shares shade the text above. The model sees only what stands before a word.${some}`),
  );
}

/** All places, or of many the strongest, in the order of the text. */
function shadingStrongest(shares) {
  if (shares.length <= SHADING_MOST) return shares.map((_, i) => i);
  return largestOf(shares, SHADING_MOST).sort((a, b) => a - b);
}
