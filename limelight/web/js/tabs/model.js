// The model: architecture, parameters by part, nearest neighbours, settings.

import { architectureText, architectureOf } from "../charts/architecture.js";
import { architectureDiagram } from "../charts/architectureDiagram.js";
import { bars } from "../charts/bars.js";
import { saveSvgAsPng } from "../charts/savePng.js";
import { button, h, replace, visible } from "../core/dom.js";
import { show, showCount, showPercent } from "../core/numbers.js";
import { reading } from "../core/page.js";
import { t } from "../core/texts.js";

export const modelTab = {
  id: "model",
  title: "Model",
  fits: () => true,
  mount(container, page) {
    const [drawing, leave] = modelDrawing(page.model);
    const cards = [
      modelParts(page.model),
      page.offline ? null : modelNeighbours(page),
      modelSettings(page.model),
    ];
    replace(
      container,
      h("h1", { class: "unseen" }, t("Model")),
      h("p", { class: "model-facts" }, h("strong", null, page.model.name), ` · ${modelFacts(page.model)}`),
      h("div", { class: "model" }, drawing, h("div", { class: "model-cards" }, cards)),
    );
    return leave;
  },
};

/** The model in one line. */
function modelFacts({ config, vocabulary, parameters, step }) {
  const facts = [
    config.family,
    config.layers === 1 ? t("1 layer") : t("{0} layers", [config.layers]),
    config.heads ? t("{0} heads", [config.heads]) : null,
    t("width {0}", [config.d_model]),
    config.norm === "none" ? t("no norms") : config.norm_order ? `${config.norm_order}-norm` : null,
    t("{0} pieces", [showCount(vocabulary)]),
    t("{0} parameters", [showCount(parameters)]),
    step ? t("{0} training steps", [showCount(step)]) : null,
  ];
  return facts.filter(Boolean).join(" · ");
}

/** The diagram follows the width of its container. */
function modelDrawing(model) {
  const sides = architectureOf(model);
  const description = architectureText(sides);
  const drawingArea = h("div", { class: "model-drawing" });
  const card = h("section", { class: "card", "aria-label": t("Architecture") });
  const save = button(
    t("Save PNG"),
    () =>
      saveSvgAsPng(drawingArea.firstChild, {
        title: t("{0}: architecture", [model.name]),
        credit: model.about || model.family,
      }),
    { class: "button quiet" },
  );
  const order = model.config.norm_order && model.config.norm !== "none" && model.config.residual
    ? `${t("Read from the bottom up.")} ${model.config.norm_order === "pre" ? t("Pre-norm: each sub-layer normalises its input, and the residual stream is not normalised.") : t("Post-norm: the norm follows each residual addition, as in the paper.")}`
    : t("Read from the bottom up.") + (model.config.family.startsWith("recurrent") ? ` ${t("Tokens are processed one at a time.")}` : "");
  replace(
    card,
    h(
      "div",
      { class: "matrix-head" },
      h("h2", { class: "matrix-title" }, t("Architecture")),
      h("div", { class: "matrix-tools" }, save),
    ),
    h("p", { class: "soft" }, order),
    drawingArea,
  );
  let drawn = 0;
  const draw = () => {
    const width = drawingArea.clientWidth;
    if (!width || width === drawn) return;
    drawn = width;
    replace(drawingArea, architectureDiagram(sides, description, width));
  };
  const watch = new ResizeObserver(draw);
  watch.observe(drawingArea);
  return [card, () => watch.disconnect()];
}

