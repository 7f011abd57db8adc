// A vector as a strip of coloured cells, one pixel each and scaled up; its numbers on demand.

import { h } from "../core/dom.js";
import { sliderKey } from "../core/keys.js";
import { show } from "../core/numbers.js";
import { onPointer, pointAt } from "../core/pointer.js";
import { colourOf, inkOn, redrawWithTheme, scaleOf, theme } from "./colour.js";
import { ScheduledPicture } from "./frameScheduler.js";
import { inCell, NUMBERS_FROM } from "./matrixPainter.js";
import { foldedAway } from "./table.js";

const STRIP_FONT = '10px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';
const stripRow = h("canvas"); // on its way into a larger one

/**
 * A vector. Arrow keys walk along it; "numbers" writes all of it out.
 * @param {{values: ArrayLike<number>, title: string, note?: string,
 *   scale?: "share" | "signed" | {kind: "share" | "signed", low: number, high: number}}} options the
 *   same scale for several strips makes them comparable
 * @returns {{element: HTMLElement, set: (changes: object) => void}}
 */
export function vectorStrip(options) {
  const made = new StripView();
  made.set(options);
  return { element: made.parts.element, set: (changes) => made.set(changes) };
}

class StripView extends ScheduledPicture {
  constructor() {
    super();
    this.options = {};
    this.cursor = null;
    this.parts = stripParts(this);
    this.fill(this.parts.canvas);
    redrawWithTheme(this.parts.element, () => this.draw());
    onPointer(this.parts.element, ({ number, of }) => this.lookAt(of === this.options.values.length ? number : null));
  }

  set(changes) {
    Object.assign(this.options, changes);
    const { values, scale = "signed" } = this.options;
    this.scale = typeof scale === "object" ? scale : scaleOf(values, scale);
    if (this.cursor !== null && this.cursor >= values.length) this.cursor = null;
    const { title, note, slider, list } = this.parts;
    title.textContent = this.options.title;
    note.textContent = this.options.note ?? `${values.length} numbers`;
    slider.setAttribute("aria-label", this.options.title);
    slider.setAttribute("aria-valuemax", String(values.length));
    list.renew();
    this.showReadout();
    this.draw();
  }

  /** A pixel for each number, made wide by the style sheet; where there is more to see, all of it. */
  drawNow(width, height) {
    const { canvas } = this.parts;
    const { values } = this.options;
    const cell = width / values.length;
    if (cell < NUMBERS_FROM && this.cursor === null) {
      stripPixels(canvas, values, this.scale);
      return;
    }
    const sharp = window.devicePixelRatio || 1;
    [canvas.width, canvas.height] = [Math.round(width * sharp), Math.round(height * sharp)];
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(stripPixels(stripRow, values, this.scale), 0, 0, canvas.width, canvas.height);
    context.scale(sharp, sharp);
    if (cell >= NUMBERS_FROM) stripNumbers(context, values, this.scale, { cell, height });
    if (this.cursor === null) return;
    const wide = Math.max(cell, 4);
    context.lineWidth = 2;
    context.strokeStyle = theme().accent;
    context.strokeRect((this.cursor + 0.5) * cell - wide / 2, 1, wide, height - 2);
  }

  /** All vectors of this length follow. */
  moveTo(index) {
    pointAt({ number: index, of: index === null ? null : this.options.values.length });
    this.lookAt(index);
  }

  lookAt(index) {
    if (index === this.cursor) return;
    this.cursor = index;
    this.showReadout();
    this.draw();
  }

  showReadout() {
    const { slider, readout } = this.parts;
    const index = this.cursor ?? 0;
    const text = `number ${index + 1} of ${this.options.values.length}: ${show(this.options.values[index], 4)}`;
    slider.setAttribute("aria-valuenow", String(index + 1));
    slider.setAttribute("aria-valuetext", text);
    readout.textContent = this.cursor === null ? `${show(this.scale.low)} to ${show(this.scale.high)}` : text;
  }

  key(event) {
    const to = sliderKey(event, { here: this.cursor ?? -1, last: this.options.values.length - 1 });
    if (to !== null) this.moveTo(to);
  }

  point(event) {
    const { canvas } = this.parts;
    const share = event.offsetX / canvas.clientWidth;
    this.moveTo(
      Math.max(0, Math.min(this.options.values.length - 1, Math.floor(share * this.options.values.length))),
    );
  }

  written() {
    return Array.from(this.options.values, (x) => show(x, 4)).join("  ");
  }
}

function stripParts(view) {
  const title = h("span", { class: "strip-title", dir: "auto" });
  const note = h("span", { class: "soft small" });
  const readout = h("span", { class: "strip-readout soft small" });
  const below = h("p", { class: "strip-list" });
  const list = foldedAway(below, () => view.written(), { show: "numbers", hide: "numbers" });
  const canvas = h("canvas", {
    class: "strip-canvas",
    "aria-hidden": "true",
    on: { pointermove: (event) => view.point(event), pointerleave: () => view.moveTo(null) },
  });
  const slider = h(
    "div",
    {
      class: "strip-slider",
      role: "slider",
      tabindex: "0",
      "aria-valuemin": "1",
      "aria-roledescription": "vector",
      "aria-readonly": "true",
      on: { keydown: (event) => view.key(event), blur: () => view.moveTo(null) },
    },
    canvas,
  );
  const element = h(
    "div",
    { class: "strip" },
    h("div", { class: "strip-head" }, title, note, readout, list.toggle),
    slider,
    below,
  );
  return { element, title, note, readout, canvas, slider, list };
}

function stripPixels(canvas, values, scale) {
  [canvas.width, canvas.height] = [Math.max(1, values.length), 1];
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, 1);
  image.data.fill(255);
  for (let i = 0; i < values.length; i += 1) image.data.set(colourOf(values[i], scale), 4 * i);
  context.putImageData(image, 0, 0);
  return canvas;
}

function stripNumbers(context, values, scale, { cell, height }) {
  context.font = STRIP_FONT;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let i = 0; i < values.length; i += 1) {
    context.fillStyle = inkOn(colourOf(values[i], scale));
    context.fillText(inCell(values[i], cell), (i + 0.5) * cell, height / 2);
  }
}
