// The first stages: tokenization, embedding, positions, and the input of the decoder.

import { calculation, formula, mfrac, mint, mnum, mo, mrow, msqrt, msub, msup, mwords } from "../charts/formula.js";
import { chart } from "../charts/chart.js";
import { matrix } from "../charts/matrix.js";
import { tokenMap } from "../charts/tokenMap.js";
import { h } from "../core/dom.js";
import { chooseRow, twoSided } from "../core/focus.js";
import { rowOf } from "../core/numbers.js";
import { t } from "../core/texts.js";
import { compared, counted, figure, firstFew, strips, tableNamed, tables } from "./parts.js";
import { rotaryDials } from "./rotary.js";

/** The text as pieces. */
async function embedPieces(focus, facts) {
  const { queryTokens, m } = focus;
  const cards = queryTokens.labels.map((label, i) =>
    h(
      "button",
      {
        type: "button",
        class: `piece${queryTokens.special[i] ? " special" : ""}`,
        "aria-pressed": String(i === focus.row),
        title: embedOrigin(focus, i),
        on: { click: () => chooseRow(m, focus.side, i) },
      },
      h("span", { class: "piece-label", dir: "auto" }, label),
      h("span", { class: "piece-id number" }, String(queryTokens.ids[i])),
      h("span", { class: "soft small" }, embedOrigin(focus, i)),
    ),
  );
  const element = h(
    "div",
    null,
    h("p", { class: "typed", dir: "auto" }, `“${m.text}”`),
    h("p", { class: "down", "aria-hidden": "true" }, "↓"),
    h("div", { class: cards.length > 12 ? "pieces many" : "pieces" }, cards),
    h("div", { class: "below" }, embedMerges(facts)),
  );
  const update = (now) => cards.forEach((card, i) => card.setAttribute("aria-pressed", String(i === now.row)));
  return { picture: { element, update }, formulas: () => [], checks: [] };
}

/** The BPE merges, word by word, from bytes. */
function embedMerges(facts) {
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
    { open: true },
    h("summary", null, t("How the tokenizer found these pieces")),
    h("p", { class: "small soft" }, `${table.title}.`),
    h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "merges" }, h("table", { class: "table merges" }, h("tbody", null, rows))),
  );
}

function embedOrigin(focus, i) {
  const span = focus.queryTokens.spans[i];
  if (focus.side === "decoder" && i > focus.m.given) return focus.m.how === "given" ? "given" : "generated";
  if (!span) return t("added");
  return span[1] - span[0] === 1 ? `character ${span[0] + 1}` : `characters ${span[0] + 1}–${span[1]}`;
}

/** A row of the table for each piece. */
async function embedVectors(focus, facts) {
  const name = `${focus.side}.embedding`;
  const label = focus.queryTokens.labels[focus.row];
  if (focus.all) {
    const table = await focus.trace.tensor(name);
    const element = figure(focus, embedMatrix(focus, table, "Embedding rows of this text"), [name]);
    return { picture: { element }, formulas: () => embedLookup(focus, facts, label), checks: [] };
  }
  const { values } = await focus.trace.tensor(name, { rows: [focus.row, focus.row + 1] });
  const element = h(
    "div",
    null,
    figure(focus, strips([{ title: `row ${focus.queryTokens.ids[focus.row]} of the embedding table: ${label}`, values, name }]), [name]),
    await embedMap(focus, facts),
  );
  return { picture: { element }, formulas: () => embedLookup(focus, facts, label, values), checks: [] };
}

/** The map of tokens; an exported file has the nearest tokens only. */
async function embedMap(focus, facts) {
  const nearest = h("div", { class: "below" }, tableNamed(facts, "neighbours"));
  const map = await focus.trace.map(focus.side).catch(() => null);
  return map && map.points.length > 2 ? h("div", { class: "map-beside" }, tokenMap(map, focus.queryTokens.ids[focus.row]), nearest) : nearest;
}

function embedMatrix(focus, table, title, rows = focus.queryTokens.labels) {
  return matrix({ rows, columns: counted(table.shape[1]), values: table.values, title, scale: "signed", labels: { row: "word", column: "number", value: "value" } }).element;
}

function embedLookup(focus, facts, label, values = null) {
  const { d_model: width } = focus.m.model;
  const lines = [
    formula("x is row id of the table E", "x", mo("="), msub("E", mint(focus.queryTokens.ids[focus.row]))),
    values ? h("p", { class: "number small" }, `${label} = ${firstFew(values)}`) : null,
  ];
  const scaled = facts.formulas[1]?.numbers;
  if (!scaled) return lines;
  const first = facts.formulas[0].numbers.first;
  return [
    ...lines,
    h("p", { class: "small" }, "then scaled by √d_model, as in the paper; the first number:"),
    calculation([mrow(mnum(first), mo("×"), msqrt(mint(width))), mrow(mo("="), mnum(first), mo("×"), mnum(scaled.scale)), mrow(mo("="), mnum(scaled.scaled))]),
  ];
}

