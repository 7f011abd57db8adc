// Search by meaning, in texts that the reader pastes: the closest ones, and which tokens make them close.

import { button, h, replace } from "../core/dom.js";
import { show } from "../core/numbers.js";
import { afterPause, cancelRequests, keep, kept, postLatest } from "../core/requests.js";
import { select, selected } from "../core/state.js";
import { t } from "../core/texts.js";

const SEARCH_MOST = 64; // texts of a request
const SEARCH_TOP = 8;
const SEARCH_PAIRS = 32; // of tokens that make a text close; the closest of a long query
const SEARCH_KEPT = "limelight-search";
const SEARCH_TEXTS = `The cat sleeps on the sofa.
A dog is barking in the garden.
The train to Berlin leaves at nine.
She bought fresh bread and milk.
It will rain tomorrow in the north.
He plays the piano every evening.
The king lived in an old castle.
Our flight was late because of a storm.
Two children are playing with a ball.
The soup needs more salt.`;

export const searchTab = {
  id: "search",
  title: "Search",
  fits: (model, page) => model.abilities.includes("embed") && !page.offline,
  mount(container, page) {
    container.classList.add("use");
    const view = new SearchView(page);
    replace(container, h("h1", { class: "unseen" }, t("Search")), view.element);
    view.ask();
    return () => view.leave();
  },
};

class SearchView {
  constructor(page) {
    this.page = page;
    this.pause = afterPause(() => this.ask());
    const soon = { on: { input: () => this.pause.soon() } };
    this.query = h("input", { class: "field", id: "sentence", type: "search", maxlength: "1000", dir: "auto", spellcheck: "false", "aria-label": t("Search for"), value: selected().text ?? "an animal that rests", ...soon });
    this.texts = h("textarea", { class: "field prose-field", rows: "12", maxlength: "20000", dir: "auto", spellcheck: "false", "aria-label": t("Texts to search, one per line"), value: kept(SEARCH_KEPT) ?? SEARCH_TEXTS, ...soon });
    this.counter = h("p", { class: "small soft counter" });
    this.found = h("ol", { class: "search-found", "aria-label": t("The closest texts") });
    this.state = h("p", { class: "small soft", role: "status" });
    this.element = h(
      "div",
      { class: "two-sides" },
      h("section", { class: "card", "aria-label": t("Texts") }, h("h2", null, t("Texts, one per line")), this.texts, this.counter),
      h("section", { class: "card", "aria-label": t("Search") }, h("h2", null, t("Search by meaning")), this.query, page.model.abilities.some((one) => one !== "embed") ? h("p", { class: "small soft search-hint" }, t("This model was not trained for search: a sentence encoder (recipe sentence-encoder, or minilm) finds much more.")) : null, this.state, this.found),
    );
  }

  leave() {
    this.pause.cancel();
    cancelRequests(this.page, "search");
  }

  async ask() {
    const query = this.query.value.trim();
    const all = this.texts.value.split("\n").map((text) => text.trim()).filter(Boolean);
    const texts = all.slice(0, SEARCH_MOST);
    this.counter.textContent = all.length > SEARCH_MOST ? t("the first {0} of {1} are searched here; limelight search reads files of any size", [SEARCH_MOST, all.length]) : t("{0} of {1}", [all.length, SEARCH_MOST]);
    keep(SEARCH_KEPT, this.texts.value);
    select({ text: query || null, target: null }, { replace: true });
    if (!query || !texts.length) {
      cancelRequests(this.page, "search");
      replace(this.found);
      this.state.textContent = query ? t("Put the texts to search on the left.") : t("Type what to search for.");
      return;
    }
    try {
      const { matches } = await postLatest(this.page, "search", "/api/search", { query, texts, top: SEARCH_TOP, why: true });
      this.state.textContent = t("Cosine of the two vectors; marked: the closest tokens. Point at one to see its partner.");
      replace(this.found, matches.map((match) => this.match(match)));
      this.page.say(matches.length ? `${t("closest:")} ${matches[0].text}` : t("nothing found"));
    } catch (error) {
      replace(this.found);
      this.page.showError(this.state, error, () => this.ask());
    }
  }

  /** A text with its closest tokens marked, and the pairs of tokens that make it close. */
  match({ score, text, why }) {
    const words = why.filter(({ query }) => /[\p{L}\p{N}]/u.test(query));
    const least = words.map(({ cosine }) => cosine).sort((a, b) => b - a)[SEARCH_PAIRS - 1] ?? -1;
    const pairs = words.filter(({ cosine }) => cosine >= least);
    const left = words.length - pairs.length;
    const marks = searchMarks(text, pairs);
    const line = h("p", { class: "search-text", dir: "auto" }, marks.map(({ part, cosine, n }) => (cosine === undefined ? part : h("mark", { style: { "--share": Math.max(0, cosine) }, dataset: { pair: n } }, part))));
    const list = h("ul", { class: "search-why" }, pairs.map(({ query, text: other, cosine }, n) => h("li", { dataset: { pair: n }, tabindex: "0" }, h("span", { dir: "auto" }, query.trim()), " ~ ", h("strong", { dir: "auto" }, other.trim()), " ", h("span", { class: "number" }, show(cosine, 2)))), left ? h("li", { class: "soft" }, t("and {0} less close", [left])) : null);
    const item = h("li", { class: "search-match" }, h("span", { class: "search-score number", style: { "--share": Math.max(0, score) } }, show(score)), h("div", null, line, list), button("≈", () => { this.query.value = text; this.ask(); }, { class: "button quiet round", title: t("Search for texts like this one"), "aria-label": t("Search for texts like: {0}", [text]) }));
    const light = (event) => {
      const pair = event.type === "pointerleave" ? undefined : event.target.closest("[data-pair]")?.dataset.pair;
      const mark = pair === undefined ? null : searchPartner(pairs, Number(pair));
      for (const one of item.querySelectorAll("mark")) one.classList.toggle("lit", one.dataset.pair === String(mark));
      for (const one of item.querySelectorAll("li[data-pair]")) one.classList.toggle("lit", pair !== undefined && searchPartner(pairs, Number(one.dataset.pair)) === mark);
    };
    for (const name of ["pointerover", "focusin", "pointerleave"]) item.addEventListener(name, light);
    return item;
  }
}

/** The mark of a token of the query: where its partner stands in the text. */
function searchPartner(pairs, n) {
  const at = pairs[n].text_span;
  return at ? pairs.findIndex(({ text_span: other }) => other?.[0] === at[0]) : n;
}

/** A text in parts, each token that is the closest one of some token of the query apart. */
function searchMarks(text, pairs) {
  const characters = [...text]; // the service counts characters, not UTF-16 units
  const first = pairs.map((pair, n) => ({ n, at: pair.text_span })).filter(({ n, at }) => at && searchPartner(pairs, n) === n);
  const parts = [];
  let from = 0;
  for (const { n, at: [start, end] } of first.sort((a, b) => a.at[0] - b.at[0])) {
    if (start < from) continue; // two tokens that spell one character
    const cosine = Math.max(...pairs.filter((_, other) => searchPartner(pairs, other) === n).map((pair) => pair.cosine));
    parts.push({ part: characters.slice(from, start).join("") }, { part: characters.slice(start, end).join(""), cosine, n });
    from = end;
  }
  return [...parts, { part: characters.slice(from).join("") }];
}
