// Requests while the user types: after a pause, only the newest, one at a time.

const REQUEST_PAUSE = 250; // milliseconds without a key

/**
 * Call f after a pause; every call restarts the pause.
 * @param {function(): void} f
 * @param {number} [pause]
 * @returns {{soon: function(): void, now: function(): void, cancel: function(): void}}
 */
export function afterPause(f, pause = REQUEST_PAUSE) {
  let timer = 0;
  const cancel = () => clearTimeout(timer);
  return {
    cancel,
    soon() {
      cancel();
      timer = setTimeout(f, pause);
    },
    now() {
      cancel();
      f();
    },
  };
}

/**
 * Post a request that runs the model. It replaces an older request of its kind and waits in the queue.
 * @param {Object} page
 * @param {string} kind
 * @param {string} path
 * @param {Object} body
 * @param {string} [how] `post` for JSON, `postForBytes` for numbers
 */
export function postLatest(page, kind, path, body, how = "post") {
  const { api } = page;
  const answer = api.latest(kind, (signal) =>
    api.inTurn(() => {
      signal.throwIfAborted();
      return api[how](path, { model: page.model.name, ...body }, signal);
    }),
  );
  return page.busy(answer);
}

/**
 * Stream a text while it is generated. The request waits in the queue; the signal aborts it.
 * @param {Object} page
 * @param {string} path
 * @param {Object} body
 * @param {function(Object): void} onEvent
 * @param {AbortSignal} signal
 */
export function requestStream(page, path, body, onEvent, signal) {
  return page.api.inTurn(() => {
    signal.throwIfAborted();
    return page.api.stream(path, body, onEvent, signal);
  });
}

/**
 * Abort the requests of these kinds.
 * @param {Object} page
 * @param {...string} kinds
 */
export function cancelRequests(page, ...kinds) {
  for (const kind of kinds) page.api.latest(kind, async () => {});
}

/**
 * What this browser tab stored under a name, or null.
 * @param {string} name
 */
export function kept(name) {
  try {
    return JSON.parse(sessionStorage.getItem(name));
  } catch {
    return null;
  }
}

/**
 * Store something for this browser tab; it survives a reload.
 * @param {string} name
 * @param {unknown} value
 */
export function keep(name, value) {
  try {
    sessionStorage.setItem(name, JSON.stringify(value));
  } catch {
    // Without storage, it is lost with the page.
  }
}
