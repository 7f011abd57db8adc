// The walk through this model, stage by stage: the drawing of the model, a zoom into it, and the text
// and numbers about it. What the reader points at lights up everywhere.

import { CheckpointSlider } from "../bench/checkpoints.js";
import { choice } from "../core/choice.js";
import { button, h, replace } from "../core/dom.js";
import { chooseRow, stageParameters, rowLabel, stepAt, focusOf, layersOn, twoSided } from "../core/focus.js";
import { onKeys } from "../core/keys.js";
import { show } from "../core/numbers.js";
import { reading } from "../core/page.js";
import { onPointer, pointAt } from "../core/pointer.js";
import { sentenceInput, sentenceWords } from "../core/sentenceInput.js";
import { onSelect, select, selected } from "../core/state.js";
import { t } from "../core/texts.js";
import { attentionStages } from "../stages/attention.js";
import { recurrentStages } from "../stages/cell.js";
import { embeddingStages } from "../stages/embedding.js";
import { layerStages } from "../stages/layers.js";
import { paintGradient } from "../stages/learning.js";
import { lessonTask } from "../stages/lesson.js";
import { modelMap, stageList } from "../stages/modelMap.js";
import { outputStages } from "../stages/output.js";
import { checkList } from "../stages/parts.js";
import { Lens, arrive, takeAlong } from "../stages/travel.js";
import { drawWalk } from "./drawWalk.js";

const EXPLAIN_STAGES = { ...embeddingStages, ...attentionStages, ...layerStages, ...recurrentStages, ...outputStages };
const EXPLAIN_MINUTE = ["pieces", "queries", "scores", "mask", "softmax", "cross", "recurrence", "decoder-recurrence", "attention", "classifier", "loop"];

export const explainTab = {
  id: "explain",
  title: "Explain",
  fits: (model, page) => !(page.offline && model.abilities.includes("draw")),
  mount: (container, page) => (page.model.abilities.includes("draw") ? drawWalk(container, page) : new ExplainWalk(container, page).begin()),
};

class ExplainWalk {
  constructor(container, page) {
    this.page = page;
    this.container = container;
    this.turn = 0; // of drawing: a newer one replaces an older one
    this.drawn = null; // what is on screen, and for which focus
    this.playing = null;
    this.sentence = sentenceInput(page);
    this.checkpoints = new CheckpointSlider(page, () => this.focus);
    this.parts = explainParts(this);
  }

  begin() {
    const { parts } = this;
    const open = button("✎", () => parts.top.classList.toggle("open"), { class: "button quiet round explain-edit", "aria-label": t("Another text") });
    parts.top = h("div", { class: "explain-top" }, this.page.offline ? null : open, this.sentence.element, parts.words, this.checkpoints.element);
    replace(this.container, parts.top, parts.walk, parts.foot);
    explainPointing(this.container);
    onPointer(parts.more, (now) => this.drawPointed(now));
    this.fits = new ResizeObserver(() => this.fit());
    for (const one of [document.documentElement, parts.top, parts.map]) this.fits.observe(one);
    const ends = [onSelect((now, before) => this.onSelect(now, before)), onKeys(this.keys()), this.sentence.leave, () => this.checkpoints.leave(), () => this.fits.disconnect()];
    this.read();
    return () => {
      this.turn += 1;
      this.stopPlaying();
      for (const end of ends) end();
    };
  }

  onSelect(now, before) {
    const other = ["text", "tag", "change", "sample"].some((name) => now[name] !== before[name]);
    if (other || now.target !== before.target || now.checkpoint !== before.checkpoint) this.read(!other);
    else if (this.trace) this.draw();
  }

  /** How high a picture may be without scrolling. */
  fit() {
    const { picture, middle, foot, walk } = this.parts;
    const top = middle.getBoundingClientRect().top + document.documentElement.scrollTop + picture.offsetTop; // without its zoom
    walk.style.setProperty("--room", `${Math.max(160, window.innerHeight - top - foot.offsetHeight - 28)}px`);
    this.lens.draw();
  }