/** Counted on the model itself, as `limelight info` counts. */
function modelParts({ parts, parameters }) {
  if (!parts) return null;
  const rows = Object.entries(parts).map(([name, count]) =>
    h(
      "tr",
      null,
      h("th", { scope: "row" }, name),
      h("td", { class: "n" }, showCount(count)),
      h("td", { class: "n" }, showPercent(count / parameters)),
      h(
        "td",
        { class: "model-share", "aria-hidden": "true" },
        h("span", { style: { "--share": String(count / parameters) } }),
      ),
    ),
  );
  const foot = h(
    "tr",
    null,
    h("th", { scope: "row" }, t("total")),
    h("td", { class: "n" }, showCount(parameters)),
    h("td", { class: "n" }, "100%"),
    h("td", null),
  );
  const head = [t("part"), t("parameters"), t("share")].map((text) => h("th", { scope: "col" }, text));
  const table = h(
    "table",
    { class: "table model-parts" },
    h("thead", null, h("tr", null, head, h("td", null))),
    h("tbody", null, rows),
    h("tfoot", null, foot),
  );
  return h(
    "section",
    { class: "card", "aria-label": t("Parameters by part") },
    h("h2", null, t("Parameters by part")),
    h("p", { class: "soft small" }, t("Tied weights count once.")),
    h("div", { class: "scroller" }, table),
  );
}

/** Pieces with similar embedding vectors. */
function modelNeighbours(page) {
  const input = h("input", {
    class: "field",
    type: "text",
    id: "neighbour-word",
    name: "word",
    maxlength: "200",
    dir: "auto",
    autocomplete: "off",
    value: modelWord(page.example?.text ?? ""),
    "aria-label": t("A word"),
  });
  const container = h("div", { class: "model-near", "aria-live": "polite" });
  const search = (event) => {
    event?.preventDefault();
    if (input.value.trim()) modelAsk(page, container, input.value.trim());
  };
  const form = h(
    "form",
    { class: "sentence", on: { submit: search } },
    input,
    h("button", { class: "button", type: "submit" }, t("Find neighbours")),
  );
  search();
  return h(
    "section",
    { class: "card", "aria-label": t("Nearest neighbours") },
    h("h2", null, t("Nearest neighbours")),
    h(
      "p",
      { class: "soft small" },
      t("The pieces with the most similar embedding vectors, by cosine similarity (1 is the same direction)."),
    ),
    form,
    container,
  );
}

async function modelAsk(page, container, text) {
  replace(container, reading(t("comparing with all embedding vectors")));
  const work = page.api.latest("neighbours", (signal) =>
    page.api.inTurn(() =>
      page.api.post("/api/neighbours", { model: page.model.name, text, count: 10 }, signal),
    ),
  );
  try {
    const { tokens } = await page.busy(work);
    const many = tokens.length === 1 ? 10 : tokens.length <= 3 ? 5 : 3; // of each, so that all can be seen
    replace(
      container,
      tokens.map(({ piece, neighbours }) =>
        h(
          "div",
          { class: "model-token" },
          h("h3", { dir: "auto" }, visible(piece)),
          bars({
            title: t("Neighbours of {0}", [visible(piece)]),
            items: neighbours.slice(0, many).map((near) => ({
              label: visible(near.piece),
              value: near.cosine,
              text: show(near.cosine),
            })),
          }).element,
        ),
      ),
    );
  } catch (error) {
    page.showError(container, error, () => modelAsk(page, container, text));
  }
}

/** The first word to look up: the longest of the example. */
function modelWord(text) {
  const words = text.match(/[\p{L}\p{N}]+/gu) ?? [];
  return words.reduce((longest, word) => (word.length > longest.length ? word : longest), words[0] ?? "");
}

function modelSettings({ config, decode, recipe }) {
  const table = (title, values) =>
    h(
      "table",
      { class: "table" },
      h("caption", { class: "small soft" }, title),
      h(
        "tbody",
        null,
        Object.entries(values).map(([name, value]) =>
          h("tr", null, h("th", { scope: "row" }, name), h("td", { class: "n" }, String(value))),
        ),
      ),
    );
  const tables = [table("model", config), decode ? table("decode", decode) : null];
  return h(
    "details",
    { class: "panel" },
    h("summary", null, recipe ? t("All settings of {0}", [recipe]) : t("All settings")),
    h(
      "div",
      { class: "model-settings scroller", tabindex: "0", role: "region", "aria-label": t("All settings") },
      tables,
    ),
  );
}
