// Ask: a question about a paragraph; a sentence in other words; a summary.

import { button, h, replace } from "../core/dom.js";
import { showPercent } from "../core/numbers.js";
import { afterPause, postLatest, cancelRequests } from "../core/requests.js";
import { onSelect, select, selected } from "../core/state.js";
import { t } from "../core/texts.js";

const ASK_STORY = "Mary went to the garden. Then Mary picked up the ball. John is in the kitchen. Mary walked to the office.";
const ASK_QUESTIONS = ["Where is Mary?", "Where is the ball?", "Is John in the kitchen?", "How many things does Mary have?"];
const ASK_SENTENCE = "I would like to go home now.";

export const askTab = {
  id: "ask",
  title: "Ask",
  fits: (model, page) => ["ask", "paraphrase", "summarise"].some((task) => model.abilities.includes(task)) && !page.offline,
  mount(container, page) {
    container.classList.add("use");
    const made = { ask: askCard, paraphrase: paraphraseCard, summarise: summaryCard };
    const cards = Object.keys(made).filter((task) => page.model.abilities.includes(task)).map((task) => made[task](page));
    const missing = page.model.abilities.includes("summarise") ? null : summaryMissing(page);
    replace(container, h("h1", { class: "unseen" }, t("Ask")), cards.map((card) => card.element), missing);
    cards.forEach((card) => card.send());
    const leave = onSelect((now, before) => { if (now.text !== before.text) cards[0].follow?.(now.text); });
    return () => { leave(); cards.forEach((card) => { card.pause.cancel(); cancelRequests(page, card.task); }); };
  },
};

function askCard(page) {
  const [first, story] = askParts(selected().text);
  const context = askField("context", t("Paragraph"), story, 3);
  const question = askField("question", t("Question"), first, 1);
  const card = askSender(page, "ask", [context, question], () => ({ question: question.value, context: context.value }));
  const choose = (text) => { question.value = text; card.send(); };
  card.follow = (text) => {
    [question.value, context.value] = askParts(text);
    card.send();
  };
  const explain = () => select({ tab: "explain", text: `${question.value.trim()} ${context.value.trim()}`, tag: page.model.tags.includes("ask") ? "ask" : null, target: null });
  card.element = h(
    "section",
    { class: "card", "aria-label": t("Question") },
    h("h2", null, t("A question about a paragraph")),
    context,
    h("div", { class: "chips" }, ASK_QUESTIONS.map((text) => button(text, () => choose(text), { class: "chip" }))),
    question,
    card.answer,
    h("div", { class: "row" }, button(t("Explain this"), explain)),
  );
  return card;
}

/** The question and the paragraph of a text that the model reads; those to begin with where it has no question. */
function askParts(text) {
  const [, question, context] = /^([^?]*\?)\s+(\S[^]*)$/.exec(text ?? "") ?? [null, ASK_QUESTIONS[0], ASK_STORY];
  return [question, context];
}

function paraphraseCard(page) {
  return textCard(page, "paraphrase", t("Paraphrase"), t("In other words"), askField("sentence", t("Sentence"), ASK_SENTENCE, 2));
}

function summaryCard(page) {
  return textCard(page, "summarise", t("Summary"), t("In short"), askField("document", t("Text to summarise"), ASK_STORY, 6, 20_000));
}

function textCard(page, task, label, title, field) {
  const card = askSender(page, task, [field], () => ({ text: field.value }));
  card.follow = (text) => {
    field.value = text ?? field.defaultValue;
    card.send();
  };
  const explain = () => select({ tab: "explain", text: field.value.trim(), tag: page.model.tags.includes(task) ? task : null, target: null });
  card.element = h("section", { class: "card", "aria-label": label }, h("h2", null, title), field, card.answer, h("div", { class: "row" }, button(t("Explain this"), explain)));
  return card;
}

/** Where summaries come from, if this model did not learn them: another model of this service, or none yet. */
function summaryMissing(page) {
  const other = h("div", { class: "row" });
  const element = h(
    "section",
    { class: "card", "aria-label": t("Summary") },
    h("h2", null, t("In short")),
    h("p", null, t("This model did not learn to summarise, and no bundled model did.")),
    h("p", { class: "soft" }, t("An imported Pegasus does, in its Translate tab (limelight import google/pegasus-xsum runs/pegasus). Your own model does after limelight train text-to-text --data.tag summarise, with your texts and their summaries.")),
    other,
  );
  const others = (page.models ?? []).filter((name) => name !== page.model.name);
  page.busy(Promise.all(others.map((name) => page.api.model(name).catch(() => null)))).then((found) => {
    const able = found.filter((model) => model?.abilities.includes("summarise"));
    replace(other, able.map(({ name }) => button(t("{0} can: open it", [name]), () => select({ model: name, tab: "ask", text: null, tag: null, target: null }))));
  });
  return element;
}

function askField(id, label, value, rows, most = 2000) {
  return h("textarea", { class: "field prose-field", id, name: id, rows: String(rows), maxlength: String(most), dir: "auto", spellcheck: "false", "aria-label": label, value });
}

/** Sends what the fields hold, a moment after they change, and shows the answer. */
function askSender(page, task, fields, body) {
  const card = { task, answer: h("div", { class: "ask-answer" }) };
  card.send = async () => {
    const sent = body();
    if (Object.values(sent).some((text) => !text.trim())) {
      cancelRequests(page, task);
      replace(card.answer, h("p", { class: "soft" }, t("Fill in every field.")));
      return;
    }
    try {
      const { outputs, parts } = await postLatest(page, task, `/api/${task}`, sent);
      const shown = outputs.slice(0, task === "ask" ? 1 : 3);
      const note = parts > 1 ? h("p", { class: "small soft" }, t("Too long to be read at once: read in {0} parts.", [parts])) : null;
      replace(card.answer, shown.map(({ text, log_probability }) => h("p", { class: "prose", dir: "auto" }, text, h("span", { class: "small soft" }, ` ${showPercent(Math.exp(log_probability))}`))), note);
      page.say(shown[0]?.text ?? "");
    } catch (error) {
      page.showError(card.answer, error, card.send);
    }
  };
  card.pause = afterPause(card.send);
  fields.forEach((field) => field.addEventListener("input", () => card.pause.soon()));
  return card;
}
