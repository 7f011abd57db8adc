// The lesson: one task at each stop. What is right comes from the numbers of this very text, layer, head and
// word; which stops are done is kept in the browser.

import { toggleChange } from "../bench/changes.js";
import { button, h, replace } from "../core/dom.js";
import { cosine, largestOf, lengthOf, rowOf, show } from "../core/numbers.js";
import { t } from "../core/texts.js";
import { tables } from "./parts.js";

const LESSON_KEY = "limelight-lesson";
const LESSON_OPTIONS = 6;
const LESSON_UNMASK = "decoder.*.self.masked=off";

/** Stops whose task was done, in this browser. @returns {string[]} */
export function lessonDone() {
  try {
    const kept = JSON.parse(localStorage.getItem(LESSON_KEY) ?? "[]");
    return Array.isArray(kept) ? kept.filter((name) => Object.hasOwn(LESSON_TASKS, name)) : [];
  } catch {
    return lessonOnly; // a browser that keeps nothing, or nonsense
  }
}
let lessonOnly = [];

function lessonKeep(names) {
  lessonOnly = names;
  try {
    localStorage.setItem(LESSON_KEY, JSON.stringify(names));
  } catch {
    // It is kept until the page is left.
  }
}

/**
 * The task at a stop, ready to be answered; null where there is none.
 * @param {Object} focus
 * @param {Object} facts of the stage
 * @param {function(): void} onChange the progress is another one
 */
export async function lessonTask(focus, facts, onChange) {
  const task = await LESSON_TASKS[focus.stage]?.(focus, facts);
  if (!task || (task.options && task.options.length < 2)) return null;
  const said = h("p", { class: "lesson-said", role: "status" });
  const done = (text) => {
    said.className = "lesson-said good";
    replace(said, `✓ ${text}`);
    if (!lessonDone().includes(focus.stage)) lessonKeep([...lessonDone(), focus.stage]);
    drawProgress();
    onChange();
  };
  const not = (text) => {
    said.className = "lesson-said bad";
    replace(said, text);
  };
  const progress = h("p", { class: "small soft lesson-progress" });
  const drawProgress = () => {
    const all = focus.m.stops.filter((name) => Object.hasOwn(LESSON_TASKS, name));
    const count = all.filter((name) => lessonDone().includes(name)).length;
    const again = button(t("Start over"), () => { lessonKeep([]); replace(said); drawProgress(); onChange(); }, { class: "link" });
    replace(progress, t("{0} of {1} tasks done", [count, all.length]), count ? [" · ", again] : null);
  };
  drawProgress();
  const answer = task.options ? lessonChips(task, done, not) : task.action ? button(task.action, task.go, { class: "button" }) : lessonField(task, done, not);
  const solved = lessonDone().includes(focus.stage);
  return h("section", { class: "words-part lesson", "aria-label": t("Your turn") }, h("h2", null, t("Your turn"), solved ? h("span", { class: "good", title: t("done") }, " ✓") : null), h("p", { dir: "auto" }, task.ask), answer, task.undo ? button(task.undo, task.go, { class: "button quiet small" }) : null, said, progress);
}

function lessonChips({ options, right, why }, done, not) {
  const chips = options.map(({ label, i, value }, n) => button(label, () => {
    chips.forEach((chip, at) => chip.setAttribute("aria-pressed", String(at === n)));
    if (right(i)) done(why(label, value));
    else not(t("Not {0}: {1}. Look again.", [label, lessonNumber(value)]));
  }, { class: "chip", dir: "auto", "aria-pressed": "false" }));
  return h("div", { class: "chips lesson-options" }, chips);
}

function lessonField({ number, within, why }, done, not) {
  const field = h("input", { class: "field small-field number-field", type: "text", inputmode: "decimal", name: "answer", autocomplete: "off", "aria-label": t("Your answer") });
  const check = (event) => {
    event.preventDefault();
    const given = Number(field.value.trim().replace(",", ".").replace("−", "-"));
    if (field.value.trim() && Math.abs(given - number) <= within + 1e-9) done(why);
    else if (!field.value.trim() || Number.isNaN(given)) not(t("Write a number."));
    else not(given > number ? t("Less than {0}. Look again.", [lessonNumber(given)]) : t("More than {0}. Look again.", [lessonNumber(given)]));
  };
  return h("form", { class: "lesson-form", on: { submit: check } }, field, " ", h("button", { type: "submit", class: "button" }, t("Check")));
}

