// The walk through this very model, stop by stop: a map, a picture, and the words and numbers to it.

import { choice } from "../core/choice.js";
import { button, h, replace } from "../core/dom.js";
import { chooseRow, placeOf, rowLabel, stepAt, whereNow } from "../core/focus.js";
import { onKeys } from "../core/keys.js";
import { reading } from "../core/page.js";
import { sentenceField, sentenceWords } from "../core/sentenceInput.js";
import { onSelect, select, selected } from "../core/state.js";
import { attendingStops } from "../stages/attention.js";
import { enteringStops } from "../stages/embedding.js";
import { layeringStops } from "../stages/layers.js";
import { modelMap, stopList } from "../stages/modelMap.js";
import { writingStops } from "../stages/output.js";
import { checkList } from "../stages/parts.js";

const EXPLAIN_STOPS = { ...enteringStops, ...attendingStops, ...layeringStops, ...writingStops };
const EXPLAIN_PLAY = 2500; // milliseconds at a stop, when it plays
const EXPLAIN_ASIDES = ["follow", "teacher", "beam"];
const EXPLAIN_TITLES = {
  pieces: "Words become pieces", embedding: "Pieces become vectors", positions: "Where each one stands",
  queries: "Question, label, content", scores: "Questions meet labels", scaling: "Made smaller", mask: "What is hidden",
  softmax: "Shares that sum to 1", sum: "Contents are mixed", heads: "Several heads", "add-norm": "Add and norm",
  "feed-forward": "Each for itself", stack: "Layer upon layer", start: "The decoder begins", masked: "Looking back",
  cross: "Asking the encoder", classifier: "A word is chosen", loop: "Again, until the end",
  follow: "Beside: what it looked at", teacher: "Beside: how it learned", beam: "Beside: the search",
};

export const explainTab = {
  id: "explain",
  title: "Explain",
  fits: (model) => !model.config.family.startsWith("recurrent"),
  mount: (place, page) => new ExplainWalk(place, page).begin(),
};

class ExplainWalk {
  constructor(place, page) {
    this.page = page;
    this.place = place;
    this.turn = 0; // of drawing: a newer one takes an older one's place
    this.drawn = null; // what is on screen, and for which place
    this.playing = null;
    this.sentence = sentenceField(page);
    this.parts = explainParts(this);
  }

  begin() {
    const { parts } = this;
    replace(this.place, h("div", { class: "explain-top" }, this.sentence.element, parts.words), parts.walk, parts.foot);
    const ends = [onSelect((now, before) => this.onSelect(now, before)), onKeys(this.keys()), this.sentence.leave];
    this.read();
    return () => {
      this.turn += 1;
      this.stopPlaying();
      for (const end of ends) end();
    };
  }

  onSelect(now, before) {
    if (["text", "tag", "target"].some((name) => now[name] !== before[name])) this.read();
    else if (this.trace) this.draw();
  }

