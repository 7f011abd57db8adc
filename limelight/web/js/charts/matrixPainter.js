// How a matrix is painted: cells as one pixel each, scaled up; labels, numbers and marks above.
// The same code paints the part that is in view, and the whole for a saved picture.

import { colourOf, inkOn, theme } from "./colour.js";

const PAINT_FONT = 'system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';
const SLANT = (50 * Math.PI) / 180;
const LONGEST_LABEL = 116; // pixels
export const NUMBERS_FROM = 28; // pixels of a cell in which a number can be read

/**
 * @typedef {{rows: string[], columns: string[], next: string[] | null, values: ArrayLike<number>,
 *   hidden: ArrayLike<number> | null, scale: {kind: "share" | "signed", low: number, high: number},
 *   threshold: number, sums: boolean, labels: {row: string, column: string, value: string}}} Shown
 * @typedef {{cell: number, wide: number, left: number, top: number, right: number, width: number,
 *   height: number, slanted: boolean}} Layout how high and wide a cell is, where they begin, and how large all is
 * @typedef {{x: number, y: number, width: number, height: number}} View
 */

/**
 * The layout of labels around cells of this size.
 * @param {CanvasRenderingContext2D} context
 * @param {Shown} shown
 * @param {number} cell
 * @param {number} wide
 * @returns {Layout}
 */
export function layoutOf(context, shown, cell, wide = cell) {
  context.font = paintFont(cell, 700); // as wide as a label gets when it is pointed at
  const longest = (texts) =>
    Math.min(LONGEST_LABEL, Math.max(0, ...texts.map((t) => context.measureText(t).width)));
  const rows = shown.rows.map((_, i) => paintRowLabel(shown, i));
  const columns = longest(shown.columns);
  const slanted = !paintNumbered(shown) && columns > wide - 6;
  const overhang = slanted ? Math.max(0, columns * Math.cos(SLANT) - wide / 2) : 0;
  const left = Math.ceil(Math.max(longest(rows), 52) + 14);
  const top = Math.ceil(slanted ? columns * Math.sin(SLANT) + 20 : 36);
  const right = Math.ceil(Math.max(shown.sums ? 62 : paintNumbered(shown) ? 16 : 8, overhang + 4));
  return {
    cell,
    wide,
    left,
    top,
    right,
    slanted,
    width: left + shown.columns.length * wide + right,
    height: top + shown.rows.length * cell + 6,
  };
}

/**
 * The cells as a tiny image, one pixel each.
 * @param {Shown} shown
 * @returns {HTMLCanvasElement}
 */
