// All requests to the service. A rejected request is an ApiError with a message and a hint.

import { Trace, partsOf } from "./trace.js";

const API_KEY = "limelight-key";
const API_WAIT = 1000; // milliseconds between two requests while a model is being loaded
const apiInFlight = new Map();
let apiLane = Promise.resolve();
let apiKeyAsker = null;

/** A rejected request: what was wrong, and what to do. */
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
 * Whether a request was aborted because a newer one replaced it: not an error for the user.
 * @param {unknown} error
 */
export function wasReplaced(error) {
  return error instanceof DOMException && error.name === "AbortError";
}

/**
 * Register who provides the API key when the service needs one.
 * @param {function(boolean): Promise<?string>} ask gets whether a key was wrong
 */
export function onKeyWanted(ask) {
  apiKeyAsker = ask;
}

export const api = {
  /** The description of a model; without a name, of the first one. */
  model(name = "") {
    return api.get(`/api/model${name ? `?model=${encodeURIComponent(name)}` : ""}`);
  },

  /**
   * The same, once the model is loaded; until then onWait(models that are ready, all models) is called every second.
   */
  async loadedModel(name, onWait) {
    for (;;) {
      try {
        return await api.model(name);
      } catch (error) {
        if (error.code !== "model_unavailable") throw error;
      }
      let devices = {};
      while (!devices[name]?.length) {
        ({ devices } = await api.get("/healthz")); // answers at once, whatever the models do
        const workers = Object.values(devices);
        onWait(workers.filter((own) => own.length).length, workers.length);
        await new Promise((done) => setTimeout(done, API_WAIT));
      }
    }
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
   * A stream that ends without `[DONE]` was cut off, and raises an error.
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
    throw new ApiError("cut_off", "the response was cut off", "try again");
  },

  /**
   * Do f(signal) and abort the previous request of the same kind.
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
   * Queue work for the model: one forward pass at a time.
   * @template T
   * @param {function(): Promise<T>} f
   * @returns {Promise<T>}
   */
  inTurn(f) {
    const turn = apiLane.then(f, f);
    apiLane = turn.catch(() => {});
    return turn;
  },

  /** Trace one text. A newer request replaces an older one. */
  trace(request) {
    return api.latest("trace", (signal) =>
      api.inTurn(() => {
        signal.throwIfAborted();
        return apiTrace(request, signal, api.inTurn);
      }),
    );
  },

  /** The same while something is generated, which holds the queue: the service does both in turn. */
  traceMeanwhile(request) {
    return apiTrace(request, undefined, (f) => f());
  },
};

/** The API of an exported file: every request is rejected. */
export function offlineApi() {
  const refuse = async () => {
    throw new ApiError(
      "not_in_file",
      "this file holds one traced text and cannot run the model",
      "use `limelight serve` for other texts",
    );
  };
  return { ...api, model: refuse, get: refuse, post: refuse, bytes: refuse, postForBytes: refuse, stream: refuse, trace: refuse };
}

async function apiTrace(request, signal, inTurn) {
  const { trace, manifest } = await api.post("/api/trace", request, signal);
  return new Trace(manifest, {
    bytes: (path) => inTurn(() => api.bytes(`/api/trace/${trace}/${path}`)),
    json: (path) => inTurn(() => api.get(`/api/trace/${trace}/${path}`)),
  });
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
    throw new ApiError("no_answer", "the service does not respond", "check that `limelight serve` is running, then try again");
  }
}

async function apiRefusal(response) {
  try {
    const { code, message, hint } = (await response.json()).error;
    return new ApiError(code, message, hint, response.status);
  } catch {
    return new ApiError("refused", `the service responded with ${response.status}`, "try again", response.status);
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
    throw new ApiError("cut_off", "the response was cut off", "try again");
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
    // Without storage, the key is requested again next time.
  }
}
