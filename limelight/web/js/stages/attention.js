// The stages of equation 1. For one query a table with a row per key, which grows from stage to
// stage; for all queries a matrix.

import { calculation, formula, mfactor, mfrac, mij, mint, mnum, mo, mrole, mrow, msqrt, msub, msum, msup, mwords, sumOfProducts } from "../charts/formula.js";
import { matrix } from "../charts/matrix.js";
import { vectorStrip } from "../charts/vectorStrip.js";
import { button, h, svg } from "../core/dom.js";
import { nextWords, twoSided, wordAt } from "../core/focus.js";
import { dot, entropy, largestOf, rowOf, show, softmax, total } from "../core/numbers.js";
import { pointAt } from "../core/pointer.js";
import { select } from "../core/state.js";
import { t } from "../core/texts.js";
import { cellStage } from "./cell.js";
import { compared, counted, figure, origin, shareBar, strips, valueLink } from "./parts.js";

const ATTEND_TABLE = {
  scores: ["k", "score"],
  scaling: ["score", "scaled", "with", "without"],
  mask: ["scaled", "mask", "masked"],
  softmax: ["masked", "weight"],
  masked: ["score", "scaled", "mask", "weight"],
  cross: ["score", "scaled", "weight"],
};
const attendTitles = () => ({ k: t("k (label)"), score: t("q · k"), scaled: t("÷ √d"), mask: t("+ mask"), masked: t("= masked"), weight: t("weight"), with: t("softmax with ÷ √d"), without: t("softmax without") });
const ATTEND_VALUE = { scores: "scores", scaling: "scaled", mask: "masked", softmax: "weights", masked: "weights", cross: "weights" };
const ATTEND_NAMES = { scores: "score", scaled: "scaled score", masked: "masked score", weights: "weight" };

/** Everything of equation 1 at this head, and what follows from it. */
async function attendRead(focus) {
  const read = await focus.trace.attentionHead(focus.at, focus.head);
  const columns = read.scores.shape[1];
  const root = focus.m.model.scaling ? Math.sqrt(focus.m.model.d_head) : 1;
  const scaled = Float32Array.from(read.scores.values, (x) => x / root);
  const hidden = Uint8Array.from(read.masked.values, (x) => (x === -Infinity ? 1 : 0));
  const most = read.k.values.reduce((size, x) => Math.max(size, Math.abs(x)), 0);
  const keyScale = { kind: "signed", low: -most, high: most }; // one for all, to be compared
  const row = Array.from(rowOf(read.scores, focus.row), (x, j) => (hidden[focus.row * columns + j] ? -Infinity : x));
  const sharp = { with: softmax(row, Math.sqrt(focus.m.model.d_head)), without: softmax(row) }; // the chosen row
  return { ...read, columns, root, hidden, keyScale, sharp, scaled: { values: scaled, shape: read.scores.shape } };
}

/** The chosen key, or the one with the largest weight other than the token itself. */
export function attendKey(focus, eq) {
  if (focus.key !== null && focus.key < eq.columns) return focus.key;
  const weights = Array.from(rowOf(eq.weights, focus.row));
  if (focus.use === "self" && focus.row > 0) weights[focus.row] = -1;
  return largestOf(weights, 1)[0];
}

