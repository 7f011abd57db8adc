// The first stops: words become pieces, pieces become vectors, vectors learn their places.

import { calculation, formula, mfrac, mint, mnum, mo, mrow, msqrt, msub, msup, mwords } from "../charts/formula.js";
import { matrix } from "../charts/matrix.js";
import { h } from "../core/dom.js";
import { chooseRow, twoSided } from "../core/focus.js";
import { rowOf } from "../core/numbers.js";
import { compared, counted, figure, firstFew, strips, tableNamed, tables } from "./parts.js";

/** The text, cut. */
async function enterPieces(where, facts) {
  const { asking, m } = where;
  const cards = asking.labels.map((label, i) =>
    h(
      "button",
      {
        type: "button",
        class: `piece${asking.special[i] ? " special" : ""}`,
        "aria-pressed": String(i === where.row),
        on: { click: () => chooseRow(m, where.side, i) },
      },
      h("span", { class: "piece-label", dir: "auto" }, label),
      h("span", { class: "piece-id number" }, String(asking.ids[i])),
      h("span", { class: "soft small" }, enterFrom(where, i)),
    ),
  );
  const element = h(
    "div",
    null,
    h("p", { class: "typed", dir: "auto" }, `“${m.text}”`),
    h("p", { class: "down", "aria-hidden": "true" }, "↓"),
    h("div", { class: "pieces" }, cards),
    h("div", { class: "below" }, enterMerges(facts)),
  );
  const update = (now) => cards.forEach((card, i) => card.setAttribute("aria-pressed", String(i === now.row)));
  return { picture: { element, update }, formulas: () => [], checks: [] };
}

/** The tokenizer's work, word by word: bytes first, then what was joined. */
function enterMerges(facts) {
  const table = tables(facts).find((one) => one.names.includes("merges"));
  if (!table) return null;
  const rows = table.rows.map(([word, steps]) =>
    h(
      "tr",
      null,
      h("th", { scope: "row", dir: "auto" }, word),
      h("td", null, steps.map((step, n) => [n ? h("span", { class: "soft arrow" }, " → ") : null, h("span", { class: "merge-step" }, step.split(" ").map((piece) => h("span", { class: "merge-piece" }, piece)))])),
    ),
  );
  return h(
    "details",
    null,
    h("summary", null, "How the tokenizer came to these pieces"),
    h("p", { class: "small soft" }, `${table.title}.`),
    h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "merges" }, h("table", { class: "table merges" }, h("tbody", null, rows))),
  );
}

function enterFrom(where, i) {
  const span = where.asking.spans[i];
  if (where.side === "decoder" && i > where.m.given) return where.m.how === "given" ? "given" : "written";
  if (!span) return "added";
  return span[1] - span[0] === 1 ? `character ${span[0] + 1}` : `characters ${span[0] + 1}–${span[1]}`;
}

/** A row of the table for each piece. */
async function enterEmbedding(where, facts) {
  const name = `${where.side}.embedding`;
  const label = where.asking.labels[where.row];
  if (where.all) {
    const table = await where.trace.tensor(name);
    const element = figure(where, enterMatrix(where, table, "The rows of the table for this text"), [name]);
    return { picture: { element }, formulas: () => enterLookup(where, facts, label), checks: [] };
  }
  const { values } = await where.trace.tensor(name, { rows: [where.row, where.row + 1] });
  const element = h(
    "div",
    null,
    figure(where, strips([{ title: `row ${where.asking.ids[where.row]} of the table: ${label}`, values, name }]), [name]),
    h("div", { class: "below" }, tableNamed(facts, "neighbours")),
  );
  return { picture: { element }, formulas: () => enterLookup(where, facts, label, values), checks: [] };
}

function enterMatrix(where, table, title, rows = where.asking.labels) {
  return matrix({ rows, columns: counted(table.shape[1]), values: table.values, title, scale: "signed", labels: { row: "word", column: "number", value: "value" } }).element;
}

