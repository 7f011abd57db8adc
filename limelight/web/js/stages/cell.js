// Recurrence: the cell (SSRU) that can take the place of a decoder's masked self-attention, and the
// stages of whole recurrent models, whose gates come with the facts of the stage.

import { calculation, formula, mfactor, mint, mnum, mo, mrow, msub, mwords } from "../charts/formula.js";
import { matrix } from "../charts/matrix.js";
import { h } from "../core/dom.js";
import { total } from "../core/numbers.js";
import { compared, counted, figure, listing, strips } from "./parts.js";

/** Gate, input and state of the chosen token, from the state before; or all states. */
export async function cellStage(focus) {
  const name = (part) => `${focus.at}.${part}`;
  const token = await focus.trace.token(focus.side, focus.row);
  const [gate, value, state, output] = ["gate", "value", "state", "output"].map((part) => token[name(part)].values);
  const earlier = focus.row ? (await focus.trace.token(focus.side, focus.row - 1))[name("state")].values : state.map(() => 0);
  const rows = [
    { title: "state before", values: earlier },
    { title: "gate f: what stays", values: gate, name: name("gate"), sign: "×" },
    { title: "W x: what is new, times 1 − f", values: value, name: name("value"), sign: "+" },
    { title: "state c", values: state, name: name("state"), sign: "=" },
    { title: "output, max(0, c)", values: output, name: name("output"), sign: "→" },
  ];
  const again = Float64Array.from(state, (_, i) => gate[i] * earlier[i] + (1 - gate[i]) * value[i]);
  const element = focus.all ? await cellStates(focus, name("state")) : figure(focus, strips(rows), [name("state")]);
  return {
    picture: { element },
    formulas: () => cellFormulas([gate[0], earlier[0], value[0], state[0]]),
    checks: [compared(focus, "c = f × (c before) + (1 − f) × W x", state, again), compared(focus, "output = max(0, c)", output, state.map((x) => Math.max(0, x)))],
  };
}

async function cellStates(focus, name) {
  const { values, shape } = await focus.trace.tensor(name);
  const made = matrix({ rows: focus.queryTokens.labels, columns: counted(shape[1]), values, title: "State after every token", scale: "signed", labels: { row: "word", column: "number", value: "value" } });
  return figure(focus, made.element, [name]);
}

function cellFormulas([gate, earlier, value, state]) {
  return [
    formula("the state: gate times the state before, plus 1 minus gate times the input", msub("c", "t"), mo("="), msub("f", "t"), msub("c", mrow("t", mo("−"), mint(1))), mo("+"), mo("("), mint(1), mo("−"), msub("f", "t"), mo(")"), "W", msub("x", "t")),
    formula("the gate: a sigmoid of the input", msub("f", "t"), mo("="), mwords("sigmoid"), mo("("), msub("W", "f"), msub("x", "t"), mo("+"), "b", mo(")")),
    h("p", { class: "small" }, "the first number of the state:"),
    calculation([mrow(mfactor(gate), mo("×"), mfactor(earlier), mo("+"), mfactor(1 - gate), mo("×"), mfactor(value)), mrow(mo("="), mnum(state))]),
  ];
}

/** Gates, states and additive attention of the chosen token; or one value at all tokens. */
async function cellFacts(focus, facts) {
  const whole = focus.all && facts.exhibits.some(({ rows, values }) => !rows && !values);
  const wanted = facts.exhibits.filter(({ rows, values }) => (whole ? !rows && !values : rows || values || focus.stage === "attention"));
  const element = h("div", null, await Promise.all(wanted.map((one) => (one.rows ? h("div", { class: "below" }, listing(one)) : cellMatrix(focus, one)))));
  const formulas = facts.formulas.map(({ letters, filled }) => [h("p", { class: "number small" }, letters), h("p", { class: "number" }, filled)]);
  return { picture: { element }, formulas: () => formulas.flat(), checks: await cellChecks(focus) };
}

async function cellMatrix(focus, { title, names, values, labels, columns, scale }) {
  if (values) {
    const flat = Float32Array.from(values.flat(), (x) => x ?? NaN);
    return figure(focus, matrix({ rows: labels, columns, values: flat, title, scale: scale === "share" ? scale : "signed", labels: { row: "value", column: "number", value: "value" } }).element);
  }
  const read = await focus.trace.tensor(names[0]);
  const shares = names[0].endsWith(".weights");
  const made = matrix({
    rows: focus.queryTokens.labels,
    columns: shares ? focus.keyTokens.labels : counted(read.shape[1]),
    values: read.values, title, scale: shares ? "share" : "signed", sums: shares,
    labels: { row: "token", column: shares ? "key" : "number", value: shares ? "weight" : "value" },
  });
  return figure(focus, made.element, names);
}

async function cellChecks(focus) {
  if (focus.stage !== "attention") return [];
  const { values, shape: [rows, columns] } = await focus.trace.tensor("decoder.cross.weights");
  const sums = Float64Array.from({ length: rows }, (_, i) => total(values.subarray(i * columns, (i + 1) * columns)));
  return [compared(focus, "every row sums to 1", sums, sums.map(() => 1))];
}

export const recurrentStages = { recurrence: cellFacts, "decoder-recurrence": cellFacts, attention: cellFacts };
