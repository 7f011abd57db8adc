// The walk through this model, stage by stage: a map, a picture, and the text and numbers about it.

import { choice } from "../core/choice.js";
import { button, h, replace } from "../core/dom.js";
import { chooseRow, stageParameters, rowLabel, stepAt, focusOf, layersOn } from "../core/focus.js";
import { onKeys } from "../core/keys.js";
import { reading } from "../core/page.js";
import { sentenceInput, sentenceWords } from "../core/sentenceInput.js";
import { onSelect, select, selected } from "../core/state.js";
import { attentionStages } from "../stages/attention.js";
import { embeddingStages } from "../stages/embedding.js";
import { layerStages } from "../stages/layers.js";
import { modelMap, stageList } from "../stages/modelMap.js";
import { outputStages } from "../stages/output.js";
import { checkList } from "../stages/parts.js";

const EXPLAIN_STAGES = { ...embeddingStages, ...attentionStages, ...layerStages, ...outputStages };
const EXPLAIN_PLAY = 2500; // milliseconds per stage while playing

export const explainTab = {
  id: "explain",
  title: "Explain",
  fits: (model) => !model.config.family.startsWith("recurrent") && !model.abilities.includes("draw"),
  mount: (container, page) => new ExplainWalk(container, page).begin(),
};

class ExplainWalk {
  constructor(container, page) {
    this.page = page;
    this.container = container;
    this.turn = 0; // of drawing: a newer one replaces an older one
    this.drawn = null; // what is on screen, and for which focus
    this.playing = null;
    this.sentence = sentenceInput(page);
    this.parts = explainParts(this);
  }

  begin() {
    const { parts } = this;
    replace(this.container, h("div", { class: "explain-top" }, this.sentence.element, parts.words), parts.walk, parts.foot);
    const ends = [onSelect((now, before) => this.onSelect(now, before)), onKeys(this.keys()), this.sentence.leave];
    this.read();
    return () => {
      this.turn += 1;
      this.stopPlaying();
      for (const end of ends) end();
    };
  }

  onSelect(now, before) {
    if (["text", "tag", "target", "change"].some((name) => now[name] !== before[name])) this.read();
    else if (this.trace) this.draw();
  }

  /** Trace the text. */
  async read() {
    this.stopPlaying();
    const turn = (this.turn += 1);
    this.trace = this.drawn = null;
    replace(this.parts.picture, reading("running the model on this text"));
    try {
      const trace = await this.page.trace({ changed: true });
      if (turn !== this.turn) return;
      this.trace = trace;
      await this.draw();
    } catch (error) {
      if (turn !== this.turn) return;
      this.empty();
      this.page.showError(this.parts.picture, error, () => this.read());
    }
  }

  empty() {
    for (const name of ["map", "list", "head", "what", "more", "tools", "words"]) replace(this.parts[name]);
    this.parts.foot.hidden = true;
  }

  /** Show the focus; redraw only what changed. */
  async draw() {
    const turn = (this.turn += 1);
    const focus = focusOf(this.trace, selected());
    this.focus = focus;
    this.drawAround(focus);
    const key = [focus.stage, focus.layer, focus.head, focus.all, focus.all && focus.stage !== "heads" ? "" : focus.row].join(" ");
    try {
      const facts = await this.page.busy(this.trace.stage(focus.stage, stageParameters(focus)));
      if (turn !== this.turn) return;
      if (this.drawn?.key !== key || !this.drawn.made.picture.update || this.drawn.row !== focus.row) {
        const made = await this.page.busy(EXPLAIN_STAGES[focus.stage](focus, facts));
        if (turn !== this.turn) return;
        if (this.drawn?.key === key && this.drawn.made.picture.update) made.picture = this.drawn.made.picture;
        else replace(this.parts.picture, made.picture.element);
        this.drawn = { key, made, row: focus.row };
      }
      this.drawn.made.picture.update?.(focus);
      this.drawWords(focus, facts, this.drawn.made);
    } catch (error) {
      if (turn !== this.turn) return;
      this.drawn = null;
      this.parts.walk.dataset.stage = focus.stage;
      replace(this.parts.head, h("h1", { id: "stage-title" }, focus.title));
      for (const name of ["what", "more"]) replace(this.parts[name]);
      this.page.showError(this.parts.picture, error, () => this.draw());
    }
  }

