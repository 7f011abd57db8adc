// Chat: replies as they are generated, and how each word was chosen. The page keeps the
// conversation; the service is stateless.

import { stepsFor, inspectorWaiting, tokenInspector } from "../attention/tokenInspector.js";
import { streamedPieces } from "../bench/story.js";
import { button, h, replace, visible } from "../core/dom.js";
import { showPercent } from "../core/numbers.js";
import { requestStream, keep, kept } from "../core/requests.js";
import { select } from "../core/state.js";
import { tagChooser } from "../core/tag.js";
import { segmentsOf } from "../core/words.js";
import { t } from "../core/texts.js";

export const chatTab = {
  id: "chat",
  title: "Chat",
  fits: (model, page) => model.abilities.includes("chat") && !(model.kind === "pairs" && model.tags.length) && !page.offline,
  mount(container, page) {
    container.classList.add("use", "chat");
    const view = chatView(page);
    replace(container, h("h1", { class: "unseen" }, t("Chat")), h("div", { class: "talk-scroll" }, view.log, h("div", { class: "talk-head" }, view.fresh)), view.composer);
    chatShow(view);
    return () => {
      view.left = true;
      view.control?.abort();
    };
  },
};

/**
 * The conversation: exchanges of a question and its answer, whose state is one of
 * writing, done, stopped (by the user) and broken (by an error).
 */
function chatView(page) {
  const name = `limelight-chat-${page.model.name}`;
  const exchanges = (kept(name) ?? []).map((earlier) => (earlier.state === "writing" ? { ...earlier, state: "broken" } : earlier));
  const view = { page, name, exchanges, control: null, rows: [], left: false };
  view.log = h("div", { class: "talk" });
  view.field = h("textarea", {
    class: "field composer-field", id: "sentence", name: "message", rows: "1", maxlength: "2000", dir: "auto",
    "aria-label": t("Your message"), placeholder: t("Type a message …"),
    on: {
      keydown: (event) => {
        if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
        event.preventDefault();
        chatSend(view);
      },
    },
  });
  view.send = h("button", { type: "submit", class: "button primary" }, t("Send"));
  view.stop = button(t("Stop"), () => view.control?.abort(), { class: "button" });
  view.fresh = button(t("New conversation"), () => chatForget(view), { class: "button quiet small" });
  view.tag = tagChooser(page);
  view.composer = h(
    "form",
    { class: "composer card", on: { submit: (event) => { event.preventDefault(); chatSend(view); } } },
    view.field, view.tag, chatWordByWord(view), view.stop, view.send,
  );
  return view;
}

/** Beam search cannot stream; greedy decoding can. */
function chatWordByWord(view) {
  const { beam, temperature } = view.page.model.decode;
  view.wordByWord = h("input", { type: "checkbox", name: "word-by-word" });
  if (beam === 1 || temperature) return null;
  const hint = t("With beam search (beam size {0}) the reply appears when it is complete. Greedy decoding shows it token by token; the reply may differ.", [beam]);
  return h("label", { class: "check small", title: hint }, view.wordByWord, t("token by token"));
}

function chatSend(view) {
  const text = view.field.value.trim();
  if (!text || view.control) return;
  view.field.value = "";
  view.exchanges.push({ question: text, answer: "", state: "writing", tries: 0, cut: "" });
  chatAnswer(view, view.exchanges.at(-1));
}

function chatRetry(view, exchange) {
  if (view.control) return;
  chatAnswer(view, exchange);
}

function chatForget(view) {
  view.control?.abort();
  view.exchanges = [];
  keep(view.name, []);
  chatShow(view);
  view.field.focus();
}

