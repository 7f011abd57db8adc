// The arithmetic of the page, and how numbers are written. Pure functions; in double precision.

/**
 * A number as it is written everywhere, as in the terminal.
 * @param {number} value
 * @param {number} [digits]
 * @returns {string}
 */
export function show(value, digits = 3) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (Math.abs(value) >= 10000) return value.toExponential(2).replace(/e([+-])(\d)$/, "e$10$2");
  return (Math.abs(value) < 0.5 * 10 ** -digits ? 0 : value).toFixed(digits).replace("-", "−");
}

/** A very small number, in powers of ten: 3e-7; 0 is "0". */
export function showTiny(value) {
  return value === 0 ? "0" : value.toExponential(0);
}

/** A share in percent. */
export function showPercent(share) {
  const percent = 100 * share;
  if (percent > 0 && percent < 0.1) return "< 0.1%";
  return `${percent.toFixed(percent >= 99.95 || percent < 10 ? 1 : 0)}%`;
}

/** A count with its thousands apart. */
export function showCount(count) {
  return count.toLocaleString("en-US");
}

/**
 * One row of a table of numbers.
 * @param {{values: Float32Array, shape: number[]}} table
 * @param {number} i
 */
export function rowOf(table, i) {
  const width = table.shape[table.shape.length - 1];
  return table.values.subarray(i * width, (i + 1) * width);
}

/** The products of two vectors' numbers, added up. */
export function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i += 1) sum += a[i] * b[i];
  return sum;
}

/** All numbers added up. */
export function total(values) {
  let sum = 0;
  for (const value of values) sum += value;
  return sum;
}

/** The L2 norm of a vector. */
export function lengthOf(vector) {
  return Math.sqrt(dot(vector, vector));
}

/** Cosine similarity. */
export function cosine(a, b) {
  return dot(a, b) / (lengthOf(a) * lengthOf(b));
}

/**
 * Softmax. The maximum is subtracted first for stability; -inf becomes exactly 0.
 * @param {ArrayLike<number>} scores
 * @param {number} [temperature]
 * @returns {Float64Array}
 */
export function softmax(scores, temperature = 1) {
  let largest = -Infinity;
  for (let i = 0; i < scores.length; i += 1) if (scores[i] > largest) largest = scores[i];
  const shares = new Float64Array(scores.length);
  if (largest === -Infinity) return shares;
  let sum = 0;
  for (let i = 0; i < scores.length; i += 1) {
    shares[i] = Math.exp((scores[i] - largest) / temperature);
    sum += shares[i];
  }
  for (let i = 0; i < shares.length; i += 1) shares[i] /= sum;
  return shares;
}

/**
 * Next-token probabilities after temperature, top-k, top-p and min-p. Temperature 0 is argmax.
 * @param {ArrayLike<number>} logits
 * @param {{temperature?: number, topK?: number, topP?: number, minP?: number}} how
 * @returns {Float64Array} 0 for what cannot be sampled
 */
export function samplingProbabilities(logits, how) {
  const { temperature = 1, topK = 0, topP = 1, minP = 0 } = how;
  const shares = softmax(logits, temperature > 0 ? temperature : 1);
  const order = Array.from(shares.keys()).sort((a, b) => logits[b] - logits[a] || a - b);
  const kept = new Float64Array(shares.length);
  if (!(temperature > 0)) {
    kept[order[0]] = 1;
    return kept;
  }
  const most = order.slice(0, topK > 0 ? topK : order.length);
  const mass = total(most.map((i) => shares[i]));
  let sum = 0;
  for (const i of most) {
    if (topP < 1 && sum >= topP * mass) break;
    if (sum > 0 && shares[i] < minP * shares[order[0]]) break;
    kept[i] = shares[i];
    sum += shares[i];
  }
  for (let i = 0; i < kept.length; i += 1) kept[i] /= sum;
  return kept;
}

/** Mean and standard deviation of a vector's numbers. */
export function meanAndSpread(vector, eps = 0) {
  const mean = total(vector) / vector.length;
  let squares = 0;
  for (const x of vector) squares += (x - mean) ** 2;
  return { mean, spread: Math.sqrt(squares / vector.length + eps) };
}

/** Where the largest numbers are, the largest first; by their sizes alone if `bySize`. */
export function largestOf(values, count, bySize = false) {
  const size = (i) => (bySize ? Math.abs(values[i]) : values[i]);
  const order = Array.from({ length: values.length }, (_, i) => i);
  return order.sort((a, b) => size(b) - size(a) || a - b).slice(0, count);
}

/** The entropy of a distribution, in nats. */
export function entropy(shares) {
  let sum = 0;
  for (const p of shares) if (p > 0) sum -= p * Math.log(p);
  return sum;
}

/**
 * The largest absolute difference of two results; masked entries must agree exactly.
 * @param {ArrayLike<number>} shown
 * @param {ArrayLike<number>} again
 */
export function furthest(shown, again) {
  let most = shown.length === again.length ? 0 : Infinity;
  for (let i = 0; i < shown.length; i += 1) {
    if (shown[i] === again[i]) continue;
    const apart = Math.abs(shown[i] - again[i]);
    if (!(apart <= most)) most = Number.isNaN(apart) ? Infinity : apart;
  }
  return most;
}
