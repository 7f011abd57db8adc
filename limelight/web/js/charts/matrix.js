// A matrix on a canvas: arrow keys, readout, table view, PNG. The canvas covers only what is in view,
// so 256 x 256 cells need no more nodes than 2 x 2.

import { button, h } from "../core/dom.js";
import { show } from "../core/numbers.js";
import { redrawWithTheme, scaleOf } from "./colour.js";
import { ScheduledPicture } from "./frameScheduler.js";
import { LEGEND_HEIGHT, paintLegend, showLegend } from "./legend.js";
import { heatOf, layoutOf, paintMatrix } from "./matrixPainter.js";
import { savePng } from "./savePng.js";
import { foldedAway, matrixTable } from "./table.js";
import { t } from "../core/texts.js";

const EASY_CELL = 14; // pixels, at which a label is read with ease
const SMALLEST_CELL = 6; // what fits only when it is smaller is scrolled
const THINNEST_CELL = 0.1; // of a vector, whose columns have numbers and no names
const ODD_CELL = 28; // the longer side of a cell that is no square, at most
const LARGEST_CELL = 64;
const COMFORTABLE_HEIGHT = 460; // pixels: small matrices grow up to this
const matrixHint = () => t("Point at a cell, or use the arrow keys; Enter pins it, Esc unpins it.");
let matrixCount = 0;

/**
 * A matrix of numbers with a name for every row and column; queries are rows everywhere.
 *
 * @param {{rows: string[], columns: string[], values: ArrayLike<number>, title: string,
 *   scale?: "share" | "signed" | {kind: "share" | "signed", low: number, high: number,
 *   highs?: ArrayLike<number>},
 *   next?: string[] | null, hidden?: ArrayLike<number> | null, hiddenMeans?: string,
 *   also?: {name: string, values: ArrayLike<number>}[], threshold?: number, sums?: boolean,
 *   labels?: {row?: string, column?: string, value?: string}, credit?: string,
 *   onCursor?: (row: number | null, column: number | null) => void,
 *   onPin?: (row: number | null, column: number | null) => void}} options
 *   `values` row after row; `highs` a scale's upper end for each row; `next` what each row predicts;
 *   `hidden` cells are hatched, and `hiddenMeans` says why; `also` more numbers for the sentence
 *   about a cell; shares below `threshold` are left pale; `credit` is written into a saved picture
 * @returns {{element: HTMLElement, set: (changes: object) => void,
 *   pin: (row: number | null, column: number | null) => void,
 *   point: (row: number | null, column: number | null) => void}} `pin` and `point` call nobody back
 */
export function matrix(options) {
  const made = new MatrixView();
  made.set(options);
  return {
    element: made.parts.element,
    set: (changes) => made.set(changes),
    pin: (r, c) => made.pinQuietly(r, c),
    point: (r, c) => made.lookAt(r === null || c === null ? null : made.within([r, c])),
  };
}

class MatrixView extends ScheduledPicture {
  constructor() {
    super();
    this.options = {};
    this.cursor = this.pinned = null;
    this.lastRow = 0; // where the table is opened
    this.zoom = 1;
    this.parts = matrixParts(this);
    this.context = this.parts.canvas.getContext("2d");
    this.fill(this.parts.view);
    redrawWithTheme(this.parts.element, () => this.set({}));
  }

  set(changes) {
    Object.assign(this.options, changes);
    this.shown = matrixShown(this.options);
    this.heat = heatOf(this.shown);
    this.cursor = this.within(this.cursor);
    this.pinned = this.within(this.pinned);
    this.describe();
    this.draw();
  }

  within(mark) {
    return mark && mark[0] < this.shown.rows.length && mark[1] < this.shown.columns.length ? mark : null;
  }

  describe() {
    const { title, legend, view, table } = this.parts;
    title.textContent = this.options.title;
    view.setAttribute("aria-label", this.options.title);
    view.setAttribute("aria-rowcount", String(this.shown.rows.length));
    view.setAttribute("aria-colcount", String(this.shown.columns.length));
    showLegend(legend, this.shown, this.options.hiddenMeans);
    table.renew();
    this.showReadout();
  }

  asTable() {
    const row = Math.min(this.lastRow, this.shown.rows.length - 1);
    return matrixTable(this.shown, this.options.title, Math.max(0, row));
  }