/** Request an answer and show it as it streams. */
async function chatAnswer(view, exchange) {
  const control = new AbortController();
  view.control = control;
  const before = chatTurns(view, exchange);
  Object.assign(exchange, { answer: "", state: "writing", cut: "", tries: exchange.tries + 1 });
  keep(view.name, view.exchanges); // so that a reload knows about the question
  chatShow(view);
  try {
    await view.page.busy(requestStream(view.page, "/v1/chat/completions", chatRequest(view, before, exchange), (event) => chatTake(view, exchange, event), control.signal));
    exchange.state = "done";
  } catch (error) {
    exchange.state = control.signal.aborted ? "stopped" : "broken";
    exchange.cut = control.signal.aborted ? "" : [error.message, error.hint].filter(Boolean).join(": ");
  }
  if (view.control === control) view.control = null;
  if (view.left && exchange.state === "stopped") exchange.state = "broken"; // the tab was left
  if (view.exchanges.includes(exchange)) keep(view.name, view.exchanges);
  if (view.left) return;
  chatShow(view);
  view.page.say(exchange.state === "done" ? `${t("reply:")} ${exchange.answer}` : t("the reply was interrupted"));
}

function chatTake(view, exchange, event) {
  const [choice] = event.choices;
  exchange.answer += choice.delta.content ?? "";
  if (choice.finish_reason === "length") exchange.cut = t("the reply reached the maximum length");
  keep(view.name, view.exchanges);
  const row = view.rows[view.exchanges.indexOf(exchange)];
  if (row) chatLive(row, exchange, streamedPieces(choice));
}

/** The answer so far, shaded by the probability of each piece, and what else could have come last. */
function chatLive(row, exchange, pieces) {
  row.pieces = [...(row.pieces ?? []), ...pieces];
  if (row.pieces.map(({ text }) => text).join("") !== exchange.answer) {
    replace(row.words, exchange.answer);
    return;
  }
  const last = row.pieces.at(-1);
  const others = last.top.filter(({ piece }) => piece !== last.piece).slice(0, 3).map(({ piece, share }) => `${visible(piece)} ${showPercent(share)}`);
  replace(
    row.words,
    row.pieces.map(({ text, share }) => h("span", { class: "live-piece", style: { "--share": share } }, text)),
    h("span", { class: "live-others small soft", "aria-hidden": "true" }, others.length ? t("not {0}", [others.join(", ")]) : ""),
  );
}

function chatRequest(view, turns, exchange) {
  const { beam, temperature, seed } = view.page.model.decode;
  return {
    model: view.page.model.name,
    stream: true,
    messages: turns.map((content, i) => ({ role: i % 2 ? "assistant" : "user", content })),
    ...(view.tag ? { tag: view.tag.value } : {}),
    ...(view.wordByWord.checked ? { beam: 1 } : {}),
    ...(view.wordByWord.checked || temperature || beam === 1 ? { logprobs: true, top_logprobs: 5 } : {}), // beam search has none on its way
    ...(temperature ? { seed: seed + exchange.tries - 1 } : {}), // another try, another sample
  };
}

/** All turns up to this question, without unanswered ones. */
function chatTurns(view, exchange) {
  const before = view.exchanges.slice(0, view.exchanges.indexOf(exchange)).filter(chatCounts);
  return [...before.flatMap((earlier) => [earlier.question, earlier.answer]), exchange.question];
}

function chatCounts(exchange) {
  return exchange.state === "done" || (exchange.state === "stopped" && exchange.answer);
}

/** The whole conversation, and what can be done now. */
function chatShow(view) {
  view.rows = view.exchanges.map((exchange) => chatRow(view, exchange));
  const nothing = view.exchanges.length ? null : chatEmpty(view);
  replace(view.log, nothing, view.rows.map((row) => row.element));
  view.stop.hidden = !view.control;
  view.send.disabled = Boolean(view.control); // it stays in place, so that a second click does not stop
  view.fresh.hidden = !view.exchanges.length;
  view.log.setAttribute("aria-busy", String(Boolean(view.control)));
  view.rows.at(-1)?.element.scrollIntoView({ block: "nearest" });
}

function chatEmpty(view) {
  const text = view.page.example?.text.split("\n").at(-1);
  const turns = view.page.model.history;
  return h(
    "div",
    { class: "talk-empty" },
    h("p", { class: "prose" }, t("Send a message to the model.")),
    h("p", { class: "soft" }, turns === 1 ? t("The model sees only the last message.") : t("The model sees the last {0} messages.", [turns]), ` ${t("Click a word of a reply to see how it was chosen.")}`),
    text ? button(`“${text}”`, () => { view.field.value = text; chatSend(view); }, { class: "chip", "aria-label": t("Try: {0}", [text]) }) : null,
  );
}