  /** Trace the text; the old picture may stay until the new one is there. */
  async read(stays = false) {
    this.stopPlaying();
    const turn = (this.turn += 1);
    this.trace = this.drawn = null;
    if (!stays) replace(this.parts.picture, reading(t("running the model on this text")));
    try {
      const trace = await this.page.trace({ walk: true });
      if (turn !== this.turn) return;
      this.trace = trace;
      await this.draw();
      if (this.page.playing && turn + 1 === this.turn) this.play();
      this.page.playing = false;
    } catch (error) {
      if (turn !== this.turn) return;
      this.empty();
      this.page.showError(this.parts.picture, error, () => this.read());
    }
  }

  empty() {
    for (const name of ["map", "list", "head", "what", "task", "more", "tools", "words"]) replace(this.parts[name]);
    this.parts.foot.hidden = true;
  }

  /** Show the focus; redraw only what changed. */
  async draw() {
    const turn = (this.turn += 1);
    const focus = focusOf(this.trace, selected());
    this.focus = focus;
    focus.page = this.page;
    this.drawAround(focus);
    this.checkpoints.draw();
    const player = focus.stage === "loop"; // its picture goes from word to word by itself
    const key = [focus.stage, focus.layer, focus.head, focus.all, player || (focus.all && focus.stage !== "heads") ? "" : focus.row].join(" ");
    const row = player ? 0 : focus.row;
    try {
      const facts = await this.page.busy(this.trace.stage(focus.stage, stageParameters(focus)));
      if (turn !== this.turn) return;
      if (this.drawn?.key !== key || !this.drawn.made.picture.update || this.drawn.row !== row) {
        const made = await this.page.busy(EXPLAIN_STAGES[focus.stage](focus, facts));
        if (turn !== this.turn) return;
        if (this.drawn?.key === key && this.drawn.made.picture.update) made.picture = this.drawn.made.picture;
        else this.replacePicture(made.picture.element, focus);
        this.drawn = { key, made, row, stage: focus.stage };
      }
      this.drawn.made.picture.update?.(focus);
      paintGradient(this.parts.map, this.drawn.made.gradient ?? null);
      this.drawWords(focus, facts, this.drawn.made);
      await this.page.busy(this.drawTask(focus, facts, turn));
    } catch (error) {
      if (turn !== this.turn) return;
      this.drawn = null;
      this.parts.walk.dataset.stage = focus.stage;
      replace(this.parts.head, h("h1", { id: "stage-title" }, t(focus.title)));
      for (const name of ["what", "task", "more"]) replace(this.parts[name]);
      this.page.showError(this.parts.picture, error, () => this.draw());
    }
  }

  /** The next picture: of another stage it is a zoom, and takes along what the last one computed. */
  replacePicture(element, focus) {
    const { picture, map, middle, walk } = this.parts;
    const moved = this.drawn && this.drawn.stage !== focus.stage;
    const taken = moved ? takeAlong(picture) : null;
    replace(picture, element);
    middle.scrollTop = 0;
    if (moved && walk.getBoundingClientRect().top < 0) walk.scrollIntoView();
    this.fit();
    explainRevealRow(element);
    if (moved) arrive(taken, picture, map.querySelector("[aria-current]"));
  }

  drawAround(focus) {
    const { parts } = this;
    const { m } = focus;
    explainKeepingFocus(parts.map, modelMap(focus));
    explainKeepingFocus(parts.list, stageList(focus));
    explainKeepingFocus(parts.words, sentenceWords(m, { source: focus.rows.encoder, target: focus.rows.decoder, side: focus.side }, (side, i) => chooseRow(m, side, i)));
    explainKeepingFocus(parts.tools, explainTools(focus));
    for (const chips of parts.words.querySelectorAll(".chips")) explainReveal(chips, chips.querySelector("[aria-pressed=true]"));
    this.drawFoot(focus);
    this.fit();
  }

