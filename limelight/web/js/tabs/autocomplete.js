// Continuations of a text, as a list at the caret.

import { button, h, visible } from "../core/dom.js";
import { showPercent } from "../core/numbers.js";
import { reading } from "../core/page.js";
import { postLatest } from "../core/requests.js";
import { choiceList, popover } from "./alternatives.js";
import { t } from "../core/texts.js";

const AUTOCOMPLETE_OFFERED = 3;
const AUTOCOMPLETE_MOST = 15; // the service offers 16 at most

/**
 * Three continuations, and three more on demand.
 * @param {Object} view of the Write tab
 */
export async function autocomplete(view) {
  if (view.control || view.completing) return;
  const { editor, page } = view;
  const [before] = editor.parts();
  const caret = editor.field.selectionStart;
  view.completing = true;
  const pop = popover(view.home, editor.caretRect(), { title: t("Continuations"), onClose: () => { view.completing = false; } });
  const back = () => {
    pop.close();
    editor.field.focus();
    editor.field.setSelectionRange(caret, caret);
  };
  pop.fill(reading(t("loading continuations")));
  const offer = async (first) => {
    try {
      const { suggestions } = await postLatest(page, "suggest", "/api/suggest", { text: before, n: first + AUTOCOMPLETE_OFFERED });
      if (editor.field.selectionStart !== caret) pop.close(); // the user has typed meanwhile
      if (!pop.isOpen()) return;
      const shown = suggestions.slice(first);
      const more = first + 2 * AUTOCOMPLETE_OFFERED <= AUTOCOMPLETE_MOST && shown.length === AUTOCOMPLETE_OFFERED ? () => offer(first + AUTOCOMPLETE_OFFERED) : () => offer(0);
      autocompleteList(view, pop, { shown, back, more });
    } catch (error) {
      page.showError(pop.element, error, back);
    }
  };
  await offer(0);
}

function autocompleteList(view, pop, { shown, back, more }) {
  const options = shown.map((offer) => {
    const [, space, first, rest] = /^(\s*)(\S*)([^]*)$/u.exec(offer.text);
    return {
      piece: offer.text === "" ? t("end of the text") : first || space,
      rest: visible(rest).replaceAll("·", " "),
      share: offer.probability,
      note: t("first token {0}", [showPercent(offer.first_token_probability)]),
    };
  });
  const list = choiceList({
    title: t("Continuations"),
    options,
    onLeave: back,
    onTab: more,
    onChoose: (i) => {
      back();
      if (shown[i].text) view.editor.type(shown[i].text);
    },
  });
  list.addEventListener("keydown", (event) => {
    if (event.key.length === 1 && event.key !== " " && !event.ctrlKey && !event.metaKey) back(); // the user types
  });
  pop.fill(
    h("div", { class: "card-head" }, h("h3", { class: "label" }, t("Continuations")), button("3 more", more, { class: "button quiet small", title: "Tab" })),
    list,
    h("p", { class: "small soft option-help" }, t("↑ ↓ and Enter choose, Tab shows three more, Esc closes. The percentage is the probability of the continuation; the most likely first tokens come first.")),
  );
  list.focus();
}
