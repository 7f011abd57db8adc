// Beam search as a tree: the hypotheses of every step, and the winner.

import { h, svg } from "../core/dom.js";
import { showPercent } from "../core/numbers.js";
import { pieceLabelAt, pieceLabels } from "../core/pieces.js";
import { t } from "../core/texts.js";

const BEAM_COLUMN = 108;
const BEAM_ROW = 50;
const BEAM_BOX = { width: 84, height: 36 };

/**
 * @param {{place: number, parent: number, piece: string, logprob: number, score: number,
 *   ended: boolean}[][]} tree the hypotheses of each step; `place` is the index in the beam
 * @param {string[]} best the pieces of the text that won
 * @returns {HTMLElement}
 */
export function beamTree(tree, best) {
  const won = beamWinner(tree, best);
  const rows = Math.max(...tree.flat().map((node) => node.place)) + 1;
  const width = tree.length * BEAM_COLUMN + 8;
  const height = rows * BEAM_ROW + 8;
  const ways = { others: "", won: "" }; // two lines with many strokes: a long search has hundreds
  const boxes = [];
  tree.forEach((step, t) => {
    for (const node of step) {
      const onTheWay = won[t] === node.place;
      if (t > 0) ways[onTheWay ? "won" : "others"] += beamStroke(t, node);
      boxes.push(beamBox(t, node, onTheWay, beamLabel(tree, t, node, onTheWay ? best : [])));
    }
  });
  const lines = [svg("path", { d: ways.others, class: "beam-line" }), svg("path", { d: ways.won, class: "beam-line won" })];
  const drawing = svg("svg", { class: "beam", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": beamText(tree, best) }, lines, boxes);
  return h("div", { class: "scroller beam-scroll", tabindex: "0", role: "group", "aria-label": "Beam search tree; scrolls sideways" }, drawing);
}

/** For each step the index of the winner in the beam, found from its end. */
function beamWinner(tree, best) {
  for (let last = Math.min(best.length, tree.length - 1); last >= best.length - 1 && last >= 0; last -= 1) {
    for (const node of tree[last]) {
      const way = beamWayTo(tree, last, node);
      const pieces = way.filter((step) => !step.ended).map((step) => step.piece);
      if (pieces.length === best.length && pieces.every((piece, i) => piece === best[i])) {
        return way.map((step) => step.place);
      }
    }
  }
  return [];
}

function beamWayTo(tree, last, node) {
  const way = [node];
  for (let t = last - 1; t >= 0; t -= 1) {
    const parent = tree[t].find((other) => other.place === way[0].parent);
    if (!parent) return [];
    way.unshift(parent);
  }
  return way;
}

function beamStroke(t, node) {
  const x = t * BEAM_COLUMN + 4;
  const from = { x: x - BEAM_COLUMN + BEAM_BOX.width, y: node.parent * BEAM_ROW + 4 + BEAM_BOX.height / 2 };
  const to = { x, y: node.place * BEAM_ROW + 4 + BEAM_BOX.height / 2 };
  const bend = (BEAM_COLUMN - BEAM_BOX.width) / 2;
  return `M${from.x} ${from.y} C${from.x + bend} ${from.y} ${to.x - bend} ${to.y} ${to.x} ${to.y}`;
}

/** A piece after those of its hypothesis; of the winner, before the next ones too. */
function beamLabel(tree, t, node, best) {
  const written = best.length > t ? best : beamWayTo(tree, t, node).slice(0, -1).map((step) => step.piece);
  return pieceLabelAt(written, t, node.piece);
}

function beamBox(t, node, onTheWay, label) {
  const x = t * BEAM_COLUMN + 4;
  const y = node.place * BEAM_ROW + 4;
  const probability = showPercent(Math.exp(node.logprob));
  const kind = `beam-node${onTheWay ? " won" : ""}${node.ended ? " ended" : ""}`;
  return svg(
    "g",
    { class: kind },
    svg("title", null, `${label}: probability ${probability} given its prefix; score so far ${node.score.toFixed(3)}`),
    svg("rect", { x, y, width: BEAM_BOX.width, height: BEAM_BOX.height, rx: 8 }),
    svg("text", { x: x + BEAM_BOX.width / 2, y: y + 15, class: "beam-piece" }, label.length > 10 ? `${label.slice(0, 9)}…` : label),
    svg("text", { x: x + BEAM_BOX.width / 2, y: y + 29, class: "beam-chance" }, probability),
  );
}

function beamText(tree, best) {
  return `Beam search with beam size ${tree[0].length} over ${tree.length} steps. Best hypothesis: ${pieceLabels(best).join(" ")}.`;
}

/**
 * The same as a table.
 * @param {Object[][]} tree
 * @returns {HTMLElement}
 */
export function beamTable(tree) {
  const rows = tree.flatMap((step, t) =>
    step.map((node) =>
      h(
        "tr",
        null,
        h("td", { class: "n" }, t + 1),
        h("td", { class: "n" }, node.place + 1),
        h("td", { class: "n" }, t ? node.parent + 1 : "start"),
        h("td", { dir: "auto" }, beamLabel(tree, t, node, [])),
        h("td", { class: "n" }, showPercent(Math.exp(node.logprob))),
        h("td", { class: "n" }, node.score.toFixed(3)),
      ),
    ),
  );
  const head = ["step", "hypothesis", "continues", "piece", t("probability"), "score so far"];
  return h(
    "div",
    { class: "scroller" },
    h("table", { class: "table small" }, h("thead", null, h("tr", null, head.map((name) => h("th", { scope: "col" }, name)))), h("tbody", null, rows)),
  );
}
