// Draw: a caption becomes a picture, patch by patch; what else could stand at each patch.

import { layerChooser, layerNow } from "../attention/attentionShares.js";
import { button, h, replace } from "../core/dom.js";
import { showPercent } from "../core/numbers.js";
import { afterPause, cancelRequests, postLatest, requestStream } from "../core/requests.js";
import { onSelect, select, selected } from "../core/state.js";
import { weightLine } from "../core/words.js";
import { t } from "../core/texts.js";

const DRAW_PAUSE = 120; // milliseconds over a patch before it is inspected

export const drawTab = {
  id: "draw",
  title: "Draw",
  fits: (model, page) => model.abilities.includes("draw") && !page.offline,
  mount(container, page) {
    container.classList.add("use");
    const view = drawView(page);
    replace(container, h("h1", { class: "unseen" }, t("Draw")), drawLayout(view));
    const unsubscribe = onSelect((now, before) => {
      if (now.text !== before.text && now.text !== null && now.text !== view.caption.value) {
        view.caption.value = now.text;
        drawAll(view);
      }
    });
    drawAll(view);
    return () => {
      unsubscribe();
      view.pause.cancel();
      view.control?.abort();
      cancelRequests(page, "patch");
    };
  },
};

/** `pictures` have a source, tokens and seed each; `patch` of the `shown` one is inspected. */
function drawView(page) {
  const { decode, images } = page.model;
  const number = (name, value, most, step = 1) =>
    h("input", { class: "field number-field", type: "number", name, min: "0", max: String(most), step: String(step), value: String(value) });
  const view = { page, side: Math.sqrt(images.tokens), pictures: [], shown: 0, patch: null, pinned: false, found: null, control: null };
  view.caption = h("input", { class: "field draw-caption", type: "text", id: "sentence", name: "caption", maxlength: "1000", autocomplete: "off", spellcheck: "false", dir: "auto", "aria-label": t("Caption"), value: selected().text ?? page.example?.text ?? "" });
  view.count = number("pictures", 1, 9);
  view.count.min = "1";
  view.seed = number("seed", decode.seed ?? 1, 999999);
  view.guidance = number("guidance", decode.guidance ?? 1, 100, 0.5);
  view.state = h("div", { class: "small soft draw-state", role: "status" });
  view.image = h("img", { class: "draw-image", alt: "", hidden: true });
  view.cells = Array.from({ length: images.tokens }, (_, i) => drawCell(view, i));
  view.others = h("div", { class: "draw-others" });
  view.details = h("div");
  view.pause = afterPause(() => drawInspect(view), DRAW_PAUSE);
  return view;
}

function drawCell(view, i) {
  const [row, column] = [Math.floor(i / view.side) + 1, (i % view.side) + 1];
  const choose = (pinned) => {
    if (pinned) view.pinned = true;
    drawChoosePatch(view, i);
  };
  return button("", () => choose(true), {
    class: "draw-cell", tabindex: i ? "-1" : "0", "aria-label": t("Patch in row {0}, column {1}", [row, column]), "aria-pressed": "false",
    on: {
      focus: () => choose(false),
      pointerenter: () => view.pinned || choose(false),
      keydown: (event) => drawCellKey(view, i, event),
    },
  });
}

function drawCellKey(view, i, event) {
  const { side } = view;
  const [row, column] = [Math.floor(i / side), i % side];
  const to = {
    ArrowLeft: column ? i - 1 : i, ArrowRight: column < side - 1 ? i + 1 : i,
    ArrowUp: row ? i - side : i, ArrowDown: row < side - 1 ? i + side : i,
    Home: row * side, End: row * side + side - 1,
  }[event.key];
  if (event.key === "Escape") view.pinned = false;
  if (to === undefined) return;
  event.preventDefault();
  view.pinned = true;
  view.cells[to].focus();
}

