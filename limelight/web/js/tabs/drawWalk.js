// Explain for a model that draws: from the caption to the picture, patch by patch.

import { button, h, replace } from "../core/dom.js";
import { showPercent } from "../core/numbers.js";
import { onKeys } from "../core/keys.js";
import { reading } from "../core/page.js";
import { cancelRequests, postLatest, requestStream } from "../core/requests.js";
import { onSelect, select, selected } from "../core/state.js";
import { t } from "../core/texts.js";
import { weightLine } from "../core/words.js";
import { bars } from "../charts/bars.js";

const PAINT_STOPS = ["caption", "patches", "candidates", "attention", "words"];

/** Mount the walk; returns what ends it. */
export function drawWalk(container, page) {
  const walk = new DrawWalk(container, page);
  walk.draw();
  const ends = [
    onSelect((now, before) => (now.text === before.text ? walk.show() : walk.draw())),
    onKeys({ ArrowLeft: () => walk.move(-1), ArrowRight: () => walk.move(1), " ": () => walk.move(1), ",": () => walk.goTo(walk.patch - 1), ".": () => walk.goTo(walk.patch + 1) }),
  ];
  return () => { ends.forEach((end) => end()); walk.control?.abort(); cancelRequests(page, "patch"); };
}

class DrawWalk {
  constructor(container, page) {
    Object.assign(this, { page, side: Math.sqrt(page.model.images.tokens), turn: 0 });
    this.field = h("input", { class: "field draw-caption", type: "text", id: "sentence", maxlength: "1000", autocomplete: "off", spellcheck: "false", dir: "auto", "aria-label": t("Caption") });
    const form = h("form", { class: "draw-line", on: { submit: (event) => { event.preventDefault(); select({ text: this.field.value, step: null }); } } }, this.field, h("button", { class: "button primary", type: "submit" }, t("Draw")));
    this.map = h("nav", { class: "draw-stops", "aria-label": t("The model") });
    this.picture = h("div", { class: "card draw-stage" });
    this.text = h("div", { class: "draw-text" });
    this.back = button(`← ${t("Back")}`, () => this.move(-1));
    this.next = button(`${t("Next")} →`, () => this.move(1), { class: "button primary" });
    this.scrub = h("input", { type: "range", min: "0", max: String(page.model.images.tokens - 1), "aria-label": t("Patch"), on: { input: () => this.goTo(Number(this.scrub.value)) } });
    this.scrubbed = h("span", { class: "small" });
    replace(container, h("div", { class: "explain-top" }, form), this.map, h("article", { class: "draw-walk" }, this.picture, this.text), h("div", { class: "explain-foot", role: "group", "aria-label": t("Walk") }, this.back, this.next, h("div", { class: "scrubber" }, this.scrub, this.scrubbed)));
  }

  get stop() { return Math.max(0, PAINT_STOPS.indexOf(selected().stage)); }

  /** The chosen patch, or else one with a rare token: where the ground is empty, there is little to see. */
  get patch() { return Math.min(this.side ** 2 - 1, selected().step ?? drawTelling(this.made.tokens, this.side)); }

  move(by) { const to = PAINT_STOPS[this.stop + by]; if (to) select({ stage: to }); }

  goTo(patch) { if (patch >= 0 && patch < this.side ** 2) select({ step: patch }, { replace: true }); }

  /** Draw the caption's picture, then show the stop. */
  async draw() {
    const turn = (this.turn += 1);
    this.field.value = selected().text ?? this.page.example?.text ?? "";
    this.control?.abort();
    this.control = new AbortController();
    this.made = this.found = null;
    replace(this.picture, reading(t("drawing")));
    const request = { model: this.page.model.name, prompt: this.field.value, seed: this.page.model.decode.seed ?? 1 };
    try {
      let last = null;
      await this.page.busy(requestStream(this.page, "/api/draw", request, (event) => { last = event; }, this.control.signal));
      if (turn !== this.turn) return;
      this.made = last.pictures[0];
      await this.show();
    } catch (error) {
      if (turn === this.turn) this.page.showError(this.picture, error, () => this.draw());
    }
  }

  async show() {
    if (!this.made) return;
    const [turn, { patch }] = [this.turn, this];
    if (this.found?.patch !== patch) {
      const found = await postLatest(this.page, "patch", "/api/draw/patch", { prompt: this.field.value, patches: this.made.tokens, patch }).catch((error) => this.page.showError(this.picture, error, () => this.show()));
      if (!found || turn !== this.turn || patch !== this.patch) return;
      this.found = { ...found, patch };
    }
    const name = PAINT_STOPS[this.stop];
    const [label, what, made] = this[name]();
    replace(this.map, this.labels().map((one, n) => button(one, () => select({ stage: PAINT_STOPS[n] }), { class: "map-part", "aria-current": n === this.stop ? "step" : null })));
    replace(this.picture, made);
    replace(this.text, h("p", { class: "soft small" }, t("{0} of {1}", [this.stop + 1, PAINT_STOPS.length])), h("h1", { id: "stage-title" }, label), h("p", { class: "what" }, what));
    this.page.say(label);
    Object.assign(this.scrub, { value: String(patch) });
    this.scrubbed.textContent = t("patch {0}: row {1}, column {2}", [patch + 1, Math.floor(patch / this.side) + 1, (patch % this.side) + 1]);
    this.back.disabled = this.stop === 0;
    this.next.disabled = this.stop === PAINT_STOPS.length - 1;
  }