  drawNow(available) {
    const { view, area, canvas } = this.parts;
    const room = this.room();
    if (this.layout?.available !== available || this.layout.room !== room || this.layout.zoom !== this.zoom || this.layout.shown !== this.shown) {
      this.layout = { ...this.fit(available), available, room, zoom: this.zoom, shown: this.shown };
    }
    area.style.width = `${this.layout.width}px`;
    area.style.height = `${this.layout.height}px`;
    this.drawnFor = [view.clientWidth, view.clientHeight]; // which follow what is inside
    const width = Math.min(this.drawnFor[0], this.layout.width);
    const height = Math.min(this.drawnFor[1], this.layout.height);
    const sharp = window.devicePixelRatio || 1;
    const pixels = [Math.round(width * sharp), Math.round(height * sharp)];
    if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) [canvas.width, canvas.height] = pixels;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    this.context.setTransform(sharp, 0, 0, sharp, 0, 0);
    const seen = { x: view.scrollLeft, y: view.scrollTop, width, height };
    paintMatrix(this.context, this.shown, {
      heat: this.heat,
      layout: this.layout,
      view: seen,
      cursor: this.cursor,
      pinned: this.pinned,
    });
  }

  /** Square cells, as long as these are large enough; else all rows and columns that can be read. */
  fit(available) {
    const { shown } = this;
    const around = layoutOf(this.context, shown, EASY_CELL);
    const best = (available - around.left - around.right) / Math.max(1, shown.columns.length);
    const tall = (this.room() - around.top - 12) / Math.max(1, shown.rows.length);
    const square = Math.floor(Math.min(LARGEST_CELL, tall, best));
    const fitted = [tall, best].map((size, n) => {
      if (square >= EASY_CELL) return square;
      const least = n && shown.labels.column === "number" ? THINNEST_CELL : SMALLEST_CELL;
      return size < least ? EASY_CELL : Math.min(ODD_CELL, size);
    });
    const [cell, wide] = this.zoom === 1 ? fitted : fitted.map((size) => Math.max(3, Math.min(72, Math.round(size * this.zoom))));
    const made = layoutOf(this.context, shown, cell, wide);
    const excess = this.zoom === 1 && fitted[1] !== EASY_CELL ? Math.max(0, made.width - available) : 0; // labels are wider in higher rows
    return excess ? layoutOf(this.context, shown, cell, Math.max(THINNEST_CELL, wide - excess / shown.columns.length)) : made;
  }

  room() {
    return Math.min(COMFORTABLE_HEIGHT, parseFloat(getComputedStyle(this.parts.view).maxHeight) || COMFORTABLE_HEIGHT);
  }

  cellAt(event) {
    const { view } = this.parts;
    const box = view.getBoundingClientRect();
    const { left, top, cell, wide } = this.layout ?? {};
    const [x, y] = [event.clientX - box.left - left, event.clientY - box.top - top];
    if (!(x >= 0 && y >= 0)) return null;
    return this.within([Math.floor((y + view.scrollTop) / cell), Math.floor((x + view.scrollLeft) / wide)]);
  }

  moveTo(mark) {
    if (!this.lookAt(mark)) return;
    this.options.onCursor?.(mark?.[0] ?? null, mark?.[1] ?? null);
  }

  lookAt(mark) {
    if (String(mark) === String(this.cursor)) return false;
    this.cursor = mark;
    this.lastRow = mark?.[0] ?? this.lastRow;
    this.showReadout();
    this.draw();
    return true;
  }

  pinQuietly(row, column) {
    this.pinned = row === null || column === null ? null : this.within([row, column]);
    this.showReadout();
    this.draw();
  }

  pin(mark) {
    const same = mark && String(mark) === String(this.pinned);
    this.pinQuietly(...(mark && !same ? mark : [null, null]));
    this.options.onPin?.(this.pinned?.[0] ?? null, this.pinned?.[1] ?? null);
  }

  showReadout() {
    const { readout, row, cell, header } = this.parts;
    const mark = this.cursor ?? this.pinned;
    readout.textContent = mark ? matrixSentence(this.shown, this.options.also ?? [], mark) : matrixHint();
    header.textContent = this.shown.rows[mark?.[0] ?? 0];
    if (!mark) return;
    row.setAttribute("aria-rowindex", String(mark[0] + 1));
    cell.setAttribute("aria-colindex", String(mark[1] + 1));
    cell.setAttribute("aria-selected", String(String(mark) === String(this.pinned)));
    cell.textContent = show(this.shown.values[mark[0] * this.shown.columns.length + mark[1]]);
  }

  key(event) {
    const [rows, columns] = [this.shown.rows.length, this.shown.columns.length];
    const [r, c] = this.cursor ?? this.pinned ?? [0, 0];
    const far = event.ctrlKey || event.metaKey;
    const to = {
      ArrowUp: [r - 1, c],
      ArrowDown: [r + 1, c],
      ArrowLeft: [r, c - 1],
      ArrowRight: [r, c + 1],
      Home: [far ? 0 : r, 0],
      End: [far ? rows - 1 : r, columns - 1],
      PageUp: [r - 10, c],
      PageDown: [r + 10, c],
    }[event.key];
    if (to) {
      this.moveTo([Math.max(0, Math.min(rows - 1, to[0])), Math.max(0, Math.min(columns - 1, to[1]))]);
      this.reveal();
    } else if (event.key === "Enter") this.pin([r, c]);
    else if (event.key === "Escape" && this.pinned) this.pin(null);
    else return;
    event.preventDefault();
    event.stopPropagation(); // arrows mean something else outside
  }

  reveal() {
    if (!this.layout) return;
    const { view } = this.parts;
    const { cell, wide, left, top } = this.layout;
    const [y, x] = [this.cursor[0] * cell, this.cursor[1] * wide];
    view.scrollLeft = Math.min(x, Math.max(view.scrollLeft, x + wide + left + 8 - view.clientWidth));
    view.scrollTop = Math.min(y, Math.max(view.scrollTop, y + cell + top + 8 - view.clientHeight));
  }

  resize(factor) {
    this.zoom = Math.max(0.2, Math.min(4, this.zoom * factor));
    this.draw();
  }

  save() {
    const layout = this.layout ?? this.fit(900);
    const view = { x: 0, y: 0, width: layout.width, height: layout.height };
    const paint = (context) => {
      paintMatrix(context, this.shown, { heat: this.heat, layout, view, cursor: null, pinned: this.pinned });
      context.translate(0, layout.height);
      paintLegend(context, this.shown, this.options.hiddenMeans);
    };
    savePng({
      title: this.options.title,
      credit: this.options.credit ?? "",
      width: layout.width,
      height: layout.height + LEGEND_HEIGHT,
      paint,
    });
  }
}

