// Motion: a stage is a zoom into the drawing of the model, and what was computed travels to where it
// is needed next. Where the reader wants no motion, it is a cut.

import { h, replace, svg } from "../core/dom.js";

const TRAVEL = { duration: 400, easing: "cubic-bezier(0.3, 0.1, 0.2, 1)" };
const TRAVEL_OUT = "[data-out], .strips-row:last-child .strip-canvas, tr.focus, .turn.focus, .bars-line, .piece[aria-pressed=true], .matrix-canvas";
const TRAVEL_IN = "[data-in], .strips-row:first-child .strip-canvas, tr.focus, .turn.focus, .bars-line, .piece[aria-pressed=true], .matrix-canvas";

/**
 * A copy of what a picture computed, where it stands now; to be shown in the next picture.
 * @param {Element} picture
 * @returns {?{node: Element, box: DOMRect}}
 */
export function takeAlong(picture) {
  const out = picture.querySelector("[data-out]") ?? [...picture.querySelectorAll(TRAVEL_OUT)].at(-1);
  if (!out || travelStill()) return null;
  const box = out.getBoundingClientRect();
  if (!box.width || box.bottom < 0 || box.top > window.innerHeight) return null;
  const node = out.cloneNode(true);
  const [from, to] = [out, node].map((one) => (one.matches("canvas") ? [one] : [...one.querySelectorAll("canvas")]));
  from.forEach((canvas, i) => canvas.width && canvas.height && to[i].getContext("2d").drawImage(canvas, 0, 0));
  return { node: h("div", { class: "traveller", "aria-hidden": "true", inert: "" }, node), box };
}

/**
 * Zoom from a part of the drawing to its picture, with what was taken along.
 * @param {?{node: Element, box: DOMRect}} taken
 * @param {Element} picture
 * @param {?Element} part
 */
export function arrive(taken, picture, part) {
  if (travelStill()) return;
  const to = (picture.querySelector(TRAVEL_IN) ?? picture).getBoundingClientRect(); // before the zoom, which moves it
  if (part) travelZoom(picture, part.getBoundingClientRect());
  if (!taken) return;
  const { node, box } = taken;
  Object.assign(node.style, { left: `${box.left}px`, top: `${box.top}px`, width: `${box.width}px`, height: `${box.height}px` });
  document.body.append(node);
  const there = `translate(${to.left - box.left}px, ${to.top - box.top}px) scale(${Math.max(0.05, to.width / box.width)}, ${Math.max(0.05, to.height / box.height)})`;
  const flight = node.animate([{ transform: "none", opacity: 1 }, { transform: there, opacity: 0.85 }], TRAVEL);
  flight.onfinish = flight.oncancel = () => node.remove();
}

function travelZoom(picture, from) {
  const to = picture.getBoundingClientRect();
  if (!from.width || !to.width) return;
  const small = `translate(${from.left - to.left}px, ${from.top - to.top}px) scale(${from.width / to.width}, ${from.height / Math.max(1, to.height)})`;
  picture.animate([{ transformOrigin: "0 0", transform: small, opacity: 0 }, { transformOrigin: "0 0", transform: "none", opacity: 1 }], TRAVEL);
}

function travelStill() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** What lies between the drawing and the picture: the lens, and the way from encoder to decoder. */
export class Lens {
  constructor(walk, map, card) {
    this.parts = { walk, map, card };
    this.element = svg("svg", { class: "lens", "aria-hidden": "true" });
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(walk);
  }

  draw() {
    const { walk, map, card } = this.parts;
    const base = walk.getBoundingClientRect();
    const box = (element) => {
      const { left, top, right, bottom } = element.getBoundingClientRect();
      return { left: left - base.left, top: top - base.top, right: right - base.left, bottom: bottom - base.top };
    };
    this.element.setAttribute("viewBox", `0 0 ${base.width} ${base.height}`);
    const part = map.querySelector("[aria-current]");
    const beside = box(map).right <= box(card).left; // the drawing stands upright on phones
    replace(this.element, lensBridge(map, box, beside), part ? lensRays(box(part), box(card), beside) : null);
  }
}

function lensRays(part, card, beside) {
  const d = beside
    ? `M${part.right} ${part.top} L${card.left} ${card.top + 8} V${Math.min(card.bottom, card.top + 420) - 8} L${part.right} ${part.bottom} Z`
    : `M${part.left} ${part.bottom} L${card.left + 8} ${card.top} H${card.right - 8} L${part.right} ${part.bottom} Z`;
  return svg("path", { class: "lens-rays", d });
}

/** Keys and values: from the last part of the encoder into cross-attention. */
function lensBridge(map, box, beside) {
  const [from, to] = [map.querySelector("[data-stage=stack]"), map.querySelector("[data-stage=cross]")];
  if (!from || !to || from.parentNode === to.parentNode) return null;
  const [a, b] = [box(from), box(to)];
  const [x, y] = [(b.left + b.right) / 2, (a.top + a.bottom) / 2];
  const middle = (a.bottom + b.top) / 2;
  const d = beside ? `M${a.right} ${y} H${a.right + 3} V${(b.top + b.bottom) / 2} H${b.right}` : `M${(a.left + a.right) / 2} ${a.bottom} V${middle} H${x} V${b.top}`;
  return svg("path", { class: "lens-bridge", d });
}
