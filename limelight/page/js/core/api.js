// Everything that is asked of the service goes through here, and every refusal is an ApiError with
// a message and a hint for people.

import { Trace, partsOf } from "./trace.js";

const API_KEY = "limelight-key";
const apiInFlight = new Map();
let apiLane = Promise.resolve();
let apiKeyAsker = null;

/** A refusal: what was wrong, and what to do. */
export class ApiError extends Error {
  constructor(code, message, hint = "", status = 0) {
    super(message);
    this.name = "ApiError";
    this.code = code;
    this.hint = hint;
    this.status = status;
  }
}

/**
 * Whether something ended because something newer took its place: nothing to tell anybody.
 * @param {unknown} error
 */
export function wasReplaced(error) {
  return error instanceof DOMException && error.name === "AbortError";
}

/**
 * Who is asked for a key when the service wants one: () => Promise<string|null>.
 * @param {function(boolean): Promise<?string>} ask gets whether a key was wrong
 */
export function onKeyWanted(ask) {
  apiKeyAsker = ask;
}

export const api = {
  /** All about a model; the first one without a name. */
  model(name = "") {
    return api.get(`/api/model${name ? `?model=${encodeURIComponent(name)}` : ""}`);
  },

  /** JSON. */
  async get(path, signal) {
    return (await apiFetch(path, { signal })).json();
  },

  /** JSON for JSON. */
  async post(path, body, signal) {
    return (await apiFetch(path, apiPosted(body, signal))).json();
  },

  /** Numbers as bytes: by name, in order. */
  async bytes(path, signal) {
    return apiParts(await apiFetch(path, { signal }));
  },

  /** The same for what is posted. */
  async postForBytes(path, body, signal) {
    return apiParts(await apiFetch(path, apiPosted(body, signal)));
  },

  /**
   * Server-sent events of a posted request: onEvent(object) for each, until the end.
   * A stream that ends without its last word (`[DONE]`) was cut off, and says so.
   */
  async stream(path, body, onEvent, signal) {
    const response = await apiFetch(path, apiPosted(body, signal));
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let waiting = "";
    for (;;) {
      const { value, done } = await apiRead(reader);
      if (done) break;
      const events = (waiting + value).split(/\r?\n\r?\n/);
      waiting = events.pop();
      for (const event of events) {
        const data = apiEventData(event);
        if (data === "[DONE]") return;
        if (data) apiDeliver(JSON.parse(data), onEvent);
      }
    }
    throw new ApiError("cut_off", "the answer was cut off before its end", "ask again");
  },

  /**
   * Do f(signal) and end what was being done of the same kind before.
   * @template T
   * @param {string} kind
   * @param {function(AbortSignal): Promise<T>} f
   * @returns {Promise<T>}
   */
  async latest(kind, f) {
    apiInFlight.get(kind)?.abort();
    const control = new AbortController();
    apiInFlight.set(kind, control);
    try {
      return await f(control.signal);
    } finally {
      if (apiInFlight.get(kind) === control) apiInFlight.delete(kind);
    }
  },

  /**
   * Work that makes the model compute waits here for its turn: one forward pass at a time.
   * @template T
   * @param {function(): Promise<T>} f
   * @returns {Promise<T>}
   */
  inTurn(f) {
    const turn = apiLane.then(f, f);
    apiLane = turn.catch(() => {});
    return turn;
  },

  /** One text through the model, to be looked at. A newer one takes an older one's place. */
  trace(request) {
    return api.latest("trace", (signal) =>
      api.inTurn(async () => {
        signal.throwIfAborted();
        const { trace, manifest } = await api.post("/api/trace", request, signal);
        return new Trace(manifest, {
          bytes: (path) => api.inTurn(() => api.bytes(`/api/trace/${trace}/${path}`)),
          json: (path) => api.inTurn(() => api.get(`/api/trace/${trace}/${path}`)),
        });
      }),
    );
  },
};

/** What stands in for the service in a file: it has nothing to ask. */
export function offlineApi() {
  const refuse = async () => {
    throw new ApiError(
      "not_in_file",
      "this file holds one text and its numbers; nothing new can be asked of it",
      "start the model with `limelight serve` to ask it something else",
    );
  };
  return { ...api, model: refuse, get: refuse, post: refuse, bytes: refuse, postForBytes: refuse, stream: refuse, trace: refuse };
}

function apiPosted(body, signal) {
  return {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  };
}

async function apiFetch(path, options) {
  let wrong = false;
  for (;;) {
    const response = await apiSend(path, options);
    if (response.ok) return response;
    const error = await apiRefusal(response);
    const key = response.status === 401 && apiKeyAsker ? await apiKeyAsker(wrong) : null;
    if (!key) throw error;
    apiKeep(key);
    wrong = true;
  }
}

async function apiSend(path, options) {
  const key = apiKept();
  const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
  try {
    return await fetch(path, { ...options, headers });
  } catch (error) {
    if (wasReplaced(error)) throw error;
    throw new ApiError("no_answer", "the service does not answer", "is `limelight serve` still running? then try again");
  }
}

async function apiRefusal(response) {
  try {
    const { code, message, hint } = (await response.json()).error;
    return new ApiError(code, message, hint, response.status);
  } catch {
    return new ApiError("refused", `the service answered ${response.status}`, "try again", response.status);
  }
}

async function apiParts(response) {
  const parts = JSON.parse(response.headers.get("x-limelight-parts"));
  const kind = response.headers.get("x-limelight-kind");
  return partsOf(await response.arrayBuffer(), parts, kind);
}

async function apiRead(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (wasReplaced(error)) throw error;
    throw new ApiError("cut_off", "the answer was cut off before its end", "ask again");
  }
}

function apiEventData(event) {
  const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
}

function apiDeliver(data, onEvent) {
  if (data.error) throw new ApiError(data.error.code, data.error.message, data.error.hint);
  onEvent(data);
}

function apiKept() {
  try {
    return sessionStorage.getItem(API_KEY);
  } catch {
    return null;
  }
}

function apiKeep(key) {
  try {
    sessionStorage.setItem(API_KEY, key);
  } catch {
    // A browser that keeps nothing asks again next time.
  }
}
