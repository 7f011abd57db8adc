// From pieces to words, and words with their attention weights.

import { h, visible } from "./dom.js";
import { showPercent } from "./numbers.js";
import { pieceTexts } from "./pieces.js";

const WORDS_FINDER = new Intl.Segmenter(undefined, { granularity: "word" });

/**
 * A text cut into words and what lies between them.
 * @param {string} text
 * @returns {{text: string, from: number, to: number, isWord: boolean}[]}
 */
export function segmentsOf(text) {
  return Array.from(WORDS_FINDER.segment(text), ({ segment, index, isWordLike }) => ({
    text: segment,
    from: index,
    to: index + segment.length,
    isWord: Boolean(isWordLike),
  }));
}

/**
 * Pieces joined to words: each with its text, the positions of its pieces, and whether it is special.
 * A word includes the space before it.
 * @param {string[]} pieces
 * @param {(boolean|number)[]} [special] guessed from its text where not given
 * @returns {{text: string, positions: number[], special: boolean}[]}
 */
export function wordsIn(pieces, special = pieces.map(wordsIsSpecial)) {
  const texts = pieceTexts(pieces);
  const joined = texts.map((text, i) => (special[i] ? "" : text)).join("");
  const ends = new Set(segmentsOf(joined).map((segment) => segment.from));
  const words = [];
  let offset = 0;
  texts.forEach((text, i) => {
    const last = words.at(-1);
    const goesOn = last && !last.special && !special[i] && (!text || (!last.text.trim() && text.trim()));
    const begins = special[i] || !last || last.special || /^\s/.test(text) || ends.has(offset);
    if (begins && !goesOn) words.push({ text, positions: [i], special: Boolean(special[i]) });
    else {
      last.text += text;
      last.positions.push(i);
    }
    if (!special[i]) offset += text.length;
  });
  return words;
}

function wordsIsSpecial(piece) {
  return /^⟨.+⟩$/.test(piece);
}

/**
 * Attention weights of pieces, summed over the pieces of each word.
 * @param {{positions: number[]}[]} words
 * @param {ArrayLike<number>} shares
 * @returns {number[]}
 */
export function wordWeights(words, shares) {
  return words.map((word) => word.positions.reduce((sum, position) => sum + shares[position], 0));
}

/**
 * A line of words with their weights as numbers and shades; the largest one is underlined.
 * @param {{text: string, special: boolean}[]} words
 * @param {string} title
 * @returns {{element: HTMLElement, show: function(?number[]): void}} null removes the weights
 */
export function weightLine(words, title) {
  const numbers = words.map(() => h("span", { class: "share-number number" }));
  const items = words.map((word, i) =>
    h(
      "li",
      { class: word.special ? "share special" : "share" },
      h("span", { class: "share-word", dir: "auto" }, visible(word.text.replace(/^ +| +$/g, "") || word.text)),
      numbers[i],
    ),
  );
  const element = h("ol", { class: "share-line", "aria-label": title }, items);
  const show = (shares) => {
    const most = shares ? Math.max(...shares) : 0;
    const best = shares ? Math.max(...shares.filter((_, i) => !words[i].special)) : 0;
    items.forEach((item, i) => {
      item.style.setProperty("--share", String(shares ? shares[i] / most : 0));
      item.classList.toggle("strongest", Boolean(shares) && shares[i] === best);
      numbers[i].textContent = shares ? showPercent(shares[i]) : "";
    });
  };
  show(null);
  return { element, show };
}

/**
 * The largest weights as text for screen readers: "Hi 64%, how 20%, you 9%".
 * @param {{text: string}[]} words
 * @param {number[]} shares
 * @param {number} [count]
 */
export function weightsText(words, shares, count = 3) {
  const order = shares.map((_, i) => i).sort((a, b) => shares[b] - shares[a]);
  return order.slice(0, count).map((i) => `${words[i].text.trim() || visible(words[i].text)} ${showPercent(shares[i])}`).join(", ");
}

/**
 * Offsets of code points, as Python counts, in JavaScript's UTF-16 units.
 * @param {string} text
 * @returns {number[]} one more than there are code points
 */
export function characterOffsets(text) {
  const positions = [0];
  for (const character of text) positions.push(positions.at(-1) + character.length);
  return positions;
}
