// The same place in every checkpoint of one's own training: a slider, and all of them as a film.

import { button, h, replace } from "../core/dom.js";
import { twoSided } from "../core/focus.js";
import { showCount, showPercent } from "../core/numbers.js";
import { select, selected } from "../core/state.js";
import { t } from "../core/texts.js";

const CHECKPOINT_PAUSE = 1000; // milliseconds for a checkpoint, at least
const CHECKPOINT_NEWS = 15_000; // between two looks at a run that may still be training

/** The slider. It is hidden for a model of which there is one checkpoint only. */
export class CheckpointSlider {
  /**
   * @param {Object} page
   * @param {function(): ?Object} focusNow what the walk shows
   */
  constructor(page, focusNow) {
    Object.assign(this, { page, focusNow, steps: [] });
    this.slider = h("input", { type: "range", min: "0", step: "1", "aria-label": t("Checkpoint of the training"), on: { input: () => { this.stop(); this.choose(Number(this.slider.value)); } } });
    this.text = h("output", { class: "small number checkpoint-text" });
    this.button = button("", () => this.play(), { class: "button small", "aria-label": t("Play the training") });
    this.element = h("div", { class: "checkpoints", hidden: true }, h("span", { class: "soft small" }, t("after training step")), this.slider, this.button, this.text);
    this.stop();
    if (!page.offline) this.look();
  }

  leave() {
    this.left = true;
    this.stop();
    clearTimeout(this.news);
  }

  /** Which checkpoints there are: more of them, while the run is training. */
  async look() {
    try {
      if (document.visibilityState === "visible") Object.assign(this, await this.page.busy(this.page.api.get(`/api/runs/${encodeURIComponent(this.page.model.name)}/steps`)));
    } catch {
      // The walk says what is wrong; the next look may succeed.
    }
    if (this.left) return;
    this.element.hidden = this.steps.length < 2;
    this.draw();
    this.news = setTimeout(() => this.look(), CHECKPOINT_NEWS);
  }

  draw() {
    const { steps, loaded } = this;
    if (!steps.length) return;
    const now = selected().checkpoint ?? loaded;
    const at = steps.indexOf(now);
    this.slider.max = String(steps.length - 1);
    this.slider.value = String(at < 0 ? steps.length - 1 : at);
    const focus = this.focusNow();
    const step = focus?.m.steps.find(({ row }) => row === focus.rows.decoder) ?? focus?.m.steps[0];
    const sure = step ? ` · p(${focus.m.answers.labels[step.row] ?? focus.m.source.labels[step.row]}) ${showPercent(step.chosen[2])}` : "";
    this.text.textContent = `${t("{0} of {1}", [now, steps.at(-1) ?? 0].map(showCount))}${sure}`;
    this.slider.setAttribute("aria-valuetext", t("step {0}", [now]));
  }

  /** This place in another checkpoint: the same layer, head and words, whatever it would itself write. */
  choose(i) {
    const step = this.steps[i];
    const { m, layer, head, rows } = this.focusNow() ?? {};
    if (!m) return;
    const place = twoSided(m) ? { side: "encoder", query: rows.encoder, step: rows.decoder } : { query: rows.decoder ?? rows.encoder, step: null };
    if (!m.target.ids.length) place.query = rows.encoder;
    const held = { layer, head, ...place };
    if (step === this.loaded) select({ ...held, checkpoint: null, target: this.before ?? null });
    else {
      if (selected().checkpoint === null) {
        this.before = selected().target;
        held.target = m.target.ids.length ? selected().target ?? checkpointAnswer(m) : null;
      }
      select({ ...held, checkpoint: step });
    }
  }

  play() {
    if (this.timer) {
      this.stop();
      return;
    }
    let next = Number(this.slider.value) >= this.steps.length - 1 ? 0 : Number(this.slider.value) + 1;
    const tick = async () => {
      if (this.left || next >= this.steps.length) {
        this.stop();
        return;
      }
      this.choose(next);
      next += 1;
      const turn = (this.timer = {});
      await Promise.all([this.page.trace({ walk: true }).catch(() => {}), new Promise((done) => setTimeout(done, CHECKPOINT_PAUSE))]);
      if (this.timer === turn) tick();
    };
    replace(this.button, "❚❚");
    tick();
  }

  stop() {
    this.timer = null;
    replace(this.button, `▶ ${t("Grow")}`);
  }
}

function checkpointAnswer({ answers, given }) {
  return answers.pieces.slice(given).filter((_, i) => !answers.special[given + i]).join("").trim();
}
