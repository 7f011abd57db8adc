// What every tab gets: the model, the shared trace, announcements, and error messages.

import { api, wasReplaced } from "./api.js";
import { button, h, replace } from "./dom.js";
import { sampleRequest } from "./sample.js";
import { selected } from "./state.js";
import { tagNow } from "./tag.js";
import { t } from "./texts.js";

/**
 * @param {{model: Object, models: string[], example: ?Object, live: HTMLElement}} facts
 * @returns {Object} the page, as tabs know it
 */
export function livePage(facts) {
  let traced = null; // the last text's, and what it was asked with
  return pageWith({
    ...facts,
    api,
    offline: false,
    trace(how = {}) {
      const request = traceRequest(facts, how);
      const key = JSON.stringify(request);
      if (traced?.key !== key) {
        const trace = api.trace(request);
        trace.catch(() => { if (traced?.key === key) traced = null; });
        traced = { key, trace };
      }
      return this.busy(traced.trace);
    },
  });
}

/**
 * The same over a file that holds one trace.
 * @param {Object} facts
 */
export function filePage(facts) {
  return pageWith({ ...facts, offline: true, trace() { return this.busy(Promise.resolve(facts.held)); } });
}

/** With the `changed` model, or as the `walk` shows it, with checkpoint and sampling: in a tab that says so. */
function traceRequest(facts, { changed = false, walk = false }) {
  const { text, target, change, checkpoint, sample } = selected();
  const request = { model: facts.model.name, text: text ?? facts.example?.text ?? "" };
  if (tagNow(facts)) request.tag = tagNow(facts);
  if ((changed || walk) && change) request.change = change.split("\n");
  if (walk && checkpoint !== null) request.step = checkpoint;
  if (walk) Object.assign(request, sampleRequest(sample));
  const given = text === null ? facts.example?.target : target;
  return given ? { ...request, target: given } : request;
}

function pageWith(page) {
  let waiting = 0;
  return {
    ...page,

    /** Announce something to screen readers. */
    say(text) {
      page.live.textContent = text;
    },

    /** The view is not complete until this has ended; body[data-ready] says when. */
    busy(promise) {
      waiting += 1;
      delete document.body.dataset.ready;
      const done = () => setTimeout(() => {
        waiting -= 1;
        if (waiting === 0) document.body.dataset.ready = "true";
      });
      promise.then(done, done);
      return promise;
    },

    /** Show an error in place of the content: the reason, a hint, and a retry button. */
    showError(container, error, retry) {
      if (wasReplaced(error)) return;
      if (!error.code) console.error(error);
      replace(
        container,
        h(
          "div",
          { class: "panel error", role: "alert" },
          h("p", null, h("strong", null, error.message || t("something went wrong in the page"))),
          error.hint ? h("p", { class: "soft" }, error.hint) : null,
          retry ? button(t("Try again"), retry) : null,
        ),
      );
    },
  };
}

/** A placeholder for content that is loading. */
export function reading(what) {
  return h("p", { class: "reading soft", role: "status" }, `${what} …`);
}
