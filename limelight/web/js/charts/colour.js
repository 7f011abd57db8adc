// Colours of pictures: two ramps that stay readable for colour-blind people, in both themes.
// They run through OKLab, where equal steps look equal, between the colours of the style sheet.

const colourFallbacks = {
  "--ink": "#1d2430",
  "--soft": "#5c6675",
  "--paper": "#faf9f6",
  "--card": "#ffffff",
  "--line": "#dcdfe4",
  "--accent": "#b4530a",
  "--ramp-low": "#f3f5f8",
  "--ramp-high": "#123a73",
  "--pos": "#b2500b",
  "--neg": "#1b5fa8",
};
const RAMP_STEPS = 256;
const colourDrawings = new WeakMap(); // element -> how to draw it again
const colourElements = new Set(); // weak references to those elements
let colourTheme = null; // the colours as they are now; read again when the theme changes
let colourWatching = false;

/**
 * The colours of the present theme.
 * @returns {{ink: string, soft: string, paper: string, card: string, line: string, accent: string,
 *   share: number[][], signed: number[][]}} css colours, and ramps of 256 [red, green, blue]
 */
export function theme() {
  if (colourTheme) return colourTheme;
  const rgb = Object.fromEntries(Object.keys(colourFallbacks).map((name) => [name, colourRead(name)]));
  const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
  const neutral = rgb["--ramp-low"];
  colourTheme = {
    ink: css(rgb["--ink"]),
    soft: css(rgb["--soft"]),
    paper: css(rgb["--paper"]),
    card: css(rgb["--card"]),
    line: css(rgb["--line"]),
    accent: css(rgb["--accent"]),
    share: colourRamp([neutral, rgb["--ramp-high"]]),
    signed: colourRamp([rgb["--neg"], neutral, rgb["--pos"]]),
  };
  return colourTheme;
}

/**
 * Draw an element again whenever the theme changes, for as long as the element exists.
 * @param {Element} element
 * @param {() => void} draw
 */
export function redrawWithTheme(element, draw) {
  colourDrawings.set(element, draw);
  colourElements.add(new WeakRef(element));
  if (colourWatching) return;
  colourWatching = true;
  document.addEventListener("limelight:theme", colourChanged);
}

/**
 * Where a number lies on its ramp.
 * @param {number} value
 * @param {{kind: "share" | "signed", low: number, high: number}} scale
 * @returns {number[]} red, green, blue
 */
export function colourOf(value, scale) {
  const ramp = theme()[scale.kind];
  const position = (value - scale.low) / (scale.high - scale.low || 1);
  return ramp[Math.max(0, Math.min(RAMP_STEPS - 1, Math.round(position * (RAMP_STEPS - 1)) || 0))];
}

/**
 * Ink that can be read on a colour.
 * @param {number[]} rgb
 * @returns {string}
 */
export function inkOn([r, g, b]) {
  const linear = [r, g, b].map(colourLinear);
  const luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return luminance > 0.18 ? "#10151d" : "#ffffff";
}

/**
 * The scale of some numbers: shares start at 0, signed numbers have 0 in the middle.
 * @param {ArrayLike<number>} values
 * @param {"share" | "signed"} kind
 * @returns {{kind: "share" | "signed", low: number, high: number}}
 */
export function scaleOf(values, kind) {
  let most = 0;
  for (let i = 0; i < values.length; i += 1) {
    const size = Math.abs(values[i]);
    if (size > most && Number.isFinite(size)) most = size;
  }
  return { kind, low: kind === "signed" ? -most : 0, high: most || 1 };
}

function colourChanged() {
  colourTheme = null;
  for (const reference of colourElements) {
    const element = reference.deref();
    if (element) colourDrawings.get(element)();
    else colourElements.delete(reference);
  }
}

/** A custom property as numbers, whatever notation the style sheet uses. */
function colourRead(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name}, ${colourFallbacks[name]})`;
  document.documentElement.append(probe);
  const written = getComputedStyle(probe).color;
  probe.remove();
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d");
  context.fillStyle = written;
  context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}

function colourRamp(stops) {
  const labs = stops.map(colourToLab);
  return Array.from({ length: RAMP_STEPS }, (_, i) => {
    const position = (i / (RAMP_STEPS - 1)) * (labs.length - 1);
    const from = Math.min(Math.floor(position), labs.length - 2);
    const share = position - from;
    const fresh = 1 + 2.4 * share * (1 - share); // half-way colours would look washed out
    return colourFromLab(
      labs[from].map((x, axis) => (x + (labs[from + 1][axis] - x) * share) * (axis ? fresh : 1)),
    );
  });
}

function colourLinear(x) {
  return x / 255 <= 0.04045 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4;
}

function colourToLab(rgb) {
  const [r, g, b] = rgb.map(colourLinear);
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

function colourFromLab([lightness, a, b]) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  const gamma = (x) => (x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055);
  return linear.map((x) => Math.round(255 * Math.max(0, Math.min(1, gamma(Math.max(0, x))))));
}
