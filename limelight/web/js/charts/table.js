// Numbers as HTML tables: for reading, copying and screen readers.

import { button, h } from "../core/dom.js";
import { t } from "../core/texts.js";

const MOST_CELLS = 2000; // of one page of a table, so that a page of 256 words stays quick

/**
 * A number with as many digits as are worth comparing.
 * @param {number} x
 * @returns {string}
 */
export function precise(x) {
  if (x === -Infinity) return "-inf";
  if (x === Infinity) return "inf";
  if (Number.isNaN(x)) return "NaN";
  const size = Math.abs(x);
  if (size !== 0 && (size < 1e-5 || size >= 1e6)) return x.toExponential(3);
  return size < 10 ? x.toFixed(5) : Number(x.toPrecision(6)).toString();
}

/**
 * Numbers below a picture, hidden until they are asked for.
 * @param {Element} container
 * @param {() => (Node | string)} write
 * @param {{show: string, hide: string}} [labels]
 * @returns {{toggle: HTMLElement, renew: () => void}} the button, and what to call when the numbers changed
 */
export function foldedAway(container, write, labels = { show: t("Show as table"), hide: t("Hide table") }) {
  container.hidden = true;
  const renew = () => container.hidden || container.replaceChildren(write());
  const turn = () => {
    container.hidden = !container.hidden;
    toggle.setAttribute("aria-expanded", String(!container.hidden));
    toggle.textContent = container.hidden ? labels.show : labels.hide;
    renew();
  };
  const toggle = button(labels.show, turn, { class: "button quiet", "aria-expanded": "false" });
  return { toggle, renew };
}

/**
 * A plain table.
 * @param {{caption: string, head: string[], rows: (string | Node)[][]}} table the first of each row
 *   names it
 * @returns {HTMLElement}
 */
export function plainTable({ caption, head, rows }) {
  const heading = head.map((text) => h("th", { scope: "col", dir: "auto" }, text));
  const body = rows.map(([name, ...cells]) =>
    h("tr", {}, h("th", { scope: "row", dir: "auto" }, name), ...cells.map((cell) => h("td", {}, cell))),
  );
  return h(
    "div",
    { class: "table-scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      { class: "numbers" },
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, ...heading)),
      h("tbody", {}, ...body),
    ),
  );
}

/**
 * A matrix as a table; of a large one some rows at a time.
 * @param {{rows: string[], columns: string[], next: string[] | null, values: ArrayLike<number>,
 *   sums: boolean, labels: {row: string, column: string, value: string}}} shown
 * @param {string} title
 * @param {number} row one that should be seen
 * @returns {HTMLElement}
 */
export function matrixTable(shown, title, row) {
  const size = Math.max(1, Math.floor(MOST_CELLS / Math.max(1, shown.columns.length)));
  const container = h("div", {});
  const turn = (from) => {
    const to = Math.min(shown.rows.length, from + size);
    const pages = shown.rows.length > size ? [tablePager(shown.rows.length, from, to, size, turn)] : [];
    container.replaceChildren(...pages, tableRows(shown, title, from, to));
  };
  turn(size * Math.floor(row / size));
  return container;
}

function tablePager(count, from, to, size, turn) {
  const leaf = (text, target) =>
    button(text, () => turn(target), { class: "button quiet", disabled: target < 0 || target >= count });
  return h(
    "p",
    { class: "pager" },
    leaf("Earlier rows", from - size),
    ` rows ${from + 1} to ${to} of ${count} `,
    leaf("Later rows", to),
  );
}

function tableRows(shown, title, from, to) {
  const wide = shown.columns.length;
  const rows = Array.from({ length: to - from }, (_, i) => {
    const r = from + i;
    const cells = Array.from({ length: wide }, (_, c) => shown.values[r * wide + c]);
    const name = shown.next?.[r] ? `at ${shown.rows[r]} → predicts ${shown.next[r]}` : shown.rows[r];
    const sum = shown.sums ? [cells.reduce((a, b) => a + b, 0).toFixed(3)] : [];
    return [name, ...cells.map(precise), ...sum];
  });
  const corner = `${shown.labels.row} \\ ${shown.labels.column}`;
  return plainTable({
    caption: title,
    head: [corner, ...shown.columns, ...(shown.sums ? [t("sum")] : [])],
    rows,
  });
}
