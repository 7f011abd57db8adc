// What lies over the page: the help, and the question for a key.

import { button, h } from "./dom.js";
import { KEYS, keysOff, switchKeys } from "./keys.js";

/** The help: what this is, and all keys. @returns {HTMLDialogElement} */
export function helpDialog() {
  const box = h("dialog", { class: "dialog", "aria-labelledby": "help-title" });
  const off = h("input", { type: "checkbox", checked: !keysOff(), on: { change: () => switchKeys(!off.checked) } });
  const rows = KEYS.map(([key, does]) => h("tr", null, h("th", { scope: "row" }, h("kbd", null, key)), h("td", null, does)));
  box.append(
    h("h2", { id: "help-title" }, "What you see here"),
    h(
      "p",
      null,
      "A model of your own, and every number of it. Nothing here is drawn from imagination: what is",
      " shown was read off the model while it read this very text, and Explain computes it once more",
      " before your eyes.",
    ),
    h("h3", null, "Keys"),
    h("table", { class: "table keys" }, h("tbody", null, rows)),
    h("label", { class: "check" }, off, " single keys are on"),
    h("p", { class: "dialog-end" }, button("Close", () => box.close(), { class: "button primary" })),
  );
  return box;
}

/**
 * Ask for the key that the service wants.
 * @param {boolean} wrong whether one was given that did not fit
 * @returns {Promise<?string>} null if nobody wants to give one
 */
export function askForKey(wrong) {
  return new Promise((answer) => {
    const field = h("input", { class: "field", type: "password", id: "key", name: "key", autocomplete: "off" });
    const box = h(
      "dialog",
      { class: "dialog", "aria-labelledby": "key-title", on: { close: () => { box.remove(); answer(field.value || null); } } },
      h(
        "form",
        { method: "dialog" },
        h("h2", { id: "key-title" }, "This service has a key"),
        h("p", null, wrong ? "That key does not fit. " : "", "Whoever started it set LIMELIGHT_API_KEY; ask them."),
        h("label", { for: "key" }, "Key"),
        field,
        h("p", { class: "dialog-end" }, h("button", { class: "button primary", type: "submit" }, "Go on")),
      ),
    );
    box.addEventListener("cancel", () => { field.value = ""; });
    document.body.append(box);
    box.showModal();
  });
}
