// The stages around attention: add & norm, feed-forward, and the stack of layers.

import { calculation, formula, mfrac, mint, mnum, mo, mrow, mwords, msub } from "../charts/formula.js";
import { matrix } from "../charts/matrix.js";
import { h } from "../core/dom.js";
import { layersOn, twoSided } from "../core/focus.js";
import { cosine, lengthOf, meanAndSpread, show } from "../core/numbers.js";
import { compared, counted, figure, shareBar, strips, tableNamed, tables } from "./parts.js";
import { t } from "../core/texts.js";

/** The residual connection and the norm, in this model's order. */
async function layerAddNorm(focus, facts) {
  const { m, at } = focus;
  const post = m.model.norm_order === "post";
  const { residual } = m.model;
  const came = m.tensors[`${at}.${post ? "query" : "norm"}`].from[0];
  const label = focus.queryTokens.labels[focus.row];
  if (focus.all) {
    const added = await focus.trace.tensor(`${at}.add`);
    const normed = await focus.trace.tensor(`${at}.norm`);
    const pictures = [[`${at}.add`, added, residual ? "Sum, every token" : "Attention output, every token"], ...(m.model.norm === "none" ? [] : [[`${at}.norm`, normed, "Normalised, every token"]])].map(([name, table, title]) => layerMatrix(focus, table, title, name));
    return { picture: { element: h("div", null, post ? pictures : pictures.reverse()) }, formulas: () => layerNormFormulas(focus, facts, post, label), checks: [] };
  }
  const token = await focus.trace.token(focus.side, focus.row);
  const [x, output, add, norm] = [came, `${at}.output`, `${at}.add`, `${at}.norm`].map((name) => token[name].values);
  const sums = [{ title: "x, the input", values: x, name: came }, { title: "attention output", values: output, name: `${at}.output`, sign: residual ? "+" : "→" }, ...(residual ? [{ title: t("sum"), values: add, name: `${at}.add`, sign: "=" }] : [])];
  const normed = { title: post ? "normalised: output" : "normalised: input of attention", values: norm, name: `${at}.norm`, sign: "→" };
  const norms = m.model.norm === "none" ? [] : [normed];
  const rows = post ? [...sums, ...norms] : [sums[0], ...norms, ...sums.slice(1)];
  const element = h("div", null, figure(focus, strips(rows), [`${at}.add`, `${at}.norm`]), norms.length ? layerSizes(post ? add : x, norm) : null);
  const claim = residual ? "sum = x + attention output" : "no sum: attention replaces x";
  const checks = [compared(focus, claim, add, Float64Array.from(x, (a, i) => (residual ? a : 0) + output[i]))];
  return { picture: { element }, formulas: () => layerNormFormulas(focus, facts, post, label, post ? add : x), checks };
}

function layerMatrix(focus, table, title, name) {
  const made = matrix({ rows: focus.queryTokens.labels, columns: counted(table.shape[1]), values: table.values, title, scale: "signed", labels: { row: "word", column: "number", value: "value" } });
  return figure(focus, made.element, [name]);
}

function layerSizes(before, after) {
  const row = (name, vector) => {
    const { mean, spread } = meanAndSpread(vector);
    return h("tr", null, h("th", { scope: "row" }, name), h("td", { class: "n" }, show(mean)), h("td", { class: "n" }, show(spread)));
  };
  return h(
    "table",
    { class: "table sizes" },
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "layer norm"), h("th", { scope: "col", class: "n" }, "mean"), h("th", { scope: "col", class: "n" }, "std. dev."))),
    h("tbody", null, row("before", before), row("after", after)),
  );
}