/** Embedding plus position. */
async function embedPositions(focus, facts) {
  const { side, m } = focus;
  const names = ["embedding", "positions", "segments", "input"].map((part) => `${side}.${part}`).filter((name) => name in m.tensors);
  const found = Object.fromEntries(await embedRead(focus, names));
  const scale = m.model.family === "encoder-decoder" ? Math.sqrt(m.model.d_model) : 1;
  const dials = await rotaryDials(focus);
  const element = focus.all ? embedAllWords(focus, found) : h("div", null, dials?.element, embedSum(focus, found, names, scale), await embedCurves(focus));
  const formulas = () => [...embedFormulas(focus, facts, found), ...(dials?.formulas() ?? [])];
  return { picture: { element }, formulas, checks: [...embedChecks(focus, found, names, scale), ...(dials?.checks ?? [])] };
}

/** These values of the chosen word, or of all; each with the position of its first row. */
async function embedRead(focus, names) {
  const rows = focus.all ? {} : { rows: [focus.row, focus.row + 1] };
  const pairs = [];
  for (const name of names) pairs.push([name, { ...(await focus.trace.tensor(name, rows)), first: focus.all ? 0 : focus.row }]);
  return pairs;
}

function embedRow(focus, table) {
  return rowOf(table, focus.row - table.first);
}

function embedAllWords(focus, found) {
  const { side } = focus;
  const positions = found[`${side}.positions`];
  return h(
    "div",
    null,
    positions ? figure(focus, embedMatrix(focus, positions, "Position vectors", counted(positions.shape[0]).map((_, i) => `position ${i}`)), [`${side}.positions`]) : null,
    figure(focus, embedMatrix(focus, found[`${side}.input`], "Input of the first layer"), [`${side}.input`]),
  );
}

function embedSum(focus, found, names, scale) {
  if (names.length === 2) return figure(focus, strips([{ title: t("the embedding alone"), values: embedRow(focus, found[names[1]]), name: names[1] }]), [names[1]]); // no positions are added
  const titles = { embedding: scale === 1 ? "embedding" : `embedding × √${focus.m.model.d_model}`, positions: `position ${focus.row}`, segments: "segment", input: "sum: input of the first layer" };
  const rows = names.map((name, n) => {
    const part = name.split(".")[1];
    const values = embedRow(focus, found[name]).map((x) => (part === "embedding" ? x * scale : x));
    return { title: titles[part], values, name: part === "embedding" && scale !== 1 ? "" : name, sign: n === 0 ? "" : part === "input" ? "=" : "+" };
  });
  return figure(focus, strips(rows), [`${focus.side}.input`]);
}

/** Some columns of the position vectors, followed from position to position: sinusoids beyond this text too. */
async function embedCurves(focus) {
  const { side, m, row } = focus;
  const { d_model: width, positions, max_len: most } = m.model;
  if (!(`${side}.positions` in m.tensors)) return null;
  const waves = positions === "sinusoidal";
  const table = waves ? null : await focus.trace.tensor(`${side}.positions`);
  const count = waves ? Math.min(most, Math.max(48, row + 8)) : table.shape[0];
  const columns = (waves ? [0, 1, 2 * Math.floor(width / 12), 2 * Math.floor(width / 6)] : [0, 1, 2, 3]).filter((n, i, all) => n < width && all.indexOf(n) === i);
  const series = columns.map((n) => ({
    name: waves ? `${n % 2 ? "cos" : "sin"} ${n + 1}` : t("number {0}", [n + 1]),
    points: Array.from({ length: count }, (_, p) => [p, waves ? embedSinusoid(p, n, width) : table.values[p * width + n]]),
  }));
  const title = waves ? t("Sinusoids from fast to slow, over the positions") : t("Learned numbers, over the positions of this text");
  return h("div", { class: "below curves" }, chart({ series, title, x: t("position"), y: t("value"), at: row, plain: true }).element);
}

