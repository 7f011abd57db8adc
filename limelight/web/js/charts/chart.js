// Curves over steps: several series, optional log axis, a readout, a table, a PNG.

import { button, h, svg } from "../core/dom.js";
import { sliderKey } from "../core/keys.js";
import { ScheduledPicture } from "./frameScheduler.js";
import { PLOT_EDGE, plotAxes, plotCurve, plotKeys, plotScales } from "./plot.js";
import { saveSvgAsPng } from "./savePng.js";
import { foldedAway, plainTable, precise } from "./table.js";
import { t } from "../core/texts.js";

const MOST_ROWS = 200; // of the table
let chartCount = 0;

/**
 * @typedef {{name: string, points: [number, number][], dots?: boolean}} Series points as x and y,
 *   x growing
 */

/**
 * A chart. Arrow keys move along it; the readout shows all series there.
 * @param {{series: Series[], title: string, x: string, y: string, log?: boolean, plain?: boolean,
 *   at?: number, credit?: string}} options `plain`: without a logarithmic axis; `at`: where the cursor is
 * @returns {{element: HTMLElement, set: (changes: object) => void}}
 */
export function chart(options) {
  const made = new ChartView(options);
  made.set(options);
  return { element: made.parts.element, set: (changes) => made.set(changes) };
}

class ChartView extends ScheduledPicture {
  constructor(options) {
    super();
    this.options = { series: [], plain: options.plain };
    this.log = null; // null: as in the options
    this.cursor = options.at ?? null; // an index into the steps
    this.parts = chartParts(this);
    this.fill(this.parts.slider);
  }

  set(changes) {
    Object.assign(this.options, changes);
    this.steps = [...new Set(this.options.series.flatMap(({ points }) => points.map(([x]) => x)))].sort(
      (a, b) => a - b,
    );
    if (this.cursor !== null) this.cursor = Math.min(this.cursor, this.steps.length - 1);
    if (!this.steps.length) this.cursor = null;
    const { title, slider, log, table } = this.parts;
    title.textContent = this.options.title;
    slider.setAttribute("aria-label", this.options.title);
    slider.setAttribute("aria-valuemax", String(this.steps.at(-1) ?? 0));
    slider.setAttribute("aria-valuemin", String(this.steps[0] ?? 0));
    log.checked = this.log ?? Boolean(this.options.log);
    table.renew();
    this.showReadout(); // a slider has its value even far out of sight, where it is not drawn yet
    this.draw();
  }

  drawNow(width, height) {
    const { drawing } = this.parts;
    this.scales = plotScales(this.options.series, { width, height, log: this.log ?? this.options.log });
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    drawing.replaceChildren(
      ...plotAxes(this.scales, this.options, { width, height }),
      ...plotKeys(this.options.series, width, this.options.y),
      ...this.options.series.flatMap((series, i) => plotCurve(series, i, this.scales)),
      ...this.cursorMarks(height),
    );
    this.showReadout();
  }

  cursorMarks(height) {
    if (this.cursor === null) return [];
    const step = this.steps[this.cursor];
    const x = this.scales.x(step);
    const line = svg("line", {
      class: "chart-cursor",
      x1: x,
      x2: x,
      y1: PLOT_EDGE.top,
      y2: height - PLOT_EDGE.bottom,
    });
    const marks = this.here().filter(({ at }) => this.scales.shows(at[1]));
    return [
      line,
      ...marks.map(({ at, i }) =>
        svg("circle", {
          class: `chart-mark chart-series-${i % 4}`,
          cx: this.scales.x(at[0]),
          cy: this.scales.y(at[1]),
          r: 4,
        }),
      ),
    ];
  }

  /** Of every series the last point up to the cursor. */
  here() {
    const step = this.steps[this.cursor];
    return this.options.series
      .map(({ name, points }, i) => ({ name, i, at: chartLastUpTo(points, step) }))
      .filter(({ at }) => at);
  }

