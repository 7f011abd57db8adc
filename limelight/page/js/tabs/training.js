// How the model came to be: its curves as they grow, what it wrote by the way, and how it is taught.

import { chart } from "../charts/chart.js";
import { curveKinds, curveName, curveSamples, curveSeries, curveTroubles, GrowingLog } from "../charts/curves.js";
import { choice } from "../core/choice.js";
import { h, replace } from "../core/dom.js";
import { show, showCount } from "../core/numbers.js";
import { reading } from "../core/page.js";
import { teacherForcing } from "./teacherForcing.js";

const TRAINING_SOON = 2000; // milliseconds between two looks at a log that grows
const TRAINING_LATER = 15_000; // at one that does not
const SAMPLES_AT_ONCE = 8;

export const trainingTab = {
  id: "training",
  title: "Training",
  fits: () => true,
  mount(container, page) {
    const view = new TrainingView(container, page);
    view.begin();
    return () => view.end();
  },
};

class TrainingView {
  constructor(container, page) {
    this.page = page;
    const path = `/api/runs/${encodeURIComponent(page.model.name)}/metrics`;
    this.log = new GrowingLog((after) => page.api.get(`${path}?after=${after}`));
    this.kind = "loss";
    this.status = h("p", { class: "training-status" });
    this.curves = h("div", {}, reading("reading the log of this run"));
    this.samples = h("section", { class: "panel training-samples", "aria-label": "Samples over time" });
    const card = h(
      "section",
      { class: "card training-curves", "aria-label": "Curves" },
      h("h2", null, "How it learned"),
      this.status,
      this.curves,
    );
    const taught = page.model.abilities.includes("score") ? teacherForcing(page) : trainingOtherwise(page.model);
    replace(
      container,
      h("h1", { class: "unseen" }, "Training"),
      h("div", { class: "training" }, card, this.samples, taught),
    );
    this.samples.hidden = true;
    this.again = () => document.visibilityState === "visible" && this.poll();
  }

  begin() {
    document.addEventListener("visibilitychange", this.again);
    this.page.busy(this.poll());
  }

  end() {
    this.left = true;
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.again);
  }

  /** Read what is new, then come again: soon while the log grows; never while nobody looks. */
  async poll() {
    clearTimeout(this.timer);
    if (this.left || this.polling || document.visibilityState !== "visible") return;
    this.polling = true;
    const first = !this.shown;
    try {
      const news = await this.log.read();
      if (this.left) return;
      this.growing = news && !first;
      if (news || first) this.show();
      this.showStatus();
      this.timer = setTimeout(() => this.poll(), news ? TRAINING_SOON : this.pause());
    } catch (error) {
      if (this.left) return;
      if (first) this.page.showError(this.curves, error, () => this.poll());
      else this.status.textContent = `${error.message}; asking again`;
      this.timer = setTimeout(() => this.poll(), TRAINING_LATER);
    } finally {
      this.polling = false;
    }
  }

  /** Lines come every few steps: a log that was quiet for a moment may still grow. */
  pause() {
    this.quiet = this.growing ? 0 : (this.quiet ?? 0) + 1;
    return this.quiet < 10 ? TRAINING_SOON : TRAINING_LATER;
  }

  show() {
    const { entries } = this.log;
    const kinds = curveKinds(entries);
    if (!kinds.length) {
      replace(this.curves, h("p", { class: "soft" }, "This run has no log: its curves are not known."));
      return;
    }
    if (!kinds.includes(this.kind)) [this.kind] = kinds;
    if (this.shown !== kinds.join()) this.build(kinds);
    this.chart.set(this.chartOptions());
    this.explain();
    this.showSamples();
    replace(
      this.troubles,
      curveTroubles(entries)
        .slice(-5)
        .map((text) => h("li", null, text)),
    );
  }

  build(kinds) {
    const options = kinds.map((id) => ({ id, label: curveName(id) }));
    const which = choice({
      legend: "Which number",
      options,
      chosen: this.kind,
      onChoose: (id) => this.choose(id),
    });
    this.chart = chart(this.chartOptions());
    this.note = h("p", { class: "soft small" });
    this.troubles = h("ul", { class: "training-troubles small" });
    replace(this.curves, which.element, this.chart.element, this.note, this.troubles);
    this.shown = kinds.join();
  }

  choose(kind) {
    this.kind = kind;
    this.chart.set(this.chartOptions());
    this.explain();
  }

  /** Why the loss on texts never seen can be lower than that of training. */
  explain() {
    this.note.textContent =
      this.kind === "loss"
        ? "The loss in training is measured with dropout and label smoothing, where the recipe has them; on validation texts without: it can be lower."
        : "";
  }

  chartOptions() {
    const name = curveName(this.kind);
    return {
      title: `${name[0].toUpperCase()}${name.slice(1)} by step`,
      x: "step",
      y: this.kind === "loss" ? "loss per token" : name,
      credit: this.page.model.name,
      series: curveSeries(this.log.entries, this.kind),
    };
  }

  showStatus() {
    const lines = this.log.entries.filter((entry) => "rate" in entry);
    const last = lines.at(-1);
    if (!last) return;
    const valid = this.log.entries.filter((entry) => entry.validation && typeof entry.loss === "number");
    const best = valid.reduce((found, entry) => (found && found.loss <= entry.loss ? found : entry), null);
    const facts = [
      `step ${showCount(last.step)}`,
      `${showCount(last.tokens)} tokens`,
      `loss ${show(last.loss)}`,
      best ? `best on unseen texts ${show(best.loss)} at step ${showCount(best.step)}` : null,
    ];
    const live = this.growing ? h("strong", { class: "training-live" }, "training now") : null;
    replace(this.status, live, facts.filter(Boolean).join(" · "));
  }

  showSamples() {
    const found = curveSamples(this.log.entries);
    this.samples.hidden = !found.length;
    const items = found
      .slice(0, SAMPLES_AT_ONCE)
      .map(({ step, samples }) => [
        h("dt", null, `step ${showCount(step)}`),
        h("dd", null, h("ul", null, samples.map(trainingSample))),
      ]);
    replace(
      this.samples,
      h("h2", null, "What it wrote by the way"),
      h(
        "p",
        { class: "soft small" },
        "Each time it had become better on texts that it does not learn from, the latest first.",
      ),
      h("dl", { tabindex: "0" }, items),
    );
  }
}

/** What was read, and what the model said to it. */
function trainingSample(line) {
  const [, read, output] = line.match(/^(['"].*['"]) -> (['"].*['"]?)$/s) ?? [null, line, null];
  return h(
    "li",
    { dir: "auto" },
    read,
    output === null ? null : [" → ", h("span", { class: "training-output" }, output)],
  );
}

/** A model that reads both ways is not taught to write on. */
function trainingOtherwise(model) {
  const how = model.abilities.includes("classify")
    ? "This model learned to name the class of a text: the loss is −ln of the probability it gave to the true class."
    : "This model learned by filling blanks: some words were hidden, and the loss is −ln of the probability it gave to each of them. Try it under Fill.";
  return h(
    "section",
    { class: "panel", "aria-label": "How it is taught" },
    h("h2", null, "How it is taught"),
    h("p", { class: "soft" }, how),
  );
}
