// The output probabilities, and the extras.

import { bars } from "../charts/bars.js";
import { beamTree } from "../charts/beam.js";
import { calculation, formula, mfactor, mfrac, mint, mnum, mo, mrow, msub, msum, msup, mwords } from "../charts/formula.js";
import { h } from "../core/dom.js";
import { entropy, samplingProbabilities, show, showPercent, softmax, total } from "../core/numbers.js";
import { samplingSliders } from "../core/samplingSliders.js";
import { t } from "../core/texts.js";
import { lensLadder } from "./layers.js";
import { gradientDrawing, gradientShares, lossColumns, stepPictures } from "./learning.js";
import { loopStage } from "./loop.js";
import { compared, figure, listing, tables } from "./parts.js";

const OUTPUT_BARS = 10; // candidates at most, and those above a thousandth only

/** Probabilities of the vocabulary, or of the classes. */
async function outputClassifier(focus, facts) {
  if (focus.m.classes.length) return outputClasses(focus);
  if (focus.m.model.masked_head === false) return outputExtra(focus, facts); // it embeds texts
  const { values: logits } = await focus.trace.logits(focus.row);
  const likely = tables(facts).find((table) => table.names.includes("top")).rows.map(([label, id]) => ({ label, id: Number(id) }));
  const shares = softmax(logits);
  const top = likely.filter(({ id }, n) => n < 5 || (n < OUTPUT_BARS && shares[id] >= 0.001));
  const chosen = focus.side === "decoder" ? focus.m.answers.ids[focus.row] : null;
  const made = bars({ items: outputItems(top, logits, {}, chosen), title: "Most likely pieces" });
  const sliders = samplingSliders({ temperature: 1 }, () => made.set({ items: outputItems(top, logits, sliders.settings(), chosen) }));
  const element = h(
    "div",
    null,
    h("div", { class: "bars-heads soft small", "aria-hidden": "true" }, ["piece", "", t("probability"), "logit"].map((name) => h("span", null, name))),
    figure(focus, made.element, ["logits"]),
    h("p", { class: "soft small" }, `and ${(logits.length - top.length).toLocaleString("en")} others: ${showPercent(1 - top.reduce((sum, { id }) => sum + shares[id], 0))} together`),
    sliders.element,
    await lensLadder(focus, facts),
  );
  return { picture: { element }, formulas: () => outputProbability(top[0], logits), checks: outputChecks(focus, logits) };
}

function outputItems(top, logits, { temperature, top_k: topK, top_p: topP }, chosen) {
  const shares = samplingProbabilities(logits, { temperature, topK, topP });
  return top.map(({ label, id }) => ({ label, value: shares[id], note: show(logits[id]), marked: id === chosen, faint: shares[id] === 0 }));
}

function outputProbability(best, logits) {
  const largest = Math.max(...logits);
  const sum = Math.log(total(Array.from(logits, (x) => Math.exp(x - largest)))) + largest;
  const shares = softmax(logits);
  const unsure = entropy(shares);
  return [
    formula("p is e to the logit over the sum of e to all logits", "p", mo("="), mfrac(msup("e", "s"), mrow(msum("n"), msup("e", msub("s", "n")))), mo("="), msup("e", mrow("s", mo("−"), mwords("log Σ")))),
    h("p", { class: "pair" }, h("strong", { dir: "auto" }, best.label)),
    calculation([msup("e", mrow(mnum(logits[best.id]), mo("−"), mnum(sum))), mrow(mo("="), mnum(shares[best.id]))]),
    h("p", { class: "small" }, "Perplexity of this distribution: ", h("span", { class: "number" }, Math.exp(unsure).toFixed(1)), "."),
  ];
}

function outputChecks(focus, logits) {
  const shares = softmax(logits);
  const checks = [compared(focus, `the ${logits.length} probabilities sum to 1`, [total(shares)], [1])];
  const step = focus.m.steps.find((one) => one.row === focus.row);
  if (step) {
    const shown = step.top.map(([, , probability]) => probability);
    const again = step.top.map(([id]) => shares[id]);
    const check = compared(focus, "probabilities of the most likely pieces, from all logits", shown, again);
    checks.push({ ...check, within: 1e-3, passed: check.error <= 1e-3 });
  }
  return checks;
}

function outputClasses(focus) {
  const items = focus.m.classes.map(([label, value, logit]) => ({ label, value, note: show(logit) }));
  const again = softmax(focus.m.classes.map(([, , logit]) => logit));
  const check = compared(focus, "softmax of the logits", focus.m.classes.map(([, probability]) => probability), again);
  return {
    picture: { element: figure(focus, bars({ items, title: "The classes" }).element, ["logits"]) },
    formulas: () => [formula("p is softmax of the logits", "p", mo("="), mwords("softmax"), mo("("), "s", mo(")"))],
    checks: [{ ...check, within: 1e-4, passed: check.error <= 1e-4 }],
  };
}

