// Round numbers for the axes of charts, plain and logarithmic.

/**
 * About `count` round numbers between two.
 * @param {number} low
 * @param {number} high
 * @param {number} count
 * @returns {number[]}
 */
export function plainTicks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/**
 * Powers of ten between two numbers, with 2 and 5 times them where they fit.
 * @param {number} low above 0
 * @param {number} high
 * @returns {number[]}
 */
export function logTicks(low, high) {
  const powers = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p += 1) powers.push(10 ** p);
  const fine = powers.length <= 3 ? [1, 2, 5] : [1];
  const found = powers.flatMap((power) => fine.map((factor) => Number((factor * power).toPrecision(3))));
  return found.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
}

/**
 * A number at an axis: 12k, 0.0005 as 5e-4.
 * @param {number} x
 * @returns {string}
 */
export function tickText(x) {
  const size = Math.abs(x);
  if (size >= 1e6) return `${Number((x / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((x / 1e3).toPrecision(3))}k`;
  if (size > 0 && size < 1e-3) return x.toExponential(0).replace("e-", "e−");
  return String(Number(x.toPrecision(6)));
}