/** One query against every key. */
function attendTable(focus, eq) {
  const parts = ATTEND_TABLE[focus.stage];
  const names = attendTitles();
  const heads = [t("key"), ...parts.map((part) => (part === "scaled" && !focus.m.model.scaling ? t("not scaled") : names[part]))];
  const rows = focus.keyTokens.labels.map((label, j) => attendRow(focus, eq, parts, label, j));
  const table = h(
    "table",
    { class: `table weights-table${rows.length > 12 ? " many" : ""}`, style: { "--rows": String(rows.length + (parts.includes("k") ? 5 : 2)) } },
    h("thead", null, h("tr", null, heads.map((name, n) => h("th", { scope: "col", class: n && !["k", "weight", "with", "without"].includes(parts[n - 1]) ? "n" : null }, name))), parts.includes("k") ? attendQueryRow(focus, eq) : null),
    h("tbody", null, rows),
    parts.includes("weight") ? attendFoot(focus, eq, parts) : null,
  );
  const products = parts.includes("k") ? attendProducts(focus, eq) : null;
  if (products) table.append(products.element);
  const update = (now) => {
    products?.update(now);
    const key = attendKey(now, eq);
    rows.forEach((row, j) => {
      row.classList.toggle("focus", j === key);
      row.querySelector("button").setAttribute("aria-pressed", String(j === key));
    });
  };
  update(focus);
  return { table, update, point: (now, pointer) => { update(now); products?.read(now, pointer); } };
}

/** The query above all keys, number above number. */
function attendQueryRow(focus, eq) {
  const label = focus.queryTokens.labels[focus.row];
  const strip = vectorStrip({ values: rowOf(eq.q, focus.row), title: `q (question) of ${label}`, note: "", scale: eq.keyScale }).element;
  return h("tr", { class: "query-row role-q" }, h("td", null, h("strong", null, "q"), " of ", h("span", { dir: "auto" }, label)), h("td", { class: "strip-cell" }, strip), h("td", null));
}

/** Below the keys: the products of q and the chosen k, and their running sum. */
function attendProducts(focus, eq) {
  const of = (now) => {
    const [q, k] = [rowOf(eq.q, now.row), rowOf(eq.k, attendKey(now, eq))];
    let sum = 0;
    const products = Float64Array.from(q, (x, i) => x * k[i]);
    return { q, k, products, sums: products.map((x) => (sum += x)), total: sum };
  };
  const names = [h("th", { scope: "row" }), h("th", { scope: "row" }, t("added up"))];
  const ends = [h("td", { class: "n soft" }, "Σ"), h("td", { class: "n sum" })];
  const first = of(focus);
  const made = [first.products, first.sums].map((values, n) => vectorStrip({ values, title: n ? "running sum of the products" : "products of q and k", note: "" }));
  const readout = h("td", { colspan: "3", class: "small products-readout number" }, "");
  const rows = names.map((name, n) => h("tr", null, name, h("td", { class: "strip-cell" }, made[n].element), ends[n]));
  const update = (now) => {
    const { products, sums, total: sum } = of(now);
    names[0].replaceChildren("q × k of ", h("span", { dir: "auto" }, now.keyTokens.labels[attendKey(now, eq)]));
    made[0].set({ values: products });
    made[1].set({ values: sums });
    ends[1].textContent = show(sum);
  };
  const read = (now, { number, of: width }) => {
    const { q, k, products, sums } = of(now);
    const at = width === q.length ? number : null;
    readout.textContent = at === null ? t("Point at a number of a strip.") : `number ${at + 1}: ${show(q[at])} × ${show(k[at])} = ${show(products[at])}, sum so far ${show(sums[at])}`;
  };
  read(focus, {});
  return { element: h("tfoot", { class: "products" }, rows, h("tr", null, readout)), update, read };
}

function attendRow(focus, eq, parts, label, j) {
  const at = focus.row * eq.columns + j;
  const gone = eq.hidden[at];
  const cells = {
    k: () => h("td", { class: "strip-cell role-k" }, vectorStrip({ values: rowOf(eq.k, j), title: `k of ${label}`, note: "", scale: eq.keyScale }).element),
    score: () => attendNumber(eq.scores.values[at]),
    scaled: () => attendNumber(eq.scaled.values[at]),
    mask: () => h("td", { class: gone ? "n hidden-cell" : "n soft" }, gone ? "−inf" : "0"),
    masked: () => attendNumber(eq.masked.values[at]),
    weight: () => attendShare(eq.weights.values[at]),
    with: () => attendShare(eq.sharp.with[j]),
    without: () => attendShare(eq.sharp.without[j]),
  };
  const choose = button(label, () => select({ key: j }), { class: `chip${focus.keyTokens.special[j] ? " special" : ""}`, dir: "auto" });
  return h("tr", { class: gone ? "gone" : null, dataset: { word: wordAt(focus.keySide, j) } }, h("th", { scope: "row" }, choose), parts.map((part) => cells[part]()));
}