export function heatOf(shown) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, shown.columns.length);
  canvas.height = Math.max(1, shown.rows.length);
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  for (let i = 0; i < shown.values.length; i += 1) {
    image.data.set(paintCellColour(shown, i), 4 * i);
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/**
 * Paint what is in view.
 * @param {CanvasRenderingContext2D} context
 * @param {Shown} shown
 * @param {{heat: HTMLCanvasElement, layout: Layout, view: View,
 *   cursor: number[] | null, pinned: number[] | null}} how marks as [row, column]
 */
export function paintMatrix(context, shown, { heat, layout, view, cursor, pinned }) {
  const { cell, wide, left, top } = layout;
  context.fillStyle = theme().card;
  context.fillRect(0, 0, view.width, view.height);
  const inside = paintInside(shown, layout, view);
  context.save();
  paintClip(context, left, top, view.width - left, view.height - top);
  context.translate(left - view.x, top - view.y);
  context.imageSmoothingEnabled = Math.min(cell, wide) < 1; // several numbers share a pixel
  context.drawImage(heat, 0, 0, shown.columns.length * wide, shown.rows.length * cell);
  paintHatching(context, shown, inside, layout);
  paintGaps(context, shown, inside, layout);
  if (Math.min(cell, wide) >= NUMBERS_FROM) paintNumbers(context, shown, inside, layout);
  if (shown.sums) paintSums(context, shown, inside, layout);
  paintMarks(context, shown, { layout, cursor, pinned });
  context.restore();
  paintColumnLabels(context, shown, { layout, view, inside, cursor: cursor ?? pinned });
  paintRowLabels(context, shown, { layout, view, inside, cursor: cursor ?? pinned });
  paintCorner(context, shown, layout);
}

/**
 * A number as it is printed into a cell: short.
 * @param {number} x
 * @param {number} cell
 * @returns {string}
 */
export function inCell(x, cell) {
  if (x === -Infinity) return "-inf";
  if (Number.isNaN(x)) return "NaN";
  const size = Math.abs(x);
  if (size >= 1000) return x.toExponential(0);
  const digits = size >= 100 ? 0 : size >= 9.995 ? 1 : 2;
  return x.toFixed(x < 0 && cell < 34 ? Math.max(0, digits - 1) : digits).replace("-", "−");
}

function paintFont(cell, weight = 400) {
  return `${weight} ${Math.max(9, Math.min(13, cell - 2))}px ${PAINT_FONT}`;
}

function paintRowLabel(shown, i) {
  return shown.next?.[i] ? `${shown.rows[i]} → ${shown.next[i]}` : shown.rows[i];
}

function paintCellColour(shown, i) {
  const value = shown.values[i];
  const low = colourOf(shown.scale.kind === "signed" ? 0 : shown.scale.low, shown.scale);
  if (!Number.isFinite(value) || shown.hidden?.[i]) return low;
  if (Math.abs(value) < shown.threshold) return low;
  const high = shown.scale.highs?.[Math.floor(i / shown.columns.length)] ?? shown.scale.high;
  return colourOf(value, { ...shown.scale, high });
}

/** The rows and columns of which something is in view. */
function paintInside(shown, { cell, wide, left, top }, view) {
  const within = (from, length, count, size) => [
    Math.max(0, Math.floor(from / size)),
    Math.min(count, Math.ceil((from + length) / size)),
  ];
  return {
    rows: within(view.y, view.height - top, shown.rows.length, cell),
    columns: within(view.x, view.width - left, shown.columns.length, wide),
  };
}

function paintEach(inside, columns, act) {
  for (let r = inside.rows[0]; r < inside.rows[1]; r += 1) {
    for (let c = inside.columns[0]; c < inside.columns[1]; c += 1) act(r, c, r * columns + c);
  }
}

function paintClip(context, x, y, width, height) {
  context.beginPath();
  context.rect(x, y, Math.max(0, width), Math.max(0, height));
  context.clip();
}

/** Stripes mark masked cells; colour alone would not. */
function paintHatching(context, shown, inside, { cell, wide }) {
  context.fillStyle = paintStripes(context);
  paintEach(inside, shown.columns.length, (r, c, i) => {
    if (shown.hidden?.[i] || shown.values[i] === -Infinity) context.fillRect(c * wide, r * cell, wide, cell);
  });
}

/**
 * Stripes in the colour of lines.
 * @param {CanvasRenderingContext2D} context
 * @returns {CanvasPattern}
 */
export function paintStripes(context) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const lines = tile.getContext("2d");
  lines.strokeStyle = theme().soft;
  lines.globalAlpha = 0.45;
  lines.lineWidth = 1;
  lines.beginPath();
  for (const start of [-6, 0, 6]) {
    lines.moveTo(start, 6);
    lines.lineTo(start + 6, 0);
  }
  lines.stroke();
  return context.createPattern(tile, "repeat");
}

function paintGaps(context, shown, inside, { cell, wide }) {
  context.strokeStyle = theme().card;
  context.lineWidth = 1;
  context.beginPath();
  const [right, bottom] = [shown.columns.length * wide, shown.rows.length * cell];
  for (let r = inside.rows[0]; cell >= 9 && r <= inside.rows[1]; r += 1) {
    context.moveTo(0, r * cell);
    context.lineTo(right, r * cell);
  }
  for (let c = inside.columns[0]; wide >= 9 && c <= inside.columns[1]; c += 1) {
    context.moveTo(c * wide, 0);
    context.lineTo(c * wide, bottom);
  }
  context.stroke();
}

