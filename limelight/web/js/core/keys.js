// Single-key shortcuts: ignored while typing, and can be switched off.

const KEYS_OFF = "limelight-keys-off";

/** All keys, for the help: which, and what they do. */
export const KEYS = [
  ["?", "this help"],
  ["/", "go to the text field"],
  ["← →", "previous stage, next stage (Space: next)"],
  ["[ ]", "previous layer, next layer"],
  ["{ }", "previous head, next head"],
  [", .", "previous generated token, next one"],
  ["p", "play or pause"],
  ["t", "one word or all words"],
  ["Tab", "to the next control; in a matrix:"],
  ["← → ↑ ↓", "from cell to cell; Home, End: ends of the row"],
  ["Enter", "pin this cell; Esc: unpin it"],
  ["Ctrl Space", "in Write: three continuations; choose with ↑ ↓ and Enter"],
];

/**
 * Bind keys. A field, a grid or a list that has the keyboard focus keeps its own keys.
 * @param {Object<string, function(KeyboardEvent): void>} does by `event.key`
 * @returns {function(): void} ends it
 */
export function onKeys(does) {
  const listener = (event) => {
    const wanted = Object.hasOwn(does, event.key) ? does[event.key] : null;
    if (!wanted || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (keysTaken(event.target, event.key) || (keysOff() && event.key !== "?")) return;
    event.preventDefault();
    wanted(event);
  };
  document.addEventListener("keydown", listener);
  return () => document.removeEventListener("keydown", listener);
}

/**
 * Where a key moves a slider.
 * @param {KeyboardEvent} event
 * @param {{here: number, last: number}} slider its index, -1 for none, and the largest one
 * @returns {number | null} an index from 0 to the last, or null if the key is for something else
 */
export function sliderKey(event, { here, last }) {
  const to = {
    ArrowLeft: here - 1,
    ArrowRight: here + 1,
    ArrowDown: here - 1,
    ArrowUp: here + 1,
    Home: 0,
    End: last,
    PageUp: here + 10,
    PageDown: here - 10,
  }[event.key];
  if (to === undefined) return null;
  event.preventDefault();
  event.stopPropagation();
  return Math.max(0, Math.min(last, to));
}

/** Whether single keys are switched off. */
export function keysOff() {
  try {
    return localStorage.getItem(KEYS_OFF) === "1";
  } catch {
    return false;
  }
}

/** Switch single keys off or on. */
export function switchKeys(off) {
  try {
    localStorage.setItem(KEYS_OFF, off ? "1" : "0");
  } catch {
    // A browser that keeps nothing has them on again next time.
  }
}

function keysTaken(target, key) {
  if (!(target instanceof Element)) return false;
  if (target.closest("dialog:not([open])")) return false; // just closed, and not yet out of focus
  if (target.closest("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable], dialog")) {
    return true;
  }
  if (key === " " && target.closest("button, a, summary, input")) return true;
  const moves = key.startsWith("Arrow") || key === " ";
  return moves && target.closest("[role=grid], [role=tablist], [role=listbox], [role=slider], input") !== null;
}