  showReadout() {
    const { readout, slider } = this.parts;
    const empty = this.steps.length ? t("Point at the curve, or use the arrow keys.") : "No data yet.";
    const text =
      this.cursor === null
        ? empty
        : `${this.options.x} ${this.steps[this.cursor]}: ${this.here()
            .map(
              ({ name, at }) =>
                `${name} ${precise(at[1])}${at[0] === this.steps[this.cursor] ? "" : ` (${this.options.x} ${at[0]})`}`,
            )
            .join(", ")}`;
    readout.textContent = text;
    slider.setAttribute("aria-valuenow", String(this.steps[this.cursor ?? 0] ?? 0));
    slider.setAttribute("aria-valuetext", text);
  }

  moveTo(index) {
    if (index === this.cursor || !this.steps.length) return;
    this.cursor = index === null ? null : Math.max(0, Math.min(this.steps.length - 1, index));
    this.draw();
  }

  point(event) {
    if (!this.scales || !this.steps.length) return;
    const box = this.parts.slider.getBoundingClientRect();
    const step = this.scales.stepAt(event.clientX - box.left);
    const next = this.steps.findIndex((x) => x >= step);
    if (next <= 0) this.moveTo(next < 0 ? this.steps.length - 1 : 0);
    else this.moveTo(step - this.steps[next - 1] < this.steps[next] - step ? next - 1 : next);
  }

  key(event) {
    const to = sliderKey(event, { here: this.cursor ?? -1, last: this.steps.length - 1 });
    if (to !== null) this.moveTo(to);
  }

  chooseLog(log) {
    this.log = log;
    this.draw();
  }

  asTable() {
    const { series, title, x } = this.options;
    const steps = this.steps.slice(-MOST_ROWS);
    const known = series.map(({ points }) => new Map(points));
    const rows = steps.map((step) => [
      String(step),
      ...known.map((at) => (at.has(step) ? precise(at.get(step)) : "")),
    ]);
    const cut = this.steps.length > steps.length ? ` (the last ${steps.length} of ${this.steps.length})` : "";
    return plainTable({ caption: `${title}${cut}`, head: [x, ...series.map(({ name }) => name)], rows });
  }
}

function chartParts(view) {
  chartCount += 1;
  const id = `chart-log-${chartCount}`;
  const title = h("span", { class: "matrix-title" });
  const log = h("input", { type: "checkbox", id, on: { change: () => view.chooseLog(log.checked) } });
  const below = h("div", { class: "matrix-table" });
  const table = foldedAway(below, () => view.asTable());
  const save = button(
    t("Save PNG"),
    () => saveSvgAsPng(drawing, { title: view.options.title, credit: view.options.credit ?? "" }),
    { class: "button quiet" },
  );
  const tools = h(
    "div",
    { class: "matrix-tools" },
    view.options.plain ? null : h("label", { class: "check small", for: id }, log, t("log axis")),
    table.toggle,
    save,
  );
  const drawing = svg("svg", { class: "chart-drawing", "aria-hidden": "true" });
  const slider = chartSlider(view, drawing);
  const readout = h("p", { class: "matrix-readout" });
  const element = h(
    "figure",
    { class: "chart" },
    h("figcaption", { class: "matrix-head" }, title, tools),
    slider,
    readout,
    below,
  );
  return { element, title, log, drawing, slider, readout, table };
}

/** The cursor on the curves, as a slider for keyboards and screen readers. */
function chartSlider(view, drawing) {
  const does = {
    keydown: (event) => view.key(event),
    pointermove: (event) => view.point(event),
    pointerleave: () => view.moveTo(null),
    blur: () => view.moveTo(null),
  };
  const props = { role: "slider", tabindex: "0", "aria-roledescription": "chart", "aria-readonly": "true" };
  return h("div", { class: "chart-view", ...props, on: does }, drawing);
}

function chartLastUpTo(points, step) {
  let found = null;
  for (const point of points) {
    if (point[0] > step) break;
    found = point;
  }
  return found;
}