function paintNumbers(context, shown, inside, { cell, wide }) {
  context.font = `${Math.min(cell, wide) >= 40 ? 12 : 10}px ${PAINT_FONT}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  paintEach(inside, shown.columns.length, (r, c, i) => {
    const value = shown.values[i];
    if (Math.abs(value) < shown.threshold && value !== 0) return;
    const veiled = shown.hidden?.[i] || value === -Infinity;
    context.fillStyle = veiled ? theme().soft : inkOn(paintCellColour(shown, i));
    context.fillText(
      veiled && value === 0 ? "0" : inCell(value, wide),
      (c + 0.5) * wide,
      (r + 0.5) * cell + 0.5,
    );
  });
}

/** The sum of each row. */
function paintSums(context, shown, inside, { cell, wide }) {
  context.font = paintFont(cell);
  context.fillStyle = theme().soft;
  context.textAlign = "left";
  context.textBaseline = "middle";
  const every = Math.ceil(9 / cell);
  for (let r = inside.rows[0]; r < inside.rows[1]; r += 1) {
    if (r % every) continue;
    context.fillText(`= ${rowSum(shown, r).toFixed(3)}`, shown.columns.length * wide + 10, (r + 0.5) * cell + 0.5);
  }
}

/**
 * What a row adds up to.
 * @param {{values: ArrayLike<number>, columns: string[]}} shown
 * @param {number} r
 * @returns {number}
 */
function rowSum(shown, r) {
  let sum = 0;
  for (let c = 0; c < shown.columns.length; c += 1) sum += shown.values[r * shown.columns.length + c];
  return sum;
}

function paintMarks(context, shown, { layout: { cell, wide }, cursor, pinned }) {
  const colours = theme();
  const [right, bottom] = [shown.columns.length * wide, shown.rows.length * cell];
  const frame = (x, y, width, height, colour, line) => {
    context.strokeStyle = colour;
    context.lineWidth = line;
    context.strokeRect(x, y, width, height);
  };
  if (cursor) {
    frame(-1, cursor[0] * cell, right + 2, cell, colours.soft, 1);
    frame(cursor[1] * wide, -1, wide, bottom + 2, colours.soft, 1);
  }
  for (const [mark, line] of [
    [pinned, 3],
    [cursor, 2],
  ]) {
    if (!mark) continue;
    frame(mark[1] * wide, mark[0] * cell, wide, cell, colours.card, line + 2);
    frame(mark[1] * wide, mark[0] * cell, wide, cell, colours.ink, line);
  }
}

function paintShort(context, text, length) {
  if (context.measureText(text).width <= length) return text;
  const letters = [...text];
  while (letters.length > 1 && context.measureText(`${letters.join("")}…`).width > length) letters.pop();
  return `${letters.join("")}…`;
}

function paintRowLabels(context, shown, { layout, view, inside, cursor }) {
  const { cell, left, top } = layout;
  const every = Math.ceil(9 / cell);
  const colours = theme();
  context.save();
  paintClip(context, 0, top, left, view.height - top);
  context.textAlign = "left";
  context.textBaseline = "middle";
  for (let r = inside.rows[0]; r < inside.rows[1]; r += 1) {
    const here = cursor?.[0] === r;
    if (r % every && !here) continue;
    const y = top - view.y + (r + 0.5) * cell + 0.5;
    const whole = paintRowLabel(shown, r);
    context.font = paintFont(cell, here ? 700 : 400);
    const text = paintShort(context, whole, LONGEST_LABEL);
    const start = left - 8 - context.measureText(text).width;
    const own = text.slice(0, shown.rows[r].length); // what the row predicts is painted in a softer colour
    context.fillStyle = here ? colours.accent : colours.ink;
    context.fillText(own, start, y);
    context.fillStyle = here ? colours.accent : colours.soft;
    context.fillText(text.slice(own.length), start + context.measureText(own).width, y);
  }
  context.restore();
}

/** The numbers of vectors: some of their places are enough. */
function paintNumbered(shown) {
  return shown.labels.column === "number";
}

function paintColumnLabels(context, shown, { layout, view, inside, cursor }) {
  const { cell, wide, left, top, slanted } = layout;
  const numbered = paintNumbered(shown) && wide < 26;
  let every = numbered ? 8 : Math.ceil(9 / wide);
  while (numbered && every * wide < 34) every *= 2;
  context.save();
  paintClip(context, left - Math.max(12, wide) / 2, 0, view.width, top);
  context.textBaseline = "middle";
  context.textAlign = slanted ? "left" : "center";
  for (let c = inside.columns[0]; c < inside.columns[1]; c += 1) {
    const here = cursor?.[1] === c;
    if ((numbered ? c && (c + 1) % every : c % every) && !here) continue;
    context.font = paintFont(Math.min(cell, slanted ? wide + 2 : cell), here ? 700 : 400);
    context.fillStyle = here ? theme().accent : theme().ink;
    context.save();
    context.translate(left - view.x + (c + 0.5) * wide, top - 8);
    if (slanted) context.rotate(-SLANT);
    context.fillText(paintShort(context, shown.columns[c], LONGEST_LABEL), 0, slanted ? 0 : -4);
    context.restore();
  }
  context.restore();
}

function paintCorner(context, shown, { left, top }) {
  context.font = `italic 11px ${PAINT_FONT}`;
  context.fillStyle = theme().soft;
  context.textBaseline = "alphabetic";
  context.textAlign = "right";
  context.fillText(`${shown.labels.column} →`, left - 10, Math.max(12, top - 20), left - 10);
  context.fillText(`${shown.labels.row} ↓`, left - 10, top - 6, left - 10);
}
