// The embedding table as a map one can fly through: drag, wheel, two fingers, arrow keys, + and −, or a
// search. Labels appear as far as there is room; the nearest tokens of the chosen one are also a list.

import { button, h, replace } from "../core/dom.js";
import { showPercent } from "../core/numbers.js";
import { t } from "../core/texts.js";
import { redrawWithTheme, theme } from "./colour.js";
import { ScheduledPicture } from "./frameScheduler.js";

const MAP_FLIGHT = 450; // milliseconds
const MAP_NEAR = 16; // pixels between a click and the token it means
const MAP_DEEP = 60; // times as large as all of it

/**
 * @param {{tokens: number[], labels: string[], own: number, points: [number, number][], shares: number[],
 *   near: number[][]}} map
 * @param {number} token the one to begin with
 * @returns {HTMLElement}
 */
export function tokenMap(map, token) {
  return new TokenMapView(map, Math.max(0, map.tokens.indexOf(token))).element;
}

class TokenMapView extends ScheduledPicture {
  constructor(map, chosen) {
    super();
    Object.assign(this, { map, chosen, fingers: new Map(), at: { x: 0, y: 0, zoom: 1 } });
    const [xs, ys] = [0, 1].map((axis) => map.points.map((point) => point[axis] ?? 0));
    const ends = (values) => [Math.min(...values), Math.max(...values)];
    const [[left, right], [low, high]] = [ends(xs), ends(ys)];
    this.span = Math.max(right - left, high - low) || 1;
    this.places = xs.map((x, i) => [(x - (left + right) / 2) / this.span, ((low + high) / 2 - ys[i]) / this.span]);
    this.canvas = h("canvas", { class: "token-map-canvas", tabindex: "0", role: "application", "aria-label": t("Map of tokens: arrow keys move, + and − zoom, 0 shows all, Enter chooses the token in the middle"), on: this.listeners() });
    this.list = h("div", { class: "token-map-near", role: "status" });
    this.search = h("input", { class: "field small-field", type: "search", "aria-label": t("Find a token"), placeholder: t("Find a token"), autocomplete: "off", spellcheck: "false", dir: "auto", on: { input: () => this.find() } });
    const tools = h("div", { class: "token-map-tools" }, this.search, ...[["−", t("Smaller"), () => this.zoom(1 / 1.6)], ["+", t("Larger"), () => this.zoom(1.6)], ["⤢", t("Show all"), () => this.fly({ x: 0, y: 0, zoom: 1 })]].map(([sign, name, go]) => button(sign, go, { class: "button quiet small", "aria-label": name, title: name })));
    const note = t("{0} of the tokens, in the plane in which their embeddings differ most (PCA). It holds {1} of the variance, so tokens that lie together here may still differ; the list has the nearest in all dimensions.", [map.tokens.length.toLocaleString("en"), showPercent(map.shares[0] + map.shares[1])]);
    this.element = h("section", { class: "token-map", "aria-label": t("Map of tokens") }, tools, h("div", { class: "token-map-view" }, this.canvas), this.list, h("p", { class: "small soft" }, note));
    this.fill(this.canvas.parentNode);
    redrawWithTheme(this.canvas, () => this.draw());
    this.choose(chosen, false);
  }

  choose(i, flies = true) {
    this.chosen = i;
    const { labels, near } = this.map;
    const go = (j) => button(labels[j], () => this.choose(j), { class: "chip", dir: "auto" });
    replace(this.list, h("strong", { dir: "auto" }, labels[i]), h("span", { class: "soft small" }, ` ${t("is nearest to")} `), near[i].map(go));
    const [x, y] = this.places[i];
    if (flies) this.fly({ x, y, zoom: Math.max(this.at.zoom, 6) });
    else this.draw();
  }

