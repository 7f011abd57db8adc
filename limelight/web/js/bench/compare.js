// Compare: two sentences, two heads or two models, side by side.

import { headNow } from "../attention/heads.js";
import { button, h, replace } from "../core/dom.js";
import { reading } from "../core/page.js";
import { sentenceInput } from "../core/sentenceInput.js";
import { onSelect, select, selected } from "../core/state.js";
import { tagNow } from "../core/tag.js";
import { twoMatrices, twoProbabilities, twoTexts } from "./beforeAfter.js";
import { t } from "../core/texts.js";

const COMPARE_READ = ["text", "tag", "target", "textB", "modelB"];

export const compareTab = {
  id: "compare",
  title: "Compare",
  fits: (model, page) => !page.offline && !model.config.family.startsWith("recurrent") && !model.abilities.includes("draw"),
  mount: (container, page) => new Comparison(container, page).begin(),
};

class Comparison {
  constructor(container, page) {
    Object.assign(this, { page, container, turn: 0, traces: null, sentence: sentenceInput(page) });
    this.tools = h("div", { class: "tools-line compare-tools" });
    this.result = h("div");
    this.matrices = h("div");
  }

  begin() {
    const { sentence, result, matrices, tools } = this;
    const card = (title, ...inside) => h("section", { class: "card", "aria-label": title }, inside);
    replace(this.container, h("h1", { class: "unseen" }, t("Compare")), sentence.element, this.otherForm(), h("div", { class: "compare" }, card(t("Both answers"), result), card(t("Both attentions"), tools, matrices)));
    const ends = [onSelect((now, before) => this.onSelect(now, before)), sentence.leave];
    this.read();
    return () => {
      this.turn += 1;
      for (const end of ends) end();
    };
  }

  onSelect(now, before) {
    if (COMPARE_READ.some((name) => now[name] !== before[name])) this.read();
    else if (this.traces) this.draw();
  }

  /** The second text, and where several models are served, the second model. */
  otherForm() {
    const { page } = this;
    const field = h("input", { class: "field sentence-text", type: "text", name: "other", maxlength: "2000", dir: "auto", spellcheck: "false", "aria-label": t("Text to compare with"), placeholder: t("the same text, or another one"), value: selected().textB ?? "" });
    const models = page.models.length < 2 ? null : h(
      "select",
      { class: "field", "aria-label": t("Model to compare with"), on: { change: () => select({ modelB: models.value === page.model.name ? null : models.value, layerB: null, headB: null }) } },
      page.models.map((name) => h("option", { value: name, selected: name === (selected().modelB ?? page.model.name) }, name)),
    );
    if (models) compareChoices(page, models);
    const submit = (event) => {
      event.preventDefault();
      select({ textB: field.value.trim() || null });
    };
    const chips = (page.example?.more ?? []).map(({ name, text }) => button(t(name), () => { field.value = text; select({ textB: text }); }, { class: "chip", title: text }));
    return h("form", { class: "sentence compare-form", on: { submit } }, h("span", { class: "soft" }, t("with")), field, models, h("button", { class: "button primary", type: "submit" }, t("Compare")), chips.length ? h("div", { class: "chips", role: "group", "aria-label": t("Sentences to try") }, chips) : null);
  }

  async read() {
    const { page } = this;
    const turn = (this.turn += 1);
    replace(this.result, reading(t("running both")));
    replace(this.matrices);
    try {
      const first = await page.trace();
      const { textB, modelB } = selected();
      const model = modelB ?? page.model.name;
      const tag = modelB ? {} : { tag: tagNow(page) };
      const second = turn === this.turn && (textB || modelB) ? await page.busy(page.api.trace({ model, text: textB ?? first.manifest.text, ...tag })) : first;
      if (turn !== this.turn) return;
      this.traces = [first, second];
      await this.draw();
    } catch (error) {
      if (turn === this.turn) page.showError(this.result, error, () => this.read());
    }
  }