  labels() { return [t("caption"), t("patches"), t("candidates"), t("attention"), t("words")]; }

  /** The picture under a grid: `drawn` patches of it, shaded, with what stands in each. */
  grid({ drawn = this.side ** 2, shares = null, write = null, small = false } = {}) {
    const most = Math.max(...(shares ?? []), 1e-9);
    const cells = Array.from({ length: this.side ** 2 }, (_, i) => (small ? h("span", { class: "draw-cell", style: { "--share": shares[i] / most } }) : button(write?.[i] ?? "", () => this.goTo(i), { class: `draw-cell number${i >= drawn ? " blank" : ""}${write ? " written" : ""}`, tabindex: "-1", "aria-label": t("patch {0}", [i + 1]), "aria-pressed": String(i === this.patch), style: { "--share": shares && i < shares.length ? shares[i] / most : 0 } })));
    const image = h("img", { class: "draw-image", src: `data:image/png;base64,${this.made.source ?? this.made.b64_json}`, alt: small ? "" : t("Picture for: {0}", [this.field.value]) });
    return h("div", { class: small ? "draw-picture draw-small" : "draw-picture" }, image, h("div", { class: "draw-grid", style: { "--side": this.side } }, cells));
  }

  caption() {
    const chips = [...this.found.words.map((word) => h("span", { class: "chip", dir: "auto" }, word)), h("span", { class: "chip special" }, t("⟨separator⟩"))];
    return [t("The caption becomes tokens"), t("The caption is split into {0} tokens. After a separator, the model goes on with tokens of the picture, as a writer goes on with words.", [this.found.words.length]), [h("div", { class: "chips" }, chips), this.grid()]];
  }

  patches() {
    return [t("A picture is a row of tokens too"), t("An image tokenizer gives each of the {0} patches one token of its codebook. From these tokens it can draw the patches again; here is the number of each.", [this.made.tokens.length]), this.grid({ write: this.made.tokens })];
  }

  candidates() {
    const { patch, found: { candidates } } = this;
    const now = this.made.tokens[patch];
    const items = candidates.map((one) => ({ label: t("token {0}", [one.token]), value: one.probability, marked: one.token === now }));
    const pictures = candidates.map((one) => h("img", { class: "draw-option", src: `data:image/png;base64,${one.b64_json}`, alt: t("token {0}", [one.token]) }));
    return [t("Patch by patch, each from its probabilities"), t("Every step gives each token of the codebook a probability and draws one by chance; here token {0}. The small pictures show each candidate with the patches around it.", [now]), h("div", { class: "draw-beside" }, this.grid({ drawn: patch }), h("div", null, bars({ items, title: t("candidates") }).element, h("div", { class: "row" }, pictures)))];
  }

  attention() {
    const { attention, words } = this.found;
    const mean = (pick) => attention.reduce((sum, one) => sum + pick(one), 0) / attention.length;
    const line = weightLine([...words, t("padding"), t("⟨separator⟩")].map((text, i) => ({ text, special: i >= words.length })), t("Attention to the caption"));
    line.show([...words.map((_, i) => mean((one) => one.words[i])), mean((one) => one.padding), mean((one) => one.separator)]);
    const shares = Array.from({ length: this.patch }, (_, i) => mean((one) => one.patches[i]));
    return [t("Each patch reads the words and the patches before it"), t("Attention is masked: no patch sees a later one. Earlier patches get {0} of the weight (mean of all layers and heads), as shades over the picture.", [showPercent(shares.reduce((sum, x) => sum + x, 0))]), [this.grid({ drawn: this.patch, shares }), line.element]];
  }

  words() {
    const maps = this.found.words.map((word, n) => h("figure", { class: "figure" }, this.grid({ shares: this.found.maps[n], small: true }), h("figcaption", { class: "small", dir: "auto" }, word, " ", h("span", { class: "number soft" }, t("up to {0}", [showPercent(Math.max(...this.found.maps[n]))])))));
    return [t("Where each word was read"), t("For every word of the caption its attention weight at every patch (mean of all layers and heads). Each picture has its own scale."), h("div", { class: "draw-maps" }, maps)];
  }
}

/** Of the places of the rarest tokens the one nearest to the middle. */
function drawTelling(tokens, side) {
  const middle = (side - 1) / 2;
  const cost = (i) => tokens.filter((one) => one === tokens[i]).length + Math.hypot((i % side) - middle, Math.floor(i / side) - middle) / side;
  return tokens.reduce((best, _, i) => (cost(i) < cost(best) ? i : best), 0);
}
