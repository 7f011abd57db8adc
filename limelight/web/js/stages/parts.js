// Building blocks for the pictures of the stages.

import { vectorStrip } from "../charts/vectorStrip.js";
import { button, h } from "../core/dom.js";
import { makerOf } from "../core/focus.js";
import { furthest, show, showTiny } from "../core/numbers.js";
import { select } from "../core/state.js";
import { t } from "../core/texts.js";

const LISTING_ROWS = 100; // drawn at first: a deep model has hundreds of weight matrices

/**
 * A value recomputed in this page, compared with that of the model.
 * @param {Object} focus
 * @param {string} claim
 * @param {ArrayLike<number>} shown
 * @param {ArrayLike<number>} again
 */
export function compared(focus, claim, shown, again) {
  let size = 0;
  for (const x of shown) if (Number.isFinite(x)) size = Math.max(size, Math.abs(x));
  const error = furthest(shown, again);
  const within = focus.m.checks.tolerance * (1 + size);
  return { claim, error, within, passed: error <= within };
}

/** Passed and failed checks, with the difference. */
export function checkList(checks) {
  const lines = checks.map((check) => {
    const off = check.error === 0 ? t("exact") : check.error === null || !Number.isFinite(check.error) ? t("differs") : t("off by {0}", [showTiny(check.error)]);
    return h(
      "li",
      { class: check.passed ? "check-line" : "check-line failed" },
      h("span", { class: check.passed ? "tick good" : "tick bad", "aria-hidden": "true" }, check.passed ? "✓" : "✗"),
      h("span", null, h("span", { class: "unseen" }, check.passed ? `${t("passed:")} ` : `${t("failed:")} `), check.claim, " ", h("span", { class: "soft small number" }, off)),
    );
  });
  return h("ul", { class: "check-list" }, lines);
}

/** Where a value comes from: its name, the operation, and links to its inputs. */
export function origin(focus, name) {
  const facts = focus.m.tensors[name];
  if (!facts) return null;
  const near = (from) => (from.slice(0, from.lastIndexOf(".")) === name.slice(0, name.lastIndexOf(".")) ? from.split(".").at(-1) : valueName(from));
  const sources = facts.from.map((from) => [" ", valueLink(focus, from, near(from))]);
  return h(
    "p",
    { class: "origin soft small" },
    h("span", { title: name }, valueName(name)),
    ` [${facts.shape.join(" × ")}]: ${facts.op}`,
    sources.length ? [" of", sources] : null,
  );
}

/** encoder.0.self.norm as people count: encoder, layer 1, self-attention: norm. */
function valueName(name) {
  const parts = name.split(".");
  const uses = { self: "self-attention", cross: "cross-attention", feed_forward: "feed-forward" };
  const where = parts.slice(0, -1).map((part) => (/^\d+$/.test(part) ? `layer ${Number(part) + 1}` : uses[part] ?? part));
  return where.length ? `${where.join(", ")}: ${parts.at(-1)}` : name;
}

/** The name of a value as a link to the stage that computes it. */
export function valueLink(focus, name, label = valueName(name)) {
  const { stage, layer } = makerOf(focus.m, name);
  const go = () => select({ stage, ...(layer ? { layer } : {}), key: null });
  return button(label, go, { class: "link", title: t("{0}: go to the stage that computes it", [name]), dataset: { value: name } });
}

/** A picture with the origin of its values below. */
export function figure(focus, made, names = []) {
  return h("figure", { class: "figure", dataset: { of: names.join(" ") } }, made, names.map((name) => origin(focus, name)));
}

/**
 * The vectors of a token as strips on one colour scale.
 * @param {{title: string, values: ArrayLike<number>, name?: string, sign?: string, note?: string, role?: string,
 *   word?: string}[]} rows `name`: which value of the model it is, where it is one; `role`: q, k or v
 */
export function strips(rows) {
  const most = stripsScale(rows.map(({ values }) => values));
  const scale = { kind: "signed", low: -most, high: most };
  return h(
    "div",
    { class: rows.length > 12 ? "strips many" : "strips", style: { "--rows": String(rows.length) } },
    rows.map(({ title, values, name, sign, note, role, word }) =>
      h("div", { class: `strips-row${role ? ` role-${role}` : ""}`, dataset: { value: name ?? "", ...(word ? { word } : {}) } }, h("span", { class: "strips-sign", "aria-hidden": "true" }, sign ?? ""), vectorStrip({ values, title, note, scale }).element),
    ),
  );
}

/** The end of the colours: an outlier or two may be off it, or else nothing else could be seen. */
function stripsScale(vectors) {
  const sizes = vectors.flatMap((values) => Array.from(values, Math.abs)).filter(Number.isFinite).sort((a, b) => a - b);
  if (!sizes.length) return 0;
  const [most, usual] = [sizes.at(-1), sizes[Math.floor(0.98 * (sizes.length - 1))]];
  return most > 4 * usual && usual > 0 ? 2 * usual : most;
}

/** A table of a stage, as the terminal prints it; `share` is a column of bars. */
export function listing(facts) {
  const numeric = (j) => facts.rows.some((row) => typeof row[j] === "number");
  const heads = facts.heads.map((name, j) => h("th", { scope: "col", class: numeric(j) && j !== facts.share ? "n" : null }, name));
  const line = (row, i) => h("tr", { class: i === facts.focus ? "focus" : null }, row.map((cell, j) => listingCell(cell, j === facts.share)));
  const most = Math.max(LISTING_ROWS, (facts.focus ?? 0) + 1);
  const body = h("tbody", null, facts.rows.slice(0, most).map(line));
  const left = facts.rows.length - most;
  const more = left > 0 ? button(t("{0} more rows", [left]), () => { body.append(...facts.rows.slice(most).map((row, i) => line(row, most + i))); more.remove(); }, { class: "link" }) : null;
  return h(
    "div",
    { class: "scroller", tabindex: "0", role: "region", "aria-label": facts.title },
    h("table", { class: "table listing", dataset: { table: facts.names[0] ?? "" } }, h("caption", null, facts.title), h("thead", null, h("tr", null, heads)), body),
    more,
  );
}

function listingCell(cell, share) {
  if (Array.isArray(cell)) return h("td", null, cell.map((thing) => h("span", { class: "thing" }, thing)));
  if (typeof cell === "string") return h("td", { dir: "auto" }, cell);
  if (cell === null) return h("td", { class: "n bad" }, "NaN");
  if (!share) return h("td", { class: "n" }, show(cell));
  return h("td", { class: "share-cell" }, h("span", { class: "number" }, show(cell, 4)), shareBar(cell));
}

/** A share of 1 as a bar. */
export function shareBar(share) {
  return h("span", { class: "share-bar", "aria-hidden": "true", style: { "--share": String(Math.max(0, Math.min(1, share))) } });
}

/** The tables of a stage. */
export function tables(facts) {
  return facts.exhibits.filter((exhibit) => exhibit.rows);
}

/** One of them. */
export function tableNamed(facts, name) {
  const found = tables(facts).find((table) => table.names.includes(name));
  return found ? listing(found) : null;
}

/** 1, 2, 3 ... as labels of a vector's elements. */
export function counted(count) {
  return Array.from({ length: count }, (_, i) => String(i + 1));
}

/** The first few numbers as text. */
export function firstFew(values, most = 4) {
  const shown = Array.from(values.slice(0, most), (x) => show(x)).join("  ");
  return `[${shown}${values.length > most ? " …" : ""}]`;
}
