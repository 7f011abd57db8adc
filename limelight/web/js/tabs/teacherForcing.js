// Teacher forcing on a text of the user: the loss of every position given the true tokens before it.

import { wasReplaced } from "../core/api.js";
import { button, h, replace } from "../core/dom.js";
import { show, showPercent } from "../core/numbers.js";
import { reading } from "../core/page.js";
import { pieceLabelAt, pieceLabels, pieceTexts } from "../core/pieces.js";
import { tagNow } from "../core/tag.js";
import { t } from "../core/texts.js";

/**
 * The form and the table of teacher forcing.
 * @param {Object} page
 * @returns {HTMLElement}
 */
export function teacherForcing(page) {
  const pair = page.model.kind !== "texts";
  const source = teacherField("teach-source", t("Source"), page.example?.text ?? "");
  const target = teacherField(
    "teach-target",
    pair ? t("Target") : t("Text"),
    page.example?.target ?? (pair ? "" : (page.example?.text ?? "")),
  );
  const container = h("div", { class: "teacher-result", "aria-live": "polite" });
  const submit = (event) => {
    event?.preventDefault();
    if (target.input.value.trim())
      teacherRequest(page, container, { source: pair ? source.input.value : "", target: target.input.value });
    else target.input.focus();
  };
  const form = h(
    "form",
    { class: "teacher-form", on: { submit: submit } },
    pair ? source.label : null,
    target.label,
    h("button", { type: "submit", class: "button primary" }, t("Show the loss")),
  );
  teacherBegin(page, target.input, submit);
  return h(
    "section",
    { class: "card teacher", "aria-label": t("Teacher forcing") },
    h("h2", null, t("Teacher forcing")),
    h("div", { class: "teacher-body" }, teacherWords(), h("div", null, form, container)),
  );
}

function teacherWords() {
  return h(
    "p",
    { class: "soft" },
    t("In training the model does not read its own output. It reads the true tokens, shifted right by one, and predicts the next token at every position, in one parallel pass. The loss of a position is the negative log-likelihood of the true token, −ln p. Training minimises the mean."),
  );
}

/** The first target: the output of the model for the example. */
async function teacherBegin(page, input, submit) {
  try {
    if (!input.value) {
      const { manifest } = await page.trace();
      const text = pieceTexts(manifest.answers.pieces)
        .filter((_, i) => i >= manifest.given && !manifest.answers.special[i])
        .join("")
        .trim();
      if (!input.value) input.value = text;
    }
    if (input.value && input.isConnected) submit();
  } catch (error) {
    if (!wasReplaced(error)) input.placeholder = t("type a target");
  }
}

function teacherField(id, text, value) {
  const input = h("input", {
    class: "field",
    type: "text",
    id,
    name: id,
    value,
    dir: "auto",
    autocomplete: "off",
    maxlength: "2000",
  });
  return {
    input,
    label: h("label", { class: "teacher-field" }, h("span", { class: "small soft" }, text), input),
  };
}

async function teacherRequest(page, container, request) {
  replace(container, reading(t("computing the loss of every position")));
  const work = page.api.latest("teacher", (signal) =>
    page.api.inTurn(() => page.api.post("/api/teacher", { model: page.model.name, tag: tagNow(page), ...request }, signal)),
  );
  try {
    replace(container, teacherTable(await page.busy(work), page.model.config.vocab));
  } catch (error) {
    page.showError(container, error, () => teacherRequest(page, container, request));
  }
}

/** One row per position: input, target, probability, loss. */
function teacherTable(result, vocab) {
  const uniform = Math.log(vocab); // the loss of a uniform distribution
  const labels = { input: pieceLabels(result.input), target: pieceLabels(result.target) };
  const names = [t("position"), t("reads"), t("target"), t("probability"), t("loss"), t("most likely (argmax)")];
  const table = h(
    "table",
    { class: "table teacher-rows" },
    h("caption", { class: "unseen" }, t("Teacher forcing, position by position")),
    h(
      "thead",
      null,
      h(
        "tr",
        null,
        names.map((name) => h("th", { scope: "col" }, name)),
      ),
    ),
    h(
      "tbody",
      null,
      result.input.map((_, i) => teacherRow(result, labels, i, uniform)),
    ),
    h("tfoot", null, teacherMean(result)),
  );
  const smoothed = `${t("With label smoothing {0}, as in this run, the training loss is {1}.", [result.smoothing, show(result.smoothed, 4)])} `;
  const known = t("A uniform distribution has a loss of ln {0} = {1} at every position: a full bar.", [vocab, show(uniform)]);
  const scroller = {
    class: "scroller",
    tabindex: "0",
    role: "region",
    "aria-label": t("Teacher forcing table"),
  };
  return [h("div", scroller, table), h("p", { class: "soft small" }, result.smoothing ? smoothed : "", known)];
}

function teacherRow(result, labels, i, uniform) {
  const share = { "--share": String(result.loss[i] / uniform) };
  const bar = h("span", { class: "teacher-bar", "aria-hidden": "true", style: share });
  const best =
    result.best[i] === result.target[i]
      ? h("span", { class: "good" }, t("same"))
      : h("span", { dir: "auto" }, `${pieceLabelAt(result.target, i, result.best[i])} (${showPercent(result.p_best[i])})`);
  return h(
    "tr",
    null,
    h("td", null, String(i + 1)),
    h("td", { dir: "auto" }, labels.input[i]),
    h("th", { scope: "row", dir: "auto" }, labels.target[i]),
    h("td", { class: "n" }, show(result.p_target[i], 4)),
    h("td", { class: "n" }, bar, show(result.loss[i], 4)),
    h("td", null, best),
  );
}

function teacherMean(result) {
  const title = t("mean loss of {0} positions", [result.loss.length]);
  const mean = h("td", { class: "n" }, show(result.mean, 4));
  return h("tr", null, h("td", null), h("th", { scope: "row", colspan: "3" }, title), mean, h("td", null));
}