  drawAround(focus) {
    const { parts } = this;
    const { m } = focus;
    explainKeepingFocus(parts.map, modelMap(focus));
    explainKeepingFocus(parts.list, stageList(focus));
    explainKeepingFocus(parts.words, sentenceWords(m, { source: focus.rows.encoder, target: focus.rows.decoder, side: focus.side }, (side, i) => chooseRow(m, side, i)));
    explainKeepingFocus(parts.tools, explainTools(focus));
    this.drawFoot(focus);
  }

  drawWords(focus, facts, made) {
    const { parts, page } = this;
    const count = focus.m.stages.filter(({ extra }) => !extra).length;
    const number = focus.extra ? "extra" : `${focus.m.stops.indexOf(focus.stage) + 1} of ${count}`;
    replace(parts.head, h("p", { class: "soft small stage-number" }, [number, facts.place].filter(Boolean).join(" · ")), h("h1", { id: "stage-title" }, facts.title));
    replace(parts.what, h("p", { class: "what" }, facts.what), h("p", { class: "soft small" }, `Section ${facts.section} of “Attention Is All You Need”`));
    const formulas = made.formulas(focus).filter(Boolean);
    replace(
      parts.more,
      formulas.length ? h("section", { class: "words-part" }, h("h2", null, "With your numbers"), formulas) : null,
      explainChecks(made.checks, facts.checks),
      facts.notes.length ? h("section", { class: "words-part notes" }, facts.notes.map((note) => h("p", null, note))) : null,
    );
    if (parts.walk.dataset.stage !== focus.stage) page.say(`${number}: ${facts.title}`);
    parts.walk.dataset.stage = focus.stage;
  }

  drawFoot(focus) {
    const { m } = focus;
    const { foot, back, next, scrub, scrubbed, scrubber } = this.parts;
    const at = m.stops.indexOf(focus.stage);
    foot.hidden = false;
    back.disabled = at === 0;
    next.disabled = at === m.stops.length - 1;
    const shown = m.steps.length > 0 && m.target.ids.length > 0;
    scrubber.hidden = !shown;
    if (!shown) return;
    const step = stepAt(m, focus.rows.decoder);
    scrub.max = String(m.steps.length - 1);
    scrub.value = String(step ?? 0);
    const view = { ...focus, side: "decoder", queryTokens: m.target };
    const text = step === null ? "in the prompt" : `${step + 1} of ${m.steps.length}: ${rowLabel(view, focus.rows.decoder)}`;
    scrubbed.textContent = text;
    scrub.setAttribute("aria-valuetext", text);
  }

  /** Move along the walk by this many stages. */
  move(by) {
    const { m, stage } = this.focus ?? {};
    const to = m?.stops[m.stops.indexOf(stage) + by];
    if (to) select({ stage: to, key: null });
    return Boolean(to);
  }

  moveStep(by) {
    const { m, rows } = this.focus ?? {};
    const step = m?.steps[(stepAt(m, rows.decoder) ?? -1) + by];
    if (step && m.target.ids.length) chooseRow(m, "decoder", step.row);
  }

  turnTo(name, by) {
    if (!this.focus) return;
    const most = this.focus.m.model[`${name}s`];
    const to = this.focus[name] + by;
    if (to >= 1 && to <= most) select({ [name]: to });
  }

  keys() {
    return {
      ArrowLeft: () => this.move(-1),
      ArrowRight: () => this.move(1),
      " ": () => this.move(1),
      "[": () => this.turnTo("layer", -1),
      "]": () => this.turnTo("layer", 1),
      "{": () => this.turnTo("head", -1),
      "}": () => this.turnTo("head", 1),
      ",": () => this.moveStep(-1),
      ".": () => this.moveStep(1),
      t: () => select({ all: !selected().all }),
      p: () => this.play(),
    };
  }

  play() {
    if (this.playing) {
      this.stopPlaying();
      return;
    }
    this.playing = setInterval(() => {
      if (!this.move(1)) this.stopPlaying();
    }, EXPLAIN_PLAY);
    explainPlayShown(this.parts.play, true);
  }

  stopPlaying() {
    clearInterval(this.playing);
    this.playing = null;
    explainPlayShown(this.parts.play, false);
  }
}

