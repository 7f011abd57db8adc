// Sharing: a link, a frame for another page, one file, paper.

import { button, h } from "../core/dom.js";
import { showPercent } from "../core/numbers.js";
import { selected } from "../core/state.js";
import { t } from "../core/texts.js";

const SHARE_SHOWN = 1800; // milliseconds for which a button says what it did

/**
 * A button that copies a text, and says whether it did.
 * @param {Object} page
 * @param {string} label
 * @param {function(): string} textOf
 * @param {Object} [props]
 */
export function copyButton(page, label, textOf, props = {}) {
  const copy = async () => {
    let done = true;
    try {
      await navigator.clipboard.writeText(textOf());
    } catch {
      done = shareCopiedByHand(textOf());
    }
    const said = done ? t("Copied ✓") : t("Not copied: your browser forbids it");
    made.textContent = said;
    page.say(said);
    setTimeout(() => { made.textContent = label; }, SHARE_SHOWN);
  };
  const made = button(label, copy, { ...props, "aria-live": "polite" });
  return made;
}

/** Without the permission, or over plain HTTP, where browsers have no clipboard. */
function shareCopiedByHand(text) {
  const field = h("textarea", { class: "unseen", value: text });
  const held = document.activeElement;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  held?.focus();
  return done;
}

/** Whether this page is a frame in another one: then it is the content alone. */
export function embedded() {
  return new URLSearchParams(location.search).get("embed") === "1";
}

/**
 * The menu of the top bar.
 * @param {function(): Object} pageNow the page, once it is there
 * @returns {HTMLElement}
 */
export function shareMenu(pageNow) {
  const page = { say: (text) => pageNow()?.say(text) };
  const link = () => location.href.replace(/\?embed=1/, "");
  const frame = () => {
    const url = new URL(link());
    url.search = "?embed=1";
    return `<iframe src="${url.href.replaceAll('"', "%22")}" width="100%" height="640" title="Limelight"></iframe>`;
  };
  const state = h("p", { class: "small soft share-state", role: "status" });
  const save = button(t("Save as one file"), () => shareSave(pageNow(), save, state, shareFile));
  const film = button(t("Save as an animation"), () => shareSave(pageNow(), film, state, shareFilm));
  const menu = h(
    "details",
    { class: "sharing", on: { toggle: () => { save.hidden = film.hidden = !pageNow() || pageNow().offline || pageNow().model.config.family.startsWith("recurrent") || pageNow().model.abilities.includes("draw"); } } },
    h("summary", { class: "button quiet", "aria-label": t("Share") }, t("Share")),
    h("div", { class: "popover share-menu" }, copyButton(page, t("Copy link"), link), copyButton(page, t("Copy as a frame for a web page"), frame), save, film, button(t("Print"), () => { menu.open = false; print(); }), state),
  );
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    menu.firstChild.focus();
  });
  document.addEventListener("pointerdown", (event) => { if (!menu.contains(event.target)) menu.open = false; });
  return menu;
}

/** A page that needs no service. */
async function shareFile(trace) {
  const { html, holds } = await trace.file();
  return { content: html, type: "text/html", ending: "html", note: holds < 1 ? t("It holds {0} of this walk: numbers of words far from the chosen one are left out, to keep it below 5 MB.", [showPercent(holds)]) : "" };
}

/** A film that plays where scripts do not: of the chosen layer and head. */
async function shareFilm(trace) {
  const { layer, head } = selected();
  return { content: await trace.film({ layer, head }), type: "image/svg+xml", ending: "svg" };
}

/** The walk through the present text, with the changes that are selected. */
async function shareSave(page, save, state, make) {
  save.disabled = true;
  state.textContent = t("collecting every layer, head and word …");
  try {
    const trace = await page.trace(selected().tab === "what-if" ? { changed: true } : { walk: true });
    const { content, type, ending, note } = await page.busy(make(trace));
    const url = URL.createObjectURL(new Blob([content], { type }));
    h("a", { href: url, download: `${shareName(trace.manifest.text)}.${ending}` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
    state.textContent = [t("saved, {0} MB", [(content.length / 1e6).toFixed(content.length < 1e5 ? 2 : 1)]), note].filter(Boolean).join(". ");
  } catch (error) {
    state.textContent = [error.message, error.hint].filter(Boolean).join(": ");
  }
  save.disabled = false;
}

function shareName(text) {
  const name = (selected().text ?? text).toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 40);
  return name || "walk";
}