function attendShare(x) {
  return h("td", { class: "share-cell" }, h("span", { class: "number" }, show(x)), shareBar(x));
}

/** How far a row spreads: over as many keys as would share the weight alike. */
function attendSpread(focus, eq) {
  if (focus.stage !== "scaling") return null;
  const [soft, sharp] = [eq.sharp.with, eq.sharp.without].map((row) => Math.exp(entropy(row)).toFixed(1));
  return h("p", { class: "small" }, t("Divided by √d, the weights spread over {0} keys (perplexity); without it, over {1}. Where one key takes all the weight, almost no gradient reaches the others.", [soft, sharp]));
}

function attendNumber(x) {
  return h("td", { class: x === -Infinity ? "n hidden-cell" : "n" }, x === -Infinity ? "−inf" : show(x));
}

function attendFoot(focus, eq, parts) {
  const sum = total(rowOf(eq.weights, focus.row));
  return h(
    "tfoot",
    null,
    h("tr", null, h("th", { scope: "row", colspan: parts.length }, "sum"), h("td", { class: "number sum" }, show(sum))),
  );
}

/** All rows at once. */
function attendMatrix(focus, eq, value, title) {
  const shares = value === "weights";
  const made = matrix({
    rows: focus.queryTokens.labels,
    columns: focus.keyTokens.labels,
    next: nextWords(focus),
    values: eq[value].values,
    title,
    scale: shares ? "share" : "signed",
    hidden: value === "masked" || shares ? eq.hidden : null,
    hiddenMeans: value === "masked" ? "−inf: future token, masked" : "0: masked",
    sums: shares,
    also: shares ? [{ name: "scaled score", values: eq.scaled.values }] : [],
    labels: attendLabels(focus, ATTEND_NAMES[value]),
    credit: `${focus.side}, layer ${focus.layer}, head ${focus.head}`,
    onPin: (row, key) => { if (row !== null) attendPick(focus, row, key); },
    onCursor: (row, key) => pointAt({ query: row === null ? null : wordAt(focus.side, row), word: key === null ? null : wordAt(focus.keySide, key) }),
  });
  made.pin(focus.row, attendKey(focus, eq));
  return made;
}

function attendLabels(focus, value) {
  const cross = focus.use === "cross";
  return { row: cross ? "query (decoder)" : "query", column: cross ? "key (encoder)" : "key", value };
}

function attendPick(focus, row, key) {
  const step = focus.side === "decoder" && twoSided(focus.m);
  select(step ? { step: row, key } : { side: focus.side, query: row, key }, { replace: true });
}

/** Which side gives queries, and which keys and values. */
function attendRoles(focus, eq) {
  if (focus.use !== "cross") return null;
  const [rows, columns] = eq.weights.shape;
  return h(
    "div",
    { class: "roles" },
    h("div", { class: "role queries" }, h("strong", null, t("Queries from the decoder")), h("span", { class: "small" }, `${rows}, one per target token`)),
    h("div", { class: "role keys" }, h("strong", null, t("Keys and values from the encoder")), h("span", { class: "small" }, `${columns} of each, one per source token`)),
  );
}

