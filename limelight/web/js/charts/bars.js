// Probabilities and other shares of 1 as bars.

import { button, h } from "../core/dom.js";
import { showPercent } from "../core/numbers.js";

/**
 * A list of bars; a bar of the value `full` takes the whole width.
 * @param {{items: {label: string, value: number, text?: string, note?: string, marked?: boolean,
 *   faint?: boolean}[], title: string, full?: number, onChoose?: (index: number) => void}} options
 *   `marked` was chosen; `faint` cannot be sampled; with `onChoose` every bar is a button
 * @returns {{element: HTMLElement, set: (changes: object) => void}}
 */
export function bars(options) {
  const known = { ...options };
  const list = h("ol", { class: "bars", "aria-label": known.title });
  const set = (changes) => {
    Object.assign(known, changes);
    list.setAttribute("aria-label", known.title);
    list.classList.toggle("many", known.items.length > 12);
    list.style.setProperty("--rows", String(known.items.length));
    while (list.children.length > known.items.length) list.lastChild.remove();
    while (list.children.length < known.items.length) list.append(barsRow(list.children.length, known));
    known.items.forEach((item, i) => barsFill(list.children[i], item, known.full ?? 1));
  };
  set({});
  return { element: list, set };
}

function barsRow(index, known) {
  const inside = [
    h("span", { class: "bars-label", dir: "auto" }),
    h("span", { class: "bars-track" }, h("span", { class: "bars-bar" })),
    h("span", { class: "bars-value" }),
    h("span", { class: "bars-note soft small" }),
  ];
  const line = known.onChoose
    ? button("", () => known.onChoose(index), { class: "bars-line" })
    : h("div", { class: "bars-line" });
  line.replaceChildren(...inside);
  return h("li", {}, line);
}

function barsFill(row, item, full) {
  const line = row.firstChild;
  const [label, track, value, note] = line.children;
  label.textContent = item.label;
  label.title = item.label;
  value.textContent = item.text ?? showPercent(item.value);
  note.textContent = item.note ?? "";
  track.firstChild.style.setProperty("--share", String(Math.max(0, Math.min(1, item.value / full))));
  line.classList.toggle("marked", Boolean(item.marked));
  line.classList.toggle("faint", Boolean(item.faint));
}
