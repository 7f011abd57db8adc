// An editor whose text can be highlighted: the same text lies in a layer under the field.

import { h, replace } from "../core/dom.js";

/**
 * @param {{text: string, title: string, onText: function(): void, onCaret: function(): void,
 *   onKey: function(KeyboardEvent): void}} options
 * @returns {Object} the editor
 */
export function shadedEditor(options) {
  const under = h("div", { class: "editor-layer editor-under", "aria-hidden": "true", dir: "auto" });
  const field = h("textarea", {
    class: "editor-layer editor-field", id: "sentence", name: "text", dir: "auto", spellcheck: "false",
    maxlength: "20000", value: options.text, "aria-label": options.title,
  });
  const element = h("div", { class: "editor" }, under, field);
  const editor = { element, field, marks: [] };
  let caret = -1;
  const lay = () => editorLay(under, field.value, editor.marks, field.selectionStart);
  const moved = () => {
    if (field.selectionStart === caret) return;
    caret = field.selectionStart;
    options.onCaret();
  };
  field.addEventListener("input", () => {
    editor.marks = []; // they belong to the old text
    caret = field.selectionStart;
    lay();
    options.onText();
  });
  for (const event of ["keyup", "pointerup", "focus"]) field.addEventListener(event, moved);
  field.addEventListener("keydown", options.onKey);
  lay();

  return Object.assign(editor, {
    /** Highlight spans of the text: [{from, to, share}]; the largest is the darkest. */
    shade(marks) {
      editor.marks = marks;
      lay();
    },
    /** Another text, with the caret there; marks of an unchanged beginning can stay. */
    set(text, position = text.length, marks = []) {
      field.value = text;
      field.setSelectionRange(position, position);
      caret = position;
      editor.marks = marks;
      lay();
    },
    /** Put something at the caret, as if it were typed: the browser's Undo takes it back. */
    type(text) {
      field.focus();
      if (!document.execCommand("insertText", false, text)) {
        field.setRangeText(text, field.selectionStart, field.selectionEnd, "end");
        field.dispatchEvent(new Event("input"));
      }
    },
    /** What stands before the caret, and after it. */
    parts() {
      return [field.value.slice(0, field.selectionStart), field.value.slice(field.selectionEnd)];
    },
    /** Where the caret is on the screen. */
    caretRect() {
      lay();
      return under.querySelector(".editor-caret").getBoundingClientRect();
    },
  });
}

function editorLay(under, text, marks, caret) {
  const cuts = new Set([0, text.length, caret]);
  for (const mark of marks) cuts.add(mark.from).add(mark.to);
  const edges = [...cuts].sort((a, b) => a - b);
  const most = Math.max(...marks.map((mark) => mark.share), 1e-9);
  const parts = [];
  edges.forEach((from, i) => {
    if (from === caret) parts.push(h("span", { class: "editor-caret" }));
    const to = edges[i + 1];
    if (to === undefined) return;
    const mark = marks.find((one) => one.from <= from && to <= one.to);
    const part = text.slice(from, to);
    parts.push(mark ? h("mark", { class: mark.here ? "here" : null, style: { "--share": mark.share / most } }, part) : part);
  });
  replace(under, parts, "\u200b"); // an empty last line has a height too
}