function drawLayout(view) {
  view.go = h("button", { class: "button primary", type: "submit" }, t("Draw"));
  view.stop = button(t("Stop"), () => view.control?.abort(), { disabled: true });
  const form = h(
    "form",
    { class: "draw-form", on: { submit: (event) => { event.preventDefault(); drawAll(view); } } },
    view.caption,
    h("div", { class: "row" }, view.go, view.stop,
      h("label", { class: "check small" }, t("pictures"), view.count),
      h("label", { class: "check small" }, t("seed"), view.seed),
      h("label", { class: "check small" }, t("guidance"), view.guidance)),
  );
  const grid = h("div", { class: "draw-grid", role: "group", "aria-label": t("Patches of the picture: arrow keys move"), style: { "--side": view.side } }, view.cells);
  grid.addEventListener("pointerleave", () => view.pause.cancel());
  return h(
    "div",
    { class: "two-sides" },
    h("section", { class: "card", "aria-label": t("Picture") }, h("h2", null, t("A picture for a caption")), form, view.state, h("div", { class: "draw-picture" }, view.image, grid), view.others),
    h("section", { class: "card", "aria-label": t("Patch") }, view.details),
  );
}

function drawNumber(field) {
  return Math.min(Number(field.max), Math.max(Number(field.min), Number(field.value) || 0));
}

function drawRequest(view) {
  return { model: view.page.model.name, prompt: view.caption.value, guidance: drawNumber(view.guidance) };
}

/** New pictures for the caption. */
function drawAll(view) {
  select({ text: view.caption.value }, { replace: true });
  Object.assign(view, { shown: 0, patch: null, pinned: false });
  const request = { ...drawRequest(view), n: Math.round(drawNumber(view.count)), seed: Math.round(drawNumber(view.seed)) };
  return drawStream(view, request, (pictures) => { view.pictures = pictures; }, () => drawAll(view));
}

/** The shown picture again, with another token at the patch and all that follows drawn anew. */
async function drawOtherwise(view, token) {
  const { shown, patch } = view;
  const { tokens, seed } = view.pictures[shown];
  const request = { ...drawRequest(view), seed, patches: [...tokens.slice(0, patch), token] };
  await drawStream(view, request, ([picture]) => { view.pictures[shown] = picture; }, () => drawOtherwise(view, token));
  view.cells[patch].focus();
}

/** Show what comes; `place` puts the pictures where they belong. */
async function drawStream(view, request, place, again) {
  view.control?.abort();
  const control = new AbortController();
  view.control = control;
  view.found = null;
  drawBusy(view, true);
  const onEvent = (event) => {
    if (view.control !== control) return;
    const finished = event.patches === undefined;
    place(event.pictures.map((one) => (finished ? { source: one.b64_json, ...one } : { source: one })));
    if (finished) replace(view.state, event.notes.join(" "));
    drawShow(view, finished ? view.cells.length : event.patches);
  };
  try {
    await view.page.busy(requestStream(view.page, "/api/draw", request, onEvent, control.signal));
    view.page.say(t("The picture is drawn."));
    if (view.patch !== null) drawInspect(view);
  } catch (error) {
    if (view.control !== control) return;
    if (control.signal.aborted) replace(view.state, t("You stopped it here."));
    else view.page.showError(view.state, error, again);
  } finally {
    if (view.control === control) {
      view.control = null;
      drawBusy(view, false);
    }
  }
}

function drawBusy(view, busy) {
  view.stop.disabled = !busy;
  if (busy) replace(view.state, "drawing …");
  drawDetails(view);
}

function drawSource(text) {
  return `data:image/png;base64,${text}`;
}

/** The picture as far as it is drawn, and the others to choose from. */
function drawShow(view, drawn) {
  const { pictures, shown, caption } = view;
  view.image.src = drawSource(pictures[shown].source);
  view.image.alt = t("Picture for: {0}", [caption.value]);
  view.image.hidden = false;
  view.cells.forEach((cell, i) => cell.classList.toggle("blank", i >= drawn));
  const small = (one, i) => button(h("img", { src: drawSource(one.source), alt: t("Picture {0}", [i + 1]) }), () => {
    Object.assign(view, { shown: i, found: null });
    drawShow(view, view.cells.length);
    drawInspect(view);
  }, { class: "draw-other", "aria-pressed": String(i === shown) });
  replace(view.others, pictures.length > 1 ? pictures.map(small) : null);
}

