// All heads of all layers at a glance: small pictures, of which one can be opened.

import { colourOf, redrawWithTheme } from "../charts/colour.js";
import { h } from "../core/dom.js";
import { t } from "../core/texts.js";

/**
 * Layers as rows, heads as columns; a grid with one tab stop.
 * @param {{layers: {values: ArrayLike<number>, shape: number[]}[], title: string,
 *   layer: number, head: number, scale: "head" | "row" | "all", note?: (layer: number, head: number) => string,
 *   onChoose: (layer: number, head: number) => void}} options of each layer heads x rows x columns,
 *   as shares in steps of 1/255; layer and head count from 1; `scale`: what is
 *   coloured fully, the largest of each head, of each row, or of all heads
 * @returns {{element: HTMLElement, set: (changes: object) => void}}
 */
export function headGrid(options) {
  const known = { ...options };
  const element = h("div", { class: "head-grid", role: "grid" });
  const set = (changes) => {
    Object.assign(known, changes);
    if ("layers" in changes || !element.children.length) headGridBuild(element, known);
    headGridMark(element, known);
  };
  element.addEventListener("keydown", (event) => headGridKey(event, known));
  redrawWithTheme(element, () => headGridPaint(element, known));
  set(options);
  return { element, set };
}

function headGridBuild(element, known) {
  const heads = known.layers[0].shape[0];
  const corner = h("span", { role: "columnheader", class: "soft small" }, "head");
  const numbers = Array.from({ length: heads }, (_, i) =>
    h("span", { role: "columnheader", class: "soft small" }, String(i + 1)),
  );
  const rows = known.layers.map((_, layer) => {
    const cells = Array.from({ length: heads }, (_, head) => headGridCell(known, layer + 1, head + 1));
    return h(
      "div",
      { role: "row", class: "head-grid-row" },
      h("span", { role: "rowheader", class: "soft small" }, t("layer {0}", [layer + 1])),
      ...cells,
    );
  });
  element.style.setProperty("--heads", String(heads));
  element.replaceChildren(h("div", { role: "row", class: "head-grid-row" }, corner, ...numbers), ...rows);
}

function headGridCell(known, layer, head) {
  const [, rows, columns] = known.layers[layer - 1].shape;
  const canvas = h("canvas", {
    width: String(columns),
    height: String(rows),
    class: "head-grid-canvas",
    "aria-hidden": "true",
  });
  const open = () => known.onChoose(layer, head);
  return h(
    "div",
    { role: "gridcell", class: "head-grid-cell", dataset: { layer, head }, on: { click: open } },
    canvas,
  );
}

function headGridMark(element, known) {
  element.setAttribute("aria-label", known.title);
  for (const cell of element.querySelectorAll("[data-head]")) {
    const { layer, head } = cell.dataset;
    const chosen = Number(layer) === known.layer && Number(head) === known.head;
    const note = known.note?.(Number(layer), Number(head)) ?? "";
    cell.setAttribute("tabindex", chosen ? "0" : "-1");
    cell.setAttribute("aria-selected", String(chosen));
    cell.setAttribute("aria-label", `${t("layer {0}, head {1}", [layer, head])}${note ? `, ${note}` : ""}`);
    cell.title = `${t("layer {0}, head {1}", [layer, head])}${note ? `: ${note}` : ""}`;
  }
  headGridPaint(element, known);
}

function headGridPaint(element, known) {
  const most = Math.max(1, ...known.layers.map(({ values }) => headGridLargest(values)));
  for (const cell of element.querySelectorAll("[data-head]")) {
    const { values, shape } = known.layers[Number(cell.dataset.layer) - 1];
    const size = shape[1] * shape[2];
    const own = values.subarray((Number(cell.dataset.head) - 1) * size, Number(cell.dataset.head) * size);
    const high = {
      all: () => most,
      head: () => headGridLargest(own),
      row: (i) => headGridLargest(headGridRow(own, i, shape[2])),
    }[known.scale];
    const context = cell.firstChild.getContext("2d");
    const image = context.createImageData(shape[2], shape[1]);
    for (let i = 0; i < size; i += 1) {
      const colour = colourOf(own[i], { kind: "share", low: 0, high: Math.max(1, high(i)) });
      image.data.set([...colour, 255], 4 * i);
    }
    context.putImageData(image, 0, 0);
  }
}

function headGridRow(values, i, wide) {
  const row = Math.floor(i / wide);
  return values.subarray(row * wide, (row + 1) * wide);
}

function headGridLargest(values) {
  return values.reduce((most, x) => Math.max(most, x), 0);
}

function headGridKey(event, known) {
  const [layers, heads] = [known.layers.length, known.layers[0].shape[0]];
  const { layer, head } = known;
  const far = event.ctrlKey || event.metaKey;
  const to = {
    ArrowUp: [layer - 1, head],
    ArrowDown: [layer + 1, head],
    ArrowLeft: [layer, head - 1],
    ArrowRight: [layer, head + 1],
    Home: [far ? 1 : layer, 1],
    End: [far ? layers : layer, heads],
  }[event.key];
  if (!to) return;
  event.preventDefault();
  event.stopPropagation();
  const [l, n] = [Math.max(1, Math.min(layers, to[0])), Math.max(1, Math.min(heads, to[1]))];
  known.onChoose(l, n);
  event.currentTarget.querySelector(`[data-layer="${l}"][data-head="${n}"]`).focus();
}
