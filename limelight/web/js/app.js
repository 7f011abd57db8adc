// The app shell: top bar, tabs, and the chosen tab. The model decides which tabs there are.

import { api, onKeyWanted } from "./core/api.js";
import { askForKey, helpDialog } from "./core/dialogs.js";
import { benchTab } from "./bench/bench.js";
import { compareTab } from "./bench/compare.js";
import { embedded, shareMenu } from "./bench/share.js";
import { button, h, replace } from "./core/dom.js";
import { onKeys } from "./core/keys.js";
import { sayWhenCut } from "./core/longPaste.js";
import { filePage, livePage, reading } from "./core/page.js";
import { onSelect, select, selected } from "./core/state.js";
import { LANGUAGES, chooseLanguage, language, loadTexts, t } from "./core/texts.js";
import { themeButton } from "./core/theme.js";
import { askTab } from "./tabs/ask.js";
import { attentionTab } from "./tabs/attention.js";
import { chatTab } from "./tabs/chat.js";
import { classifyTab } from "./tabs/classify.js";
import { drawTab } from "./tabs/draw.js";
import { explainTab } from "./tabs/explain.js";
import { fillTab } from "./tabs/fill.js";
import { intro } from "./tabs/intro.js";
import { modelTab } from "./tabs/model.js";
import { searchTab } from "./tabs/search.js";
import { trainingTab } from "./tabs/training.js";
import { translateTab } from "./tabs/translate.js";
import { writeTab } from "./tabs/write.js";

// In the order of the tab bar; what the model was trained for comes before them all.
const APP_TABS = [
  askTab, translateTab, chatTab, writeTab, fillTab, classifyTab, drawTab,
  explainTab, benchTab, compareTab, attentionTab, searchTab, trainingTab, modelTab,
];
const APP_OFFLINE = ["explain", "attention", "model"]; // what an exported file can show

/**
 * Start. Without a file, everything comes from the service.
 * @param {?{model: Object, held: Object, api: Object, texts: function(string): Promise<Object>}} [file] what an exported file holds
 */
export async function start(file = null) {
  await loadTexts(file ? file.texts : (code) => api.get(`/page/texts/${code}.json`));
  const frame = appFrame();
  if (embedded()) document.documentElement.dataset.embed = "1";
  replace(document.body, frame.skip, frame.bar, frame.main, frame.live, frame.help);
  onKeyWanted(askForKey);
  sayWhenCut();
  onKeys({
    "?": () => frame.help.showModal(),
    "/": () => {
      const field = document.getElementById("sentence");
      field?.closest(".explain-top")?.classList.add("open");
      field?.focus();
    },
  });
  onSelect((now, before) => {
    if (now.model !== before.model) appOpen(frame, file);
    else if (now.tab !== before.tab) appShowTab(frame);
  });
  await appOpen(frame, file);
}

function appFrame() {
  const help = helpDialog();
  const frame = {
    help,
    page: null,
    leave: () => {},
    skip: h("a", { class: "skip", href: "#main", on: { click: appSkip } }, t("Skip to content")),
    card: h("div", { class: "model-card" }),
    tabs: h("div", { class: "tabs", role: "tablist", "aria-label": t("Tabs") }),
    main: h("main", { id: "main", class: "main", tabindex: "-1" }, appShell(reading(t("loading the model")))),
    live: h("div", { class: "unseen", role: "status", "aria-live": "polite", id: "live" }),
  };
  frame.tabs.addEventListener("keydown", (event) => appTabKey(frame, event));
  const tools = h(
    "div",
    { class: "tools" },
    languageChooser(),
    shareMenu(() => frame.page),
    button("?", () => help.showModal(), { class: "button quiet round", title: `${t("Help")} (?)`, "aria-label": t("Help") }),
    themeButton(),
  );
  const name = h("a", { class: "wordmark", href: "#", on: { click: (event) => appHome(frame, event) } }, "Limelight");
  frame.bar = h("header", { class: "bar" }, h("div", { class: "bar-top" }, name, frame.card, tools), frame.tabs);
  return frame;
}

function languageChooser() {
  if (location.protocol === "about:") return null; // a frame in a notebook has no address
  const choose = h("select", { class: "field language", "aria-label": t("Language"), on: { change: () => chooseLanguage(choose.value) } }, LANGUAGES.map(([code, name]) => h("option", { value: code, lang: code, selected: code === language() }, name)));
  return choose;
}

/** The first screen of this model; without a model yet, what the link says. */
function appHome(frame, event) {
  if (!frame.page || frame.page.offline) return;
  event.preventDefault();
  select({ ...Object.fromEntries(Object.keys(selected()).map((name) => [name, name === "all" ? false : null])), model: selected().model });
}

/** The same words as in index.html, so that nothing jumps. */
function appShell(line) {
  return h("div", { class: "shell" }, h("h1", null, t("A Transformer at work."), " ", h("span", { class: "soft" }, t("Every number on this page is its own."))), line);
}

function appSkip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