function lessonNumber(value) {
  return Number.isInteger(value) ? String(value) : show(value);
}

/** Choose where a value is largest (or smallest); of many the right one and others across the range. */
function lessonPick(ask, labels, values, { least = false, among = null, why = null } = {}) {
  const places = among ?? labels.map((_, i) => i);
  const sign = least ? -1 : 1;
  const best = Math.max(...places.map((i) => sign * values[i]));
  const right = (i) => sign * values[i] >= best - 1e-9 * (1 + Math.abs(best));
  const winner = places.find(right);
  const step = Math.max(1, (places.length - 1) / (LESSON_OPTIONS - 1));
  const others = Array.from({ length: Math.min(places.length, LESSON_OPTIONS) }, (_, n) => places[Math.round(n * step)] ?? places.at(-1)).filter((i) => labels[i] !== labels[winner]);
  const shown = [...new Set([winner, ...others.slice(0, LESSON_OPTIONS - 1)])].sort((a, b) => a - b);
  const seen = new Set();
  const options = shown.filter((i) => !seen.has(labels[i]) && seen.add(labels[i])).map((i) => ({ label: labels[i], i, value: values[i] }));
  return { ask, options, right, why: why ?? ((label, value) => t("Yes: {0}, with {1}.", [label, lessonNumber(value)])) };
}

function lessonCount(ask, number, within = 0, why = null) {
  return { ask, number, within, why: why ?? t("Yes: {0}.", [lessonNumber(number)]) };
}

const lessonHead = (focus) => focus.trace.attentionHead(focus.at, focus.head);
const lessonLabel = (focus) => focus.queryTokens.labels[focus.row];
const lessonTable = (facts, name) => tables(facts).find(({ names }) => names.includes(name));

async function lessonWeights(focus, what, ask) {
  const eq = await lessonHead(focus);
  const masked = rowOf(eq.masked, focus.row);
  const among = focus.keyTokens.labels.map((_, j) => j).filter((j) => what === "scores" || masked[j] !== -Infinity);
  return lessonPick(ask, focus.keyTokens.labels, rowOf(eq[what], focus.row), { among });
}

/** How many tokens are hidden; in a decoder, what leaks without the mask. */
async function lessonMask(focus) {
  const eq = await lessonHead(focus);
  const { row, keyTokens } = focus;
  const [masked, weights] = [rowOf(eq.masked, row), rowOf(eq.weights, row)];
  const later = keyTokens.labels.map((_, j) => j).filter((j) => j > row);
  const hidden = masked.filter((x) => x === -Infinity).length;
  const go = () => toggleChange(LESSON_UNMASK);
  const live = !focus.page.offline; // a file cannot run the model again
  const off = focus.m.changes?.some((one) => one.includes("self.masked=off"));
  if (off && later.length > 1) return { ...lessonPick(t("The mask is off. Which token that comes after {0} leaks most, by its weight?", [lessonLabel(focus)]), keyTokens.labels, weights, { among: later, why: (label, value) => t("Yes: {1} of the weight goes to {0}, which the model should only predict. In training it would copy instead of learn.", [label, show(value)]) }), ...(live ? { undo: t("Switch the mask on again"), go } : {}) };
  if (hidden > 1 && focus.side === "decoder" && !off && live) return { ask: t("{0} tokens are hidden from {1}. Switch the mask off: what leaks?", [hidden, lessonLabel(focus)]), action: t("Switch the mask off"), go };
  return { ...lessonCount(t("How many tokens are hidden from {0}?", [lessonLabel(focus)]), hidden), ...(off && live ? { undo: t("Switch the mask on again"), go } : {}) };
}

