// The largest attention weights of one query, as bars beside the matrix.

import { bars } from "../charts/bars.js";
import { h } from "../core/dom.js";
import { largestOf } from "../core/numbers.js";
import { t } from "../core/texts.js";

const TOP_ROWS = 10;

/**
 * The row of one query, largest first.
 * @returns {{element: HTMLElement, set: (row: {rows: string[], columns: string[],
 *   next: string[] | null, values: ArrayLike<number>, row: number, column: number | null}) => void}}
 */
export function topAttention() {
  const title = h("h2", { class: "top-attention-title", dir: "auto" });
  const list = bars({ title: t("Largest weights"), items: [] });
  const element = h("div", { class: "top-attention" }, title, list.element);
  const set = ({ rows, columns, next, values, row, column }) => {
    const own = Array.from({ length: columns.length }, (_, c) => values[row * columns.length + c]);
    const items = largestOf(own, TOP_ROWS)
      .filter((c) => own[c] > 0)
      .map((c) => ({ label: columns[c], value: own[c], marked: c === column }));
    title.textContent = t("{0} attends to", [next?.[row] ? `${rows[row]} → ${next[row]}` : rows[row] ?? ""]);
    list.set({ title: title.textContent, items });
  };
  return { element, set };
}