function drawChoosePatch(view, i) {
  if (!view.pictures[view.shown]?.tokens) return;
  view.cells.forEach((cell, j) => {
    cell.tabIndex = i === j ? 0 : -1;
    cell.setAttribute("aria-pressed", String(i === j));
  });
  if (view.patch === i) return;
  view.patch = i;
  view.pause.soon();
}

/** The candidates for the chosen patch, and the attention where it was drawn. */
async function drawInspect(view) {
  const { page, patch, shown } = view;
  const picture = view.pictures[shown];
  if (patch === null || !picture?.tokens) return;
  try {
    const request = { ...drawRequest(view), patches: picture.tokens, patch };
    view.found = await postLatest(page, "patch", "/api/draw/patch", request);
    if (view.patch === patch && view.pictures[shown] === picture) drawDetails(view);
  } catch (error) {
    page.showError(view.details, error, () => drawInspect(view));
  }
}

function drawDetails(view) {
  const { found, patch } = view;
  view.cells.forEach((cell) => cell.style.removeProperty("--share"));
  if (!found) {
    const text = view.control ? t("The picture is drawn patch by patch, from the upper left corner.") : t("Choose a patch of the picture: what else could stand there, and what the model attended to.");
    replace(view.details, h("h2", null, t("Patch")), h("p", { class: "soft" }, text));
    return;
  }
  const now = view.pictures[view.shown].tokens[patch];
  const [row, column] = [Math.floor(patch / view.side) + 1, (patch % view.side) + 1];
  const rest = 1 - found.candidates.reduce((sum, one) => sum + one.probability, 0);
  replace(
    view.details,
    h("h2", null, t("Patch in row {0}, column {1}", [row, column])),
    h("div", { class: "draw-candidates" }, found.candidates.map((one) => drawCandidate(view, one, one.token === now))),
    h("p", { class: "small soft" }, t("Each with the patches around it. {0} are for other tokens. Choose another one, and the picture is drawn anew from there on.", [showPercent(Math.max(0, rest))])),
    drawAttention(view),
  );
}

function drawCandidate(view, one, isNow) {
  const share = showPercent(one.probability);
  return button([h("img", { src: drawSource(one.b64_json), alt: "" }), h("span", { class: "number small" }, share)], () => isNow || drawOtherwise(view, one.token), {
    class: "draw-candidate", "aria-pressed": String(isNow), "aria-label": `${t("Token {0}, {1}", [one.token, share])}${isNow ? `, ${t("in the picture")}` : ""}`,
  });
}

/** Words as a line with numbers; earlier patches as shades over the picture. */
function drawAttention(view) {
  const { attention, words } = view.found;
  const layer = attention[layerNow(attention.length) - 1];
  const most = Math.max(...layer.patches, 1e-9);
  layer.patches.forEach((share, i) => view.cells[i].style.setProperty("--share", share / most));
  const line = weightLine([...words, "padding", "separator"].map((text, i) => ({ text, special: i >= words.length })), t("Attention to the caption"));
  line.show([...layer.words, layer.padding, layer.separator]);
  const patches = layer.patches.reduce((sum, share) => sum + share, 0);
  return [
    h("div", { class: "card-head" }, h("h3", { class: "label" }, t("Attention where it was drawn")), layerChooser(attention.length, () => drawDetails(view))),
    line.element,
    h("p", { class: "small soft" }, t("Averaged over the heads of the layer. Earlier patches have {0}, as shades over the picture: the darkest has {1}.", [patches, layer.patches.length ? most : 0].map(showPercent))),
  ];
}