function enterLookup(where, facts, label, values = null) {
  const { d_model: width } = where.m.model;
  const lines = [
    formula("x is row id of the table E", "x", mo("="), msub("E", mint(where.asking.ids[where.row]))),
    values ? h("p", { class: "number small" }, `${label} = ${firstFew(values)}`) : null,
  ];
  const scaled = facts.formulas[1]?.numbers;
  if (!scaled) return lines;
  const first = facts.formulas[0].numbers.first;
  return [
    ...lines,
    h("p", { class: "small" }, "then made larger, as in the paper; its first number:"),
    calculation([mrow(mnum(first), mo("×"), msqrt(mint(width))), mrow(mo("="), mnum(first), mo("×"), mnum(scaled.scale)), mrow(mo("="), mnum(scaled.scaled))]),
  ];
}

/** Where a piece stands. */
async function enterPositions(where, facts) {
  const { side, m } = where;
  const rotary = m.model.positions === "rotary";
  const names = [`${side}.embedding`, ...(rotary ? [] : [`${side}.positions`]), ...(`${side}.segments` in m.tensors ? [`${side}.segments`] : []), `${side}.input`];
  const found = Object.fromEntries(await enterAll(where, names));
  const scale = m.model.family === "encoder-decoder" ? Math.sqrt(m.model.d_model) : 1;
  const element = where.all ? enterPlaces(where, found, rotary) : enterAdded(where, found, names, scale);
  return { picture: { element }, formulas: () => enterPlaceFormulas(where, facts, found), checks: enterChecks(where, found, names, scale) };
}

/** These values of the chosen word, or of all; each with the place of its first row. */
async function enterAll(where, names) {
  const rows = where.all ? {} : { rows: [where.row, where.row + 1] };
  const pairs = [];
  for (const name of names) pairs.push([name, { ...(await where.trace.tensor(name, rows)), first: where.all ? 0 : where.row }]);
  return pairs;
}

function enterRow(where, table) {
  return rowOf(table, where.row - table.first);
}

function enterPlaces(where, found, rotary) {
  const { side } = where;
  const places = rotary ? null : found[`${side}.positions`];
  return h(
    "div",
    null,
    places ? figure(where, enterMatrix(where, places, "The places", counted(places.shape[0]).map((_, i) => `place ${i}`)), [`${side}.positions`]) : null,
    figure(where, enterMatrix(where, found[`${side}.input`], "What enters the first layer"), [`${side}.input`]),
  );
}

function enterAdded(where, found, names, scale) {
  const titles = { embedding: scale === 1 ? "the word" : `the word × √${where.m.model.d_model}`, positions: `place ${where.row}`, segments: "which sentence (segment)", input: "together: what enters the first layer" };
  const rows = names.map((name, n) => {
    const part = name.split(".")[1];
    const values = enterRow(where, found[name]).map((x) => (part === "embedding" ? x * scale : x));
    return { title: titles[part], values, name: part === "embedding" && scale !== 1 ? "" : name, sign: n === 0 ? "" : part === "input" ? "=" : "+" };
  });
  return figure(where, strips(rows), [`${where.side}.input`]);
}

function enterPlaceFormulas(where, facts, found) {
  const waves = where.m.model.positions === "sinusoidal" ? facts.formulas[0].numbers : null;
  const sum = facts.formulas[facts.formulas.length - 1]?.numbers;
  const lines = [];
  if (waves) {
    const d = where.m.model.d_model;
    lines.push(
      formula("the sine of the place over 10000 to the power 2 i over d", mwords("PE"), mo("("), "p", mo(","), mrow(mint(2), "i"), mo(")"), mo("="), mwords("sin"), mo("("), mfrac("p", msup(mint(10000), mfrac(mrow(mint(2), "i"), "d"))), mo(")")),
      h("p", { class: "small" }, `place ${where.row}, the pair i = ${Math.min(2, d / 2 - 1)} of ${d / 2} (cosine beside it):`),
      calculation([mrow(mwords("sin"), mo("("), mnum(waves.angle), mo(")")), mrow(mo("="), mnum(waves.sin))]),
      calculation([mrow(mwords("cos"), mo("("), mnum(waves.angle), mo(")")), mrow(mo("="), mnum(waves.cos))]),
    );
  } else if (where.m.model.positions === "learned") {
    lines.push(formula("row p of the table of places", msub("P", mint(where.row))), h("p", { class: "number small" }, firstFew(enterRow(where, found[`${where.side}.positions`]))));
  }
  if (sum?.input !== undefined) lines.push(...enterSum(where, sum));
  return lines;
}

