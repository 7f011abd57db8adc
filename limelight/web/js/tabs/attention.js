// Attention: all heads as thumbnails, one of them large, as a matrix or as lines.

import { attentionLines } from "../attention/attentionLines.js";
import { headGrid } from "../attention/headGrid.js";
import { headStats } from "../attention/headStats.js";
import { attentionBlocks, headNow, headOf, someColumns } from "../attention/heads.js";
import { topAttention } from "../attention/topAttention.js";
import { matrix } from "../charts/matrix.js";
import { wasReplaced } from "../core/api.js";
import { choice } from "../core/choice.js";
import { h, replace } from "../core/dom.js";
import { onKeys } from "../core/keys.js";
import { rowOf, show } from "../core/numbers.js";
import { reading } from "../core/page.js";
import { sentenceInput } from "../core/sentenceInput.js";
import { onSelect, select, selected } from "../core/state.js";
import { t } from "../core/texts.js";

// These settings are kept when the user comes back to the tab.
const attentionSettings = { view: "matrix", scale: "head", threshold: 0, plain: false };
const attentionScales = () => [
  { id: "head", label: t("per head") },
  { id: "row", label: t("per row") },
  { id: "all", label: t("all heads") },
];
const attentionColours = () => ({
  head: t("Colour scale: this head."),
  row: t("Colour scale: each row."),
  all: t("Colour scale: all heads of this kind."),
});
const attentionViews = () => [
  { id: "matrix", label: t("Matrix") },
  { id: "lines", label: t("Lines") },
];
const attentionWarning = () =>
  t("A weight says how much of a value was mixed in. It does not say why the model produced its output: the values, other heads and layers, and the residual connections all contribute.");

