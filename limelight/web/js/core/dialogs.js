// The help dialog and the dialog for the API key.

import { button, h } from "./dom.js";
import { KEYS, keysOff, switchKeys } from "./keys.js";
import { t } from "./texts.js";

/** The help: about the page, and all keys. @returns {HTMLDialogElement} */
export function helpDialog() {
  const box = h("dialog", { class: "dialog", "aria-labelledby": "help-title" });
  const off = h("input", { type: "checkbox", checked: !keysOff(), on: { change: () => switchKeys(!off.checked) } });
  const rows = KEYS.map(([key, does]) => h("tr", null, h("th", { scope: "row" }, h("kbd", null, key)), h("td", null, t(does))));
  box.append(
    h("h2", { id: "help-title" }, t("About this page")),
    h(
      "p",
      null,
      t("This is a real model with all its numbers. Every value shown was recorded while the model processed this text, and Explain recomputes it in your browser."),
    ),
    h("h3", null, t("Keys")),
    h("table", { class: "table keys" }, h("tbody", null, rows)),
    h("label", { class: "check" }, off, ` ${t("enable single-key shortcuts")}`),
    h("p", { class: "dialog-end" }, button(t("Close"), () => box.close(), { class: "button primary" })),
  );
  return box;
}

/**
 * Ask the user for the API key of the service.
 * @param {boolean} wrong whether a wrong key was given before
 * @returns {Promise<?string>} null if the user cancels
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
        h("h2", { id: "key-title" }, t("This service needs an API key")),
        h("p", null, wrong ? `${t("That key is wrong.")} ` : "", t("It was set with LIMELIGHT_API_KEY when the service was started.")),
        h("label", { for: "key" }, t("Key")),
        field,
        h("p", { class: "dialog-end" }, h("button", { class: "button primary", type: "submit" }, t("Continue"))),
      ),
    );
    box.addEventListener("cancel", () => { field.value = ""; });
    document.body.append(box);
    box.showModal();
  });
}