/** A stage whose picture is the growing table, or the matrix. */
async function attendStage(focus) {
  const eq = await attendRead(focus);
  const value = ATTEND_VALUE[focus.stage];
  const name = `${focus.at}.${value}`;
  const titles = { scores: "Attention scores, Q Kᵀ", scaled: "Scaled scores, Q Kᵀ / √d", masked: "Masked scores", weights: "Attention weights" };
  let picture;
  if (focus.all) {
    const grids = focus.stage === "masked" ? ["masked", "weights"] : focus.stage === "scaling" ? ["scores", "scaled"] : [value];
    const made = grids.map((grid) => attendMatrix(focus, eq, grid, titles[grid]));
    picture = {
      element: h("div", null, attendRoles(focus, eq), made.map((one, n) => figure(focus, one.element, [`${focus.at}.${grids[n]}`]))),
      update: (now) => made.forEach((one) => one.pin(now.row, attendKey(now, eq))),
      point: (now, { word }) => made.forEach((one) => one.point(word === null ? null : now.row, word === null ? null : now.key)),
    };
  } else {
    const { table, update, point } = attendTable(focus, eq);
    const region = h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "one row of the attention" }, table);
    const triangle = attendTriangle(focus, eq);
    const fan = ATTEND_TABLE[focus.stage].includes("weight") ? attendFan(focus, eq, table) : null;
    const both = h("div", { class: triangle ? "beside" : fan ? "fan-table" : null }, fan, region, triangle);
    picture = { element: h("div", null, attendRoles(focus, eq), both, attendSpread(focus, eq), attendSink(focus, eq), triangle ? null : origin(focus, name)), update, point };
  }
  return { picture, formulas: (now) => attendFormulas(now, eq), checks: attendChecks(focus, eq) };
}

/** The whole causal mask: the last token alone has nothing to mask. */
function attendTriangle(focus, eq) {
  if (focus.stage !== "mask" || !attendCausal(focus)) return null;
  return figure(focus, attendMatrix(focus, eq, "masked", "The same for all words").element, [`${focus.at}.masked`]);
}

/** The query, and a line to each key as thick as its weight. */
function attendFan(focus, eq, table) {
  const weights = rowOf(eq.weights, focus.row);
  const drawing = svg("svg", { class: "fan" });
  const draw = () => {
    const { clientWidth: width, clientHeight: height } = drawing; // layout: while the picture zooms, boxes on screen are others
    if (!width) return;
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const [from, y] = [query.offsetWidth + 2, height / 2];
    drawing.replaceChildren(...[...table.tBodies[0].rows].flatMap((row, j) => {
      if (weights[j] < 0.004) return [];
      const to = table.offsetTop + row.offsetTop + row.offsetHeight / 2 - table.parentNode.scrollTop;
      const d = `M${from} ${y} C${(from + width) / 2} ${y} ${(from + width) / 2} ${to} ${width} ${to}`;
      return [svg("path", { class: "fan-line", d, "stroke-width": String(0.8 + 9 * weights[j]), opacity: String(0.25 + 0.7 * weights[j]) })];
    }));
  };
  new ResizeObserver(draw).observe(table);
  const answer = nextWords(focus)?.[focus.row];
  const query = h("div", { class: "fan-query" }, h("span", { dir: "auto" }, focus.queryTokens.labels[focus.row]), answer === undefined ? null : h("span", { dir: "auto" }, `→ ${answer}`));
  return h("div", { "aria-hidden": "true" }, drawing, query);
}

/** Why the mark at the beginning gets so much weight. */
function attendSink(focus, eq) {
  const weight = eq.weights.values[focus.row * eq.columns];
  if (!focus.keyTokens.special[0] || focus.keySide !== "decoder" || weight < 0.3 || !ATTEND_TABLE[focus.stage].includes("weight")) return null;
  return h("p", { class: "small soft" }, h("strong", null, focus.keyTokens.labels[0]), " stands for the beginning of the text. A head that finds nothing to look at puts its weight there (an attention sink).");
}