  drawWords(focus, facts, made) {
    const { parts, page } = this;
    const stops = this.stops(focus.m).filter((name) => !focus.m.stages.find((stage) => stage.name === name).extra);
    const at = stops.indexOf(focus.stage);
    const number = focus.extra ? t("extra") : at < 0 ? t("beside the walk") : t("{0} of {1}", [at + 1, stops.length]);
    replace(parts.head, h("p", { class: "soft small stage-number" }, [number, facts.place].filter(Boolean).join(" · ")), h("h1", { id: "stage-title" }, t(facts.title)));
    const rotary = focus.stage === "positions" && focus.m.model.positions === "rotary";
    replace(parts.what, h("p", { class: "what" }, t(facts.what)), explainWhy(focus), h("p", { class: "soft small" }, rotary ? t("Rotary positions: Su et al. 2021; the paper adds sinusoids instead") : t("Section {0} of “Attention Is All You Need”", [facts.section])));
    const formulas = made.formulas(focus).filter(Boolean);
    parts.formulas = h("div", null, formulas);
    replace(
      parts.more,
      formulas.length ? h("section", { class: "words-part" }, h("h2", null, t("With your numbers")), parts.formulas) : null,
      explainChecks(made.checks, facts.checks),
      facts.notes.length ? h("section", { class: "words-part notes" }, facts.notes.map((note) => h("p", null, t(note)))) : null,
    );
    if (parts.walk.dataset.stage !== focus.stage) page.say(`${number}: ${t(facts.title)}`);
    parts.walk.dataset.stage = focus.stage;
  }

  /** The task of the lesson at this stop. */
  async drawTask(focus, facts, turn) {
    const made = await lessonTask(focus, facts, () => explainKeepingFocus(this.parts.list, stageList(focus)));
    if (turn === this.turn) replace(this.parts.task, made);
  }

  /** The numbers of what is pointed at, and the words and terms that belong to it. */
  drawPointed(now) {
    const { focus, drawn, parts } = this;
    if (!focus || drawn?.stage !== focus.stage) return;
    const at = (word, side) => (word?.startsWith(`${side}:`) ? Number(word.split(":")[1]) : null);
    const pair = { ...focus, key: at(now.word, focus.keySide) ?? focus.key, row: at(now.query, focus.side) ?? focus.row };
    const about = `${pair.key} ${pair.row}`;
    if (focus.scope.includes("head") && drawn.about !== about && (drawn.about !== undefined || pair.key !== focus.key || pair.row !== focus.row)) {
      drawn.about = about;
      replace(parts.formulas, drawn.made.formulas(pair));
    }
    drawn.made.picture.point?.(pair, now);
    for (const element of this.container.querySelectorAll("[data-word], [data-number]")) {
      const lit = element.dataset.word ? [now.word, now.query].includes(element.dataset.word) : now.number !== null && element.dataset.number === String(now.number) && element.dataset.of === String(now.of);
      element.classList.toggle("lit", lit);
    }
  }

  /** The stages of the chosen walk. */
  stops(m) {
    const { walk } = selected();
    if (walk === "1") return m.stops.filter((name) => EXPLAIN_MINUTE.includes(name) && (name !== "mask" || !m.source.ids.length));
    return walk === "10" ? m.stops.filter((name) => !m.stages.find((stage) => stage.name === name).extra) : m.stops;
  }

  drawFoot(focus) {
    const { m } = focus;
    const { foot, back, next, scrub, scrubbed, scrubber, walks } = this.parts;
    foot.hidden = false;
    back.disabled = !this.neighbour(-1);
    next.disabled = !this.neighbour(1);
    walks.value = ["1", "10"].includes(selected().walk) ? selected().walk : "";
    const shown = m.steps.length > 0 && m.target.ids.length > 0;
    scrubber.hidden = !shown;
    if (!shown) return;
    const step = stepAt(m, focus.rows.decoder);
    scrub.max = String(m.steps.length - 1);
    scrub.value = String(step ?? 0);
    const view = { ...focus, side: "decoder", queryTokens: m.target };
    const text = step === null ? t("in the prompt") : `${t("{0} of {1}", [step + 1, m.steps.length])}: ${rowLabel(view, focus.rows.decoder)}`;
    scrubbed.textContent = text;
    scrub.setAttribute("aria-valuetext", text);
  }

