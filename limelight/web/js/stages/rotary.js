// Rotary positions: pairs of numbers of a query and a key, before and after their turn.

import { calculation, formula, mfactor, mint, mnum, mo, mrow, mwords } from "../charts/formula.js";
import { h, svg } from "../core/dom.js";
import { dot, lengthOf, rowOf, show } from "../core/numbers.js";
import { t } from "../core/texts.js";
import { attendKey } from "./attention.js";
import { compared } from "./parts.js";

const ROTARY_FURTHER = 100; // positions that both words can be moved by

/**
 * Dials for a fast, a slower and the slowest pair of the chosen word's query and of a key; nothing where no pair
 * is turned, or where a file does not have them.
 * @returns {Promise<?{element: HTMLElement, formulas: function(): Node[], checks: Object[]}>}
 */
export async function rotaryDials(focus) {
  const { turns } = focus.m.model;
  const read = turns && !focus.all ? await focus.trace.attentionHead(focus.at, focus.head).catch(() => null) : null;
  if (!read) return null;
  const key = attendKey(focus, { ...read, columns: read.weights.shape[1] });
  const sides = [["q", read.q, focus.row, focus.queryTokens], ["k", read.k, key, focus.keyTokens]].map(([role, all, position, tokens]) => ({ role, position, label: tokens.labels[position], before: rotaryTurned(rowOf(all, position), turns, -position) }));
  const dials = [...new Set([0, Math.floor(turns.length / 5), turns.length - 1])].map((pair) => rotaryDial(pair, turns, sides));
  const told = h("output", { class: "number" });
  const slide = h("input", { type: "range", min: "0", max: String(ROTARY_FURTHER), value: "0", "aria-label": t("Move both words on"), on: { input: () => turn(Number(slide.value)) } });
  const score = (by) => dot(...sides.map(({ before, position }) => rotaryTurned(before, turns, position + by)));
  const turn = (by) => {
    dials.forEach((dial) => dial.turn(by));
    told.textContent = t("Move both words on by {0} positions: q · k = {1}", [by, show(score(by))]);
  };
  turn(0);
  const legend = sides.map(({ role, label, position }) => h("span", { class: `role-${role}` }, h("strong", null, role), " ", h("span", { dir: "auto" }, label), `, ${t("position {0}", [position])}`));
  const element = h(
    "figure",
    { class: "figure rotary" },
    h("figcaption", { class: "small" }, h("span", null, t("Layer {0}, head {1}", [focus.layer, focus.head])), legend, h("span", { class: "soft" }, t("dashed: before the turn"))),
    h("div", { class: "dials" }, dials.map((dial) => dial.element)),
    h("label", { class: "dials-move small" }, slide, told),
  );
  const checks = [compared(focus, `scores are the same ${ROTARY_FURTHER} positions further on, for all pairs`, read.scores.values, rotaryScores(read, turns))];
  return { element, formulas: () => rotaryFormulas(sides[0], turns[0]), checks };
}

/** All scores, with every query and key turned on. */
function rotaryScores({ q, k, scores }, turns) {
  const [queries, keys] = [q, k].map((all) => Array.from({ length: all.shape[0] }, (_, i) => rotaryTurned(rowOf(all, i), turns, ROTARY_FURTHER)));
  return Float64Array.from(scores.values, (_, at) => dot(queries[Math.floor(at / keys.length)], keys[at % keys.length]));
}

/** Each pair (a, b) of a vector turned by its angle. */
function rotaryTurned(values, turns, position) {
  const turned = new Float64Array(values.length);
  turns.forEach((speed, i) => {
    const [sin, cos] = [Math.sin(position * speed), Math.cos(position * speed)];
    const [a, b] = [values[2 * i], values[2 * i + 1]];
    turned.set([a * cos - b * sin, a * sin + b * cos], 2 * i);
  });
  return turned;
}

