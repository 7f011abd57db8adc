// The one selection that all tabs share. It lives in the URL's fragment, so that Back, bookmarks
// and links work; where a page has no URL of its own (a notebook's frame), in memory alone.

const STATE_NUMBERS = new Set(["step", "layer", "head", "query", "key", "layerB", "headB", "checkpoint"]);
const STATE_NAMES = [
  "model", "tab", "text", "tag", "target", "prefix", "change", "stage", "step", "side", "layer", "head", "query", "key", "all", "walk",
  "modelB", "textB", "layerB", "headB", "checkpoint", "sample",
];
const STATE_OLD_NAMES = { stage: "stop" }; // in links of earlier versions
const stateListeners = new Set();
let stateNow = stateFromFragment(stateFragment());

/**
 * The selection. Layers and heads count from 1; step, query and key from 0; null is not chosen.
 * `checkpoint` is a step of the training; `sample` is temperature, top-k, top-p and seed, or 0 for greedy.
 * `change` has a line for each change of the model, and the URL has it several times.
 * @returns {{model: ?string, tab: ?string, text: ?string, tag: ?string, target: ?string, prefix: ?string,
 *   change: ?string, stage: ?string, step: ?number, side: ?string, layer: ?number, head: ?number, query: ?number, key: ?number,
 *   all: boolean, walk: ?string, checkpoint: ?number, sample: ?string}}
 */
export function selected() {
  return { ...stateNow };
}

/**
 * Change some of it and notify the listeners; null removes a choice. Each change is a step for the
 * browser's Back, unless `replace` is given.
 * @param {Object} changes
 * @param {{replace?: boolean}} [how]
 */
export function select(changes, how = {}) {
  const unknown = Object.keys(changes).filter((name) => !STATE_NAMES.includes(name));
  if (unknown.length) throw new Error(`nothing called ${unknown[0]} can be selected`);
  const before = stateNow;
  const another = ["model", "text", "tag"].some((name) => name in changes && changes[name] !== before[name]);
  stateNow = { ...stateNow, ...(another ? { prefix: null } : {}), ...changes }; // a prefix belongs to its text
  const fragment = stateAsFragment(stateNow);
  if (fragment === stateAsFragment(before)) return;
  try {
    if (how.replace) history.replaceState(null, "", fragment || "#");
    else history.pushState(null, "", fragment || "#");
  } catch {
    // A frame without a URL: the selection is kept in memory.
  }
  stateNotify(before);
}

/**
 * Listen to every change: f(selection, previous selection).
 * @param {function(Object, Object): void} f
 * @returns {function(): void} stops listening
 */
export function onSelect(f) {
  stateListeners.add(f);
  return () => stateListeners.delete(f);
}

/**
 * A link to the present selection with some changes.
 * @param {Object} changes
 * @returns {string}
 */
export function linkTo(changes) {
  return stateAsFragment({ ...stateNow, ...changes }) || "#";
}

function stateNotify(before) {
  for (const f of [...stateListeners]) f(selected(), before);
}

function stateFragment() {
  return location.hash.slice(1);
}

function stateFromFragment(fragment) {
  const given = new URLSearchParams(fragment);
  const found = {};
  for (const name of STATE_NAMES) {
    const several = name === "change" ? given.getAll(name).join("\n") || null : null;
    const value = several ?? given.get(name) ?? given.get(STATE_OLD_NAMES[name] ?? name);
    if (name === "all") found[name] = value === "1";
    else if (value === null) found[name] = null;
    else if (!STATE_NUMBERS.has(name)) found[name] = value;
    else found[name] = /^\d{1,6}$/.test(value) ? Number(value) : null;
  }
  return found;
}

function stateAsFragment(state) {
  const params = new URLSearchParams();
  for (const name of STATE_NAMES) {
    if (name === "all" ? state.all : state[name] !== null && state[name] !== undefined && state[name] !== "") {
      const values = name === "change" ? state.change.split("\n") : [name === "all" ? "1" : String(state[name])];
      for (const value of values) params.append(name, value);
    }
  }
  const fragment = params.toString();
  return fragment ? `#${fragment}` : "";
}

window.addEventListener("popstate", () => {
  const before = stateNow;
  stateNow = stateFromFragment(stateFragment());
  if (stateAsFragment(before) !== stateAsFragment(stateNow)) stateNotify(before);
});
