// One of a few: radio buttons that look like a switch, with the keys that radio buttons have.

import { h } from "./dom.js";

let choiceCount = 0;

/**
 * @param {{legend: string, options: {id: string, label: string}[], chosen: string,
 *   onChoose: (id: string) => void}} options
 * @returns {{element: HTMLElement, set: (id: string) => void}} `set` does not call `onChoose`
 */
export function choice({ legend, options, chosen, onChoose }) {
  choiceCount += 1;
  const name = `choice-${choiceCount}`;
  const inputs = options.map(({ id }) =>
    h("input", {
      type: "radio",
      name,
      value: id,
      checked: id === chosen,
      on: { change: () => onChoose(id) },
    }),
  );
  const labels = options.map(({ label }, i) =>
    h("label", { class: "choice-option" }, inputs[i], h("span", null, label)),
  );
  const element = h(
    "fieldset",
    { class: "choice" },
    h("legend", { class: "small soft" }, legend),
    h("div", { class: "choice-row" }, labels),
  );
  const set = (id) => {
    for (const input of inputs) input.checked = input.value === id;
  };
  return { element, set };
}