/** The extras are tables, as in the terminal. */
async function outputExtra(focus, facts) {
  const tree = focus.stage === "beam" && focus.m.beam.length ? outputTree(focus) : null;
  const pictures = { beam: () => tree, teacher: () => lossColumns(facts), loss: () => lossColumns(facts), learning: () => [gradientDrawing(focus, facts), stepPictures(focus, facts)] }[focus.stage]?.() ?? null;
  const written = tables(facts).map((table) => listing(table));
  const element = h("div", null, pictures, pictures ? h("details", { class: "below" }, h("summary", null, t("The same as a table")), written) : written);
  const write = { teacher: outputTeacher, beam: outputBeam, loss: outputTeacher, learning: outputLearning }[focus.stage];
  return { picture: { element }, formulas: () => (write ? write(facts.formulas.map(({ numbers }) => numbers)) : []), checks: [], gradient: gradientShares(facts) };
}

/** The search as a tree: every step's hypotheses, and the way that won. */
function outputTree({ m }) {
  const tree = m.beam.map((step) => step.map(([place, parent, , logprob, score, ended, piece]) => ({ place, parent, piece, logprob, score, ended })));
  return h("div", { class: "scroller beam-scroll", tabindex: "0", role: "region", "aria-label": "the search tree" }, beamTree(tree, m.answers.pieces.filter((_, i) => i >= m.given && !m.answers.special[i])));
}

/** The loss of this text; and with label smoothing, if training used it. */
function outputTeacher([mean, smooth]) {
  const lines = [
    formula("the loss is the mean of minus log p of the true words", mwords("loss"), mo("="), mfrac(mint(1), "n"), msum("t"), mo("−"), mwords("log\u00a0"), mrow("p", mo("("), msub("y", "t"), mo(")"))),
    calculation([mfrac(mnum(mean.sum), mint(mean.count)), mrow(mo("="), mnum(mean.mean))]),
  ];
  if (!smooth) return lines;
  return [
    ...lines,
    h("p", { class: "small" }, "With label smoothing, as in training, ε is spread evenly over all tokens:"),
    formula("one minus epsilon times the loss plus epsilon times the mean over all tokens", mrow(mo("("), mint(1), mo("−"), "ε", mo(")")), mwords("\u00a0loss"), mo("+"), "ε", mwords("\u00a0mean over all")),
    calculation([mrow(mnum(1 - smooth.share), mo("×"), mnum(smooth.plain)), mrow(mo("+"), mnum(smooth.share), mo("×"), mnum(smooth.spread)), mrow(mo("="), mnum(smooth.smoothed))]),
  ];
}

/** A step along the gradient: one weight, the norm, and what the step does to the loss. */
function outputLearning([weight, norm, loss]) {
  const rate = mint(Number(weight.rate.toPrecision(3)));
  return [
    formula("a weight becomes the weight minus eta times its gradient", "w", mo("→"), "w", mo("−"), "η", mfrac(mrow("∂", mwords("loss")), mrow("∂", "w"))),
    calculation([mrow(mnum(weight.weight), mo("−"), rate, mo("×"), mfactor(weight.gradient)), mrow(mo("="), mnum(weight.new))]),
    h("p", { class: "small" }, "where the gradient is largest. The norm of the gradients of ", h("span", { class: "number" }, norm.count.toLocaleString("en")), " weights is ", h("span", { class: "number" }, show(norm.norm)), "; a small step lowers the loss by η times its square:"),
    calculation([mrow(mnum(loss.loss), mo("−"), rate.cloneNode(true), mo("×"), mnum(norm.squared)), mrow(mo("="), mnum(loss.expected))]),
    h("p", { class: "small" }, "The step really gives ", h("span", { class: "number" }, show(loss.after)), "."),
  ];
}

/** The score of the best hypothesis. */
function outputBeam([score]) {
  return [
    formula("the sum of log p over five plus the length over six to the power of alpha", mwords("score"), mo("="), mfrac(mrow(msum("t"), mwords("log\u00a0"), mrow("p", mo("("), msub("y", "t"), mo(")"))), msup(mrow(mo("("), mfrac(mrow(mint(5), mo("+"), "n"), mint(6)), mo(")")), "α"))),
    calculation([mfrac(mnum(score.sum), msup(mrow(mo("("), mfrac(mrow(mint(5), mo("+"), mint(score.length)), mint(6)), mo(")")), mint(score.alpha))), mrow(mo("="), mnum(score.score))]),
  ];
}

export const outputStages = { classifier: outputClassifier, loop: loopStage, follow: outputExtra, teacher: outputExtra, beam: outputExtra, loss: outputExtra, learning: outputExtra };
