// Attention as lines between two columns of words: queries on the left, keys on the right.
// Only the largest weights are drawn: one line per pair would be thousands.

import { saveSvgAsPng } from "../charts/savePng.js";
import { button, h, svg } from "../core/dom.js";
import { show } from "../core/numbers.js";
import { t } from "../core/texts.js";

const LINE_STEP = 26; // pixels from a word to the next
const MOST_LINES = 300;
const LINES_OF_A_WORD = 8;

/**
 * Two columns of words. Arrow keys choose one, and only its lines stay.
 * @param {{rows: string[], columns: string[], values: ArrayLike<number>, title: string,
 *   threshold?: number, top?: number, credit?: string, next?: string[] | null,
 *   onCursor?: (row: number | null, column: number | null) => void,
 *   onPin?: (row: number | null, column: number | null) => void}} options the `top` largest weights of
 *   each query are drawn, if they reach `threshold`
 * @returns {{element: HTMLElement, set: (changes: object) => void,
 *   pin: (row: number | null) => void}} `pin` does not call `onPin`
 */
export function attentionLines(options) {
  const made = new LinesView();
  made.set(options);
  return { element: made.parts.element, set: (changes) => made.set(changes), pin: (row) => made.pin(row) };
}

/**
 * The pairs to draw: the largest weights of each query, or of one token.
 * @param {{rows: string[], columns: string[], values: ArrayLike<number>, threshold?: number, top?: number}} options
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
    this.options = {};
    this.chosen = { row: null, column: null }; // one of them at most
    this.pinned = null;
    this.parts = linesParts(this);
    new ResizeObserver(() => this.fit()).observe(this.parts.container);
  }

  set(changes) {
    Object.assign(this.options, changes);
    const { rows, columns, next } = this.options;
    if ((this.pinned ?? 0) >= rows.length) this.pinned = null;
    const { title, drawing, curves } = this.parts;
    title.textContent = this.options.title;
    drawing.setAttribute("aria-label", this.options.title);
    this.words = {
      row: rows.map((text, i) => this.word("row", next?.[i] ? `${text} → ${next[i]}` : text, i, rows.length)),
      column: columns.map((text, i) => this.word("column", text, i, columns.length)),
    };
    drawing.replaceChildren(curves, ...this.words.row, ...this.words.column);
    this.fit();
  }

  /** The words keep their size whatever the width; what lies between them gives way. */
  fit() {
    const { rows, columns } = this.options;
    const width = Math.min(640, this.parts.container.clientWidth || 640);
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
    this.pinned = row !== null && row < this.options.rows.length ? row : null;
    this.draw();
  }

  choose(row, column) {
    if (row === this.chosen.row && column === this.chosen.column) return;
    this.chosen = { row, column };
    this.draw();
    this.options.onCursor?.(row, column);
  }

  draw() {
    const none = this.chosen.row === null && this.chosen.column === null;
    const only = none ? { row: this.pinned, column: null } : this.chosen;
    const lines = strongest(this.options, only);
    this.parts.curves.replaceChildren(...lines.map((line) => linesCurve(line, this.edges)));
    this.mark(this.words.row, only.row, new Set(lines.map((line) => line[0])));
    this.mark(this.words.column, only.column, new Set(lines.map((line) => line[1])));
    this.parts.readout.textContent = linesSentence(this.options, only, lines);
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
      click: () => this.togglePin(side, i),
      keydown: (event) => this.key(event, side, i, count),
    };
  }

  togglePin(side, i) {
    if (side !== "row") return;
    this.pin(this.pinned === i ? null : i);
    this.options.onPin?.(this.pinned, null);
  }

  key(event, side, i, count) {
    const to = { ArrowDown: i + 1, ArrowUp: i - 1, Home: 0, End: count - 1 }[event.key];
    const across = { ArrowRight: "column", ArrowLeft: "row" }[event.key];
    const index = Math.max(0, Math.min(count - 1, to));
    if (to !== undefined) this.words[side][index].focus();
    else if (across) this.words[across].find((word) => word.getAttribute("tabindex") === "0")?.focus();
    else if (event.key === "Enter" || event.key === " ") this.togglePin(side, i);
    else if (event.key === "Escape" && this.pinned !== null) this.togglePin("row", this.pinned);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

function linesParts(view) {
  const save = () => saveSvgAsPng(drawing, { title: view.options.title, credit: view.options.credit ?? "" });
  const title = h("span", { class: "matrix-title" });
  const tools = h("div", { class: "matrix-tools" }, button(t("Save PNG"), save, { class: "button quiet" }));
  const curves = svg("g", { "aria-hidden": "true" });
  const drawing = svg("svg", { class: "lines-drawing", role: "group" });
  const readout = h("p", { class: "matrix-readout", role: "status", "aria-live": "polite", dir: "auto" });
  const heads = h(
    "div",
    { class: "lines-heads soft small" },
    h("span", {}, t("query")),
    h("span", {}, t("key")),
  );
  const container = h("div", { class: "lines-view" }, drawing);
  const element = h(
    "figure",
    { class: "lines" },
    h("figcaption", { class: "matrix-head" }, title, tools),
    heads,
    container,
    readout,
  );
  return { element, title, container, drawing, curves, readout };
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
    return `The ${top} largest weights of each query: ${lines.length} lines. Choose a token to see only its own.`;
  }
  const most = lines.slice(0, 4).map(([r, c, w]) => `${only.row === null ? rows[r] : columns[c]} ${show(w)}`);
  const parts = most.length ? most.join(", ") : "no weight above the minimum";
  return only.row === null
    ? `key ${columns[only.column]}, attended to by: ${parts}`
    : `query ${rows[only.row]} attends to: ${parts}`;
}

function linesShort(text) {
  const letters = [...text];
  return letters.length > 20 ? `${letters.slice(0, 19).join("")}…` : text;
}
