// The drawing inside a chart: scales, axes, and curves that keep their shape.

import { svg } from "../core/dom.js";
import { logTicks, plainTicks, tickText } from "./ticks.js";

/** What is left free around the curves, in pixels. */
export const PLOT_EDGE = { left: 52, right: 14, top: 24, bottom: 34 };

/**
 * From numbers to pixels. A logarithmic axis cannot show 0 and below, so those are left out.
 * @param {{points: [number, number][]}[]} series
 * @param {{width: number, height: number, log: boolean}} wide
 */
export function plotScales(series, { width, height, log }) {
  const shows = (y) => Number.isFinite(y) && (!log || y > 0);
  const xs = series.flatMap(({ points }) => points.map(([x]) => x));
  const ys = series.flatMap(({ points }) => points.map(([, y]) => y)).filter(shows);
  const [left, right] = plotEnds(xs);
  let [low, high] = ys.length ? plotEnds(ys) : [log ? 0.1 : 0, 1];
  if (!log && low > 0 && low < 0.6 * high) low = 0;
  if (low === high) [low, high] = [low - Math.abs(low || 1) * (log ? 0.5 : 1), high + Math.abs(high || 1)];
  const to = log ? Math.log10 : (y) => y;
  const [wide, tall] = [width - PLOT_EDGE.left - PLOT_EDGE.right, height - PLOT_EDGE.top - PLOT_EDGE.bottom];
  return {
    shows,
    x: (x) => PLOT_EDGE.left + (right > left ? (x - left) / (right - left) : 0.5) * wide,
    y: (y) => PLOT_EDGE.top + (1 - (to(y) - to(low)) / (to(high) - to(low))) * tall,
    stepAt: (pixel) => left + ((pixel - PLOT_EDGE.left) / wide) * (right - left),
    xTicks: xs.length ? plainTicks(left, right, Math.max(3, Math.floor(wide / 90))) : [],
    yTicks: log ? logTicks(low, high) : plainTicks(low, high, Math.max(2, Math.floor(tall / 44))),
  };
}

function plotEnds(values) {
  return values.reduce(([low, high], x) => [Math.min(low, x), Math.max(high, x)], [Infinity, -Infinity]);
}

/**
 * Lines across with their numbers, and what is counted along.
 * @param {Object} scales
 * @param {{x: string}} names
 * @param {{width: number, height: number}} wide
 * @returns {SVGElement[]}
 */
export function plotAxes(scales, { x }, { width, height }) {
  const below = height - PLOT_EDGE.bottom;
  const across = scales.yTicks.flatMap((tick) => [
    svg("line", {
      class: "chart-grid",
      x1: PLOT_EDGE.left,
      x2: width - PLOT_EDGE.right,
      y1: scales.y(tick),
      y2: scales.y(tick),
    }),
    svg(
      "text",
      {
        class: "chart-tick",
        x: PLOT_EDGE.left - 8,
        y: scales.y(tick),
        "text-anchor": "end",
        "dominant-baseline": "central",
      },
      tickText(tick),
    ),
  ]);
  const along = scales.xTicks.map((tick) =>
    svg(
      "text",
      { class: "chart-tick", x: scales.x(tick), y: below + 16, "text-anchor": "middle" },
      tickText(tick),
    ),
  );
  return [
    ...across,
    ...along,
    svg("text", { class: "chart-axis", x: width - PLOT_EDGE.right, y: height - 4, "text-anchor": "end" }, x),
  ];
}

/**
 * Which colour is which series, above the curves on the right; the name of the axis, if it has room beside them.
 * @param {{name: string}[]} series
 * @param {number} width
 * @param {string} y
 * @returns {SVGElement[]}
 */
export function plotKeys(series, width, y) {
  let end = width - PLOT_EDGE.right;
  const keys = series.toReversed().flatMap(({ name }, back) => {
    const colour = `chart-series-${(series.length - 1 - back) % 4}`;
    const start = end - 6.4 * name.length; // about as wide as the letters are
    const line = { class: `chart-curve ${colour}`, x1: start - 22, x2: start - 7, y1: 8, y2: 8 };
    end = start - 36;
    return [svg("line", line), svg("text", { class: "chart-tick", x: start, y: 12 }, name)];
  });
  return end + 14 > 4 + 5.6 * y.length ? [...keys, svg("text", { class: "chart-axis", x: 4, y: 11 }, y)] : keys;
}

/**
 * One series: a line, and dots where there are few.
 * @param {{points: [number, number][], dots?: boolean}} series
 * @param {number} i which of the series it is, for its colour
 * @param {Object} scales
 * @returns {SVGElement[]}
 */
export function plotCurve({ points, dots }, i, scales) {
  const shown = points.filter(([, y]) => scales.shows(y)).map(([x, y]) => [scales.x(x), scales.y(y)]);
  const path = plotThin(shown)
    .map(([x, y], n) => `${n ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`)
    .join("");
  const colour = `chart-series-${i % 4}`;
  const marks =
    dots && shown.length <= 100
      ? shown.map(([x, y]) => svg("circle", { class: `chart-dot ${colour}`, cx: x, cy: y, r: 3 }))
      : [];
  const lone =
    shown.length === 1 && !marks.length
      ? [svg("circle", { class: `chart-dot ${colour}`, cx: shown[0][0], cy: shown[0][1], r: 3 })]
      : [];
  return [svg("path", { class: `chart-curve ${colour}`, d: path }), ...marks, ...lone];
}

/** Of the points that fall on one pixel the first, lowest, highest and last: the curve keeps its shape. */
function plotThin(points) {
  const found = [];
  for (let from = 0, to; from < points.length; from = to) {
    to = from + 1;
    while (to < points.length && Math.round(points[to][0]) === Math.round(points[from][0])) to += 1;
    const here = points.slice(from, to);
    if (here.length <= 4) found.push(...here);
    else {
      const heights = here.map(([, y]) => y);
      const [low, high] = plotEnds(heights);
      const middle = [heights.indexOf(low), heights.indexOf(high)].sort((a, b) => a - b).map((i) => here[i]);
      found.push(here[0], ...middle, here.at(-1));
    }
  }
  return found;
}