  /** A text goes through the model. */
  async read() {
    this.stopPlaying();
    const turn = (this.turn += 1);
    this.trace = this.drawn = null;
    replace(this.parts.picture, reading("the model reads this"));
    try {
      const trace = await this.page.trace();
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

  /** What is chosen, on screen; only what changed is made anew. */
  async draw() {
    const turn = (this.turn += 1);
    const where = whereNow(this.trace, selected());
    this.where = where;
    this.drawAround(where);
    const key = [where.stop, where.layer, where.head, where.all, where.all && where.stop !== "heads" ? "" : where.row].join(" ");
    try {
      const facts = await this.page.busy(this.trace.stop(where.stop, placeOf(where)));
      if (turn !== this.turn) return;
      if (this.drawn?.key !== key || !this.drawn.made.picture.update || this.drawn.row !== where.row) {
        const made = await this.page.busy(EXPLAIN_STOPS[where.stop](where, facts));
        if (turn !== this.turn) return;
        if (this.drawn?.key === key && this.drawn.made.picture.update) made.picture = this.drawn.made.picture;
        else replace(this.parts.picture, made.picture.element);
        this.drawn = { key, made, row: where.row };
      }
      this.drawn.made.picture.update?.(where);
      this.drawWords(where, facts, this.drawn.made);
    } catch (error) {
      if (turn !== this.turn) return;
      this.drawn = null;
      this.parts.walk.dataset.stop = where.stop;
      replace(this.parts.head, h("h1", { id: "stop-title" }, EXPLAIN_TITLES[where.stop]));
      for (const name of ["what", "more"]) replace(this.parts[name]);
      this.page.showError(this.parts.picture, error, () => this.draw());
    }
  }

  drawAround(where) {
    const { parts } = this;
    const { m } = where;
    explainKeepingFocus(parts.map, modelMap(where));
    explainKeepingFocus(parts.list, stopList(where, EXPLAIN_TITLES));
    explainKeepingFocus(parts.words, sentenceWords(m, { source: where.rows.encoder, target: where.rows.decoder, side: where.side }, (side, i) => chooseRow(m, side, i)));
    explainKeepingFocus(parts.tools, explainTools(where));
    this.drawFoot(where);
  }

  drawWords(where, facts, made) {
    const { parts, page } = this;
    const at = where.m.stops.indexOf(where.stop);
    const count = where.m.stops.filter((name) => !EXPLAIN_ASIDES.includes(name)).length;
    const number = EXPLAIN_ASIDES.includes(where.stop) ? "beside the walk" : `${at + 1} of ${count}`;
    replace(parts.head, h("p", { class: "soft small stop-place" }, [number, facts.place].filter(Boolean).join(" · ")), h("h1", { id: "stop-title" }, facts.title));
    replace(parts.what, h("p", { class: "what" }, facts.what), h("p", { class: "soft small" }, `Section ${facts.section} of “Attention Is All You Need”`));
    const formulas = made.formulas(where).filter(Boolean);
    replace(
      parts.more,
      formulas.length ? h("section", { class: "words-part" }, h("h2", null, "With your numbers"), formulas) : null,
      explainChecks(made.checks, facts.checks),
      facts.notes.length ? h("section", { class: "words-part notes" }, facts.notes.map((note) => h("p", null, note))) : null,
    );
    if (parts.walk.dataset.stop !== where.stop) page.say(`${number}: ${facts.title}`);
    parts.walk.dataset.stop = where.stop;
  }

  drawFoot(where) {
    const { m } = where;
    const { foot, back, next, scrub, scrubbed, scrubber } = this.parts;
    const at = m.stops.indexOf(where.stop);
    foot.hidden = false;
    back.disabled = at === 0;
    next.disabled = at === m.stops.length - 1;
    const shown = m.steps.length > 0 && m.target.ids.length > 0;
    scrubber.hidden = !shown;
    if (!shown) return;
    const step = stepAt(m, where.rows.decoder);
    scrub.max = String(m.steps.length - 1);
    scrub.value = String(step ?? 0);
    const view = { ...where, side: "decoder", asking: m.target };
    const said = step === null ? "in the prompt" : `${step + 1} of ${m.steps.length}: ${rowLabel(view, where.rows.decoder)}`;
    scrubbed.textContent = said;
    scrub.setAttribute("aria-valuetext", said);
  }

  /** To the stop so many further on. */
  move(by) {
    const { m, stop } = this.where ?? {};
    const to = m?.stops[m.stops.indexOf(stop) + by];
    if (to) select({ stop: to, key: null });
    return Boolean(to);
  }

  moveStep(by) {
    const { m, rows } = this.where ?? {};
    const step = m?.steps[(stepAt(m, rows.decoder) ?? -1) + by];
    if (step && m.target.ids.length) chooseRow(m, "decoder", step.row);
  }

  turnTo(name, by) {
    if (!this.where) return;
    const most = this.where.m.model[`${name}s`];
    const to = this.where[name] + by;
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
    { class: "walk", "aria-labelledby": "stop-title" },
    h("nav", { class: "explain-side", "aria-label": "The stops of the walk" }, parts.map, h("details", { class: "explain-list" }, h("summary", null, "All stops"), parts.list)),
    parts.head,
    parts.what,
    h("div", { class: "explain-middle card" }, parts.tools, parts.picture),
    parts.more,
  );
  parts.back = button("← Back", () => walk.move(-1));
  parts.next = button("Next →", () => walk.move(1), { class: "button primary" });
  parts.play = button("", () => walk.play());
  explainPlayShown(parts.play, false);
  parts.scrub = h("input", { type: "range", min: "0", step: "1", id: "scrub", "aria-label": "The word being written", on: { input: () => walk.moveStep(Number(parts.scrub.value) - (stepAt(walk.where.m, walk.where.rows.decoder) ?? -1)) } });
  parts.scrubbed = h("span", { class: "small scrubbed", dir: "auto" });
  parts.scrubber = h("div", { class: "scrubber" }, h("label", { class: "soft small", for: "scrub" }, "writing"), parts.scrub, parts.scrubbed);
  parts.foot = h("div", { class: "explain-foot", role: "group", "aria-label": "Walk" }, h("div", { class: "foot-buttons" }, parts.back, parts.next, parts.play), parts.scrubber);
  parts.foot.hidden = true;
  return parts;
}

function explainPlayShown(made, playing) {
  made.textContent = playing ? "❚❚ Pause" : "▶ Play";
  made.setAttribute("aria-pressed", String(playing));
}

/** Choosers for what this stop has: one word or all, layer, head. */
function explainTools(where) {
  const { m } = where;
  const chooser = (name, most, now) => {
    const choose = h(
      "select",
      { class: "field", id: `choose-${name}`, dataset: { key: name }, on: { change: () => select({ [name]: Number(choose.value) }) } },
      Array.from({ length: most }, (_, i) => h("option", { value: String(i + 1), selected: i + 1 === now }, String(i + 1))),
    );
    return h("span", { class: "chooser" }, h("label", { class: "soft small", for: `choose-${name}` }, name), choose);
  };
  const both = !["pieces", "classifier", "loop", "heads", "stack", ...EXPLAIN_ASIDES].includes(where.stop);
  const options = [{ id: "one", label: "One word" }, { id: "all", label: "All words" }];
  const words = choice({ legend: "One word or all", options, chosen: where.all ? "all" : "one", onChoose: (id) => select({ all: id === "all" }) });
  return h(
    "div",
    { class: "tools-line" },
    both ? words.element : null,
    where.layered && m.model.layers > 1 ? chooser("layer", m.model.layers, where.layer) : null,
    where.headed && m.model.heads > 1 ? chooser("head", m.model.heads, where.head) : null,
  );
}

function explainChecks(own, fromWeights) {
  if (!own.length && !fromWeights.length) return null;
  return h(
    "section",
    { class: "words-part" },
    h("h2", null, "Check it"),
    own.length ? [h("p", { class: "small soft" }, "Computed again in this page:"), checkList(own)] : null,
    fromWeights.length ? explainBeside(fromWeights, !own.length) : null,
  );
}

/** The same once more where the weights are: open where the page itself has nothing to compare. */
function explainBeside(checks, open) {
  const failed = checks.filter((check) => !check.passed).length;
  const said = failed ? `${failed} of ${checks.length} are not the same` : `${checks.length} more, from the weights`;
  return h(
    "details",
    { open: open || failed > 0 },
    h("summary", { class: "small soft" }, h("span", { class: failed ? "bad" : "good" }, failed ? "✗ " : "✓ "), `Computed again beside the model: ${said}`),
    checkList(checks),
  );
}

/** Put something new in a place; whoever had the focus there has it again on the same thing. */
function explainKeepingFocus(place, made) {
  const within = place.contains(document.activeElement);
  const held = within ? [...place.querySelectorAll("button, select, input")].indexOf(document.activeElement) : -1;
  const key = within ? document.activeElement.dataset.key : undefined;
  replace(place, made);
  if (held < 0) return;
  const there = [...place.querySelectorAll("button, select, input")];
  (there.find((one) => key !== undefined && one.dataset.key === key) ?? there[held])?.focus({ preventScroll: true });
}