function enterSum(where, sum) {
  const parts = ["embedding", "place", "segment"].filter((part) => sum[part] !== undefined);
  const pieces = parts.map((part, n) => mrow(...(n ? [mo("+")] : []), mnum(sum[part])));
  const normed = where.m.model.family === "encoder-only";
  return [
    h("p", { class: "small" }, "the first number of ", h("strong", { dir: "auto" }, where.asking.labels[where.row]), normed ? ": all of them added, and normed" : ":"),
    calculation([...pieces, mrow(mo(normed ? "→" : "="), mnum(sum.input))]),
  ];
}

/** Added up again; and the paper's waves made again, from nothing but their formula. */
function enterChecks(where, found, names, scale) {
  const { side, m } = where;
  const checks = [];
  if (m.model.family !== "encoder-only") {
    const again = Float64Array.from(found[`${side}.input`].values, (_, i) =>
      names.slice(0, -1).reduce((sum, name) => sum + found[name].values[i] * (name.endsWith("embedding") ? scale : 1), 0),
    );
    checks.push(compared(where, where.all ? "input = the sum of these, for all words" : "input = the sum of these", found[`${side}.input`].values, again));
  }
  if (m.model.positions === "sinusoidal") {
    const { values, shape, first } = found[`${side}.positions`];
    const again = Float64Array.from(values, (_, at) => enterWave(first + Math.floor(at / shape[1]), at % shape[1], shape[1]));
    checks.push(compared(where, "the places are sin and cos of these angles", values, again));
  }
  return checks;
}

function enterWave(place, n, width) {
  const angle = place / 10000 ** ((n - (n % 2)) / width);
  return n % 2 ? Math.cos(angle) : Math.sin(angle);
}

/** How a decoder begins: what each row reads, and what it predicts. */
async function enterStart(where) {
  const { m } = where;
  const names = ["decoder.embedding", ...(m.model.positions === "rotary" ? [] : ["decoder.positions"]), "decoder.input"];
  const found = Object.fromEntries(await enterAll(where, names));
  const scale = twoSided(m) ? Math.sqrt(m.model.d_model) : 1;
  const rows = m.target.labels.map((label, i) =>
    h(
      "tr",
      { class: i === where.row ? "focus" : null },
      h("td", { class: "n" }, String(i)),
      h("td", null, h("button", { type: "button", class: `chip${m.target.special[i] ? " special" : ""}`, dir: "auto", "aria-pressed": String(i === where.row), on: { click: () => chooseRow(m, "decoder", i) } }, label)),
      h("td", { class: "soft" }, "→"),
      h("td", { dir: "auto" }, m.answers.labels[i] ?? "?"),
    ),
  );
  const table = h(
    "table",
    { class: "table shifted" },
    h("thead", null, h("tr", null, ["row", "reads", "then", "predicts"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", null, rows),
  );
  const picture = where.all
    ? figure(where, matrix({ rows: m.target.labels, columns: counted(m.model.d_model), values: found["decoder.input"].values, title: "What enters the decoder", scale: "signed", labels: { row: "word", column: "number", value: "value" } }).element, ["decoder.input"])
    : enterAdded(where, found, names, scale);
  const element = h("div", null, h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "what each row reads and predicts" }, table), picture);
  const letters = formula("the decoder's input: the words so far, one place to the right", mwords("(start, "), msub("y", mint(1)), mo(","), mo("…"), mo(","), msub("y", mrow("t", mo("−"), mint(1))), mwords(")"), mo("→"), msub("y", "t"));
  return { picture: { element }, formulas: () => [letters], checks: enterChecks(where, found, names, scale).slice(0, 1) };
}

export const enteringStops = { pieces: enterPieces, embedding: enterEmbedding, positions: enterPositions, start: enterStart };