function attendFormulas(now, eq) {
  const key = attendKey(now, eq);
  const at = now.row * eq.columns + key;
  const pair = h("p", { class: "pair" }, "query ", h("strong", { dir: "auto" }, now.queryTokens.labels[now.row]), ", key ", h("strong", { dir: "auto" }, now.keyTokens.labels[key]));
  const made = {
    scores: () => [attendScore(now, eq, key, at)],
    scaling: () => [attendScaled(now, eq, at)],
    mask: () => [attendMasked(now, eq, at)],
    softmax: () => [attendSoftmax(now, eq, key, at)],
    masked: () => [attendScore(now, eq, key, at), attendScaled(now, eq, at), attendMasked(now, eq, at), attendSoftmax(now, eq, key, at)],
    cross: () => [attendScore(now, eq, key, at), attendScaled(now, eq, at), attendSoftmax(now, eq, key, at)],
  };
  return [pair, ...made[now.stage]().flat()];
}

function attendScore(now, eq, key, at) {
  const letters = formula("score i j is q i times k j", mij("s", "i", "j"), mo("="), mrole("q", "i"), mo("·"), mrole("k", "j"));
  const links = h("p", { class: "small soft" }, "where ", valueLink(now, `${now.at}.q`, "q"), " and ", valueLink(now, `${now.at}.k`, "k"), " come from");
  return [letters, sumOfProducts(rowOf(eq.q, now.row), rowOf(eq.k, key), eq.scores.values[at]), links];
}

function attendScaled(now, eq, at) {
  const d = now.m.model.d_head;
  const before = eq.scores.values[at];
  if (!now.m.model.scaling) return [formula("the score, not scaled", mij("s", "i", "j")), calculation([mnum(before), mrow(mo("="), mnum(eq.scaled.values[at]))])];
  return [
    formula("scaled score: s over the root of d k", mfrac(mij("s", "i", "j"), msqrt(msub("d", "k")))),
    calculation([
      mfrac(mnum(before), msqrt(mint(d))),
      mrow(mo("="), mfrac(mnum(before), mnum(eq.root))),
      mrow(mo("="), mnum(eq.scaled.values[at])),
    ]),
  ];
}

function attendMasked(now, eq, at) {
  const added = eq.hidden[at] ? "−inf" : "0";
  const lines = [
    now.m.model.scaling
      ? formula("the scaled score plus the mask", mfrac(mij("s", "i", "j"), msqrt(msub("d", "k"))), mo("+"), mij("M", "i", "j"))
      : formula("the score plus the mask", mij("s", "i", "j"), mo("+"), mij("M", "i", "j")),
    calculation([mrow(mnum(eq.scaled.values[at]), mo("+"), mwords(`(${added})`)), mrow(mo("="), mnum(eq.masked.values[at]))]),
  ];
  const later = now.row + 1;
  if (now.use === "self" && later < eq.columns && eq.hidden[now.row * eq.columns + later]) {
    const there = now.row * eq.columns + later;
    lines.push(
      h("p", { class: "small" }, h("strong", { dir: "auto" }, now.keyTokens.labels[later]), " comes after ", h("strong", { dir: "auto" }, now.queryTokens.labels[now.row]), ":"),
      calculation([mrow(mnum(eq.scaled.values[there]), mo("+"), mwords("(−inf)")), mrow(mo("="), mwords("−inf"))]),
    );
  }
  return lines;
}

/** Softmax; of large scores the maximum is subtracted first. */
function attendSoftmax(now, eq, key, at) {
  const row = Array.from(rowOf(eq.masked, now.row));
  const largest = Math.max(...row);
  const off = largest > 9 ? largest : 0;
  const below = total(row.map((x) => Math.exp(x - off)));
  const score = row[key] - off;
  const letters = formula(
    "weight i j is e to the score over the sum of e to all scores of the row",
    mij("w", "i", "j"), mo("="), mfrac(msup("e", mij("s", "i", "j")), mrow(msum("n"), msup("e", mij("s", "i", "n")))),
  );
  const label = off ? h("p", { class: "small soft" }, `The maximum, ${show(off)}, is subtracted from every score first; the weights do not change.`) : null;
  const sum = total(rowOf(eq.weights, now.row));
  return [
    letters,
    label,
    calculation([
      mfrac(msup("e", mnum(score)), mnum(below)),
      mrow(mo("="), mfrac(mnum(Math.exp(score)), mnum(below))),
      mrow(mo("="), mnum(eq.weights.values[at])),
    ]),
    h("p", { class: "small" }, "sum of the row: ", h("span", { class: "number row-sum" }, show(sum))),
  ];
}