  /** Move along the walk by this many stages. */
  move(by) {
    const to = this.neighbour(by);
    if (to) select({ stage: to, key: null });
    return Boolean(to);
  }

  /** The nearest stage of the walk in this direction. */
  neighbour(by) {
    const { m, stage } = this.focus ?? {};
    if (!m) return null;
    const here = m.stops.indexOf(stage);
    const ahead = this.stops(m).filter((name) => by * (m.stops.indexOf(name) - here) > 0);
    return (by > 0 ? ahead[0] : ahead.at(-1)) ?? null;
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
    if (!this.focus) return;
    const { length } = this.stops(this.focus.m);
    const seconds = selected().walk === "1" ? 60 / length : 30;
    this.playing = setInterval(() => {
      if (!this.move(1)) this.stopPlaying();
    }, 1000 * seconds);
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
  for (const name of ["map", "head", "what", "picture", "task", "more", "tools", "words", "bench"]) parts[name] = h("div", { class: `explain-${name}` });
  parts.list = h("div");
  parts.middle = h("div", { class: "explain-middle card", tabindex: "0", role: "region", "aria-label": t("Picture") }, parts.tools, parts.picture, parts.bench);
  parts.walk = h(
    "article",
    { class: "walk", "aria-labelledby": "stage-title" },
    h("nav", { class: "explain-side", "aria-label": t("The model") }, parts.map),
    parts.head,
    parts.middle,
    h("div", { class: "explain-text", tabindex: "0", role: "region", "aria-label": t("Text") }, parts.what, parts.task, parts.more),
  );
  walk.lens = new Lens(parts.walk, parts.map, parts.middle);
  parts.walk.prepend(walk.lens.element);
  parts.back = button(["←", h("span", { class: "wide" }, ` ${t("Back")}`)], () => walk.move(-1), { "aria-label": `← ${t("Back")}` });
  parts.next = button(`${t("Next")} →`, () => walk.move(1), { class: "button primary" });
  parts.play = button("", () => walk.play());
  explainPlayShown(parts.play, false);
  parts.scrub = h("input", { type: "range", min: "0", step: "1", id: "scrub", "aria-label": t("The token being generated"), on: { input: () => walk.moveStep(Number(parts.scrub.value) - (stepAt(walk.focus.m, walk.focus.rows.decoder) ?? -1)) } });
  parts.scrubbed = h("span", { class: "small scrubbed", dir: "auto" });
  parts.scrubber = h("div", { class: "scrubber" }, h("label", { class: "soft small", for: "scrub" }, t("generating")), parts.scrub, parts.scrubbed);
  parts.walks = h("select", { class: "field small-field", "aria-label": t("Length of the walk"), on: { change: () => select({ walk: parts.walks.value || null }) } }, [["1", t("1 minute")], ["10", t("10 minutes")], ["", t("everything")]].map(([id, label]) => h("option", { value: id }, label)));
  const list = h("details", { class: "explain-list" }, h("summary", { class: "button" }, h("span", { class: "wide" }, t("All stages")), h("span", { class: "narrow" }, t("Stages"))), h("nav", { class: "popover", "aria-label": t("The stages of the walk") }, parts.list));
  parts.foot = h("div", { class: "explain-foot", role: "group", "aria-label": t("Walk") }, h("div", { class: "foot-buttons" }, parts.back, parts.next, parts.play, parts.walks), parts.scrubber, list);
  parts.foot.hidden = true;
  return parts;
}

/** Words, cells and terms say by attributes what they are about. */
function explainPointing(container) {
  const told = (event, on) => {
    const found = event.target.closest?.("[data-word], [data-number]");
    if (!found) return;
    if (found.dataset.word) pointAt({ word: on ? found.dataset.word : null });
    else pointAt(on ? { number: Number(found.dataset.number), of: Number(found.dataset.of) } : { number: null, of: null });
  };
  for (const [name, on] of [["pointerover", true], ["pointerout", false], ["focusin", true], ["focusout", false]]) container.addEventListener(name, (event) => told(event, on));
}

/** Why the walk stands at this head and at these words; said as long as nobody chose others. */
function explainWhy(focus) {
  const { m, layer, head, rows } = focus;
  const { first_look: first } = m;
  const chosen = selected();
  if (!first.layer || layer !== first.layer || head !== first.head || !focus.scope.includes("head") || chosen.layer !== null) return null;
  const [row, key, weight, about, keys] = explainFirst(focus);
  if (rows[focus.side] !== row || key === undefined) return null;
  const crossing = twoSided(m);
  const product = [first.weight, first.encoder_weight ?? 0, first.score].map((x) => show(x));
  const reason = !crossing
    ? t("Why here: at this word, no head puts more weight on another content word than head {0} of layer {1}.", [head, layer])
    : focus.use === "cross"
      ? t("Why here: head {0} of layer {1} has the highest score, its weight times a factor for the encoder: {2} × (0.25 + 0.75 × {3}) = {4}.", [head, layer, ...product])
      : t("Why here: encoder head {0} of layer {1} was scored together with the cross-attention to this word.", [head, layer]);
  return h("p", { class: "small why" }, reason, ` ${focus.use === "cross" ? t("For") : t("At")} `, h("strong", { dir: "auto" }, about.labels[row]), ", ", h("span", { class: "number" }, show(weight)), ` ${t("of its weight is on")} `, h("strong", { dir: "auto" }, keys.labels[key]), ".");
}

/** The row, key and weight that the walk starts with, here; no key where none was scored. */
function explainFirst({ m, side, use, queryTokens, keyTokens }) {
  const { first_look: first } = m;
  const row = side === "encoder" ? first.source : first.target;
  if (!twoSided(m)) return [row, first.key === row ? undefined : first.key, first.weight, queryTokens, keyTokens];
  if (use === "cross") return [row, first.key, first.weight, m.answers, keyTokens];
  return [row, side === "encoder" ? first.encoder_key : undefined, first.encoder_weight, queryTokens, keyTokens];
}

/** In a long table, the row in focus. */
function explainRevealRow(picture) {
  const row = picture.querySelector(".scroller tr.focus");
  const region = row?.closest(".scroller");
  if (row && row.offsetTop + row.offsetHeight > region.clientHeight) region.scrollTop = row.offsetTop - region.clientHeight / 2;
}

/** Scroll a row of chips, and nothing else, until this one is in sight. */
function explainReveal(row, chip) {
  if (chip) row.scrollLeft = chip.offsetLeft - row.offsetLeft - (row.clientWidth - chip.offsetWidth) / 2;
}

function explainPlayShown(made, playing) {
  const label = playing ? t("Pause") : t("Play");
  replace(made, playing ? "❚❚" : "▶", h("span", { class: "wide" }, ` ${label}`));
  made.setAttribute("aria-label", label);
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
    return h("span", { class: "chooser" }, h("label", { class: "soft small", for: `choose-${name}` }, name === "layer" ? t("layer") : t("head")), choose);
  };
  const options = [{ id: "one", label: t("One word") }, { id: "all", label: t("All words") }];
  const words = choice({ legend: t("One word or all"), options, chosen: focus.all ? "all" : "one", onChoose: (id) => select({ all: id === "all" }) });
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
    h("h2", null, t("Check it")),
    own.length ? [h("p", { class: "small soft" }, t("Recomputed in this page:")), checkList(own)] : null,
    fromWeights.length ? explainServiceChecks(fromWeights, !own.length) : null,
  );
}

/** Checks made by the service from the weights; open where the page has none of its own. */
function explainServiceChecks(checks, open) {
  const failed = checks.filter((check) => !check.passed).length;
  const text = failed ? t("{0} of {1} differ", [failed, checks.length]) : t("{0} passed", [checks.length]);
  return h(
    "details",
    { open: open || failed > 0 },
    h("summary", { class: "small soft" }, h("span", { class: failed ? "bad" : "good" }, failed ? "✗ " : "✓ "), `${t("Recomputed from the weights:")} ${text}`),
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
