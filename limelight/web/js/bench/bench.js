// What if: change something inside the model and see, beside the unchanged one, what it does.

import { headNow } from "../attention/heads.js";
import { choice } from "../core/choice.js";
import { button, h, replace } from "../core/dom.js";
import { show } from "../core/numbers.js";
import { reading } from "../core/page.js";
import { sentenceInput } from "../core/sentenceInput.js";
import { onSelect, select, selected } from "../core/state.js";
import { twoMatrices, twoProbabilities, twoTexts } from "./beforeAfter.js";
import { changeAt, changeInWords, changesNow, toggleChange } from "./changes.js";
import { headSwitches, layerSwitches } from "./headSwitches.js";
import { sourceSwitches, targetChoices, valueForm } from "./wordSwitches.js";
import { t } from "../core/texts.js";

const BENCH_READ = ["text", "tag", "target", "change"]; // another trace
const BENCH_SHOWN = ["layer", "head", "side"];

export const benchTab = {
  id: "what-if",
  title: "What if",
  fits: (model, page) => !page.offline && !model.config.family.startsWith("recurrent") && !model.abilities.includes("draw"),
  mount: (container, page) => new Bench(container, page).begin(),
};

class Bench {
  constructor(container, page) {
    Object.assign(this, { page, container, turn: 0, before: null, after: null, ranked: null, action: "off" });
    this.sentence = sentenceInput(page);
    this.parts = {};
    for (const name of ["list", "result", "words", "heads", "layers", "more", "matrices"]) this.parts[name] = h("div", { class: `bench-${name}` });
  }

  begin() {
    const { parts } = this;
    const card = (title, ...inside) => h("section", { class: "card", "aria-label": title }, h("h2", null, title), inside);
    replace(
      this.container,
      h("h1", { class: "unseen" }, t("What if")),
      this.sentence.element,
      parts.list,
      h("div", { class: "bench" },
        h("div", { class: "bench-changes" },
          card(t("Words"), parts.words),
          card(t("Heads"), parts.heads),
          h("details", { class: "card" }, h("summary", null, t("Layers, mask, values")), parts.layers, parts.more)),
        h("div", { class: "bench-effects" }, h("section", { class: "card", "aria-label": t("Before and after") }, parts.result), h("section", { class: "card", "aria-label": t("Attention, before and after") }, parts.matrices))),
    );
    const ends = [onSelect((now, before) => this.onSelect(now, before)), this.sentence.leave];
    this.read();
    return () => {
      this.turn += 1;
      for (const end of ends) end();
    };
  }

  onSelect(now, before) {
    if (["text", "tag", "target"].some((name) => now[name] !== before[name])) this.before = this.ranked = null;
    if (BENCH_READ.some((name) => now[name] !== before[name])) this.read();
    else if (this.after && BENCH_SHOWN.some((name) => now[name] !== before[name])) this.draw();
  }

  /** The unchanged model once for each text, then the changed one. */
  async read() {
    const { parts, page } = this;
    const turn = (this.turn += 1);
    if (!this.before) replace(parts.result, reading(t("running the model on this text")));
    parts.result.setAttribute("aria-busy", "true");
    this.drawList();
    try {
      const before = this.before ?? (await page.trace());
      if (turn !== this.turn) return;
      this.before = before;
      const after = changesNow().length ? await page.trace({ changed: true }) : before;
      if (turn !== this.turn) return;
      this.after = after;
      await this.draw();
    } catch (error) {
      if (turn !== this.turn) return;
      replace(parts.matrices);
      if (this.before) this.drawSwitches();
      page.showError(parts.result, error, () => this.read());
    }
    if (turn === this.turn) parts.result.removeAttribute("aria-busy");
  }

  /** The changes as chips; a click takes one back. */
  drawList() {
    const labels = { source: this.before?.manifest.source.labels ?? [] };
    const changes = changesNow();
    const chips = changes.map((one) => button([changeInWords(one, labels), " ×"].join(""), () => toggleChange(one), { class: "chip bench-change", title: one, "aria-label": t("Take back: {0}", [changeInWords(one, labels)]) }));
    replace(
      this.parts.list,
      changes.length
        ? [h("strong", null, t("What if"), " "), chips, changes.length > 1 ? button(t("Take back all"), () => select({ change: null }), { class: "button quiet small" }) : null, button(t("Explain the changed model"), () => select({ tab: "explain" }), { class: "button quiet small" })]
        : h("p", { class: "soft" }, t("Switch a head off, hide a word, force another one: the model runs again, and you see what it would have written.")),
    );
  }

  async draw() {
    const turn = this.turn;
    this.drawList();
    this.drawResult();
    await this.drawSwitches();
    if (turn !== this.turn) return;
    const { block, layer, head } = headNow(this.before.manifest, selected());
    const sides = [{ trace: this.before, title: t("Before") }, ...(this.after === this.before ? [] : [{ trace: this.after, title: t("After") }])];
    const title = (which) => t("{0}: {1}, layer {2}, head {3}", [which, block.name.toLowerCase(), layer, head]);
    const made = await this.page.busy(twoMatrices(sides.map((side) => ({ ...side, block, layer, head, title: title(sides.length > 1 ? side.title : t("Attention")) }))));
    if (turn === this.turn) replace(this.parts.matrices, made);
  }

