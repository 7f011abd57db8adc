// The first screen: what this is, and the model at work on one sentence, its attention as lines.

import { button, h, replace, svg } from "../core/dom.js";
import { dot } from "../core/numbers.js";
import { onSelect, select, selected } from "../core/state.js";
import { wordsIn, wordWeights } from "../core/words.js";
import { t } from "../core/texts.js";

const INTRO_WORD = 480; // milliseconds per word
const INTRO_LONG = 110; // characters of both rows
const INTRO_LEAST = 0.06; // weights below are not drawn
const introDoes = () => ({ draw: t("drawing"), ask: t("answering"), summarise: t("summarising"), classify: t("classifying"), fill: t("filling in a blank"), write: t("writing"), translate: t("translating") });

/**
 * @param {Object} page
 * @returns {{element: HTMLElement, leave: function(): void}}
 */
export function intro(page) {
  const { model, example } = page;
  const does = model.kind === "dialogues" ? t("talking") : Object.entries(introDoes()).find(([task]) => model.abilities.includes(task))?.[1] ?? t("at work");
  const recurrent = model.config.family.startsWith("recurrent");
  const what = recurrent ? t("A recurrent network ({0})", [model.config.cell.toUpperCase()]) : t("A Transformer");
  const traced = !recurrent && !model.abilities.includes("draw"); // has lines to show
  const scene = traced ? new IntroScene(page) : null;
  const chips = h("div", { class: "chips", role: "group", "aria-label": t("Sentences to try") });
  const showChips = () => replace(chips, (example?.more ?? []).map(({ name, text }) => introChip(name, text, (selected().text ?? example.text) === text)));
  const element = h(
    "section",
    { class: "intro", "aria-labelledby": "intro-title" },
    h("h1", { id: "intro-title" }, t("{0}, {1}.", [what, does]), " ", h("span", { class: "soft" }, t("Every number on this page is its own."))),
    scene?.element,
    h("div", { class: "intro-row" }, button(t("▶ Watch how"), () => introWatch(page), { class: "button primary watch" }), chips),
  );
  showChips();
  scene?.show();
  const stop = onSelect((now, before) => {
    if (now.tab !== null || (now.text === before.text && now.tag === before.tag && now.target === before.target)) return;
    showChips();
    scene?.show();
  });
  return { element, leave: () => { stop(); scene?.leave(); } };
}

function introChip(name, text, chosen) {
  return button(t(name), () => select({ text, target: null, query: null, key: null, step: null }), { class: "chip", title: text, "aria-pressed": String(chosen) });
}

/** The short walk, playing by itself. */
function introWatch(page) {
  page.playing = !matchMedia("(prefers-reduced-motion: reduce)").matches;
  select({ tab: "explain", walk: "1" });
}

class IntroScene {
  constructor(page) {
    this.page = page;
    this.turn = 0;
    this.lines = svg("svg", { class: "intro-lines", "aria-hidden": "true" });
    this.words = h("div", { class: "intro-words", "aria-hidden": "true" });
    this.stage = h("div", { class: "intro-stage", role: "img", "aria-label": t("The model at work") }, this.words, this.lines);
    this.note = h("p", { class: "soft small intro-note" });
    this.element = h("div", { class: "intro-scene" }, this.stage, h("div", { class: "intro-under" }, this.note, button(t("Again"), () => this.play(), { class: "button quiet small" })));
    this.watch = new ResizeObserver(() => this.story && this.draw());
    this.watch.observe(this.stage);
  }

  leave() {
    this.turn += 1;
    this.watch.disconnect();
  }

  async show() {
    const turn = (this.turn += 1);
    try {
      const trace = await this.page.trace();
      const story = await this.page.busy(introStory(trace));
      if (turn !== this.turn) return;
      this.story = story;
    } catch {
      if (turn === this.turn) replace(this.words); // the tab below says what is wrong
      return;
    }
    this.fill();
    this.play();
  }

  fill() {
    const { rows, steps, text, note } = this.story;
    this.nodes = [];
    const told = new Map(steps.map((step, n) => [step.node, n]));
    const word = (label) => {
      const index = this.nodes.length;
      const own = h("span", { class: "intro-word", dir: "auto", on: { pointerenter: () => this.light(told.get(index)), pointerleave: () => this.light() } }, label.trim());
      this.nodes.push(own);
      return own;
    };
    replace(this.words, rows.map((row) => h("div", { class: "intro-line" }, row.map((label) => [word(label), " "]))));
    this.stage.classList.toggle("two", rows.length > 1);
    this.stage.classList.toggle("long", text.length > INTRO_LONG);
    this.stage.setAttribute("aria-label", text);
    this.note.textContent = note;
  }

  /** Word after word, each with its lines; at once where motion is not wanted. */
  async play() {
    const turn = (this.turn += 1);
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.shown = still ? this.story.steps.length : 0;
    this.draw();
    while (this.shown < this.story.steps.length) {
      await new Promise((done) => setTimeout(done, INTRO_WORD));
      if (turn !== this.turn || !this.stage.isConnected) return;
      this.shown += 1;
      this.draw(true);
    }
  }

  /** Only the lines of this word, as long as it is pointed at. */
  light(step) {
    this.only = step;
    this.draw();
  }