/** Equation 1 recomputed for every pair of tokens, from q, k and v. */
function attendChecks(focus, eq) {
  const [rows, columns] = eq.scores.shape;
  const scores = new Float64Array(rows * columns);
  for (let i = 0; i < rows; i += 1) {
    for (let j = 0; j < columns; j += 1) scores[i * columns + j] = dot(rowOf(eq.q, i), rowOf(eq.k, j));
  }
  const masked = Float64Array.from(scores, (x, at) => x / eq.root + (attendLater(focus, at, columns) ? -Infinity : 0));
  const weights = Float64Array.from({ length: rows }, () => 0);
  const shares = new Float64Array(rows * columns);
  for (let i = 0; i < rows; i += 1) {
    shares.set(softmax(masked.subarray(i * columns, (i + 1) * columns)), i * columns);
    weights[i] = total(rowOf(eq.weights, i));
  }
  const all = {
    scores: compared(focus, "scores = Q Kᵀ, for all pairs, from q and k", eq.scores.values, scores),
    sharp: compared(focus, focus.m.model.scaling ? "softmax with ÷ √d is what the model has" : "softmax without is what the model has", rowOf(eq.weights, focus.row), eq.sharp[focus.m.model.scaling ? "with" : "without"]),
    scaling: compared(focus, focus.m.model.scaling ? `scaled = scores / √${focus.m.model.d_head}` : "scaled = scores: scaling is off", eq.masked.values.map((x, at) => (eq.hidden[at] ? 0 : x)), Float64Array.from(scores, (x, at) => (eq.hidden[at] ? 0 : x / eq.root))),
    mask: compared(focus, attendCausal(focus) ? "masked = scaled + (0, or −inf above the diagonal)" : "masked = scaled + 0: nothing is masked", eq.masked.values, masked),
    softmax: compared(focus, "weights = softmax(masked scores)", eq.weights.values, shares),
    sums: compared(focus, "every row sums to 1", weights, weights.map(() => 1)),
    sum: compared(focus, "mixed = weights × V", eq.mixed.values, attendMixed(eq)),
  };
  const wanted = { scores: ["scores"], scaling: ["scaling", "sharp"], mask: ["mask"], softmax: ["softmax", "sums"], sum: ["sums", "sum"], masked: ["scores", "mask", "softmax", "sums", "sum"], cross: ["scores", "mask", "softmax", "sums", "sum"] };
  return (wanted[focus.stage] ?? []).map((name) => all[name]);
}

function attendCausal(focus) {
  return focus.side === "decoder" && focus.use === "self";
}

function attendLater(focus, at, columns) {
  return attendCausal(focus) && at % columns > Math.floor(at / columns);
}

function attendMixed(eq) {
  const [rows, width] = eq.mixed.shape;
  const mixed = new Float64Array(rows * width);
  for (let i = 0; i < rows; i += 1) {
    for (let j = 0; j < eq.columns; j += 1) {
      const weight = eq.weights.values[i * eq.columns + j];
      for (let n = 0; n < width; n += 1) mixed[i * width + n] += weight * eq.v.values[j * width + n];
    }
  }
  return mixed;
}