  find() {
    const wanted = this.search.value.trim();
    const plain = this.map.labels.map((label) => label.replace(/^·/, ""));
    const found = wanted ? [plain.indexOf(wanted), plain.findIndex((label) => label.toLowerCase().startsWith(wanted.toLowerCase()))].find((i) => i >= 0) : undefined;
    this.search.setAttribute("aria-invalid", String(Boolean(wanted) && found === undefined));
    if (found !== undefined) this.choose(found);
  }

  /** Move to a view, in a curve through a wider one; at once where motion is not wanted. */
  fly(to) {
    const from = { ...this.at };
    const began = performance.now();
    const flight = (this.flight = {});
    const step = (now) => {
      if (this.flight !== flight) return;
      const part = Math.min(1, (now - began) / MAP_FLIGHT);
      const eased = part * part * (3 - 2 * part);
      const out = 1 - 0.5 * Math.sin(Math.PI * eased) * Math.min(1, 2 * Math.hypot(to.x - from.x, to.y - from.y));
      this.at = { x: from.x + eased * (to.x - from.x), y: from.y + eased * (to.y - from.y), zoom: from.zoom * (to.zoom / from.zoom) ** eased * out };
      this.draw();
      if (part < 1 && this.canvas.isConnected) requestAnimationFrame(step);
    };
    step(matchMedia("(prefers-reduced-motion: reduce)").matches ? began + MAP_FLIGHT : began);
  }

  /** Larger or smaller around a point of the canvas; else around its middle. */
  zoom(by, at = null) {
    this.flight = null;
    const { width, height } = this.size();
    const [px, py] = at ? [at[0] - width / 2, at[1] - height / 2] : [0, 0];
    const zoom = Math.max(0.7, Math.min(MAP_DEEP, this.at.zoom * by));
    const shift = (1 / this.at.zoom - 1 / zoom) / this.unit();
    this.at = { x: this.at.x + px * shift, y: this.at.y + py * shift, zoom };
    this.draw();
  }

  pan(dx, dy) {
    this.flight = null;
    const inside = (value) => Math.max(-0.6, Math.min(0.6, value));
    this.at = { ...this.at, x: inside(this.at.x - dx / (this.unit() * this.at.zoom)), y: inside(this.at.y - dy / (this.unit() * this.at.zoom)) };
    this.draw();
  }

  size() {
    return { width: this.container.clientWidth, height: this.container.clientHeight };
  }

  /** Pixels for all of the map. */
  unit() {
    const { width, height } = this.size();
    return 0.92 * Math.min(width, height);
  }

  toPixels([x, y]) {
    const { width, height } = this.size();
    const scale = this.unit() * this.at.zoom;
    return [(x - this.at.x) * scale + width / 2, (y - this.at.y) * scale + height / 2];
  }

  /** The token nearest to a point of the canvas, within so many pixels. */
  nearest([px, py], within) {
    const distances = this.places.map((place) => { const [x, y] = this.toPixels(place); return Math.hypot(x - px, y - py); });
    const best = distances.reduce((found, distance, i) => (distance < distances[found] ? i : found), 0);
    return distances[best] <= within ? best : null;
  }

  listeners() {
    const point = (event) => { const { left, top } = this.canvas.getBoundingClientRect(); return [event.clientX - left, event.clientY - top]; };
    const lift = (event) => {
      const [began] = this.fingers.get(event.pointerId) ?? [];
      const tapped = began && this.fingers.size === 1 && !this.moved ? this.nearest(began, MAP_NEAR) : null;
      this.fingers.delete(event.pointerId);
      if (tapped !== null && event.type === "pointerup") this.choose(tapped);
    };
    return {
      pointerdown: (event) => {
        if (!this.fingers.size) this.moved = false;
        this.canvas.setPointerCapture(event.pointerId);
        this.fingers.set(event.pointerId, [point(event), point(event)]);
      },
      pointermove: (event) => this.drag(event.pointerId, point(event)),
      pointerup: lift,
      pointercancel: lift,
      wheel: (event) => { event.preventDefault(); this.zoom(Math.exp(-event.deltaY / 400), point(event)); },
      keydown: (event) => this.key(event),
    };
  }