function matrixShown(options) {
  const { rows, columns, values, next = null, hidden = null, threshold = 0, sums = false } = options;
  const scale = typeof options.scale === "object" ? options.scale : scaleOf(values, options.scale ?? "share");
  const labels = { row: "query", column: "key", value: "weight", ...options.labels };
  return { rows, columns, values, next, hidden, threshold, sums, scale, labels };
}

function matrixSentence(shown, also, [r, c]) {
  const index = r * shown.columns.length + c;
  const row = shown.next?.[r]
    ? `at ${shown.rows[r]} → predicts ${shown.next[r]}`
    : `${shown.labels.row} ${shown.rows[r]}`;
  const numbers = [...also, { name: shown.labels.value, values: shown.values }];
  const text = numbers.map(({ name, values }) => `${name} ${show(values[index])}`).join(", ");
  return `${row}, ${shown.labels.column} ${shown.columns[c]}: ${text}${shown.hidden?.[index] ? " (masked)" : ""}`;
}

function matrixParts(view) {
  matrixCount += 1;
  const id = `matrix-cell-${matrixCount}`;
  const tool = (text, label, act) => button(text, act, { class: "button quiet", "aria-label": label });
  const header = h("span", { role: "rowheader" });
  const cell = h("span", { role: "gridcell", id });
  const row = h("div", { role: "row", class: "unseen" }, header, cell);
  const canvas = h("canvas", { class: "matrix-canvas", "aria-hidden": "true" });
  const area = h("div", { class: "matrix-area" }, canvas, row);
  const grid = h(
    "div",
    {
      class: "matrix-view",
      role: "grid",
      tabindex: "0",
      "aria-activedescendant": id,
      "aria-readonly": "true",
      on: matrixEvents(view),
    },
    area,
  );
  const title = h("span", { class: "matrix-title" });
  const readout = h("p", { class: "matrix-readout", role: "status", "aria-live": "polite", dir: "auto" });
  const legend = h("div", { class: "legend" });
  const below = h("div", { class: "matrix-table" });
  const table = foldedAway(below, () => view.asTable());
  const smaller = tool("−", "Smaller cells", () => view.resize(0.8));
  const larger = tool("+", "Larger cells", () => view.resize(1.25));
  const save = tool(t("Save PNG"), null, () => view.save());
  const tools = h("div", { class: "matrix-tools" }, smaller, larger, table.toggle, save);
  const element = h(
    "figure",
    { class: "matrix" },
    h("figcaption", { class: "matrix-head" }, title, tools),
    grid,
    readout,
    legend,
    below,
  );
  return { element, title, view: grid, area, canvas, row, header, cell, readout, legend, table };
}

function matrixEvents(view) {
  return {
    keydown: (event) => view.key(event),
    focus: () => view.moveTo(view.cursor ?? view.pinned ?? view.within([0, 0])),
    blur: () => view.moveTo(null),
    scroll: () => view.draw(),
    pointermove: (event) => event.pointerType === "mouse" && view.moveTo(view.cellAt(event)),
    pointerleave: () => document.activeElement !== view.parts.view && view.moveTo(null),
    click: (event) => {
      const mark = view.cellAt(event);
      if (mark) view.pin(mark);
    },
  };
}
