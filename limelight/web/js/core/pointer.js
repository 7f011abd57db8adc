// The shared cursor: a word or a number that the reader points at lights up wherever it is shown.

const pointerListeners = new Map(); // from an element to what it does, for as long as it is on the page
let pointerNow = { word: null, query: null, number: null, of: null };
let pointerWaiting = false;

/**
 * Point at something; null ends it. Listeners hear of it in the next frame.
 * @param {{word?: ?string, query?: ?string, number?: ?number, of?: ?number}} changes `word` and `query`
 *   are sides and positions, "encoder:3"; `number` one of a vector of `of`
 */
export function pointAt(changes) {
  const next = { ...pointerNow, ...changes };
  if (Object.keys(next).every((name) => next[name] === pointerNow[name])) return;
  pointerNow = next;
  if (!pointerWaiting) requestAnimationFrame(pointerTell);
  pointerWaiting = true;
}

/**
 * Listen, for as long as this element is on the page.
 * @param {Element} element
 * @param {function(Object): void} f
 */
export function onPointer(element, f) {
  pointerListeners.set(element, f);
  if (pointerListeners.size % 200 === 0) pointerForget();
}

function pointerTell() {
  pointerWaiting = false;
  pointerForget();
  for (const f of [...pointerListeners.values()]) f(pointerNow);
}

function pointerForget() {
  for (const element of pointerListeners.keys()) if (!element.isConnected) pointerListeners.delete(element);
}