function embedFormulas(focus, facts, found) {
  const sinusoid = focus.m.model.positions === "sinusoidal" ? facts.formulas[0].numbers : null;
  const sum = facts.formulas[facts.formulas.length - 1]?.numbers;
  const lines = [];
  if (sinusoid) {
    const d = focus.m.model.d_model;
    lines.push(
      formula("the sine of the position over 10000 to the power 2 i over d", mwords("PE"), mo("("), "p", mo(","), mrow(mint(2), "i"), mo(")"), mo("="), mwords("sin"), mo("("), mfrac("p", msup(mint(10000), mfrac(mrow(mint(2), "i"), "d"))), mo(")")),
      h("p", { class: "small" }, `position ${focus.row}, pair i = ${Math.min(2, d / 2 - 1)} of ${d / 2} (sine and cosine):`),
      calculation([mrow(mwords("sin"), mo("("), mnum(sinusoid.angle), mo(")")), mrow(mo("="), mnum(sinusoid.sin))]),
      calculation([mrow(mwords("cos"), mo("("), mnum(sinusoid.angle), mo(")")), mrow(mo("="), mnum(sinusoid.cos))]),
    );
  } else if (focus.m.model.positions === "learned") {
    lines.push(formula("row p of the position table", msub("P", mint(focus.row))), h("p", { class: "number small" }, firstFew(embedRow(focus, found[`${focus.side}.positions`]))));
  }
  if (sum?.input !== undefined) lines.push(...embedAddition(focus, sum));
  return lines;
}

function embedAddition(focus, sum) {
  const parts = ["embedding", "place", "segment"].filter((part) => sum[part] !== undefined);
  const pieces = parts.map((part, n) => mrow(...(n ? [mo("+")] : []), mnum(sum[part])));
  const normed = focus.m.model.family === "encoder-only";
  return [
    h("p", { class: "small" }, "the first number of ", h("strong", { dir: "auto" }, focus.queryTokens.labels[focus.row]), normed ? ": the sum, then layer norm" : ":"),
    calculation([...pieces, mrow(mo(normed ? "→" : "="), mnum(sum.input))]),
  ];
}

/** The sum recomputed, and the sinusoids from their formula. */
function embedChecks(focus, found, names, scale) {
  const { side, m } = focus;
  const checks = [];
  if (m.model.family !== "encoder-only") {
    const again = Float64Array.from(found[`${side}.input`].values, (_, i) =>
      names.slice(0, -1).reduce((sum, name) => sum + found[name].values[i] * (name.endsWith("embedding") ? scale : 1), 0),
    );
    checks.push(compared(focus, focus.all ? "input = the sum of these, for all tokens" : "input = the sum of these", found[`${side}.input`].values, again));
  }
  if (m.model.positions === "sinusoidal") {
    const { values, shape, first } = found[`${side}.positions`];
    const again = Float64Array.from(values, (_, at) => embedSinusoid(first + Math.floor(at / shape[1]), at % shape[1], shape[1]));
    checks.push(compared(focus, "positions = sin and cos of these angles", values, again));
  }
  return checks;
}

function embedSinusoid(position, n, width) {
  const angle = position / 10000 ** ((n - (n % 2)) / width);
  return n % 2 ? Math.cos(angle) : Math.sin(angle);
}

/** The shifted input of the decoder: what each row reads and predicts. */
async function embedStart(focus) {
  const { m } = focus;
  const names = ["decoder.embedding", "decoder.positions", "decoder.input"].filter((name) => name in m.tensors);
  const found = Object.fromEntries(await embedRead(focus, names));
  const scale = twoSided(m) ? Math.sqrt(m.model.d_model) : 1;
  const rows = m.target.labels.map((label, i) =>
    h(
      "tr",
      { class: i === focus.row ? "focus" : null },
      h("td", { class: "n" }, String(i)),
      h("td", null, h("button", { type: "button", class: `chip${m.target.special[i] ? " special" : ""}`, dir: "auto", "aria-pressed": String(i === focus.row), on: { click: () => chooseRow(m, "decoder", i) } }, label)),
      h("td", { class: "soft" }, "→"),
      h("td", { dir: "auto" }, m.answers.labels[i] ?? "?"),
    ),
  );
  const table = h(
    "table",
    { class: "table shifted" },
    h("thead", null, h("tr", null, [t("row"), t("reads"), t("then"), t("predicts")].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", null, rows),
  );
  const picture = focus.all
    ? figure(focus, matrix({ rows: m.target.labels, columns: counted(m.model.d_model), values: found["decoder.input"].values, title: "Input of the decoder", scale: "signed", labels: { row: "word", column: "number", value: "value" } }).element, ["decoder.input"])
    : embedSum(focus, found, names, scale);
  const element = h("div", null, h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "what each row reads and predicts" }, table), picture);
  const letters = formula("the decoder input: the tokens so far, shifted right by one", mwords("(start, "), msub("y", mint(1)), mo(","), mo("…"), mo(","), msub("y", mrow("t", mo("−"), mint(1))), mwords(")"), mo("→"), msub("y", "t"));
  return { picture: { element }, formulas: () => [letters], checks: embedChecks(focus, found, names, scale).slice(0, 1) };
}

export const embeddingStages = { pieces: embedPieces, embedding: embedVectors, positions: embedPositions, start: embedStart };