function layerNormFormulas(focus, facts, post, label, read = null) {
  const { norm, residual } = focus.m.model;
  const normed = (on, ...inside) => (on && norm !== "none" ? [mwords("norm"), mo("("), ...inside, mo(")")] : inside);
  const inner = normed(post, ...(residual ? ["x", mo("+")] : []), mwords("attention"), mo("("), ...normed(!post, "x"), mo(")"));
  if (norm === "none") return [formula("this model's order", ...inner)];
  const { numbers } = facts.formulas[1];
  const rms = numbers.size !== undefined;
  const letters = rms
    ? formula("x over the root of its mean square, times a gain", mwords("norm"), mo("("), "x", mo(")"), mo("="), mfrac("x", mwords("root of mean square")), mo("×"), "g")
    : formula("x minus its mean, over its standard deviation, times a gain, plus a bias", mwords("norm"), mo("("), "x", mo(")"), mo("="), mfrac(mrow("x", mo("−"), "μ"), "σ"), mo("×"), "g", mo("+"), "b");
  const filled = rms
    ? [mrow(mfrac(mnum(numbers.x), mnum(numbers.size)), mo("×"), mnum(numbers.gain)), mrow(mo("="), mnum(numbers.result))]
    : [mrow(mfrac(mrow(mnum(numbers.x), mo("−"), mrow(mo("("), mnum(numbers.mean), mo(")"))), mnum(numbers.spread)), mo("×"), mnum(numbers.gain), mo("+"), mrow(mo("("), mnum(numbers.shift), mo(")"))), mrow(mo("="), mnum(numbers.result))];
  const stats = read && !rms ? meanAndSpread(read) : null;
  return [
    formula("this model's order", ...inner),
    letters,
    h("p", { class: "small" }, "the first number of ", h("strong", { dir: "auto" }, label), ":"),
    calculation(filled),
    stats ? h("p", { class: "small soft" }, `μ and σ of all ${read.length} numbers, recomputed in this page: `, h("span", { class: "number" }, `${show(stats.mean)}, ${show(stats.spread)}`)) : null,
  ];
}

/** Each token on its own, through the hidden units. */
async function layerFeedForward(focus, facts) {
  const { m } = focus;
  const at = `${focus.side}.${focus.layer - 1}.feed_forward`;
  const label = focus.queryTokens.labels[focus.row];
  if (focus.all) {
    const active = await focus.trace.tensor(`${at}.active`);
    return { picture: { element: layerMatrix(focus, active, "Hidden units of every token", `${at}.active`) }, formulas: () => layerNeurons(focus, facts, label), checks: [] };
  }
  const token = await focus.trace.token(focus.side, focus.row);
  const read = m.tensors[`${at}.inner`].from[0];
  const active = token[`${at}.active`].values;
  const element = h(
    "div",
    null,
    figure(focus, strips([{ title: `input of ${label}`, values: token[read].values, name: read }]), [read]),
    figure(focus, strips([{ title: `${active.length} hidden units after ${m.model.activation}`, values: active, name: `${at}.active`, sign: "→" }]), [`${at}.active`]),
    figure(focus, strips([{ title: m.model.residual ? "output, added to the residual stream" : "output", values: token[`${at}.output`].values, name: `${at}.output`, sign: "→" }]), [`${at}.output`]),
    h("div", { class: "below" }, tableNamed(facts, "neurons")),
  );
  const parts = m.tensors[`${at}.add`].from.map((name) => token[name].values);
  const claim = m.model.residual ? "sum = input + this output" : "no sum: this output replaces the input";
  const checks = [compared(focus, claim, token[`${at}.add`].values, Float64Array.from(parts[0], (_, i) => parts.reduce((sum, part) => sum + part[i], 0)))];
  const quiet = active.filter((x) => x === 0).length;
  return { picture: { element }, formulas: () => [...layerNeurons(focus, facts, label), h("p", { class: "small soft" }, `Counted in this page: ${quiet} of ${active.length}.`)], checks };
}

function layerNeurons(focus, facts, label) {
  const { activation } = focus.m.model;
  const inside = ["x", msub("W", mint(1)), mo("+"), msub("b", mint(1))];
  const relu = activation === "relu" ? [mwords("max"), mo("("), mint(0), mo(","), ...inside, mo(")")] : [mwords(activation), mo("("), ...inside, mo(")")];
  const gated = [mo("("), mwords("silu"), mo("("), "x", msub("W", "g"), mo(")"), mo("⊙"), "x", msub("W", mint(1)), mo(")"), msub("W", mint(2))];
  const letters = activation === "swiglu" ? gated : [...relu, msub("W", mint(2)), mo("+"), msub("b", mint(2))];
  const { quiet, neurons } = facts.formulas[0].numbers;
  return [
    formula(`two linear layers with ${activation} between them`, ...letters),
    h("p", null, "For ", h("strong", { dir: "auto" }, label), ", ", h("span", { class: "number" }, `${quiet} of ${neurons}`), " hidden units are exactly 0."),
  ];
}

