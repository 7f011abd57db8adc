// The last stages: output probabilities and the generation loop; and the extras.

import { bars } from "../charts/bars.js";
import { beamTree } from "../charts/beam.js";
import { calculation, formula, mfactor, mfrac, mint, mnum, mo, mrow, msub, msum, msup, mwords } from "../charts/formula.js";
import { h } from "../core/dom.js";
import { chooseRow, stepAt } from "../core/focus.js";
import { entropy, show, showPercent, softmax, total } from "../core/numbers.js";
import { pieceLabelAt } from "../core/pieces.js";
import { compared, figure, listing, shareBar, tableNamed, tables } from "./parts.js";

const OUTPUT_SHOWN = 6; // last tokens shown at each step of the loop
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
  const made = bars({ items: outputItems(top, logits, 1, chosen), title: "Most likely pieces" });
  const readout = h("output", { class: "number", for: "explain-temperature" }, "1.0");
  const slider = h("input", {
    type: "range", id: "explain-temperature", min: "0.1", max: "2", step: "0.1", value: "1",
    on: { input: () => {
      readout.textContent = Number(slider.value).toFixed(1);
      made.set({ items: outputItems(top, logits, Number(slider.value), chosen) });
    } },
  });
  const element = h(
    "div",
    null,
    h("div", { class: "bars-heads soft small", "aria-hidden": "true" }, ["piece", "", "probability", "logit"].map((name) => h("span", null, name))),
    figure(focus, made.element, ["logits"]),
    h("p", { class: "soft small" }, `and ${(logits.length - top.length).toLocaleString("en")} others: ${showPercent(1 - top.reduce((sum, { id }) => sum + shares[id], 0))} together`),
    h("p", { class: "temperature" }, h("label", { for: "explain-temperature" }, "temperature "), slider, " ", readout),
    h("div", { class: "below" }, tableNamed(facts, "lens")),
  );
  return { picture: { element }, formulas: () => outputProbability(top[0], logits), checks: outputChecks(focus, logits) };
}

function outputItems(top, logits, temperature, chosen) {
  const shares = softmax(logits, temperature);
  return top.map(({ label, id }) => ({ label, value: shares[id], note: show(logits[id]), marked: id === chosen }));
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

/** One token at a time, until the end. */
async function outputLoop(focus) {
  const { m } = focus;
  const now = stepAt(m, focus.row);
  const steps = m.steps.map((step, n) => outputStep(focus, step, n, n === now));
  const update = (to) => steps.forEach((element, n) => element.classList.toggle("focus", n === stepAt(m, to.row)));
  const lines = [
    formula("y t is chosen given all before it", msub("y", "t"), mo("∼"), "p", mo("("), "y", mo("|"), msub("y", mrow(mo("<"), "t")), mo(")")),
    h("p", { class: "small" }, m.ended ? "The loop ended with the end token." : "The loop ended at the length limit, without an end token."),
  ];
  return { picture: { element: h("ol", { class: "turns" }, steps), update }, formulas: () => lines, checks: [] };
}

function outputStep(focus, step, n, focused) {
  const { m } = focus;
  const from = Math.max(m.given, step.row + 1 - OUTPUT_SHOWN);
  const read = [...(from > m.given ? ["…"] : []), ...m.target.labels.slice(from, step.row + 1)];
  const others = step.top.filter(([id]) => id !== step.chosen[0]).slice(0, 2);
  return h(
    "li",
    { class: focused ? "turn focus" : "turn" },
    h(
      "button",
      { type: "button", class: "turn-line", on: { click: () => chooseRow(m, "decoder", step.row) } },
      h("span", { class: "turn-number soft small" }, String(n + 1)),
      h("span", { class: "turn-read", dir: "auto" }, read.map((label) => h("span", { class: "turn-word" }, label))),
      h("span", { class: "soft", "aria-hidden": "true" }, "→"),
      h("strong", { class: "turn-chosen", dir: "auto" }, m.answers.labels[step.row]),
      h("span", { class: "share-cell" }, h("span", { class: "number" }, show(step.chosen[2])), shareBar(step.chosen[2])),
      h("span", { class: "soft small turn-others" }, others.length ? `next best ${others.map(([, piece, probability]) => `${pieceLabelAt(m.answers.pieces, step.row, piece).replace(/^·(?=.)/, "")} ${showPercent(probability)}`).join(", ")}` : ""),
    ),
  );
}

/** The extras are tables, as in the terminal. */
async function outputExtra(focus, facts) {
  const tree = focus.stage === "beam" && focus.m.beam.length ? outputTree(focus) : null;
  const element = h("div", null, tree, tables(facts).map((table, n) => (tree && !n ? h("details", { class: "below" }, h("summary", null, "The same as a table"), listing(table)) : listing(table))));
  const write = { teacher: outputTeacher, beam: outputBeam, loss: outputTeacher, learning: outputLearning }[focus.stage];
  return { picture: { element }, formulas: () => (write ? write(facts.formulas.map(({ numbers }) => numbers)) : []), checks: [] };
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

export const outputStages = { classifier: outputClassifier, loop: outputLoop, follow: outputExtra, teacher: outputExtra, beam: outputExtra, loss: outputExtra, learning: outputExtra };
