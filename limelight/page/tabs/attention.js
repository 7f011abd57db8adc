// Who looks at whom: all heads at a glance, one of them large, as a matrix or as lines.

import { wasReplaced } from "../api.js";
import { choice } from "../choice.js";
import { button, h, replace } from "../dom.js";
import { attentionBlocks, headOf, headPart, someColumns, spreadOf } from "../heads.js";
import { attentionLines } from "../lines.js";
import { matrix } from "../matrix.js";
import { show } from "../numbers.js";
import { reading } from "../page.js";
import { sentenceField } from "../sentence.js";
import { linkTo, onSelect, select, selected } from "../state.js";
import { plainTable } from "../table.js";
import { thumbs } from "../thumbs.js";

// How somebody likes to look stays when they come back to the tab.
const attentionWishes = { view: "matrix", scale: "head", threshold: 0, plain: false };
const attentionScales = [{ id: "head", label: "per head" }, { id: "all", label: "all heads alike" }];
const attentionViews = [{ id: "matrix", label: "Matrix" }, { id: "lines", label: "Lines" }];
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
    return () => {
      leave();
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
    if (changed("text", "target")) this.readText();
    else if (changed("side", "layer", "head") && this.trace) this.readHead();
    else if (changed("query", "key") && this.data) this.showPinned();
  }

  /** Read a new text: nothing of the old one stays on the screen. */
  async readText() {
    this.trace = this.data = null;
    replace(this.body, reading("reading the attention of all heads"));
    try {
      const trace = await this.page.trace();
      const small = await this.page.busy(trace.thumbs());
      if (this.left) return;
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
    return { block, layer: within(layer, block.layers.length), head: within(head, this.trace.manifest.model.heads) };
  }

  build() {
    this.blocks = attentionBlocks(this.trace.manifest);
    this.drawn = null; // the block whose thumbnails are there
    this.choose = choice({ legend: "Which attention", options: this.blocks, chosen: this.where().block.id, onChoose: (side) => select({ side, query: null, key: null }) });
    const scale = choice({ legend: "Colours", options: attentionScales, chosen: attentionWishes.scale, onChoose: (id) => this.wish({ scale: id }) });
    this.says = h("p", { class: "soft" });
    this.heads = h("div", {});
    this.stage = h("div", { class: "attention-stage" }, reading("reading the weights of this head"));
    this.facts = h("div", { class: "attention-facts" });
    const many = this.blocks.length > 1 ? this.choose.element : null;
    const overview = h("section", { class: "panel attention-overview", "aria-label": "All heads" }, many, this.says, this.heads, scale.element, this.facts);
    const warning = h("p", { class: "attention-warning" }, h("strong", null, "Attention is not an explanation. "), attentionWarning);
    replace(this.body, overview, h("section", { class: "card attention-large", "aria-label": "One head" }, this.tools(), this.stage, warning));
    this.large = null;
  }

  tools() {
    const views = choice({ legend: "Show as", options: attentionViews, chosen: attentionWishes.view, onChoose: (id) => this.wish({ view: id }) });
    const told = h("span", { class: "number" }, show(attentionWishes.threshold, 2));
    const slider = h("input", { type: "range", min: "0", max: "0.5", step: "0.01", value: String(attentionWishes.threshold), on: { input: () => this.wish({ threshold: Number(slider.value) }, told) } });
    const plain = h("input", { type: "checkbox", checked: attentionWishes.plain, on: { change: () => this.wish({ plain: plain.checked }) } });
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
    const { block, layer, head } = this.where();
    this.choose.set(block.id);
    this.says.textContent = block.says;
    this.showThumbs();
    try {
      const data = await this.page.busy(headOf(this.trace, block, layer, head));
      const now = this.where();
      if (this.left || now.block !== block || now.layer !== layer || now.head !== head) return; // too late
      this.data = { ...data, block, layer, head };
      this.showHead();
      this.showFacts();
    } catch (error) {
      if (!this.left) this.page.showError(this.stage, error, () => this.readHead());
      this.large = null;
    }
  }

  showThumbs() {
    const { block, layer, head } = this.where();
    const layers = block.layers.map((name) => this.small[name]);
    const common = attentionWishes.scale === "all";
    const asked = { layers, layer, head, common, title: `${block.name}: all heads`, onChoose: (l, n) => select({ layer: l, head: n, side: block.id }) };
    if (this.drawn === block.id) this.pictures.set({ layer, head, common });
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
      replace(this.stage, part.element, this.note);
    }
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
      onPin: (row, column) => select({ query: row, key: column === null ? null : this.kept[column] }),
    };
  }

  scaleNow() {
    const { block, weights } = this.data;
    const { tensors } = this.trace.manifest;
    const all = block.layers.map((name) => tensors[`${name}.weights`]?.max ?? 1);
    const own = weights.values.reduce((most, x) => (x > most ? x : most), 0);
    return { kind: "share", low: 0, high: (attentionWishes.scale === "all" ? Math.max(...all) : own) || 1 };
  }

  noteOf() {
    const colours = attentionWishes.scale === "all" ? "Colours: one scale for all heads." : "Colours: this head's own scale.";
    const scale = attentionWishes.view === "lines" ? "The thicker, the stronger." : colours;
    const rounded = this.data.weights.kind === "f16" ? " This file keeps them to three digits." : "";
    const missing = this.data.keys.special.some(Boolean) && attentionWishes.plain;
    return missing ? `${scale} Special tokens are hidden and their shares with them: rows no longer sum to 1.${rounded}` : `${scale} Every row sums to 1.${rounded}`;
  }

  showPinned() {
    const { query, key } = selected();
    const column = this.kept.indexOf(key);
    if (attentionWishes.view === "lines") this.large.part.pin(query);
    else this.large.part.pin(query, column < 0 ? null : column);
  }

  /** How the head spreads its attention; the other heads of the layer when somebody asks. */
  showFacts() {
    const { block, layer, head, weights } = this.data;
    const spread = spreadOf(weights);
    const most = Math.log(weights.shape[1]);
    const told = `Entropy of this head: ${show(spread.entropy, 2)} nats of at most ${show(most, 2)}. It looks at about ${show(spread.words, 1)} words at a time.`;
    const others = h("div", {});
    const compare = button(`All heads of layer ${layer}`, () => this.compare(others, block, layer), { class: "button attention-compare" });
    const walk = h("a", { href: linkTo({ tab: "explain", side: block.id, layer, head }) }, "See how these weights are computed");
    replace(this.facts, h("p", { class: "attention-entropy" }, told), h("p", { class: "small" }, walk), compare, others);
  }

  async compare(place, block, layer) {
    replace(place, reading("reading all heads of this layer"));
    try {
      const all = await this.page.busy(this.trace.tensor(`${block.layers[layer - 1]}.weights`, { as: "f16" }));
      const rows = Array.from({ length: all.shape[0] }, (_, i) => {
        const spread = spreadOf(headPart(all, i + 1));
        return [String(i + 1), show(spread.entropy, 2), show(spread.words, 1)];
      });
      replace(place, plainTable({ caption: `Layer ${layer}: how widely each head looks`, head: ["head", "entropy", "words"], rows }));
    } catch (error) {
      if (!this.left) this.page.showError(place, error, () => this.compare(place, block, layer));
    }
  }
}