/** q, k and v of a token, or of all. */
async function attendQueries(focus, facts) {
  const eq = await attendRead(focus);
  const label = focus.queryTokens.labels[focus.row];
  const roles = { q: "q (question)", k: t("k (label)"), v: "v (content)" };
  const element = focus.all
    ? h("div", null, Object.entries(roles).map(([part, role]) => figure(focus, attendVectors(focus, eq[part], `${role} of every token`), [`${focus.at}.${part}`])))
    : h(
        "div",
        null,
        await attendComesIn(focus, label),
        figure(focus, strips(Object.entries(roles).map(([part, role]) => ({ title: `${role} of ${label}`, values: rowOf(eq[part], focus.row), name: `${focus.at}.${part}`, role: part }))), ["q", "k", "v"].map((part) => `${focus.at}.${part}`)),
      );
  return { picture: { element }, formulas: () => attendFirstNumber(focus, facts, label), checks: [] };
}

async function attendComesIn(focus, label) {
  const name = focus.m.tensors[`${focus.at}.query`].from[0];
  const { values } = await focus.trace.tensor(name, { rows: [focus.row, focus.row + 1] });
  return figure(focus, strips([{ title: `x, the input vector of ${label}`, values, name }]), [name]);
}

function attendVectors(focus, table, title) {
  const rows = table.shape[0] === focus.queryTokens.labels.length ? focus.queryTokens.labels : focus.keyTokens.labels;
  return matrix({ rows, columns: counted(table.shape[1]), values: table.values, title, scale: "signed", labels: { row: "word", column: "number", value: "value" } }).element;
}

function attendFirstNumber(focus, facts, label) {
  const { numbers } = facts.formulas[0];
  const terms = Object.keys(numbers).filter((name) => /^x\d+$/.test(name)).map((name) => [numbers[name], numbers[name.replace("x", "w")]]);
  const pieces = terms.map(([x, w], n) => mrow(...(n ? [mo("+")] : []), mfactor(x), mo("×"), mfactor(w)));
  const left = focus.m.model.d_model - terms.length;
  if (left > 0) pieces.push(mrow(mo("+"), mfactor(numbers.others), mwords(`\u00a0from ${left} more`)));
  if (numbers.bias !== undefined) pieces.push(mrow(mo("+"), mfactor(numbers.bias), mwords("\u00a0bias")));
  const bias = numbers.bias === undefined ? [] : [mo("+"), "b"];
  return [
    formula("q is x times W Q", "q", mo("="), "x", msup("W", "Q"), ...bias),
    h("p", { class: "small" }, "the first number of q of ", h("strong", { dir: "auto" }, label), ":"),
    calculation([...pieces, mrow(mo("="), mnum(numbers.total))]),
    h("p", { class: "small soft" }, "k and v are computed in the same way, with their own weights."),
  ];
}

/** The values times their weights, and the sum. */
async function attendSum(focus) {
  const eq = await attendRead(focus);
  const element = focus.all
    ? figure(focus, attendVectors(focus, eq.mixed, "Output of this head for every token"), [`${focus.at}.mixed`])
    : figure(focus, attendShares(focus, eq), [`${focus.at}.mixed`]);
  return { picture: { element }, formulas: () => attendSumFormula(focus, eq), checks: attendChecks(focus, eq) };
}

function attendShares(focus, eq) {
  const weights = rowOf(eq.weights, focus.row);
  const rows = focus.keyTokens.labels.flatMap((label, j) =>
    weights[j] > 0 ? [{ title: `${show(weights[j])} × v of ${label}`, values: rowOf(eq.v, j).map((x) => x * weights[j]), sign: "+", note: "", role: "v", word: wordAt(focus.keySide, j) }] : [],
  );
  if (rows.length) rows[0].sign = "";
  const gone = weights.filter((weight) => weight === 0).length;
  const note = gone ? h("p", { class: "small soft" }, `${gone} ${gone === 1 ? "token has" : "tokens have"} weight 0 and ${gone === 1 ? "adds" : "add"} nothing.`) : null;
  return [strips([...rows, { title: `z, the output of this head for ${focus.queryTokens.labels[focus.row]}`, values: rowOf(eq.mixed, focus.row), name: `${focus.at}.mixed`, sign: "=" }]), note];
}

