// Who looks at whom: all heads at a glance, one of them large, as a matrix or as lines.

import { attentionLines } from "../attention/attentionLines.js";
import { thumbs } from "../attention/headGrid.js";
import { headFacts } from "../attention/headStats.js";
import { attentionBlocks, headOf, someColumns } from "../attention/heads.js";
import { gaze } from "../attention/topAttention.js";
import { matrix } from "../charts/matrix.js";
import { wasReplaced } from "../core/api.js";
import { choice } from "../core/choice.js";
import { h, replace } from "../core/dom.js";
import { onKeys } from "../core/keys.js";
import { rowOf, show } from "../core/numbers.js";
import { reading } from "../core/page.js";
import { sentenceField } from "../core/sentenceInput.js";
import { onSelect, select, selected } from "../core/state.js";

// How somebody likes to look stays when they come back to the tab.
const attentionWishes = { view: "matrix", scale: "head", threshold: 0, plain: false };
const attentionScales = [
  { id: "head", label: "per head" },
  { id: "row", label: "per row" },
  { id: "all", label: "all heads" },
];
const attentionColours = {
  head: "Colours: this head's own scale.",
  row: "Colours: every row has its own scale.",
  all: "Colours: one scale for all heads of this kind.",
};
const attentionViews = [
  { id: "matrix", label: "Matrix" },
  { id: "lines", label: "Lines" },
];
const attentionWarning =
  "A weight says how much of a word was mixed in here. It does not say why the model chose as it did: the values, the other heads and layers, and what goes past attention all take part.";

export const attentionTab = {
  id: "attention",
  title: "Attention",
  fits: (model) => !model.family.startsWith("recurrent"),
  mount(place, page) {
    const view = new AttentionView(place, page);
    view.readText();
    const leave = onSelect((now, before) => view.follow(now, before));
    const keys = onKeys({
      "[": () => view.step("layer", -1),
      "]": () => view.step("layer", 1),
      "{": () => view.step("head", -1),
      "}": () => view.step("head", 1),
    });
    return () => {
      leave();
      keys();
      view.left = true;
      view.field.leave();
    };
  },
};

class AttentionView {
  constructor(place, page) {
    this.page = page;
    this.field = sentenceField(page);
    this.body = h("div", { class: "attention" });
    replace(place, h("h1", { class: "unseen" }, "Attention"), this.field.element, this.body);
  }

  follow(now, before) {
    const changed = (...names) => names.some((name) => now[name] !== before[name]);
    if (changed("text", "tag", "target")) this.readText();
    else if (changed("side", "layer", "head") && this.trace) this.readHead();
    else if (changed("query", "key") && this.data) this.showPinned();
  }

  /** Read a new text: nothing of the old one stays on the screen. */
  async readText() {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    this.trace = this.data = null;
    replace(this.body, reading("reading the attention of all heads"));
    try {
      const trace = await this.page.trace();
      const small = await this.page.busy(trace.thumbs());
      if (this.left || turn !== this.turn) return; // somebody asked for another text meanwhile
      this.trace = trace;
      this.small = small;
      this.build();
      await this.readHead();
    } catch (error) {
      if (!this.left && !wasReplaced(error)) this.page.showError(this.body, error, () => this.readText());
    }
  }

  /** What is selected, as far as this model has it. */
  where() {
    const { side, layer, head } = selected();
    const block = this.blocks.find(({ id }) => id === side) ?? this.blocks.at(-1);
    const within = (n, count) => (n >= 1 && n <= count ? n : 1);
    return {
      block,
      layer: within(layer, block.layers.length),
      head: within(head, this.trace.manifest.model.heads),
    };
  }

  /** To the layer or head before or after. */
  step(which, by) {
    if (!this.trace) return;
    const { block, layer, head } = this.where();
    const count = which === "layer" ? block.layers.length : this.trace.manifest.model.heads;
    const to = (which === "layer" ? layer : head) + by;
    if (to >= 1 && to <= count) select({ side: block.id, layer, head, [which]: to });
  }

  build() {
    this.blocks = attentionBlocks(this.trace.manifest);
    this.drawn = null; // the block whose thumbnails are there
    this.choose = choice({
      legend: "Which attention",
      options: this.blocks,
      chosen: this.where().block.id,
      onChoose: (side) => select({ side, query: null, key: null }),
    });
    const scale = choice({
      legend: "Colours",
      options: attentionScales,
      chosen: attentionWishes.scale,
      onChoose: (id) => this.wish({ scale: id }),
    });
    this.says = h("p", { class: "soft" });
    this.heads = h("div", {});
    this.facts = h("div", { class: "attention-facts" });
    this.stage = h("div", { class: "attention-stage" }, reading("reading the weights of this head"));
    const many = this.blocks.length > 1 ? this.choose.element : null;
    const overview = [many, this.says, this.heads, scale.element, this.facts];
    const warning = [h("strong", null, "Attention is not an explanation. "), attentionWarning];
    const large = [this.tools(), this.stage, h("p", { class: "attention-warning" }, warning)];
    replace(
      this.body,
      h("section", { class: "panel attention-overview", "aria-label": "All heads" }, overview),
      h("section", { class: "card attention-large", "aria-label": "One head" }, large),
    );
    this.large = null;
  }