  drawResult() {
    const { comparison, steps, classes, answers, given } = this.after.manifest;
    if (comparison) {
      const { before, after, tokens } = comparison;
      const [p, q] = [1, 2].map((i) => tokens.reduce((sum, row) => sum + Math.log(row[i]), 0));
      const total = classes.length ? null : h("p", { class: "small" }, t("log p of the unchanged answer:"), " ", h("span", { class: "number" }, `${show(p)} → ${show(q)}`), before === after ? `. ${t("The text stays the same.")}` : `. ${t("Another text is likelier now.")}`);
      replace(this.parts.result, twoTexts({ title: t("before"), text: before }, { title: t("after"), text: after }), total, twoProbabilities(tokens));
      this.page.say(before === after ? t("the text stays the same: {0}", [after]) : t("the text is now: {0}", [after]));
      return;
    }
    const rows = classes.length ? classes.map(([label, p]) => [label, p, p, label]) : steps.map(({ row, chosen }) => [answers.labels[row], chosen[2], chosen[2], answers.labels[row]]);
    replace(this.parts.result, h("p", { class: "prose bench-answer", dir: "auto" }, classes.length ? "" : answers.pieces.slice(given).filter((_, i) => !answers.special[given + i]).join("")), twoProbabilities(rows, null));
  }

  async drawSwitches() {
    const { parts, before, page } = this;
    const turn = this.turn;
    const { manifest } = before;
    const thumbs = await page.busy((this.after ?? before).thumbs());
    if (turn !== this.turn) return;
    const now = headNow(manifest, selected());
    const action = choice({ legend: t("A click makes a head"), options: [{ id: "off", label: t("off") }, { id: "uniform", label: t("uniform") }], chosen: this.action, onChoose: (id) => { this.action = id; } });
    const onPart = (place) => toggleChange(`${place}=${place.endsWith("feed_forward") || !place.includes(".", 8) ? "off" : this.action}`);
    benchKeepingFocus(parts.heads, [
      h("div", { class: "row" }, action.element, button(this.ranked ? t("Hide what each is worth") : t("Which head matters?"), () => this.rank(), { dataset: { key: "rank" } })),
      this.ranked ? benchRanking(this.ranked) : null,
      headSwitches(manifest, thumbs, {
        effects: this.ranked ? new Map(this.ranked.heads.map(([tap, head, effect]) => [`${tap}@${head}`, effect])) : null,
        chosen: `${now.block.layers[now.layer - 1]}@${now.head}`,
        onPart,
        onHead: ({ place, block, layer, head }) => toggleChange(changeAt(place) ? `${place}=${changeAt(place)}` : `${place}=${this.action}`, { side: block, layer, head }),
      }),
    ]);
    benchKeepingFocus(parts.words, [sourceSwitches(manifest), targetChoices(manifest)]);
    benchKeepingFocus(parts.layers, [benchMask(manifest), layerSwitches(manifest, (place) => toggleChange(`${place}=off`))]);
    if (!parts.more.children.length) replace(parts.more, valueForm(manifest));
  }

  /** Each head off once; the service needs one pass for several. */
  async rank() {
    if (this.ranked) {
      this.ranked = null;
      this.drawSwitches();
      return;
    }
    try {
      this.ranked = await this.page.busy(this.before.heads());
      const [best] = benchSorted(this.ranked);
      this.page.say(t("the answer needs {0}, head {1} most", best));
      await this.drawSwitches();
    } catch (error) {
      this.page.showError(this.parts.matrices, error, () => this.rank());
    }
  }
}

function benchSorted({ heads }) {
  return [...heads].sort((a, b) => b[2] - a[2]);
}

function benchRanking(ranked) {
  const [at, head, effect] = benchSorted(ranked)[0];
  const words = changeInWords(`${at}@${head}=`, { source: [] }).replace(/: $/, "");
  return h("p", { class: "small" }, t("Each head off once: by how much log p of “{0}” falls. {1} matters most: {2}.", [ranked.answer, words, show(effect)]));
}

/** The look-ahead mask of a decoder; without it a token sees what it should predict. */
function benchMask(manifest) {
  const place = "decoder.*.self.masked";
  if (!Object.keys(manifest.thumbs).some((name) => /^decoder\.\d+\.self$/.test(name))) return null;
  const off = changeAt(place) !== null;
  return h("div", { class: "switch-layer" }, h("span", { class: "soft small" }, t("all layers")), h("button", { type: "button", class: off ? "switch-part off" : "switch-part", role: "switch", "aria-checked": String(!off), "aria-label": t("look-ahead mask"), dataset: { key: place }, on: { click: () => toggleChange(`${place}=off`) } }, t("look-ahead mask")));
}

/** Replace the content and keep the keyboard on the same control. */
function benchKeepingFocus(container, content) {
  const key = container.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  replace(container, content);
  if (key) [...container.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key)?.focus({ preventScroll: true });
}
