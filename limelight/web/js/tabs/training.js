// Training: curves as they grow, samples, and the objective.

import { chart } from "../charts/chart.js";
import { curveKinds, curveName, curveSamples, curveSeries, curveTroubles, GrowingLog } from "../charts/curves.js";
import { choice } from "../core/choice.js";
import { h, replace } from "../core/dom.js";
import { show, showCount } from "../core/numbers.js";
import { reading } from "../core/page.js";
import { teacherForcing } from "./teacherForcing.js";
import { t } from "../core/texts.js";

const TRAINING_SOON = 2000; // milliseconds between two polls of a growing log
const TRAINING_LATER = 15_000; // of one that does not grow
const SAMPLES_AT_ONCE = 8;
const trainingNotes = () => ({
  loss: t("Both without label smoothing, so a rising distance is over-fitting. The training loss is measured with dropout: the validation loss can be lower."),
  objective: t("What training minimizes: the loss with label smoothing, R-Drop and class weights, as far as the recipe uses them."),
});

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
    this.curves = h("div", {}, reading(t("loading the log of this run")));
    this.samples = h("section", { class: "panel training-samples", "aria-label": t("Samples over time") });
    const card = h(
      "section",
      { class: "card training-curves", "aria-label": t("Curves") },
      h("h2", null, t("Training curves")),
      this.status,
      this.curves,
    );
    const taught = page.model.abilities.includes("score") ? teacherForcing(page) : trainingOtherwise(page.model);
    replace(
      container,
      h("h1", { class: "unseen" }, t("Training")),
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

  /** Poll the log: often while it grows, never while the page is hidden. */
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
      else this.status.textContent = t("{0}; retrying", [error.message]);
      this.timer = setTimeout(() => this.poll(), TRAINING_LATER);
    } finally {
      this.polling = false;
    }
  }

  /** Lines come every few steps: a log that was quiet for a while may still grow. */
  pause() {
    this.quiet = this.growing ? 0 : (this.quiet ?? 0) + 1;
    return this.quiet < 10 ? TRAINING_SOON : TRAINING_LATER;
  }

  show() {
    const { entries } = this.log;
    const kinds = curveKinds(entries);
    if (!kinds.length) {
      replace(this.curves, h("p", { class: "soft" }, t("This run has no log, so there are no curves.")));
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
      legend: t("Metric"),
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

  /** What the training loss has in common with the validation loss, and what not. */
  explain() {
    this.note.textContent = trainingNotes()[this.kind] ?? "";
  }

  chartOptions() {
    const name = curveName(this.kind);
    return {
      title: t("{0} by step", [`${name[0].toUpperCase()}${name.slice(1)}`]),
      x: "step",
      y: this.kind === "loss" ? t("loss (nats, not smoothed)") : name,
      credit: this.page.model.name,
      series: curveSeries(this.log.entries, this.kind),
    };
  }

  showStatus() {
    const lines = this.log.entries.filter((entry) => "lr" in entry);
    const last = lines.at(-1);
    if (!last) return;
    const valid = this.log.entries.filter((entry) => entry.validation && typeof entry.loss === "number");
    const best = valid.reduce((found, entry) => (found && found.loss <= entry.loss ? found : entry), null);
    const facts = [
      t("step {0}", [showCount(last.step)]),
      t("{0} tokens", [showCount(last.tokens)]),
      t("loss {0}", [show(last.loss)]),
      best ? t("best validation loss {0} at step {1}", [show(best.loss), showCount(best.step)]) : null,
    ];
    const live = this.growing ? h("strong", { class: "training-live" }, t("training now")) : null;
    replace(this.status, live, facts.filter(Boolean).join(" · "));
  }

  showSamples() {
    const found = curveSamples(this.log.entries);
    this.samples.hidden = !found.length;
    const items = found
      .slice(0, SAMPLES_AT_ONCE)
      .map(({ step, samples }) => [
        h("dt", null, t("step {0}", [showCount(step)])),
        h("dd", null, h("ul", null, samples.map(trainingSample))),
      ]);
    replace(
      this.samples,
      h("h2", null, t("Samples during training")),
      h(
        "p",
        { class: "soft small" },
        t("Generated after each improvement on the validation set, latest first."),
      ),
      h("dl", { tabindex: "0" }, items),
    );
  }
}

/** A source and the output of the model. */
function trainingSample(line) {
  const [, read, output] = line.match(/^(['"].*['"]) -> (['"].*['"]?)$/s) ?? [null, line, null];
  return h(
    "li",
    { dir: "auto" },
    read,
    output === null ? null : [" → ", h("span", { class: "training-output" }, output)],
  );
}

/** The objective of an encoder-only model, or of one that draws. */
function trainingOtherwise(model) {
  const how = model.abilities.includes("draw")
    ? t("The tokens of a picture follow its caption, and the loss is −ln of the probability of each, given the caption and the patches before it.")
    : model.abilities.includes("classify")
    ? t("Classification: the loss is −ln of the probability of the true class (cross-entropy).")
    : t("Masked language modelling: some tokens are masked, and the loss is the negative log-likelihood, −ln p, of each. Try it under Fill.");
  return h(
    "section",
    { class: "panel", "aria-label": t("Training objective") },
    h("h2", null, t("Training objective")),
    h("p", { class: "soft" }, how),
  );
}
