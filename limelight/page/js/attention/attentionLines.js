// Attention as lines between two columns of words: queries on the left, keys on the right.
// Only the strongest are drawn: a line per pair would be thousands, and say nothing.

import { saveDrawing } from "../charts/savePng.js";
import { button, h, svg } from "../core/dom.js";
import { show } from "../core/numbers.js";

const LINE_STEP = 26; // pixels from a word to the next
const MOST_LINES = 300;
const LINES_OF_A_WORD = 8;

/**
 * Two columns of words. Arrow keys choose one, and only its lines stay.
 * @param {{rows: string[], columns: string[], values: ArrayLike<number>, title: string,
 *   threshold?: number, top?: number, credit?: string, next?: string[] | null,
 *   onCursor?: (row: number | null, column: number | null) => void,
 *   onPin?: (row: number | null, column: number | null) => void}} asked of each query the `top`
 *   strongest are drawn, if they are not weaker than `threshold`
 * @returns {{element: HTMLElement, set: (changes: object) => void,
 *   pin: (row: number | null) => void}} `pin` does not call `onPin`
 */
export function attentionLines(asked) {
  const made = new LinesView();
  made.set(asked);
  return { element: made.parts.element, set: (changes) => made.set(changes), pin: (row) => made.pin(row) };
}

/**
 * Which pairs are drawn: the strongest of each query, or all that matter of one word.
 * @param {{rows: string[], columns: string[], values: ArrayLike<number>, threshold?: number, top?: number}} asked
 * @param {{row: number | null, column: number | null}} only
 * @returns {[number, number, number][]} row, column, weight; the strongest first
 */
export function strongest({ rows, columns, values, threshold = 0, top = 3 }, only) {
  const found = [];
  for (let r = 0; r < rows.length; r += 1) {
    if (only.row !== null && r !== only.row) continue;
    const own = columns.map((_, c) => [r, c, values[r * columns.length + c]]);
    own.sort((a, b) => b[2] - a[2]);
    const many =
      only.column !== null
        ? own.filter((line) => line[1] === only.column)
        : own.slice(0, only.row !== null ? LINES_OF_A_WORD : top);
    found.push(...many.filter((line) => line[2] > 0 && line[2] >= threshold));
  }
  return found.sort((a, b) => b[2] - a[2]).slice(0, MOST_LINES);
}

class LinesView {
  constructor() {
    this.asked = {};
    this.chosen = { row: null, column: null }; // one of them at most
    this.pinned = null;
    this.parts = linesParts(this);
    new ResizeObserver(() => this.fit()).observe(this.parts.room);
  }

  set(changes) {
    Object.assign(this.asked, changes);
    const { rows, columns, next } = this.asked;
    if ((this.pinned ?? 0) >= rows.length) this.pinned = null;
    const { title, drawing, curves } = this.parts;
    title.textContent = this.asked.title;
    drawing.setAttribute("aria-label", this.asked.title);
    this.words = {
      row: rows.map((text, i) => this.word("row", next?.[i] ? `${text} → ${next[i]}` : text, i, rows.length)),
      column: columns.map((text, i) => this.word("column", text, i, columns.length)),
    };
    drawing.replaceChildren(curves, ...this.words.row, ...this.words.column);
    this.fit();
  }

  /** The words keep their size whatever the width; what lies between them gives way. */
  fit() {
    const { rows, columns } = this.asked;
    const width = Math.min(640, this.parts.room.clientWidth || 640);
    const height = Math.max(rows.length, columns.length) * LINE_STEP;
    this.edges = [width * 0.36, width * 0.64];
    this.parts.drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.parts.drawing.style.width = `${width}px`;
    this.parts.drawing.style.height = `${height}px`;
    this.words.row.forEach((word) => word.setAttribute("x", String(this.edges[0] - 8)));
    this.words.column.forEach((word) => word.setAttribute("x", String(this.edges[1] + 8)));
    this.draw();
  }

  pin(row) {
    this.pinned = row !== null && row < this.asked.rows.length ? row : null;
    this.draw();
  }

  choose(row, column) {
    if (row === this.chosen.row && column === this.chosen.column) return;
    this.chosen = { row, column };
    this.draw();
    this.asked.onCursor?.(row, column);
  }