function chatRow(view, exchange) {
  const row = { words: h("p", { class: "prose words", dir: "auto" }), inspector: h("div", { class: "inspector-slot" }) };
  if (exchange.state === "writing") replace(row.words, exchange.answer || h("span", { class: "soft" }, "…"));
  else replace(row.words, chatWords(view, exchange, row));
  const last = exchange === view.exchanges.at(-1);
  row.element = h(
    "div",
    { class: "exchange" },
    h("div", { class: "bubble asked" }, h("span", { class: "unseen" }, `${t("You:")} `), h("p", { dir: "auto" }, exchange.question)),
    h("div", { class: `bubble answer ${exchange.state}` }, h("span", { class: "unseen" }, `${t("The model:")} `), row.words, chatState(view, exchange, last)),
    row.inspector,
  );
  return row;
}

/** The state of an answer as text, with a button to retry. */
function chatState(view, exchange, last) {
  const again = (label) => (last && !view.control ? button(label, () => chatRetry(view, exchange), { class: "button small" }) : null);
  if (exchange.state === "writing") return null;
  if (exchange.state === "done") {
    const sampled = view.page.model.decode.temperature > 0;
    const note = exchange.cut ? h("span", { class: "small soft" }, exchange.cut) : null;
    return note || (sampled && last) ? h("div", { class: "row" }, note, sampled ? again(t("Another reply")) : null) : null;
  }
  const left = last ? "" : ` ${t("It is not part of the conversation.")}`;
  const text = exchange.state === "stopped" ? t("You stopped the reply here.") : t("The reply was interrupted here.") + (chatCounts(exchange) ? "" : left);
  return h("div", { class: "row broke" }, h("span", { class: "small" }, text, exchange.cut ? h("span", { class: "soft" }, ` (${exchange.cut})`) : null), again(t("Try again")));
}

/** The answer with every word as a button. */
function chatWords(view, exchange, row) {
  const text = exchange.answer;
  if (!text) return h("span", { class: "soft" }, exchange.state === "done" ? "(empty)" : "");
  if (view.page.model.config.family.startsWith("recurrent")) return text;
  return segmentsOf(text).map((part) => {
    if (!part.text.trim()) return part.text;
    const word = h("button", { type: "button", class: "word", "aria-expanded": "false", on: { click: () => chatInspect(view, exchange, row, part, word) } }, part.text);
    return word;
  });
}

/** Open the token inspector below the answer; the same word closes it. */
async function chatInspect(view, exchange, row, part, word) {
  const open = word.getAttribute("aria-expanded") === "true";
  row.words.querySelectorAll(".word").forEach((other) => other.setAttribute("aria-expanded", "false"));
  replace(row.inspector);
  if (open) return;
  word.setAttribute("aria-expanded", "true");
  const body = h("div", null, inspectorWaiting());
  const title = h("h2", null, t("Why “{0}”?", [part.text]));
  replace(row.inspector, h("section", { class: "card inspector-card", "aria-label": t("Why “{0}”?", [part.text]) }, title, body));
  try {
    const trace = await chatTrace(view, exchange);
    const offset = Array.from(exchange.answer.slice(0, part.from)).length;
    const steps = stepsFor(trace.manifest, offset, offset + Array.from(part.text).length);
    replace(body, steps.length ? tokenInspector(view.page, trace, steps) : h("p", { class: "soft" }, t("The model did not generate this as a piece of its own.")));
    row.inspector.firstChild?.scrollIntoView({ block: "nearest" });
  } catch (error) {
    view.page.showError(body, error, () => { word.setAttribute("aria-expanded", "false"); chatInspect(view, exchange, row, part, word); });
  }
}

/** Trace the answer over the turns that the model saw; the oldest are dropped first. */
async function chatTrace(view, exchange) {
  const turns = chatTurns(view, exchange).slice(-view.page.model.history).map((turn) => turn.split(/\s+/).filter(Boolean).join(" "));
  for (;;) {
    select({ text: turns.join("\n"), target: exchange.answer, step: null, query: null, key: null }, { replace: true });
    try {
      return await view.page.trace();
    } catch (error) {
      if (![400, 413].includes(error.status) || turns.length < 2) throw error;
      turns.shift();
    }
  }
}