  async draw() {
    const turn = this.turn;
    const [first, second] = this.traces.map(({ manifest }) => manifest);
    const { modelB } = selected();
    const names = [modelB ? this.page.model.name : t("first"), modelB ?? t("second")];
    const texts = [first, second].map(compareAnswer);
    replace(
      this.result,
      first === second ? h("p", { class: "soft" }, t("Type another text, or choose another model or head.")) : twoTexts({ title: `${names[0]}: ${first.text}`, text: texts[0] }, { title: `${names[1]}: ${second.text}`, text: texts[1] }),
      h("div", { class: "two-tables" }, [first, second].slice(0, first === second ? 1 : 2).map((manifest) => twoProbabilities(compareRows(manifest), null))),
    );
    if (![first, second].every(({ thumbs }) => Object.keys(thumbs).length)) {
      replace(this.tools);
      replace(this.matrices, h("p", { class: "soft" }, t("A recurrent model has no heads to compare.")));
      return;
    }
    const heads = this.heads(first, second);
    replace(this.tools, heads.map((one, i) => compareChooser(one, i)));
    const made = await this.page.busy(twoMatrices(heads.map((one, i) => ({ trace: this.traces[i], ...one, title: t("{0}: {1}, layer {2}, head {3}", [names[i], one.block.name.toLowerCase(), one.layer, one.head]) }))));
    if (turn === this.turn) replace(this.matrices, made);
  }

  /** The head on each side: the same one in two texts or models, and the next one where both are one. */
  heads(first, second) {
    const { side, layer, head, layerB, headB } = selected();
    const a = headNow(first, { side, layer, head });
    const next = first === second && layerB === null ? (a.head % first.model.heads) + 1 : a.head;
    return [{ ...a, heads: first.model.heads }, { ...headNow(second, { side, layer: layerB ?? a.layer, head: headB ?? next }), heads: second.model.heads }];
  }
}

/** Not those that draw: they have no text to compare. */
async function compareChoices({ api }, chooser) {
  const { runs } = await api.get("/api/runs").catch(() => ({ runs: [] }));
  for (const { name, abilities } of runs) {
    if (abilities.includes("draw")) [...chooser.options].find((option) => option.value === name)?.remove();
  }
}

function compareAnswer({ answers, given, classes }) {
  if (classes.length) return classes.reduce((best, one) => (one[1] > best[1] ? one : best))[0];
  return answers.pieces.slice(given).filter((_, i) => !answers.special[given + i]).join("").trim();
}

function compareRows({ classes, steps, answers, source }) {
  if (classes.length) return classes.map(([label, p]) => [label, p, p, label]);
  const labels = answers.labels.length ? answers.labels : source.labels;
  return steps.map(({ row, chosen }) => [labels[row], chosen[2], chosen[2], labels[row]]);
}

function compareChooser({ block, blocks, layer, head, heads }, i) {
  const end = i ? "B" : "";
  const chooser = (name, count, now) => {
    const choose = h("select", { class: "field", "aria-label": { layer: [t("First layer"), t("Second layer")], head: [t("First head"), t("Second head")] }[name][i], on: { change: () => select({ [`${name}${end}`]: Number(choose.value) }) } }, Array.from({ length: count }, (_, n) => h("option", { value: String(n + 1), selected: n + 1 === now }, name === "head" ? t("head {0}", [n + 1]) : t("layer {0}", [n + 1]))));
    return choose;
  };
  const kind = i || blocks.length < 2 ? null : h("select", { class: "field", "aria-label": t("Attention"), on: { change: (event) => select({ side: event.target.value }) } }, blocks.map(({ id, name }) => h("option", { value: id, selected: id === block.id }, name)));
  return h("span", { class: "chooser" }, i ? h("span", { class: "soft small" }, t("with")) : null, kind, chooser("layer", block.layers.length, layer), chooser("head", heads, head));
}
