// The generation loop as a player: token after token with its attention and its candidates. Another
// candidate, or other sampling settings, give another text: the model writes it, and the walk is through it.

import { bars } from "../charts/bars.js";
import { formula, mo, mrow, msub } from "../charts/formula.js";
import { button, h, replace } from "../core/dom.js";
import { chooseRow, stepAt, twoSided } from "../core/focus.js";
import { samplingProbabilities, show, showCount, showPercent, softmax } from "../core/numbers.js";
import { pieceLabelAt, pieceTexts } from "../core/pieces.js";
import { sampleFrom, sampleInLink, sampleRequest } from "../core/sample.js";
import { select, selected } from "../core/state.js";
import { samplingSliders } from "../core/samplingSliders.js";
import { shareBar } from "./parts.js";
import { t } from "../core/texts.js";

const LOOP_SHOWN = 6; // last tokens shown at each step
const LOOP_PAUSE = 900; // milliseconds for a token
const LOOP_CANDIDATES = 5;
let loopStarts = false; // the text that was asked for plays as soon as it is traced

/** One token at a time, until the end. */
export async function loopStage(focus) {
  const { m } = focus;
  const player = m.steps.length ? new LoopPlayer(focus) : null;
  await player?.show(focus);
  const lines = [
    formula(t("y t is chosen given all before it"), msub("y", "t"), mo("∼"), "p", mo("("), "y", mo("|"), msub("y", mrow(mo("<"), "t")), mo(")")),
    h("p", { class: "small" }, m.ended ? t("The loop ended with the end token.") : t("The loop ended at the length limit, without an end token.")),
  ];
  return { picture: { element: player?.element ?? h("p", { class: "soft" }, t("Nothing was generated.")), update: (to) => player?.show(to) }, formulas: () => lines, checks: [] };
}

class LoopPlayer {
  constructor(focus) {
    const { m, page } = focus;
    this.m = m;
    this.page = page;
    this.trace = focus.trace;
    const how = sampleFrom(selected().sample) ?? (m.how === "drawn" ? page.model.decode : { temperature: 1 });
    this.seed = how.seed ?? m.seed ?? 1;
    this.sliders = samplingSliders(how, () => this.drawCandidates());
    this.asked = this.key();
    this.reads = (twoSided(m) ? m.source : m.target).labels.slice(0, twoSided(m) ? undefined : m.given + 1).map((label) => h("span", { class: "loop-read", dir: "auto" }, label));
    this.written = m.steps.map((step) => button(m.answers.labels[step.row], () => this.go(step.row), { class: "loop-word", dir: "auto" }));
    this.scrub = h("input", { type: "range", min: "0", max: String(m.steps.length - 1), step: "1", "aria-label": t("The token being written"), on: { input: () => this.go(m.steps[Number(this.scrub.value)].row) } });
    this.playButton = button(t("▶ Write it"), () => this.play(), { class: "button primary small loop-play" });
    this.again = page.offline ? null : button(t("Another text"), () => this.resample(this.seed + 1), { class: "button small", title: t("the same settings with another seed") });
    this.bars = bars({ items: [], title: t("Candidates"), onChoose: page.offline ? undefined : (i) => this.branch(this.items[i]) });
    this.state = h("p", { class: "small soft loop-state", role: "status" });
    this.turns = m.steps.map((step, n) => loopTurn(focus, step, n));
    this.element = h(
      "div",
      { class: "loop" },
      h("div", { class: "loop-lines figure" }, h("div", { class: "loop-line" }, this.reads), h("div", { class: "loop-line" }, this.written)),
      h("div", { class: "loop-tools" }, this.playButton, this.scrub, this.again),
      h("div", { class: "loop-sides" }, this.bars.element, h("div", null, page.offline ? null : this.sliders.element, this.state)),
      h("details", { class: "below" }, h("summary", null, t("All steps")), h("ol", { class: "turns" }, this.turns)),
    );
    if (loopStarts) this.start();
    loopStarts = false;
  }

  key() {
    return sampleInLink(this.sliders.settings(), this.seed);
  }

  /** Show the step of this row: what it attends to, and what else it could have written. */
  async show({ row }) {
    const n = stepAt(this.m, row) ?? 0;
    this.now = n;
    this.scrub.value = String(n);
    this.scrub.setAttribute("aria-valuetext", `${t("{0} of {1}", [n + 1, this.m.steps.length])}: ${this.m.answers.labels[this.m.steps[n].row]}`);
    this.written.forEach((word, i) => {
      word.classList.toggle("ahead", i > n);
      word.setAttribute("aria-pressed", String(i === n));
    });
    this.turns.forEach((turn, i) => turn.classList.toggle("focus", i === n));
    const step = this.m.steps[n];
    const [{ values: logits }, shares] = await Promise.all([this.trace.logits(step.row), this.attention(step.row)]);
    if (this.now !== n) return;
    this.logits = logits;
    this.drawCandidates();
    const most = Math.max(...shares, 1e-9);
    const shade = (element, share) => {
      element.style.setProperty("--share", String((share ?? 0) / most));
      element.title = share === undefined ? "" : `${t("attention")} ${showPercent(share)}`;
    };
    this.reads.forEach((word, i) => shade(word, shares[i]));
    this.written.forEach((word, i) => shade(word, twoSided(this.m) ? undefined : shares[this.m.given + 1 + i]));
  }

