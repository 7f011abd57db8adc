// A listbox of choices, and a popover beside a word.

import { h, replace, visible } from "../core/dom.js";
import { showPercent } from "../core/numbers.js";

let alternativesCount = 0;

/**
 * A list of choices with the keys of a listbox: arrows, Home, End, Enter, Escape.
 * @param {{title: string, options: {piece: string, before?: string, rest: string, share: number,
 *   title?: ?string, note?: string, chosen?: boolean, disabled?: boolean}[], onChoose: function(number): void,
 *   onLeave: function(): void, onTab?: function(): void}} spec
 * @returns {HTMLElement} focus it to use it
 */
export function choiceList(spec) {
  alternativesCount += 1;
  const id = `choices-${alternativesCount}`;
  const list = h(
    "ul",
    { class: "options", role: "listbox", tabindex: "0", "aria-label": spec.title },
    spec.options.map((option, i) => choiceRow(option, `${id}-${i}`, () => choose(i))),
  );
  let at = Math.max(0, spec.options.findIndex((option) => !option.disabled && !option.chosen));
  const choose = (i) => {
    if (!spec.options[i].disabled) spec.onChoose(i);
  };
  const move = (to) => {
    at = Math.max(0, Math.min(spec.options.length - 1, to));
    [...list.children].forEach((row, i) => row.setAttribute("aria-selected", String(i === at)));
    list.setAttribute("aria-activedescendant", `${id}-${at}`);
    list.children[at]?.scrollIntoView({ block: "nearest" });
  };
  list.addEventListener("keydown", (event) => {
    const does = {
      ArrowDown: () => move(at + 1),
      ArrowUp: () => move(at - 1),
      Home: () => move(0),
      End: () => move(spec.options.length - 1),
      Enter: () => choose(at),
      " ": () => choose(at),
      Escape: spec.onLeave,
      ...(spec.onTab ? { Tab: spec.onTab } : {}),
    }[event.key];
    if (!does || event.shiftKey) return;
    event.preventDefault();
    event.stopPropagation();
    does();
  });
  if (spec.options.length) move(at);
  return list;
}

function choiceRow(option, id, choose) {
  const { piece, before = "", rest, share, note = option.chosen ? "chosen" : "" } = option;
  return h(
    "li",
    {
      id,
      role: "option",
      class: "option-row",
      "aria-selected": "false",
      "aria-disabled": option.disabled ? "true" : null,
      style: { "--share": share },
      on: { click: choose, pointerdown: (event) => event.preventDefault() },
    },
    h("span", { class: "option-share number" }, showPercent(share)),
    h(
      "span",
      { class: "option-text", dir: "auto" },
      before ? h("span", { class: "soft" }, before) : null,
      h("strong", { title: option.title }, visible(piece.trim() || piece)),
      rest,
    ),
    note ? h("span", { class: "option-note small soft" }, note) : null,
  );
}

/**
 * Show a popover until Escape, a click elsewhere, or the loss of the keyboard focus.
 * @param {HTMLElement} container the parent of the popover
 * @param {DOMRect} beside the word it belongs to
 * @param {{title: string, onClose?: function(): void}} spec
 * @returns {{element: HTMLElement, fill: function(...Node): void, close: function(): void,
 *   isOpen: function(): boolean}}
 */
export function popover(container, beside, spec) {
  const inside = h("div", { class: "popover-inside" });
  const element = h("div", { class: "popover floating", role: "dialog", "aria-label": spec.title, tabindex: "-1" }, inside);
  let open = true;
  const close = () => {
    if (!open) return;
    open = false;
    document.removeEventListener("pointerdown", elsewhere, true);
    element.remove();
    spec.onClose?.();
  };
  const elsewhere = (event) => {
    if (!element.contains(event.target)) close();
  };
  element.addEventListener("keydown", (event) => {
    if (event.target === element && /^Arrow/.test(event.key)) event.preventDefault(); // while it loads
    if (event.key !== "Escape") return;
    event.preventDefault();
    close();
  });
  element.addEventListener("focusout", (event) => {
    if (event.relatedTarget && !element.contains(event.relatedTarget)) close();
  });
  document.addEventListener("pointerdown", elsewhere, true);
  container.append(element);
  popoverMove(container, element, beside);
  const fill = (...content) => {
    replace(inside, ...content);
    popoverMove(container, element, beside);
  };
  return { element, fill, close, isOpen: () => open };
}

/** Below its word, within the page. */
function popoverMove(container, element, beside) {
  const home = container.getBoundingClientRect();
  const most = Math.max(0, home.width - element.offsetWidth);
  element.style.left = `${Math.min(most, Math.max(0, beside.left - home.left))}px`;
  element.style.top = `${beside.bottom - home.top + 6}px`;
}