async function lessonPositions(focus) {
  const name = `${focus.side}.positions`;
  const ask = t("What is added to the embeddings of this model?");
  const kinds = [t("a vector for each position"), t("nothing")];
  if (!(name in focus.m.tensors)) return lessonPick(ask, kinds, [0, 1], { why: (label) => t("Yes: {0}.", [label]) });
  const { values, shape: [count, width] } = await focus.trace.tensor(name);
  if (count < 2) return null;
  const columns = [0, 2 * Math.floor(width / 6), width - 2];
  const moved = columns.map((n) => Math.abs(values[width + n] - values[n]));
  return lessonPick(t("From position 0 to position 1, which of these numbers changes most?"), columns.map((n) => t("number {0}", [n + 1])), moved);
}

async function lessonSum(focus) {
  const eq = await lessonHead(focus);
  const weights = rowOf(eq.weights, focus.row);
  const sizes = focus.keyTokens.labels.map((_, j) => weights[j] * lengthOf(rowOf(eq.v, j)));
  return lessonPick(t("Whose weighted value is the longest vector in this sum?"), focus.keyTokens.labels, sizes, { among: sizes.map((_, j) => j).filter((j) => weights[j] > 0) });
}

async function lessonHeads(focus) {
  const { values, shape } = await focus.trace.tensor(`${focus.at}.weights`, { rows: [focus.row, focus.row + 1] });
  const sharpest = Array.from({ length: shape[0] }, (_, n) => Math.max(...values.subarray(n * shape.at(-1), (n + 1) * shape.at(-1))));
  return lessonPick(t("Which head is sharpest at {0}: which gives one key the largest weight?", [lessonLabel(focus)]), sharpest.map((_, n) => t("head {0}", [n + 1])), sharpest);
}

async function lessonAddNorm(focus) {
  const token = await focus.trace.token(focus.side, focus.row);
  const post = focus.m.model.norm_order === "post";
  const came = focus.m.tensors[`${focus.at}.${post ? "query" : "norm"}`].from[0];
  const sizes = [came, `${focus.at}.output`].map((name) => lengthOf(token[name].values));
  return lessonPick(t("Which vector of {0} is longer?", [lessonLabel(focus)]), [t("x, the input"), t("attention output")], sizes);
}

async function lessonStack(focus) {
  const token = await focus.trace.token(focus.side, focus.row);
  const last = focus.m.model.norm_order === "post" ? "norm" : "add";
  const names = Object.keys(token).filter((name) => name.endsWith(`feed_forward.${last}`));
  const states = [`${focus.side}.input`, ...names].map((name) => token[name].values);
  return lessonPick(t("Which layer turns the vector of {0} most (smallest cosine)?", [lessonLabel(focus)]), names.map((_, n) => t("layer {0}", [n + 1])), names.map((_, n) => cosine(states[n + 1], states[n])), { least: true });
}

/** The temperature at which the best piece is twice as likely as the second: T = (s1 − s2) / ln 2. */
async function lessonClassifier(focus, facts) {
  const { m } = focus;
  if (m.classes.length) return lessonPick(t("Which class has the largest logit?"), m.classes.map(([label]) => label), m.classes.map(([, , logit]) => logit));
  if (m.model.masked_head === false) return lessonCount(t("How long is the pooled vector before it is divided by its length?"), facts.formulas[0].numbers.length, 0.01);
  const { values } = await focus.trace.logits(focus.row);
  const [first, second] = largestOf(values, 2);
  const temperature = (values[first] - values[second]) / Math.LN2;
  const [a, b] = [first, second].map((id) => lessonTable(facts, "top").rows.find((row) => Number(row[1]) === id)?.[0] ?? String(id));
  const why = t("Yes: ({0} − {1}) / ln 2 = {2}. They would be equally likely only at an infinite temperature.", [show(values[first]), show(values[second]), show(temperature)]);
  return lessonCount(t("At which temperature is {0} exactly twice as likely as {1}? (Their logits are {2} and {3}.)", [a, b, show(values[first]), show(values[second])]), temperature, 0.02 * temperature + 0.01, why);
}

function lessonStates(focus, facts) {
  const rows = lessonTable(facts, "gates").rows;
  return lessonPick(t("After which token is the state longest?"), rows.map(([label]) => label), rows.map((row) => row.at(-1)));
}