  draw(fresh = false) {
    const { steps, best } = this.story;
    const alone = this.story.rows.length === 1 || this.story.text.length > INTRO_LONG; // or else lines cannot be told apart
    const now = this.only ?? (this.shown < steps.length ? this.shown - 1 : alone ? best : null);
    steps.forEach(({ node, becomes }, n) => {
      this.nodes[node].classList.toggle("unwritten", n >= this.shown);
      this.nodes[node].classList.toggle("now", n === now);
      if (becomes) this.nodes[node].textContent = n < this.shown ? becomes : "___";
    });
    const box = this.stage.getBoundingClientRect();
    this.lines.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
    const paths = steps.slice(0, this.shown).flatMap(({ node, links }, n) => {
      const pale = now !== null && n !== now;
      return links.map(([from, weight]) => this.line(box, from, node, weight, `${pale ? " pale" : ""}${fresh && n === now ? " fresh" : ""}`));
    });
    replace(this.lines, paths);
  }

  line(box, from, to, weight, look) {
    const [a, b] = [from, to].map((n) => this.nodes[n].getBoundingClientRect());
    const [x1, x2] = [a, b].map((r) => r.left + r.width / 2 - box.left);
    const apart = b.top > a.bottom;
    const [y1, y2] = [(apart && this.story.rows.length > 1 ? a.bottom : a.top) - box.top, b.top - box.top];
    const bend = this.story.rows.length > 1 ? (y2 - y1) / 2 : -Math.min(46, 14 + Math.abs(x2 - x1) / 5);
    const d = `M${x1} ${y1} C${x1} ${y1 + bend} ${x2} ${y2 - (this.story.rows.length > 1 ? bend : -bend)} ${x2} ${y2}`;
    return svg("path", { class: `intro-link${look}`, d, pathLength: "1", style: { "--weight": String(weight) } });
  }
}

/** Rows of words, and for each word that the model writes the words it attends to. */
async function introStory(trace) {
  const m = trace.manifest;
  const { layer } = m.first_look;
  const cross = m.source.ids.length > 0 && m.target.ids.length > 0;
  const side = m.target.ids.length ? "decoder" : "encoder";
  const weights = await introMean(trace, `${side}.${layer - 1}.${cross ? "cross" : "self"}.weights`);
  const make = cross ? introTranslation : side === "decoder" ? introWriting : introReading;
  const count = m.model.heads;
  const note = t("Lines: where each new word looks, in layer {0} (mean of its heads: {1}).", [layer, count]);
  const story = make(m, weights);
  const best = story.steps.findIndex(({ row }) => row === m.first_look.target); // where the walk begins
  return { note, ...story, best: best < 0 ? story.steps.length - 1 : best };
}

/** The mean of all heads: a row of shares for each token. */
async function introMean(trace, name) {
  const { values, shape: [heads, rows, columns] } = await trace.tensor(name, { as: "f16" }); // lines need no more digits
  const each = new Float64Array(heads).fill(1 / heads);
  return (row) => Float64Array.from({ length: columns }, (_, c) => dot(each, Float64Array.from(each, (_1, n) => values[(n * rows + row) * columns + c])));
}

function introLinks(words, shares, first) {
  const found = words.map((word, i) => [first + i, wordWeights([word], shares)[0]]);
  return found.filter(([, weight]) => weight >= INTRO_LEAST);
}

function introTranslation(m, weights) {
  const read = wordsIn(m.source.pieces, m.source.special).filter((word) => !word.special);
  const written = wordsIn(m.answers.pieces, m.answers.special).filter((word) => !word.special);
  const [from, to] = [read, written].map((words) => words.map(({ text }) => text));
  const steps = written.map((word, i) => ({ row: word.positions[0], node: read.length + i, links: introLinks(read, weights(word.positions[0]), 0) }));
  return { rows: [from, to], steps, text: `${from.join("")} → ${to.join("")}` };
}

/** One line: what was given, and what follows; position p was predicted at p − 1. */
function introWriting(m, weights) {
  const pieces = [m.target.pieces[0], ...m.answers.pieces];
  const words = wordsIn(pieces, [m.target.special[0], ...m.answers.special]).filter((word) => !word.special);
  const steps = words.flatMap((word, node) => {
    if (word.positions[0] <= m.given) return [];
    return [{ row: word.positions[0] - 1, node, links: introLinks(words.slice(0, node), introPadded(weights(word.positions[0] - 1), pieces.length), 0) }];
  });
  const texts = words.map(({ text }) => text);
  return { rows: [texts], steps, text: texts.join("") };
}

function introPadded(shares, count) {
  const padded = new Float64Array(count);
  padded.set(shares.subarray(0, count));
  return padded;
}

/** A blank and what fills it, or the class of the text. */
function introReading(m, weights) {
  const blanks = new Set(m.steps.map(({ row }) => row));
  const special = m.source.special.map((flag, i) => flag && !blanks.has(i));
  const words = wordsIn(m.source.pieces, special).filter((word) => !word.special);
  const texts = words.map((word) => (blanks.has(word.positions[0]) ? "___" : word.text));
  const text = texts.join("");
  if (m.classes.length) {
    const best = m.classes.reduce((a, b) => (b[1] > a[1] ? b : a));
    return { rows: [texts, [best[0]]], steps: [{ node: words.length, links: introLinks(words, weights(0), 0) }], text: `${text} → ${best[0]}` };
  }
  const steps = m.steps.map(({ row, chosen }) => {
    const node = words.findIndex((word) => word.positions.includes(row));
    return { node, becomes: chosen[1].trim(), links: introLinks(words, weights(row), 0).filter(([from]) => from !== node) };
  });
  return { rows: [texts], steps, text };
}
