// Learning on the drawing of the model: the loss of every position, and the gradient that flows back.

import { bars } from "../charts/bars.js";
import { h, replace } from "../core/dom.js";
import { layersOn } from "../core/focus.js";
import { show, showPercent } from "../core/numbers.js";
import { t } from "../core/texts.js";
import { tables } from "./parts.js";

/** A column for each position, as high as its loss. */
export function lossColumns(facts) {
  const table = tables(facts).find(({ names }) => names.includes("loss") || names.includes("teacher"));
  const rows = table.rows.map(([, reads, target, p, loss]) => ({ reads, target, p, loss }));
  const most = Math.max(...rows.map(({ loss }) => loss), 1e-9);
  const mean = rows.reduce((sum, { loss }) => sum + loss, 0) / rows.length;
  const column = ({ reads, target, p, loss }) => h(
    "li",
    { class: loss === most ? "loss-column most" : "loss-column", title: `${reads} → ${target}: −log ${show(p)} = ${show(loss)}`, style: { "--share": String(loss / most) } },
    h("span", { class: "number small" }, show(loss, 2)),
    h("span", { class: "loss-bar", "aria-hidden": "true" }),
    h("span", { class: "loss-target", dir: "auto" }, target),
    h("span", { class: "number small soft" }, showPercent(p)),
  );
  return h(
    "div",
    { class: "scroller loss-scroll", tabindex: "0", role: "region", "aria-label": t("loss of every position") },
    h("ol", { class: "loss-columns", style: { "--mean": String(mean / most) } }, rows.map(column)),
    h("p", { class: "small soft" }, t("Height: −log p of the true token; below it its probability. The line is the mean: {0}.", [show(mean)])),
  );
}

/** Sums of squared gradients by the names of weights, as shares of them all. */
export function gradientShares(facts) {
  const table = tables(facts).find(({ names }) => names.includes("gradients"));
  return table ? table.rows.map(([, , share, , name]) => [name, share]) : null;
}

/** The whole model with every layer open: the stronger a part's colour, the larger its gradient. */
export function gradientDrawing(focus, facts) {
  const { m } = focus;
  const shares = gradientShares(facts);
  const own = (side) => shares.some(([name]) => name.startsWith(side));
  const part = (label, weights) => h("span", { class: "gradient-part", dataset: { weights } }, label);
  const layer = (side, n) => {
    const parts = [[t("self-attention"), ["self_attention.", "self_cell."]], [t("cross-attention"), ["cross_attention."]], [t("feed-forward"), ["feed_forward."]]];
    const inside = parts.map(([label, ends]) => [label, ends.map((end) => `${side}.layers.${n}.${end}`)]).filter(([, starts]) => starts.some(own));
    return h("span", { class: "gradient-layer" }, h("span", { class: "soft small" }, String(n + 1)), inside.map(([label, starts]) => part(label, starts.join(","))));
  };
  const stack = (side, name, last) => h(
    "div",
    { class: "gradient-stack", role: "group", "aria-label": t(side) },
    h("span", { class: "soft small gradient-name" }, t(side)),
    part(t("embedding"), embeddingWeights(name)),
    Array.from({ length: layersOn(m, side) }, (_, n) => (m.model.cell ? part(`${m.model.cell.toUpperCase()} ${n + 1}`, `${side}.cell.`) : layer(side, n))),
    last && own("attention.") ? part(t("attention"), "attention.") : null,
    last ? part("softmax", CLASSIFIER_WEIGHTS) : null,
    last ? h("strong", { class: "gradient-loss" }, "← ", t("loss")) : null,
  );
  const drawing = h("div", { class: "gradient-drawing" }, m.source.ids.length ? stack("encoder", "source", !m.target.ids.length) : null, m.target.ids.length ? stack("decoder", "target", true) : null);
  paintGradient(drawing, shares);
  return h("figure", { class: "figure" }, drawing, h("figcaption", { class: "small soft" }, t("The gradient runs back from the loss through the same drawing. Colour: the norm of the gradient at the weights of a part.")));
}

/** Which weights a part has, by how their names begin; of several beginnings the first that exists. */
export const CLASSIFIER_WEIGHTS = "classifier.,masked_head.,text_head.,target.,source.";
export function embeddingWeights(name) {
  return name === "source" ? "source." : "target.,source.";
}

/** Colour all parts in a container by the gradient at their weights; null takes the colours away. */
export function paintGradient(container, shares) {
  const parts = [...container.querySelectorAll("[data-weights]")];
  const sizes = parts.map(({ dataset }) => {
    const starts = dataset.weights.split(",");
    const sum = (start) => (shares ?? []).filter(([name]) => name.startsWith(start)).reduce((all, [, share]) => all + share, 0);
    return Math.sqrt(starts.map(sum).find((share) => share > 0) ?? 0);
  });
  const most = Math.max(...sizes, 1e-12);
  parts.forEach((part, i) => {
    part.classList.toggle("heated", Boolean(shares));
    part.style.setProperty("--share", String(Math.sqrt(sizes[i] / most)));
    if (shares) part.title = t("{0} of the squared gradient", [showPercent(sizes[i] ** 2)]);
  });
}

/** What the step does to the true tokens, and which tokens of the text the gradient reaches. */
export function stepPictures(focus, facts) {
  const named = (name) => tables(facts).find(({ names }) => names.includes(name));
  const steps = named("step").rows.map(([, , target, , change, after]) => ({ label: target, value: after, note: `${change < 0 ? "−" : "+"}${show(Math.abs(100 * change), 2)}` }));
  const words = ["encoder", "decoder"].flatMap((side) => {
    const table = named(`${side} tokens`);
    if (!table) return [];
    const most = Math.max(...table.rows.map(([, , , share]) => share), 1e-12);
    const chips = table.rows.map(([, label, size, share]) => h("span", { class: "gradient-word", dir: "auto", title: show(size, 4), style: { "--share": String(share / most) } }, label));
    return [h("p", { class: "gradient-words" }, h("span", { class: "soft small" }, t(side), " "), chips)];
  });
  const made = bars({ items: steps, title: t("Probability of the true tokens after one step") });
  const box = h("div", { class: "below" });
  replace(box, h("h2", { class: "label" }, t("Probability of the true tokens after one step, and the change in percentage points")), made.element, h("h2", { class: "label" }, t("Gradient at the embedding of each token")), words);
  return box;
}