  /** What this row attends to, in the layer where the walk starts: the mean of its heads. */
  async attention(row) {
    const { m } = this;
    const name = `decoder.${(m.first_look.layer ?? m.model.layers) - 1}.${twoSided(m) ? "cross" : "self"}.weights`;
    if (!m.tensors[name]) return [];
    const { values, shape } = await this.trace.tensor(name, { rows: [row, row + 1] });
    const columns = shape.at(-1);
    return Array.from({ length: columns }, (_, c) => {
      let sum = 0;
      for (let i = c; i < values.length; i += columns) sum += values[i];
      return sum / (values.length / columns);
    });
  }

  drawCandidates() {
    if (!this.logits) return;
    const step = this.m.steps[this.now];
    const { temperature, top_k: topK, top_p: topP } = this.sliders.settings();
    if (this.again) this.again.hidden = temperature === 0; // there is one text only
    const shares = samplingProbabilities(this.logits, { temperature, topK, topP });
    const plain = softmax(this.logits);
    this.items = step.top.slice(0, LOOP_CANDIDATES).map(([id, piece]) => ({
      id, piece, label: pieceLabelAt(this.m.answers.pieces, step.row, piece), value: shares[id], marked: id === step.chosen[0], faint: shares[id] === 0,
      note: Math.abs(shares[id] - plain[id]) > 5e-4 ? t("was {0}", [showPercent(plain[id])]) : "",
    }));
    this.bars.set({ items: this.items });
    const kept = shares.reduce((count, share) => count + (share > 0), 0);
    replace(this.state, t("Pieces with a probability above 0, with these settings: {0} of {1}.", [kept, shares.length].map(showCount)), this.page.offline ? "" : ` ${t("Click a candidate: the model writes on from there.")}`);
  }

  go(row) {
    this.stop();
    chooseRow(this.m, "decoder", row);
  }

  /** Write it token after token: this text, or with other settings a new one. */
  play() {
    if (this.timer) this.stop();
    else if (this.key() !== this.asked) this.resample(this.seed);
    else this.start();
  }

  resample(seed) {
    loopStarts = true;
    select({ sample: sampleInLink(this.sliders.settings(), seed), target: null, query: null, step: 0 });
  }

  start() {
    let next = this.now === undefined || this.now === this.m.steps.length - 1 ? 0 : this.now + 1;
    const tick = () => {
      if (next >= this.m.steps.length || (this.shown && !this.element.isConnected)) return this.stop();
      this.shown = this.element.isConnected;
      chooseRow(this.m, "decoder", this.m.steps[next].row);
      next += 1;
    };
    this.timer = setInterval(tick, LOOP_PAUSE);
    replace(this.playButton, `❚❚ ${t("Pause")}`);
    if (this.now !== undefined) tick();
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    replace(this.playButton, t("▶ Write it"));
  }

  /** Another candidate at this place: what the model writes after it. */
  async branch({ id, piece }) {
    const { m, page, now } = this;
    const { row, chosen } = m.steps[now];
    if (id === chosen[0] || /^[⟨<].+[⟩>]$/.test(piece)) return;
    this.stop();
    const before = pieceTexts(m.answers.pieces.map((one, i) => (m.answers.special[i] ? "" : one))).slice(m.given, row).join("");
    if (page.model.kind === "texts") {
      select({ text: m.text + before + piece, target: null, query: null, key: null, step: 0 });
      return;
    }
    const { mode, ...sampling } = sampleRequest(this.key());
    const request = { model: page.model.name, text: m.text, prefix: before + piece, ...(mode === "sample" ? sampling : {}), ...(selected().tag ? { tag: selected().tag } : {}) };
    try {
      const { text } = await page.busy(page.api.post("/api/translate", request));
      select({ target: text, key: null });
    } catch (error) {
      replace(this.state, `${error.message}; ${error.hint ?? ""}`);
    }
  }
}

function loopTurn({ m }, step, n) {
  const from = Math.max(m.given, step.row + 1 - LOOP_SHOWN);
  const read = [...(from > m.given ? ["…"] : []), ...m.target.labels.slice(from, step.row + 1)];
  const others = step.top.filter(([id]) => id !== step.chosen[0]).slice(0, 2);
  return h(
    "li",
    { class: "turn" },
    h(
      "button",
      { type: "button", class: "turn-line", on: { click: () => chooseRow(m, "decoder", step.row) } },
      h("span", { class: "turn-number soft small" }, String(n + 1)),
      h("span", { class: "turn-read", dir: "auto" }, read.map((label) => h("span", { class: "turn-word" }, label))),
      h("span", { class: "soft", "aria-hidden": "true" }, "→"),
      h("strong", { class: "turn-chosen", dir: "auto" }, m.answers.labels[step.row]),
      h("span", { class: "share-cell" }, h("span", { class: "number" }, show(step.chosen[2])), shareBar(step.chosen[2])),
      h("span", { class: "soft small turn-others" }, others.length ? `${t("next best")} ${others.map(([, piece, probability]) => `${pieceLabelAt(m.answers.pieces, step.row, piece).replace(/^·(?=.)/, "")} ${showPercent(probability)}`).join(", ")}` : ""),
    ),
  );
}
