// Pieces as people read them. A tokenizer may cut a character: such pieces come as bytes, <C3> <9C>.

import { visible } from "./dom.js";

// No text is spelled like this in one piece, as tokenizers join no letters and digits with marks.
const PIECES_PARTIAL = /^(?:<[0-9A-F]{2}>)+$/;
const PIECES_UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const PIECES_PARTS = "¹²³⁴";
const PIECES_OF = "₂₃₄";

/**
 * The text of each piece; a cut character belongs to the piece it begins in. Joined, they are the text.
 * @param {string[]} pieces which follow each other
 * @returns {string[]}
 */
export function pieceTexts(pieces) {
  const texts = pieces.map(() => "");
  for (const { text, where } of piecesCharacters(pieces)) texts[where[0]] += text;
  return texts;
}

/**
 * What to show for each piece: Ü¹/₂ is the first of two pieces that spell Ü.
 * @param {string[]} pieces which follow each other
 * @returns {string[]}
 */
export function pieceLabels(pieces) {
  const labels = pieces.map(() => "");
  for (const { text, where } of piecesCharacters(pieces)) {
    where.forEach((i, part) => {
      const share = where.length > 1 ? `${PIECES_PARTS[part]}/${PIECES_OF[where.length - 2]}` : "";
      labels[i] += visible(text) + share;
    });
  }
  return labels;
}

/**
 * The same for a piece that could be the i-th of a text: what was written, or another one.
 * @param {string[]} written
 * @param {number} i
 * @param {string} piece
 */
export function pieceLabelAt(written, i, piece) {
  const before = written.slice(Math.max(0, i - 3), i); // a character has four bytes at most
  const after = written[i] === piece ? written.slice(i + 1, i + 4) : [];
  return pieceLabels([...before, piece, ...after])[before.length];
}

/**
 * The characters of a text that a piece spells, or helps to spell: those that end behind all pieces before it.
 * @param {string} text
 * @param {string[]} before
 */
export function spelledAfter(text, before) {
  const size = (part) => new TextEncoder().encode(part).length;
  let left = before.reduce((sum, piece) => sum + (isPartial(piece) ? piece.length / 4 : size(piece)), 0);
  return Array.from(text).filter((c) => (left -= size(c)) < 0).join("");
}

/**
 * Whether a piece is part of a character: then its bytes are worth a title.
 * @param {string} piece
 */
export function isPartial(piece) {
  return PIECES_PARTIAL.test(piece);
}

/** The characters of pieces, or full pieces at once, and the pieces that spell each. */
function piecesCharacters(pieces) {
  const found = [];
  for (let i = 0; i < pieces.length; i += 1) {
    if (!isPartial(pieces[i])) {
      found.push({ text: pieces[i], where: [i] });
      continue;
    }
    const bytes = [];
    for (; i < pieces.length && isPartial(pieces[i]); i += 1) {
      for (const [hex] of pieces[i].matchAll(/[0-9A-F]{2}/g)) bytes.push({ hex, piece: i });
    }
    found.push(...piecesDecoded(bytes));
    i -= 1;
  }
  return found;
}

function piecesDecoded(bytes) {
  const found = [];
  for (let at = 0; at < bytes.length; ) {
    const lead = Number.parseInt(bytes[at].hex, 16);
    const size = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    const own = bytes.slice(at, at + size);
    let text = null;
    try {
      text = PIECES_UTF8.decode(Uint8Array.from(own, ({ hex }) => Number.parseInt(hex, 16)));
    } catch {
      own.length = 1; // a byte that belongs to no character
    }
    found.push({ text: text ?? `<${own[0].hex}>`, where: [...new Set(own.map(({ piece }) => piece))] });
    at += own.length;
  }
  return found;
}