  draw() {
    const none = this.chosen.row === null && this.chosen.column === null;
    const only = none ? { row: this.pinned, column: null } : this.chosen;
    const lines = strongest(this.asked, only);
    this.parts.curves.replaceChildren(...lines.map((line) => linesCurve(line, this.edges)));
    this.mark(this.words.row, only.row, new Set(lines.map((line) => line[0])));
    this.mark(this.words.column, only.column, new Set(lines.map((line) => line[1])));
    this.parts.said.textContent = linesSentence(this.asked, only, lines);
  }

  mark(words, chosen, reached) {
    words.forEach((word, i) => {
      word.classList.toggle("chosen", i === chosen);
      word.classList.toggle("faint", !reached.has(i));
      word.setAttribute("tabindex", i === (chosen ?? 0) ? "0" : "-1"); // one tab stop a column
    });
  }

  word(side, label, i, count) {
    const left = side === "row";
    const props = {
      y: (i + 0.5) * LINE_STEP,
      class: "lines-word",
      "text-anchor": left ? "end" : "start",
      "dominant-baseline": "central",
      role: "button",
      "aria-label": `${left ? "query" : "key"} ${label}`,
      on: this.wordEvents(side, i, count),
    };
    return svg("text", props, linesShort(label));
  }

  wordEvents(side, i, count) {
    const here = side === "row" ? [i, null] : [null, i];
    return {
      pointerenter: () => this.choose(...here),
      pointerleave: () => this.choose(null, null),
      focus: () => this.choose(...here),
      blur: () => this.choose(null, null),
      click: () => this.tellPinned(side, i),
      keydown: (event) => this.key(event, side, i, count),
    };
  }

  tellPinned(side, i) {
    if (side !== "row") return;
    this.pin(this.pinned === i ? null : i);
    this.asked.onPin?.(this.pinned, null);
  }

  key(event, side, i, count) {
    const to = { ArrowDown: i + 1, ArrowUp: i - 1, Home: 0, End: count - 1 }[event.key];
    const across = { ArrowRight: "column", ArrowLeft: "row" }[event.key];
    const place = Math.max(0, Math.min(count - 1, to));
    if (to !== undefined) this.words[side][place].focus();
    else if (across) this.words[across].find((word) => word.getAttribute("tabindex") === "0")?.focus();
    else if (event.key === "Enter" || event.key === " ") this.tellPinned(side, i);
    else if (event.key === "Escape" && this.pinned !== null) this.tellPinned("row", this.pinned);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

function linesParts(view) {
  const save = () => saveDrawing(drawing, { title: view.asked.title, credit: view.asked.credit ?? "" });
  const title = h("span", { class: "matrix-title" });
  const tools = h("div", { class: "matrix-tools" }, button("Save picture", save, { class: "button quiet" }));
  const curves = svg("g", { "aria-hidden": "true" });
  const drawing = svg("svg", { class: "lines-drawing", role: "group" });
  const said = h("p", { class: "matrix-said", role: "status", "aria-live": "polite", dir: "auto" });
  const heads = h(
    "div",
    { class: "lines-heads soft small" },
    h("span", {}, "query: who looks"),
    h("span", {}, "key: at whom"),
  );
  const room = h("div", { class: "lines-view" }, drawing);
  const element = h(
    "figure",
    { class: "lines" },
    h("figcaption", { class: "matrix-head" }, title, tools),
    heads,
    room,
    said,
  );
  return { element, title, room, drawing, curves, said };
}

function linesCurve([row, column, weight], [left, right]) {
  const bend = (right - left) * 0.35;
  const [from, to] = [(row + 0.5) * LINE_STEP, (column + 0.5) * LINE_STEP];
  return svg("path", {
    class: "lines-line",
    d: `M${left} ${from} C${left + bend} ${from} ${right - bend} ${to} ${right} ${to}`,
    style: { "stroke-width": String(0.8 + 5 * weight), "stroke-opacity": String(0.15 + 0.8 * weight) },
  });
}

function linesSentence({ rows, columns, top = 3 }, only, lines) {
  if (only.row === null && only.column === null) {
    return `The ${top} strongest of each query, ${lines.length} lines. Choose a word to see only its own.`;
  }
  const most = lines.slice(0, 4).map(([r, c, w]) => `${only.row === null ? rows[r] : columns[c]} ${show(w)}`);
  const told = most.length ? most.join(", ") : "nothing this strong";
  return only.row === null
    ? `key ${columns[only.column]} is looked at by: ${told}`
    : `query ${rows[only.row]} looks at: ${told}`;
}

function linesShort(text) {
  const letters = [...text];
  return letters.length > 20 ? `${letters.slice(0, 19).join("")}…` : text;
}
