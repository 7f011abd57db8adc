// The log of a run as curves: which numbers it has, and their series; read piece by piece.

const CURVE_ORDER = [
  "loss",
  "perplexity",
  "accuracy",
  "exact",
  "bleu",
  "chrf2",
  "rate",
  "norm",
  "tokens_per_second",
];
const CURVE_NAMES = {
  rate: "learning rate",
  norm: "gradient norm",
  tokens_per_second: "tokens per second",
  exact: "exact answers",
  bleu: "BLEU",
  chrf2: "chrF2",
};
const CURVE_SKIPPED = new Set(["step", "epoch", "tokens", "seconds", "memory", "usual"]);

/**
 * What can be drawn of a log, the usual first.
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

/** How a kind of number is called. @param {string} kind */
export function curveName(kind) {
  return CURVE_NAMES[kind] ?? kind;
}

/**
 * One kind of number, while learning and on texts that are not learned from.
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
 * What happened that should not: steps that were left out, and losses that jumped.
 * @param {Object[]} entries
 * @returns {string[]}
 */
export function curveTroubles(entries) {
  const skipped = entries
    .filter((entry) => entry.skipped)
    .map((entry) => `step ${entry.step} was left out: its numbers were not finite`);
  const spikes = entries
    .filter((entry) => entry.spike)
    .map(
      (entry) =>
        `step ${entry.step}: the loss jumped to ${entry.loss.toFixed(2)}, where ${entry.usual.toFixed(2)} was usual`,
    );
  return [...skipped, ...spikes];
}

/**
 * What the model wrote by the way, the latest first.
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

/** A log that is read as it grows. The last step is asked for again: its validation comes later. */
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
