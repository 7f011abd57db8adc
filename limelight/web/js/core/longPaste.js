// A paste that a field cuts to its limit: browsers do that in silence.

import { h } from "./dom.js";
import { showCount } from "./numbers.js";
import { t } from "./texts.js";

/** Say it below the field, until its text is changed. */
export function sayWhenCut() {
  document.addEventListener("paste", ({ target: field, clipboardData }) => {
    const pasted = clipboardData?.getData("text") ?? "";
    const most = field.maxLength ?? -1;
    const kept = field.value ? field.value.length - (field.selectionEnd - field.selectionStart) : 0;
    if (most < 0 || kept + pasted.length <= most) return;
    const note = h("p", { class: "small bad cut-note", role: "alert" }, t("Cut: this field holds {0} characters, and you pasted {1} ({2} words).", [showCount(most), showCount(pasted.length), showCount(pasted.trim().split(/\s+/).length)]));
    const clear = () => note.remove();
    setTimeout(() => {
      field.parentNode.querySelector(".cut-note")?.remove();
      field.after(note);
      field.addEventListener("input", clear, { once: true });
    });
  });
}