function explainParts(walk) {
  const parts = {};
  for (const name of ["map", "list", "head", "what", "picture", "more", "tools", "words"]) parts[name] = h("div", { class: `explain-${name}` });
  parts.list = h("div");
  parts.walk = h(
    "article",
    { class: "walk", "aria-labelledby": "stage-title" },
    h("nav", { class: "explain-side", "aria-label": "The stages of the walk" }, parts.map, h("details", { class: "explain-list" }, h("summary", null, "All stages"), parts.list)),
    parts.head,
    parts.what,
    h("div", { class: "explain-middle card" }, parts.tools, parts.picture),
    parts.more,
  );
  parts.back = button("← Back", () => walk.move(-1));
  parts.next = button("Next →", () => walk.move(1), { class: "button primary" });
  parts.play = button("", () => walk.play());
  explainPlayShown(parts.play, false);
  parts.scrub = h("input", { type: "range", min: "0", step: "1", id: "scrub", "aria-label": "The token being generated", on: { input: () => walk.moveStep(Number(parts.scrub.value) - (stepAt(walk.focus.m, walk.focus.rows.decoder) ?? -1)) } });
  parts.scrubbed = h("span", { class: "small scrubbed", dir: "auto" });
  parts.scrubber = h("div", { class: "scrubber" }, h("label", { class: "soft small", for: "scrub" }, "generating"), parts.scrub, parts.scrubbed);
  parts.foot = h("div", { class: "explain-foot", role: "group", "aria-label": "Walk" }, h("div", { class: "foot-buttons" }, parts.back, parts.next, parts.play), parts.scrubber);
  parts.foot.hidden = true;
  return parts;
}

function explainPlayShown(made, playing) {
  made.textContent = playing ? "❚❚ Pause" : "▶ Play";
  made.setAttribute("aria-pressed", String(playing));
}

/** Choosers for what this stage depends on: one word or all, layer, head. */
function explainTools(focus) {
  const { m } = focus;
  const chooser = (name, most, now) => {
    const choose = h(
      "select",
      { class: "field", id: `choose-${name}`, dataset: { key: name }, on: { change: () => select({ [name]: Number(choose.value) }) } },
      Array.from({ length: most }, (_, i) => h("option", { value: String(i + 1), selected: i + 1 === now }, String(i + 1))),
    );
    return h("span", { class: "chooser" }, h("label", { class: "soft small", for: `choose-${name}` }, name), choose);
  };
  const options = [{ id: "one", label: "One word" }, { id: "all", label: "All words" }];
  const words = choice({ legend: "One word or all", options, chosen: focus.all ? "all" : "one", onChoose: (id) => select({ all: id === "all" }) });
  return h(
    "div",
    { class: "tools-line" },
    focus.scope.includes("words") ? words.element : null,
    focus.scope.includes("layer") && layersOn(m, focus.side) > 1 ? chooser("layer", layersOn(m, focus.side), focus.layer) : null,
    focus.scope.includes("head") && m.model.heads > 1 ? chooser("head", m.model.heads, focus.head) : null,
  );
}

function explainChecks(own, fromWeights) {
  if (!own.length && !fromWeights.length) return null;
  return h(
    "section",
    { class: "words-part" },
    h("h2", null, "Check it"),
    own.length ? [h("p", { class: "small soft" }, "Recomputed in this page:"), checkList(own)] : null,
    fromWeights.length ? explainServiceChecks(fromWeights, !own.length) : null,
  );
}

/** Checks made by the service from the weights; open where the page has none of its own. */
function explainServiceChecks(checks, open) {
  const failed = checks.filter((check) => !check.passed).length;
  const text = failed ? `${failed} of ${checks.length} differ` : `${checks.length} passed`;
  return h(
    "details",
    { open: open || failed > 0 },
    h("summary", { class: "small soft" }, h("span", { class: failed ? "bad" : "good" }, failed ? "✗ " : "✓ "), `Recomputed from the weights: ${text}`),
    checkList(checks),
  );
}

/** Replace the content of a container and keep the keyboard focus on the same control. */
function explainKeepingFocus(container, made) {
  const within = container.contains(document.activeElement);
  const held = within ? [...container.querySelectorAll("button, select, input")].indexOf(document.activeElement) : -1;
  const key = within ? document.activeElement.dataset.key : undefined;
  replace(container, made);
  if (held < 0) return;
  const there = [...container.querySelectorAll("button, select, input")];
  (there.find((one) => key !== undefined && one.dataset.key === key) ?? there[held])?.focus({ preventScroll: true });
}
