// Write: an editor with continuations, next-token probabilities, and the attention at the cursor.

import { highlightAttention } from "../attention/attentionHighlight.js";
import { Story, streamedPieces } from "../bench/story.js";
import { button, h, replace } from "../core/dom.js";
import { afterPause, postLatest, requestStream, keep, kept, cancelRequests } from "../core/requests.js";
import { onSelect, select, selected } from "../core/state.js";
import { autocomplete } from "./autocomplete.js";
import { shadedEditor } from "./editor.js";
import { samplingControls } from "./samplingControls.js";
import { t } from "../core/texts.js";

const WRITE_TAB = "limelight-tab-suggests";
const WRITE_IN_LINK = 2000; // characters; a longer text is stored, but not in the link

export const writeTab = {
  id: "write",
  title: "Write",
  fits: (model, page) => model.abilities.includes("write") && !page.offline,
  mount(container, page) {
    container.classList.add("use");
    const view = writeView(page, container);
    replace(container, h("h1", { class: "unseen" }, t("Write")), writeLayout(view));
    const unsubscribe = onSelect((now, before) => {
      if (now.text !== before.text && now.text !== null && now.text !== view.editor.field.value) {
        view.editor.set(now.text);
        writeChanged(view);
      }
    });
    view.editor.set(view.editor.field.value);
    writeInspect(view);
    return () => {
      unsubscribe();
      view.pause.cancel();
      view.control?.abort();
      cancelRequests(page, "next", "suggest", "attend");
    };
  },
};

function writeView(page, home) {
  const name = `limelight-write-${page.model.name}`;
  const view = { page, home, name, control: null, letTabGo: false, traced: null, scored: null, before: null };
  view.pause = afterPause(() => writeInspect(view), 300);
  view.editor = shadedEditor({
    text: selected().text ?? kept(name) ?? page.example?.text ?? "",
    title: t("Your text"),
    onText: () => writeChanged(view),
    onCaret: () => { view.sampling.wait(); view.pause.soon(); },
    onKey: (event) => writeKey(view, event),
  });
  view.sampling = samplingControls(page.model);
  view.attention = h("section", { class: "under", "aria-label": t("Attention of the token before the cursor") });
  view.state = h("div", { class: "write-state", role: "status" });
  view.after = ""; // what stands behind the generated text
  const show = (text) => {
    view.editor.set(text + view.after, text.length);
    writeChanged(view);
  };
  view.story = new Story({ onGo: (text) => view.control || show(text), onBranch: (text) => { if (!view.control) { show(text); writeOn(view); } } });
  return view;
}

function writeLayout(view) {
  const { decode } = view.page.model;
  view.tabs = h("input", { type: "checkbox", checked: writeTabSuggests(), on: { change: () => writeKeepTab(view.tabs.checked) } });
  view.go = button(t("Generate"), () => writeOn(view), { class: "button primary" });
  view.stop = button(t("Stop"), () => view.control?.abort(), { disabled: true });
  view.length = h("input", { class: "field number-field", type: "number", min: "1", max: "500", value: "40" });
  view.seed = h("input", { class: "field number-field", type: "number", min: "0", max: "999999", value: String(decode.seed ?? 1) });
  const tools = h(
    "div",
    { class: "row write-tools" },
    view.go,
    button(t("Suggest"), () => autocomplete(view), { title: "Ctrl+Space" }),
    view.stop,
    h("label", { class: "check small" }, t("max tokens"), view.length),
    h("label", { class: "check small" }, t("seed"), view.seed),
    h("span", { class: "grow" }),
    button(t("Explain this"), () => select({ tab: "explain", text: view.editor.field.value, target: null }), { class: "button quiet" }),
  );
  const keys = h(
    "div",
    { class: "small soft keys-line" },
    h("label", { class: "check" }, view.tabs, h("span", null, h("kbd", null, "Tab"), ` ${t("suggests too")}`)),
    h("span", null, h("kbd", null, "Ctrl"), "+", h("kbd", null, "Space"), ` ${t("always;")} `, h("kbd", null, "Esc"), ` ${t("then")} `, h("kbd", null, "Tab"), ` ${t("leaves the editor")}`),
  );
  const writing = h("section", { class: "card", "aria-label": t("Editor") }, h("h2", null, t("Your text, continued by the model")), view.editor.element, tools, view.state, view.story.element, keys, view.attention);
  return h("div", { class: "two-sides wide-left" }, writing, view.sampling.element);
}

function writeChanged(view) {
  keep(view.name, view.editor.field.value);
  view.letTabGo = false;
  view.sampling.wait();
  replace(view.state);
  view.pause.soon();
}