  tools() {
    const views = choice({
      legend: "Show as",
      options: attentionViews,
      chosen: attentionWishes.view,
      onChoose: (id) => this.wish({ view: id }),
    });
    const told = h("span", { class: "number" }, show(attentionWishes.threshold, 2));
    const slider = h("input", {
      type: "range",
      min: "0",
      max: "0.5",
      step: "0.01",
      value: String(attentionWishes.threshold),
      on: { input: () => this.wish({ threshold: Number(slider.value) }, told) },
    });
    const plain = h("input", {
      type: "checkbox",
      checked: attentionWishes.plain,
      on: { change: () => this.wish({ plain: plain.checked }) },
    });
    return h(
      "div",
      { class: "attention-tools" },
      views.element,
      h("label", { class: "attention-threshold small" }, "Only weights from ", told, slider),
      h("label", { class: "check small" }, plain, "hide special tokens"),
    );
  }

  wish(changes, told) {
    Object.assign(attentionWishes, changes);
    if (told) told.textContent = show(attentionWishes.threshold, 2);
    if ("scale" in changes) this.showThumbs();
    if (this.data) this.showHead();
  }

  async readHead() {
    const { trace } = this;
    const { block, layer, head } = this.where();
    this.choose.set(block.id);
    this.says.textContent = block.says;
    this.showThumbs();
    try {
      const data = await this.page.busy(headOf(trace, block, layer, head));
      if (this.left || trace !== this.trace) return; // too late
      const now = this.where();
      if (now.block !== block || now.layer !== layer || now.head !== head) return;
      this.data = { ...data, block, layer, head };
      this.showHead();
      replace(this.facts, headFacts(this.page, this.trace, this.data));
    } catch (error) {
      if (this.left || trace !== this.trace) return;
      this.page.showError(this.stage, error, () => this.readHead());
      this.large = null;
    }
  }

  showThumbs() {
    const { block, layer, head } = this.where();
    const layers = block.layers.map((name) => this.small[name]);
    const { scale } = attentionWishes;
    const asked = {
      layers,
      layer,
      head,
      scale,
      title: `${block.name}: all heads`,
      onChoose: (l, n) => select({ layer: l, head: n, side: block.id }),
    };
    if (this.drawn === block.id) this.pictures.set({ layer, head, scale });
    else {
      this.pictures = thumbs(asked);
      replace(this.heads, this.pictures.element);
      this.drawn = block.id;
    }
  }

  /** The large view; it is kept from head to head, so that focus and scroll stay where they are. */
  showHead() {
    const asked = this.headAsked();
    const { view } = attentionWishes;
    if (this.large?.view === view) this.large.part.set(asked);
    else {
      const part = view === "matrix" ? matrix(asked) : attentionLines(asked);
      this.large = { view, part };
      this.note = h("p", { class: "soft small attention-note" });
      this.gaze = gaze();
      const beside = view === "matrix" ? this.gaze.element : null; // lines show it themselves
      this.views = h("div", { class: "attention-views" }, part.element, beside);
      replace(this.stage, this.views, this.note);
    }
    this.asked = asked;
    this.views.classList.toggle("few", asked.columns.length <= 10); // then there is room beside it
    this.note.textContent = this.noteOf();
    this.showPinned();
  }

  headAsked() {
    const { block, layer, head, weights, scores, hidden, queries, keys, next } = this.data;
    this.kept = keys.labels.map((_, i) => i).filter((i) => !attentionWishes.plain || !keys.special[i]);
    const some = (values) => (values ? someColumns({ values, shape: weights.shape }, this.kept) : null);
    return {
      rows: queries.labels,
      columns: this.kept.map((i) => keys.labels[i]),
      next,
      values: some(weights.values),
      hidden: some(hidden),
      hiddenMeans: "hidden: the future",
      also: scores ? [{ name: "score", values: some(scores) }] : [],
      title: `${block.name}, layer ${layer}, head ${head}`,
      credit: `${this.page.model.name}: ${this.trace.manifest.text}`,
      scale: this.scaleNow(),
      threshold: attentionWishes.threshold,
      sums: true,
      onCursor: (row, column) => this.showGaze(row, column),
      onPin: (row, column) => select({ query: row, key: column === null ? null : this.kept[column] }),
    };
  }

  scaleNow() {
    const { block, weights } = this.data;
    const { tensors } = this.trace.manifest;
    const largest = (values) => values.reduce((most, x) => (x > most ? x : most), 0) || 1;
    const scale = { kind: "share", low: 0, high: largest(weights.values) };
    if (attentionWishes.scale === "head") return scale;
    if (attentionWishes.scale === "row")
      return { ...scale, highs: this.data.queries.ids.map((_, r) => largest(rowOf(weights, r))) };
    return { ...scale, high: Math.max(...block.layers.map((name) => tensors[`${name}.weights`]?.max ?? 1)) };
  }

  noteOf() {
    const colours = attentionColours[attentionWishes.scale];
    const scale = attentionWishes.view === "lines" ? "The thicker, the stronger." : colours;
    const rounded = this.data.weights.kind === "f16" ? " This file keeps them to three digits." : "";
    const missing = this.data.keys.special.some(Boolean) && attentionWishes.plain;
    return missing
      ? `${scale} Special tokens are hidden and their shares with them: rows no longer sum to 1.${rounded}`
      : `${scale} Every row sums to 1.${rounded}`;
  }

  showPinned() {
    const { query, key } = selected();
    const column = this.kept.indexOf(key);
    if (attentionWishes.view === "lines") this.large.part.pin(query);
    else this.large.part.pin(query, column < 0 ? null : column);
    this.showGaze(null, null);
  }

  /** The row that is pointed at, or else the one that was chosen. */
  showGaze(row, column) {
    const { query, key } = selected();
    const chosen = query !== null && query < this.asked.rows.length ? query : this.asked.rows.length - 1;
    this.gaze.set({
      ...this.asked,
      row: row ?? chosen,
      column: row === null ? this.kept.indexOf(key) : column,
    });
  }
}