function attendSumFormula(focus, eq) {
  const weights = rowOf(eq.weights, focus.row);
  const first = Float32Array.from({ length: eq.columns }, (_, j) => eq.v.values[j * eq.v.shape[1]]);
  return [
    formula("z i is the sum of w i j times v j", msub("z", "i"), mo("="), msum("j"), mij("w", "i", "j"), mrole("v", "j")),
    h("p", { class: "small" }, "the first number of z for ", h("strong", { dir: "auto" }, focus.queryTokens.labels[focus.row]), ":"),
    sumOfProducts(weights, first, rowOf(eq.mixed, focus.row)[0]),
    h("p", { class: "small soft" }, "where ", valueLink(focus, `${focus.at}.weights`, "the weights"), " and ", valueLink(focus, `${focus.at}.v`, "v"), " come from"),
  ];
}

/** All heads of the layer for one token, concatenated, and the output projection. */
async function attendHeads(focus) {
  const { m, row } = focus;
  const weights = await focus.trace.tensor(`${focus.at}.weights`, { rows: [row, row + 1] });
  const [token, eq] = [await focus.trace.token(focus.side, row), await focus.trace.attentionHead(focus.at, focus.head)];
  const label = focus.queryTokens.labels[row];
  const heads = matrix({
    rows: counted(m.model.heads).map((n) => `head ${n}`),
    columns: focus.keyTokens.labels,
    values: weights.values,
    title: `Attention weights of ${label} in every head`,
    scale: "share",
    sums: true,
    labels: { row: "head", column: "key", value: "weight" },
    onPin: (head) => { if (head !== null) select({ head: head + 1 }); },
  });
  const concat = token[`${focus.at}.concat`].values;
  const output = token[`${focus.at}.output`].values;
  const element = h(
    "div",
    null,
    figure(focus, heads.element, [`${focus.at}.weights`]),
    figure(focus, strips([{ title: `outputs of all ${m.model.heads} heads for ${label}, concatenated`, values: concat, name: `${focus.at}.concat` }]), [`${focus.at}.concat`]),
    figure(focus, strips([{ title: "after the output projection", values: output, name: `${focus.at}.output` }]), [`${focus.at}.output`]),
  );
  const wide = m.model.d_head;
  const part = concat.subarray((focus.head - 1) * wide, focus.head * wide);
  const sums = Float64Array.from({ length: m.model.heads }, (_, n) => total(rowOf(weights, n)));
  const checks = [
    compared(focus, `the slice of head ${focus.head} equals its output`, part, rowOf(eq.mixed, row)),
    compared(focus, "in every head the weights sum to 1", sums, sums.map(() => 1)),
  ];
  return { picture: { element }, formulas: () => attendHeadsFormula(m), checks };
}

function attendHeadsFormula(m) {
  const { heads, d_head: wide, d_model: width } = m.model;
  return [
    formula("the concatenated heads times W O", mwords("("), msub("z", mint(1)), mo(","), mo("…"), mo(","), msub("z", mint(heads)), mwords(")"), msup("W", "O")),
    h("p", null, h("span", { class: "number" }, `${heads} × ${wide} = ${heads * wide}`), " numbers go in, ", h("span", { class: "number" }, String(width)), " come out."),
  ];
}

export const attentionStages = {
  queries: attendQueries,
  scores: attendStage,
  scaling: attendStage,
  mask: attendStage,
  softmax: attendStage,
  sum: attendSum,
  heads: attendHeads,
  masked: (focus, facts) => (focus.m.model.decoder_cell === "ssru" ? cellStage(focus) : attendStage(focus, facts)),
  cross: attendStage,
};
