// How a text is sampled, as the link has it: "0.8,40,0.95,7" is temperature, top-k, top-p and seed; "0" is greedy.

/**
 * @param {{temperature: number, top_k: number, top_p: number}} how
 * @param {number} seed
 */
export function sampleInLink({ temperature, top_k, top_p }, seed) {
  return temperature > 0 ? [temperature, top_k, top_p, seed].join() : "0";
}

/**
 * The settings in a link, or null; whatever is not such a line is none.
 * @param {?string} sample
 * @returns {?{temperature: number, top_k: number, top_p: number, seed: number}}
 */
export function sampleFrom(sample) {
  if (sample === "0") return { temperature: 0, top_k: 0, top_p: 1, seed: 1 };
  if (!/^[0-2](\.\d{1,3})?,\d{1,4},[01](\.\d{1,3})?,\d{1,6}$/.test(sample ?? "")) return null;
  const [temperature, top_k, top_p, seed] = sample.split(",").map(Number);
  return temperature > 0 && temperature <= 2 && top_p > 0 && top_p <= 1 ? { temperature, top_k, top_p, seed } : null;
}

/** The fields of a request that asks for a text sampled in this way. */
export function sampleRequest(sample) {
  const found = sampleFrom(sample);
  if (!found) return {};
  return found.temperature > 0 ? { mode: "sample", ...found } : { mode: "greedy" };
}
