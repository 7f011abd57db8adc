// Sliders for how a token is sampled.

import { h } from "./dom.js";
import { t } from "./texts.js";

/**
 * Sliders for temperature, top-k and top-p.
 * @param {{temperature?: number, top_k?: number, top_p?: number}} now
 * @param {function(): void} onChange
 */
export function samplingSliders(now, onChange) {
  const temperature = samplingSlider("Temperature", { min: 0, max: 2, step: 0.05, value: now.temperature || 0 }, (v) => (v === 0 ? t("0: most likely (argmax)") : v.toFixed(2)), onChange);
  const topK = samplingSlider("Top-k", { min: 0, max: 100, step: 1, value: Math.min(100, now.top_k || 0) }, (v) => (v === 0 ? t("all") : t("{0} most likely", [v])), onChange);
  const topP = samplingSlider("Top-p", { min: 0.05, max: 1, step: 0.01, value: now.top_p ?? 1 }, (v) => (v === 1 ? t("all") : t("top {0}%", [Math.round(100 * v)])), onChange);
  return {
    element: h("div", { class: "sliders" }, temperature.element, topK.element, topP.element),
    settings: () => ({ temperature: temperature.value(), top_k: topK.value(), top_p: topP.value() }),
  };
}

function samplingSlider(name, range, format, onChange) {
  const output = h("span", { class: "number small", "aria-hidden": "true" }); // the slider says it itself
  const input = h("input", { type: "range", name, min: range.min, max: range.max, step: range.step, "aria-label": name });
  input.value = String(range.value);
  const update = () => {
    output.textContent = format(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => {
    update();
    onChange();
  });
  update();
  const element = h("label", { class: "slider" }, h("span", { class: "slider-name" }, name === "Temperature" ? t("Temperature") : name), output, input);
  return { element, value: () => Number(input.value) };
}