export const attentionTab = {
  id: "attention",
  title: "Attention",
  fits: (model) => !model.family.startsWith("recurrent") && !model.abilities.includes("draw"),
  mount(container, page) {
    const view = new AttentionView(container, page);
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
  constructor(container, page) {
    this.page = page;
    this.field = sentenceInput(page);
    this.body = h("div", { class: "attention" });
    replace(container, h("h1", { class: "unseen" }, t("Attention")), this.field.element, this.body);
  }

  follow(now, before) {
    const changed = (...names) => names.some((name) => now[name] !== before[name]);
    if (changed("text", "tag", "target", "change")) this.readText();
    else if (changed("side", "layer", "head") && this.trace) this.readHead();
    else if (changed("query", "key") && this.data) this.showPinned();
  }

  /** Trace a new text; nothing of the old one stays on the screen. */
  async readText() {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    this.trace = this.data = null;
    replace(this.body, reading(t("loading the attention of all heads")));
    try {
      const trace = await this.page.trace({ changed: true });
      const small = await this.page.busy(trace.thumbs());
      if (this.left || turn !== this.turn) return; // another text was requested meanwhile
      this.trace = trace;
      this.small = small;
      this.build();
      await this.readHead();
    } catch (error) {
      if (!this.left && !wasReplaced(error)) this.page.showError(this.body, error, () => this.readText());
    }
  }

  /** The selection, as far as this model has it. */
  focus() {
    const { block, layer, head } = headNow(this.trace.manifest, selected());
    return { block: this.blocks.find(({ id }) => id === block.id), layer, head };
  }

  /** To the previous or next layer or head. */
  step(which, by) {
    if (!this.trace) return;
    const { block, layer, head } = this.focus();
    const count = which === "layer" ? block.layers.length : this.trace.manifest.model.heads;
    const to = (which === "layer" ? layer : head) + by;
    if (to >= 1 && to <= count) select({ side: block.id, layer, head, [which]: to });
  }

  build() {
    this.blocks = attentionBlocks(this.trace.manifest);
    this.drawn = null; // the block whose thumbnails are there
    this.choose = choice({
      legend: t("Which attention"),
      options: this.blocks,
      chosen: this.focus().block.id,
      onChoose: (side) => select({ side, query: null, key: null }),
    });
    const scale = choice({
      legend: t("Colour scale"),
      options: attentionScales(),
      chosen: attentionSettings.scale,
      onChoose: (id) => this.update({ scale: id }),
    });
    this.description = h("p", { class: "soft" });
    this.heads = h("div", {});
    this.facts = h("div", { class: "attention-facts" });
    this.panel = h("div", { class: "attention-panel" }, reading(t("loading the weights of this head")));
    const many = this.blocks.length > 1 ? this.choose.element : null;
    const overview = [many, this.description, this.heads, scale.element, this.facts];
    const warning = [h("strong", null, t("Attention is not an explanation.")), " ", attentionWarning()];
    const large = [this.tools(), this.panel, h("p", { class: "attention-warning" }, warning)];
    replace(
      this.body,
      h("section", { class: "panel attention-overview", "aria-label": t("All heads") }, overview),
      h("section", { class: "card attention-large", "aria-label": t("One head") }, large),
    );
    this.large = null;
  }

  tools() {
    const views = choice({
      legend: t("Show as"),
      options: attentionViews(),
      chosen: attentionSettings.view,
      onChoose: (id) => this.update({ view: id }),
    });
    const output = h("span", { class: "number" }, show(attentionSettings.threshold, 2));
    const slider = h("input", {
      type: "range",
      min: "0",
      max: "0.5",
      step: "0.01",
      value: String(attentionSettings.threshold),
      on: { input: () => this.update({ threshold: Number(slider.value) }, output) },
    });
    const plain = h("input", {
      type: "checkbox",
      checked: attentionSettings.plain,
      on: { change: () => this.update({ plain: plain.checked }) },
    });
    return h(
      "div",
      { class: "attention-tools" },
      views.element,
      h("label", { class: "attention-threshold small" }, t("Minimum weight"), " ", output, slider),
      h("label", { class: "check small" }, plain, t("hide special tokens")),
    );
  }

  update(changes, output) {
    Object.assign(attentionSettings, changes);
    if (output) output.textContent = show(attentionSettings.threshold, 2);
    if ("scale" in changes) this.showHeadGrid();
    if (this.data) this.showHead();
  }

  async readHead() {
    const { trace } = this;
    const { block, layer, head } = this.focus();
    this.choose.set(block.id);
    this.description.textContent = block.description;
    this.showHeadGrid();
    try {
      const data = await this.page.busy(headOf(trace, block, layer, head));
      if (this.left || trace !== this.trace) return; // too late
      const now = this.focus();
      if (now.block !== block || now.layer !== layer || now.head !== head) return;
      this.data = { ...data, block, layer, head };
      this.showHead();
      replace(this.facts, headStats(this.page, this.trace, this.data));
    } catch (error) {
      if (this.left || trace !== this.trace) return;
      this.page.showError(this.panel, error, () => this.readHead());
      this.large = null;
    }
  }

  showHeadGrid() {
    const { block, layer, head } = this.focus();
    const layers = block.layers.map((name) => this.small[name]);
    const { scale } = attentionSettings;
    const options = {
      layers,
      layer,
      head,
      scale,
      title: t("{0}: all heads", [block.name]),
      onChoose: (l, n) => select({ layer: l, head: n, side: block.id }),
    };
    if (this.drawn === block.id) this.pictures.set({ layer, head, scale });
    else {
      this.pictures = headGrid(options);
      replace(this.heads, this.pictures.element);
      this.drawn = block.id;
    }
  }

  /** The large view; it is kept from head to head, so that focus and scroll stay where they are. */
  showHead() {
    const options = this.headOptions();
    const { view } = attentionSettings;
    if (this.large?.view === view) this.large.part.set(options);
    else {
      const part = view === "matrix" ? matrix(options) : attentionLines(options);
      this.large = { view, part };
      this.note = h("p", { class: "soft small attention-note" });
      this.top = topAttention();
      const beside = view === "matrix" ? this.top.element : null; // lines show it themselves
      this.views = h("div", { class: "attention-views" }, part.element, beside);
      replace(this.panel, this.views, this.note);
    }
    this.options = options;
    this.views.classList.toggle("few", options.columns.length <= 10); // then both fit side by side
    this.note.textContent = this.noteOf();
    this.showPinned();
  }

  headOptions() {
    const { block, layer, head, weights, scores, hidden, queries, keys, next } = this.data;
    this.kept = keys.labels.map((_, i) => i).filter((i) => !attentionSettings.plain || !keys.special[i]);
    const some = (values) => (values ? someColumns({ values, shape: weights.shape }, this.kept) : null);
    return {
      rows: queries.labels,
      columns: this.kept.map((i) => keys.labels[i]),
      next,
      values: some(weights.values),
      hidden: some(hidden),
      hiddenMeans: t("masked: future tokens"),
      also: scores ? [{ name: "score", values: some(scores) }] : [],
      title: t("{0}, layer {1}, head {2}", [block.name, layer, head]),
      credit: `${this.page.model.name}: ${this.trace.manifest.text}`,
      scale: this.scaleNow(),
      threshold: attentionSettings.threshold,
      sums: true,
      onCursor: (row, column) => this.showTop(row, column),
      onPin: (row, column) => select({ query: row, key: column === null ? null : this.kept[column] }),
    };
  }

  scaleNow() {
    const { block, weights } = this.data;
    const { tensors } = this.trace.manifest;
    const largest = (values) => values.reduce((most, x) => (x > most ? x : most), 0) || 1;
    const scale = { kind: "share", low: 0, high: largest(weights.values) };
    if (attentionSettings.scale === "head") return scale;
    if (attentionSettings.scale === "row")
      return { ...scale, highs: this.data.queries.ids.map((_, r) => largest(rowOf(weights, r))) };
    return { ...scale, high: Math.max(...block.layers.map((name) => tensors[`${name}.weights`]?.max ?? 1)) };
  }

  noteOf() {
    const scale = attentionSettings.view === "lines" ? t("Thicker lines are larger weights.") : attentionColours()[attentionSettings.scale];
    const rounded = this.data.weights.kind === "f16" ? ` ${t("This file stores them with three digits.")}` : "";
    const missing = this.data.keys.special.some(Boolean) && attentionSettings.plain;
    return missing
      ? `${scale} ${t("Special tokens and their weights are hidden, so rows do not sum to 1.")}${rounded}`
      : `${scale} ${t("Every row sums to 1.")}${rounded}`;
  }

  showPinned() {
    const { query, key } = selected();
    const column = this.kept.indexOf(key);
    if (attentionSettings.view === "lines") this.large.part.pin(query);
    else this.large.part.pin(query, column < 0 ? null : column);
    this.showTop(null, null);
  }

  /** The row under the cursor, or else the chosen one. */
  showTop(row, column) {
    const { query, key } = selected();
    const { first_look: first } = this.trace.manifest;
    const most = this.options.rows.length - 1;
    const chosen = query !== null && query <= most ? query : Math.min(most, (this.data.block.id === "encoder" ? first.source : first.target) ?? most);
    this.top.set({
      ...this.options,
      row: row ?? chosen,
      column: row === null ? this.kept.indexOf(key) : column,
    });
  }
}
