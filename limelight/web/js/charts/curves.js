// The log of a run as curves: its metrics and their series; read as it grows.

const CURVE_ORDER = [
  "loss",
  "objective",
  "perplexity",
  "accuracy",
  "exact",
  "bleu",
  "chrf2",
  "lr",
  "grad_norm",
  "tokens_per_second",
];
const CURVE_NAMES = {
  objective: "training objective",
  lr: "learning rate",
  grad_norm: "gradient norm",
  tokens_per_second: "tokens per second",
  exact: "exact match",
  bleu: "BLEU",
  chrf2: "chrF2",
};
const CURVE_SKIPPED = new Set(["step", "epoch", "tokens", "seconds", "peak_memory", "usual"]);

/**
 * The metrics of a log, the usual ones first.
 * @param {Object[]} entries
 * @returns {string[]}
 */
export function curveKinds(entries) {
  const found = new Set();
  for (const entry of curveLines(entries)) {
    for (const [name, value] of Object.entries(entry))
      if (typeof value === "number" && !CURVE_SKIPPED.has(name)) found.add(name);
  }
  const rank = (name) => (CURVE_ORDER.includes(name) ? CURVE_ORDER.indexOf(name) : CURVE_ORDER.length);
  return [...found].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
}

/** The name of a metric. @param {string} kind */
export function curveName(kind) {
  return CURVE_NAMES[kind] ?? kind;
}

/**
 * One metric in training and in validation.
 * @param {Object[]} entries
 * @param {string} kind
 * @returns {{name: string, points: [number, number][], dots: boolean}[]}
 */
export function curveSeries(entries, kind) {
  const points = (which) =>
    curveLines(entries)
      .filter(which)
      .filter((entry) => typeof entry[kind] === "number")
      .map((entry) => [entry.step, entry[kind]]);
  const found = [
    { name: "training", points: points((entry) => !entry.validation), dots: false },
    { name: "validation", points: points((entry) => entry.validation), dots: true },
  ];
  return found.filter((series) => series.points.length);
}

/**
 * Skipped steps and loss spikes.
 * @param {Object[]} entries
 * @returns {string[]}
 */
export function curveTroubles(entries) {
  const skipped = entries
    .filter((entry) => entry.skipped)
    .map((entry) => `step ${entry.step} skipped: non-finite loss or gradient`);
  const spikes = entries
    .filter((entry) => entry.spike)
    .map(
      (entry) =>
        `step ${entry.step}: loss spike, ${entry.loss.toFixed(2)} (smoothed loss ${entry.usual.toFixed(2)})`,
    );
  return [...skipped, ...spikes];
}

/**
 * Samples generated during training, latest first.
 * @param {Object[]} entries
 * @returns {{step: number, samples: string[]}[]}
 */
export function curveSamples(entries) {
  return entries
    .filter((entry) => entry.samples?.length)
    .map(({ step, samples }) => ({ step, samples }))
    .reverse();
}

/** Lines of training and validation, without those about trouble. */
function curveLines(entries) {
  return entries.filter((entry) => !entry.spike && !entry.skipped);
}

/** A log that is read as it grows. The last step is requested again: its validation comes later. */
export class GrowingLog {
  /** @param {(after: number) => Promise<{entries: Object[]}>} fetchAfter */
  constructor(fetchAfter) {
    this.fetchAfter = fetchAfter;
    this.entries = [];
  }

  /** Read what is new. @returns {Promise<boolean>} whether there was something */
  async read() {
    const before = JSON.stringify(this.entries.at(-1) ?? null);
    const count = this.entries.length;
    for (;;) {
      const after = (this.entries.at(-1)?.step ?? 0) - 1;
      const { entries } = await this.fetchAfter(after);
      const known = this.entries.length;
      this.entries = [...this.entries.filter((entry) => entry.step <= after), ...entries];
      if (this.entries.length <= known || entries.length < 2) break;
    }
    return this.entries.length !== count || JSON.stringify(this.entries.at(-1) ?? null) !== before;
  }
}