  /** One finger or the mouse moves the map; two also make it larger or smaller. */
  drag(id, now) {
    const own = this.fingers.get(id);
    if (!own) return;
    const [began, before] = own;
    const other = [...this.fingers].find(([one]) => one !== id)?.[1][1];
    this.fingers.set(id, [began, now]);
    if (Math.hypot(now[0] - began[0], now[1] - began[1]) > 4) this.moved = true;
    const apart = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);
    if (other && apart(before, other) > 0) this.zoom(apart(now, other) / apart(before, other), [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2]);
    const share = other ? 0.5 : 1;
    this.pan(share * (now[0] - before[0]), share * (now[1] - before[1]));
  }

  key(event) {
    const { width, height } = this.size();
    const does = {
      ArrowLeft: () => this.pan(60, 0), ArrowRight: () => this.pan(-60, 0), ArrowUp: () => this.pan(0, 60), ArrowDown: () => this.pan(0, -60),
      "+": () => this.zoom(1.6), "=": () => this.zoom(1.6), "-": () => this.zoom(1 / 1.6), "−": () => this.zoom(1 / 1.6),
      0: () => this.fly({ x: 0, y: 0, zoom: 1 }), Home: () => this.fly({ x: 0, y: 0, zoom: 1 }),
      Enter: () => this.choose(this.nearest([width / 2, height / 2], Infinity)),
    }[event.key];
    if (!does || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    does();
  }

  drawNow(width, height) {
    const dense = window.devicePixelRatio || 1;
    Object.assign(this.canvas, { width: width * dense, height: height * dense });
    const paint = this.canvas.getContext("2d");
    paint.scale(dense, dense);
    paint.font = '12px system-ui, "DejaVu Sans", sans-serif';
    paint.textBaseline = "middle";
    const { ink, soft, accent, line } = theme();
    const [special, near] = [new Set([this.chosen]), new Set(this.map.near[this.chosen])];
    const rank = (i) => (special.has(i) ? 0 : near.has(i) ? 1 : i < this.map.own ? 2 : 3);
    const pixels = this.places.map((place) => this.toPixels(place));
    const inside = pixels.map(([x, y], i) => [i, x, y]).filter(([, x, y]) => x > -80 && x < width + 20 && y > -10 && y < height + 10);
    paint.strokeStyle = line;
    for (const i of near) mapLine(paint, pixels[this.chosen], pixels[i]);
    for (const [i, x, y] of inside) {
      const how = rank(i);
      paint.fillStyle = how < 2 ? accent : how === 2 ? ink : soft;
      paint.globalAlpha = how < 3 ? 1 : 0.45;
      paint.beginPath();
      paint.arc(x, y, how < 3 ? 4 : 2, 0, 2 * Math.PI);
      paint.fill();
    }
    paint.globalAlpha = 1;
    this.labels(paint, inside.sort((a, b) => rank(a[0]) - rank(b[0]) || a[0] - b[0]), rank);
  }

  /** Labels where no other one is yet, the most important first. */
  labels(paint, ordered, rank) {
    const { ink, soft, accent, card } = theme();
    const taken = [];
    for (const [i, x, y] of ordered) {
      const text = this.map.labels[i];
      const box = [x + 6, y - 8, x + 10 + paint.measureText(text).width, y + 8];
      if (taken.some((one) => box[0] < one[2] && box[2] > one[0] && box[1] < one[3] && box[3] > one[1])) continue;
      taken.push(box);
      if (taken.length > 160) break;
      Object.assign(paint, { strokeStyle: card, lineWidth: 3, fillStyle: rank(i) < 2 ? accent : rank(i) === 2 ? ink : soft });
      paint.strokeText(text, x + 8, y);
      paint.fillText(text, x + 8, y);
    }
  }
}

function mapLine(paint, [x1, y1], [x2, y2]) {
  paint.beginPath();
  paint.moveTo(x1, y1);
  paint.lineTo(x2, y2);
  paint.stroke();
}