/** One pair of q and of k as arrows, before and after. */
function rotaryDial(pair, turns, sides) {
  const speed = turns[pair];
  const own = sides.map(({ role, position, before }) => ({ role, position, before: before.slice(2 * pair, 2 * pair + 2) }));
  const most = Math.max(...own.map(({ before }) => lengthOf(before)), 1e-9);
  const point = ([a, b]) => [a / most, -b / most]; // y grows downwards on screens
  const arrows = own.map(({ role, position, before }) => {
    const [x, y] = point(before);
    const line = svg("line", { class: `dial-arrow role-${role}`, x1: "0", y1: "0", style: { "--turn": `${(((position * speed) % (2 * Math.PI)) * 180) / Math.PI}deg` } });
    return { line, was: svg("line", { class: `dial-was role-${role}`, x1: "0", y1: "0", x2: x.toFixed(4), y2: y.toFixed(4) }), arc: svg("path", { class: `dial-arc role-${role}` }), note: h("p", { class: `small number role-${role}` }, h("span"), h("span")) };
  });
  const picture = svg("svg", { viewBox: "-1.1 -1.1 2.2 2.2", role: "img" }, svg("circle", { class: "dial-edge", r: "1" }), arrows.map(({ was, arc, line }) => [was, arc, line]));
  const turn = (by) => {
    own.forEach(({ role, position, before }, n) => {
      const angle = (position + by) * speed;
      const after = rotaryTurned(before, [speed], position + by);
      const [x, y] = point(after);
      arrows[n].line.setAttribute("x2", x.toFixed(4));
      arrows[n].line.setAttribute("y2", y.toFixed(4));
      arrows[n].arc.setAttribute("d", rotaryArc(Math.atan2(before[1], before[0]), angle % (2 * Math.PI), n ? 0.34 : 0.24));
      const [said, pairs] = arrows[n].note.children;
      said.textContent = `${role}: ${position + by} × ${show(speed, 4)} = ${show(angle)} rad `;
      pairs.textContent = `(${show(before[0], 2)}, ${show(before[1], 2)}) → (${show(after[0], 2)}, ${show(after[1], 2)})`;
    });
    picture.setAttribute("aria-label", arrows.map(({ note }) => note.textContent).join("; "));
  };
  const title = h("p", { class: "small" }, h("strong", null, t("numbers {0} and {1}", [2 * pair + 1, 2 * pair + 2])));
  return { element: h("div", { class: "dial" }, title, picture, arrows.map(({ note }) => note)), turn };
}

/** A part of a circle, from one angle on by another. */
function rotaryArc(from, by, radius) {
  const at = (angle) => `${(radius * Math.cos(angle)).toFixed(4)} ${(-radius * Math.sin(angle)).toFixed(4)}`;
  return `M${at(from)} A${radius} ${radius} 0 ${by > Math.PI ? 1 : 0} 0 ${at(from + by)}`;
}

function rotaryFormulas({ label, position, before }, speed) {
  const angle = position * speed;
  const [a, b] = before;
  const [cos, sin] = ["cos ", "sin "].map((name) => () => mrow(mwords(name), mnum(angle)));
  const line = (first, sign, second, sum) => calculation([mrow(mfactor(a), mo("×"), first(), mo(sign), mfactor(b), mo("×"), second()), mrow(mo("="), mnum(sum))]);
  const [turnedA, turnedB] = rotaryTurned([a, b], [speed], position);
  return [
    formula("a becomes a cos theta minus b sin theta", "a", mo("→"), mrow("a", mwords(" cos "), "θ", mo("−"), "b", mwords(" sin "), "θ")),
    formula("b becomes a sin theta plus b cos theta", "b", mo("→"), mrow("a", mwords(" sin "), "θ", mo("+"), "b", mwords(" cos "), "θ")),
    h("p", { class: "small" }, "q ", h("strong", { dir: "auto" }, label), ", ", t("numbers {0} and {1}", [1, 2]), ":"),
    calculation([mrow("θ", mo("="), mint(position), mo("×"), mnum(speed, 4)), mrow(mo("="), mnum(angle))]),
    line(cos, "−", sin, turnedA),
    line(sin, "+", cos, turnedB),
  ];
}