async function lessonAdditive(focus) {
  const weights = rowOf(await focus.trace.tensor("decoder.cross.weights"), focus.row);
  return lessonPick(t("Which key gets the most weight from {0}?", [lessonLabel(focus)]), focus.keyTokens.labels, weights);
}

function lessonLoss(focus, facts) {
  const rows = (lessonTable(facts, "loss") ?? lessonTable(facts, "teacher")).rows;
  return lessonPick(t("Which true token surprises the model most?"), rows.map((row) => row[2]), rows.map((row) => row[4]));
}

function lessonSteps(focus, ask, value, how) {
  const { m } = focus;
  return m.steps.length ? lessonPick(ask, m.steps.map(({ row }) => m.answers.labels[row]), m.steps.map(value), how) : null;
}

const LESSON_TASKS = {
  pieces: ({ queryTokens }) => lessonCount(t("How many tokens does the model read here, special ones included?"), queryTokens.ids.length),
  embedding: (focus, facts) => {
    const { rows } = lessonTable(facts, "neighbours");
    return lessonPick(t("Which token has the embedding closest in direction to that of {0}?", [lessonLabel(focus)]), rows.map(([label]) => label), rows.map((row) => row[2]));
  },
  positions: lessonPositions,
  queries: async (focus) => lessonCount(t("How many numbers does q have in one head?"), (await lessonHead(focus)).q.shape[1]),
  scores: (focus) => lessonWeights(focus, "scores", t("Which key matches the query of {0} best, by its score?", [lessonLabel(focus)])),
  scaling: ({ m }) => lessonCount(t("By which number is every score divided?"), m.model.scaling ? Math.sqrt(m.model.d_head) : 1, 0.01),
  mask: lessonMask,
  softmax: async (focus) => {
    const weights = rowOf((await lessonHead(focus)).weights, focus.row);
    return lessonCount(t("How much weight do the two strongest keys of {0} have together (0 to 1)?", [lessonLabel(focus)]), largestOf(weights, 2).reduce((sum, j) => sum + weights[j], 0), 0.01);
  },
  sum: lessonSum,
  heads: lessonHeads,
  "add-norm": lessonAddNorm,
  "feed-forward": async (focus) => {
    const active = (await focus.trace.token(focus.side, focus.row))[`${focus.side}.${focus.layer - 1}.feed_forward.active`].values;
    return lessonCount(t("How many hidden units are exactly 0 at {0}?", [lessonLabel(focus)]), active.filter((x) => x === 0).length);
  },
  stack: lessonStack,
  start: ({ m }) => lessonPick(t("Which token does the decoder read first, before anything is written?"), m.target.labels, m.target.labels.map((_, i) => (i ? 0 : 1)), { why: (label) => t("Yes: {0}.", [label]) }),
  masked: async (focus) => (focus.m.model.decoder_cell === "ssru" ? lessonCount(t("How many numbers does the cell carry from token to token?"), focus.m.tensors[`${focus.at}.state`].shape[1]) : lessonMask(focus)),
  cross: (focus) => lessonWeights(focus, "weights", t("Which source token does this head read most for {0}?", [lessonLabel(focus)])),
  recurrence: lessonStates,
  "decoder-recurrence": lessonStates,
  attention: lessonAdditive,
  classifier: lessonClassifier,
  loop: (focus) => lessonSteps(focus, t("At which token was the model least sure of its choice?"), ({ chosen }) => chosen[2], { least: true }),
  follow: (focus) => lessonSteps(focus, t("Before which token was the choice most open (largest entropy)?"), ({ entropy }) => entropy),
  teacher: lessonLoss,
  beam: ({ m }) => lessonCount(t("How many hypotheses reached the end token?"), m.beam.flat().filter((node) => node[5]).length),
  loss: lessonLoss,
  learning: (focus, facts) => {
    const { rows } = lessonTable(facts, "step");
    return lessonPick(t("Which true token gains the most probability from this step?"), rows.map((row) => row[2]), rows.map((row) => row[4]));
  },
};