/** The stack: the length of each vector, and the change from layer to layer. */
async function layerStack(focus, facts) {
  const { m, side } = focus;
  const lengths = m.norms[side];
  const layers = lengths.map((_, n) => (n ? `layer ${n}` : "input"));
  const picture = matrix({
    rows: layers,
    columns: focus.queryTokens.labels,
    values: Float32Array.from(lengths.flat()),
    title: "Vector length (L2 norm) of every token after each layer",
    scale: { kind: "share", low: 0, high: Math.max(...lengths.flat()) },
    labels: { row: "after", column: "word", value: "length" },
  });
  const token = await focus.trace.token(side, focus.row);
  const states = layerStates(m, side).map((name) => token[name].values);
  const last = m.model.norm_order === "post" ? "norm" : "add";
  const lens = await lensLadder(focus, facts);
  const element = h("div", null, twoSided(m) ? null : lens, figure(focus, picture.element, [`${side}.output`]), twoSided(m) ? lens : null, h("div", { class: "below" }, layerTurns(focus, states)));
  const claimed = lengths.map((row) => row[focus.row]);
  const again = states.map((state) => lengthOf(state));
  const checks = [{ ...compared(focus, "these lengths, from the vectors themselves", claimed, again), within: 1e-3 * Math.max(...again) }];
  checks[0].passed = checks[0].error <= checks[0].within;
  if (last === "norm") checks.push(compared(focus, "output = state after the last layer", token[`${side}.output`].values, states[states.length - 1]));
  const { layers: count, d_model: width } = m.model;
  const words = focus.queryTokens.ids.length;
  const lines = [
    formula("layer n reads the output of layer n minus 1", msub("x", "n"), mo("="), msub(mwords("layer"), "n"), mo("("), msub("x", mrow("n", mo("−"), mint(1))), mo(")")),
    h("p", null, h("span", { class: "number" }, `${words} × ${width}`), ` numbers in and out, in each of ${count} ${count === 1 ? "layer" : "layers"}.`),
  ];
  return { picture: { element }, formulas: () => lines, checks };
}

function layerStates(m, side) {
  const last = m.model.norm_order === "post" ? "norm" : "add";
  return [`${side}.input`, ...Array.from({ length: layersOn(m, side) }, (_, n) => `${side}.${n}.feed_forward.${last}`)];
}

function layerTurns(focus, states) {
  const rows = states.slice(1).map((state, n) =>
    h("tr", null, h("th", { scope: "row" }, `layer ${n + 1}`), h("td", { class: "n" }, show(lengthOf(state))), h("td", { class: "n" }, show(cosine(state, states[n])))),
  );
  return h(
    "table",
    { class: "table" },
    h("caption", null, `${focus.queryTokens.labels[focus.row]}, layer by layer: cosine similarity with the previous state`),
    h("thead", null, h("tr", null, [t("after"), "length", "cosine"].map((name, n) => h("th", { scope: "col", class: n ? "n" : null }, name)))),
    h("tbody", null, rows),
  );
}

/** The logit lens: what would be predicted after each layer; in a model of two stacks, by the decoder. */
export async function lensLadder(focus, facts) {
  const named = (one) => tables(one).find((table) => table.names.includes("lens"));
  const table = named(facts) ?? (twoSided(focus.m) ? named(await focus.trace.stage("classifier", { target: focus.rows.decoder })) : null);
  if (!table) return null;
  const final = table.heads.at(-1).slice(2, -1);
  const rows = table.rows.map(([after, ...cells]) => {
    const pairs = Array.from({ length: (cells.length - 1) / 2 }, (_, n) => cells.slice(2 * n, 2 * n + 2));
    const parts = pairs.map(([piece, p]) => h("span", { class: piece === final ? "lens-part final" : "lens-part", style: { "--share": String(p ?? 0) }, title: `${piece} ${show(p)}` }, h("span", { dir: "auto" }, piece), " ", h("span", { class: "number" }, show(p, 2))));
    return h("tr", null, h("th", { scope: "row" }, after), h("td", null, h("div", { class: "lens-row" }, parts)), h("td", { class: "share-cell" }, h("span", { class: "number" }, show(cells.at(-1))), shareBar(cells.at(-1))));
  });
  const head = [t("after"), t("would predict"), table.heads.at(-1)].map((name) => h("th", { scope: "col", dir: "auto" }, name));
  return h("div", { class: "scroller below", tabindex: "0", role: "region", "aria-label": table.title }, h("table", { class: "table lens-ladder", dataset: { table: "lens" } }, h("caption", null, table.title), h("thead", null, h("tr", null, head)), h("tbody", null, rows)));
}

export const layerStages = { "add-norm": layerAddNorm, "feed-forward": layerFeedForward, stack: layerStack };