/** The logits after the caret, and the attention of the token before it. */
async function writeInspect(view) {
  const text = view.editor.field.value;
  if (text.length <= WRITE_IN_LINK) select({ text, target: null }, { replace: true });
  const [before] = view.editor.parts();
  try {
    view.pieces ??= await view.page.busy(view.page.api.get(`/api/vocabulary?model=${encodeURIComponent(view.page.model.name)}`));
    if (view.scored?.before !== before) {
      const { logits } = await postLatest(view.page, "next", "/api/next", { text: before }, "postForBytes");
      view.scored = { before, logits: logits.values };
    }
    view.sampling.show(view.scored.logits, view.pieces, before);
    if (!view.page.model.config.family.startsWith("recurrent")) await highlightAttention(view, text, () => writeInspect(view));
  } catch (error) {
    view.page.showError(view.state, error, () => { replace(view.state); writeInspect(view); });
  }
}

function writeKey(view, event) {
  if (event.ctrlKey && (event.key === " " || event.code === "Space")) {
    event.preventDefault();
    autocomplete(view);
  } else if (event.key === "Escape") {
    view.letTabGo = true;
    view.page.say(t("Tab leaves the editor now"));
  } else if (event.key === "Tab" && !event.shiftKey && !event.altKey && view.tabs.checked && !view.letTabGo) {
    event.preventDefault();
    autocomplete(view);
  }
}

/** Generate at the caret, token by token, with the sampling settings. */
async function writeOn(view) {
  if (view.control) return;
  const control = new AbortController();
  const { editor, page } = view;
  const [before, after] = editor.parts();
  view.control = control;
  view.pause.cancel();
  view.after = after;
  view.story.begin(before);
  let [written, message, broke] = ["", "", false];
  writeBusy(view, true);
  try {
    await page.busy(requestStream(page, "/v1/completions", writeRequest(view, before), (event) => {
      const [choice] = event.choices;
      written += choice.text;
      editor.set(before + written + after, before.length + written.length, editor.marks);
      for (const piece of streamedPieces(choice)) {
        view.story.grow(piece);
        view.sampling.live(piece.top, before + written);
      }
      writeShade(view, before + written);
    }, control.signal));
    message = written ? t("Done.") : t("The model ends the text here.");
  } catch (error) {
    broke = !control.signal.aborted;
    message = broke ? t("Generation was interrupted: {0}.", [error.message]) : t("You stopped it here.");
  }
  view.control = null;
  writeBusy(view, false);
  if (!editor.field.isConnected) return;
  writeTyped(view, before, written, after);
  writeDone(view, before + after, before.length, message, broke);
  keep(view.name, editor.field.value);
  if (!broke) writeInspect(view); // or its error would take the place of this one
}

/** Shade the text by the attention of its last piece; while one answer is awaited, no other is requested. */
async function writeShade(view, text) {
  if (view.shading || !view.pieces || view.page.model.config.family.startsWith("recurrent")) return;
  view.shading = true;
  await highlightAttention(view, text, () => {}).catch(() => {}); // the stream says if the service is gone
  view.shading = false;
}

/** Put what was generated there as if it were typed: then the browser's Undo takes it back. */
function writeTyped(view, before, written, after) {
  if (!written) return;
  const held = document.activeElement;
  view.editor.set(before + after, before.length);
  view.editor.type(written);
  view.pause.cancel();
  if (held !== view.editor.field) held?.focus();
}

function writeRequest(view, prompt) {
  const number = (field, least, most) => Math.min(most, Math.max(least, Math.round(Number(field.value)) || least));
  return {
    model: view.page.model.name,
    prompt,
    stream: true,
    logprobs: 5,
    max_tokens: number(view.length, 1, 500),
    seed: number(view.seed, 0, 999999),
    ...view.sampling.settings(),
  };
}

function writeDone(view, text, caret, message, broke = false) {
  const back = () => {
    view.editor.set(text, caret);
    view.editor.field.focus();
    writeChanged(view);
  };
  replace(
    view.state,
    h("span", { class: broke ? "small bad" : "small soft" }, message),
    broke ? button(t("Try again"), () => { back(); writeOn(view); }, { class: "button small" }) : null,
    button(t("Undo"), back, { class: "button quiet small" }),
  );
}

function writeBusy(view, busy) {
  view.go.disabled = busy; // it stays in place, so that a second click does not stop
  view.stop.disabled = !busy; // in place too, so that nothing jumps
  view.editor.field.readOnly = busy;
  if (busy) {
    replace(view.state, h("span", { class: "small soft" }, `${t("generating")} …`));
  }
}

function writeTabSuggests() {
  try {
    return localStorage.getItem(WRITE_TAB) !== "0";
  } catch {
    return true;
  }
}

function writeKeepTab(on) {
  try {
    localStorage.setItem(WRITE_TAB, on ? "1" : "0");
  } catch {
    // A browser that keeps nothing has it on again next time.
  }
}