/** Load the description of the model, then show it. */
async function appOpen(frame, file) {
  delete document.body.dataset.ready;
  const opening = (frame.opening = {}); // another model may be chosen while this one is loaded
  try {
    const page = file ? appOpenFile(frame, file) : await appAskModel(frame, opening);
    if (frame.opening !== opening) return;
    frame.page = page;
  } catch (error) {
    if (frame.opening !== opening) return;
    const page = livePage({ model: {}, live: frame.live });
    page.showError(frame.main, error, () => appOpen(frame, file));
    document.body.dataset.ready = "true";
    return;
  }
  document.title = `${frame.page.model.name} · Limelight`;
  replace(frame.card, appCard(frame.page));
  appShowTab(frame);
}

/** A file opens at the layer and head it was exported for. */
function appOpenFile(frame, file) {
  const { layer, head } = selected();
  select({ layer: layer ?? file.focus.layer, head: head ?? file.focus.head }, { replace: true });
  return filePage({ ...file, live: frame.live });
}

async function appAskModel(frame, opening) {
  const wanted = selected().model;
  const { data } = await api.get("/v1/models");
  const models = data.map((model) => model.id);
  const name = models.includes(wanted) ? wanted : models[0];
  const show = appLoading(frame, name);
  const ask = () => api.get(`/api/example?model=${encodeURIComponent(name)}`).catch(() => null);
  const asked = ask(); // at once: on a slow line a round trip counts
  const model = await api.loadedModel(name, (...counts) => frame.opening === opening && show(...counts));
  const example = (await asked) ?? (await ask());
  const missing = wanted && wanted !== name ? wanted : null;
  return livePage({ model, models, example, missing, live: frame.live });
}

/** Progress while models are loaded. Screen readers hear of models, not of every second. */
function appLoading(frame, name) {
  const started = Date.now();
  const models = h("span", { role: "status" });
  const time = h("span", { "aria-hidden": "true" });
  const line = h("p", { class: "reading soft" }, models, time);
  return (ready, all) => {
    const text = all > 1 ? t("loading {0}: {1} of {2} models are ready", [name, ready, all]) : t("loading {0}", [name]);
    if (models.textContent !== text) models.textContent = text;
    time.textContent = ` … ${Math.round((Date.now() - started) / 1000)} s`;
    if (!line.isConnected) replace(frame.main, appShell(line));
  };
}

/** The name of the model; with several models, a chooser. */
function appCard({ model, models }) {
  return models && models.length > 1 ? appChooser(model, models) : h("strong", { class: "model-name" }, model.name);
}

function appChooser(model, models) {
  const choose = h(
    "select",
    {
      class: "field model-choice",
      "aria-label": t("Model"),
      on: { change: () => select({ model: choose.value, text: null, tag: null, target: null, stage: null, step: null, layer: null, head: null, query: null, key: null, checkpoint: null, sample: null }) },
    },
    models.map((name) => h("option", { value: name, selected: name === model.name }, name)),
  );
  return choose;
}

function appFitting(frame) {
  const { model, offline } = frame.page;
  const fitting = APP_TABS.filter((tab) => tab.fits(model, frame.page) && (!offline || APP_OFFLINE.includes(tab.id)));
  const first = model.abilities[0] === "embed" ? searchTab : { dialogues: chatTab }[model.kind];
  return first && fitting.includes(first) ? [first, ...fitting.filter((tab) => tab !== first)] : fitting;
}

/** The chosen tab, or else the first. */
function appShowTab(frame) {
  const fitting = appFitting(frame);
  const chosen = fitting.find((tab) => tab.id === selected().tab) || fitting[0];
  frame.leave();
  replace(
    frame.tabs,
    fitting.map((tab) => appTabButton(tab, tab === chosen)),
  );
  frame.tabs.querySelector("[aria-selected=true]").scrollIntoView({ block: "nearest", inline: "nearest" });
  frame.main.dataset.tab = chosen.id;
  const panel = h("div", { id: "panel", class: `tab-${chosen.id}`, role: "tabpanel", "aria-labelledby": `tab-${chosen.id}` });
  const first = selected().tab === null && !frame.page.offline ? intro(frame.page) : null;
  replace(frame.main, appMissing(frame.page), first?.element, panel);
  frame.page.busy(Promise.resolve());
  try {
    const leave = chosen.mount(panel, frame.page) || (() => {});
    frame.leave = () => { leave(); first?.leave(); };
  } catch (error) {
    frame.leave = () => first?.leave();
    frame.page.showError(panel, error, () => appShowTab(frame));
  }
}

/** A link may name a model that is not served here. */
function appMissing({ missing, model }) {
  return missing ? h("p", { class: "changed", role: "status" }, t("There is no model “{0}” here. This is {1}.", [missing, model.name])) : null;
}

function appTabButton(tab, chosen) {
  return h(
    "button",
    {
      type: "button",
      class: "tab",
      role: "tab",
      id: `tab-${tab.id}`,
      "aria-selected": String(chosen),
      "aria-controls": "panel",
      tabindex: chosen ? "0" : "-1",
      on: { click: () => select({ tab: tab.id }) },
    },
    t(tab.title),
  );
}

function appTabKey(frame, event) {
  const tabs = [...frame.tabs.children];
  const at = tabs.indexOf(document.activeElement);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
  if (at < 0 || to === undefined) return;
  event.preventDefault();
  const { id } = tabs[(to + tabs.length) % tabs.length];
  select({ tab: id.replace("tab-", "") });
  document.getElementById(id).focus();
}
