// "Save picture": what is on the screen as a PNG file that says what it shows.

import { theme } from "./colour.js";

const PNG_FONT = 'system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';
const PNG_EDGE = 24;
const pngStyles = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-opacity",
  "stroke-dasharray",
  "stroke-linecap",
  "stroke-linejoin",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
  "font-style",
  "text-anchor",
  "dominant-baseline",
  "paint-order",
];

/**
 * A new picture with a heading, to be painted under it.
 * @param {{title: string, credit: string, width: number, height: number,
 *   paint: (context: CanvasRenderingContext2D) => void}} picture the size of what `paint` paints
 */
export function savePng({ title, credit, width, height, paint }) {
  const canvas = document.createElement("canvas");
  const colours = theme();
  const heading = 62;
  const full = [Math.max(width, 360) + 2 * PNG_EDGE, height + heading + 2 * PNG_EDGE];
  const sharp = Math.max(1, Math.min(2, Math.floor(8000 / Math.max(...full))));
  [canvas.width, canvas.height] = full.map((side) => Math.ceil(side * sharp));
  const context = canvas.getContext("2d");
  context.scale(sharp, sharp);
  context.fillStyle = colours.card;
  context.fillRect(0, 0, full[0] + 1, full[1] + 1); // sizes are rounded up
  context.textBaseline = "alphabetic";
  context.fillStyle = colours.ink;
  context.font = `600 17px ${PNG_FONT}`;
  context.fillText(title, PNG_EDGE, PNG_EDGE + 16, full[0] - 2 * PNG_EDGE);
  context.fillStyle = colours.soft;
  context.font = `13px ${PNG_FONT}`;
  context.fillText(credit, PNG_EDGE, PNG_EDGE + 38, full[0] - 2 * PNG_EDGE);
  context.translate(PNG_EDGE, PNG_EDGE + heading);
  paint(context);
  canvas.toBlob((blob) => pngDownload(blob, `${pngName(title)}.png`), "image/png");
}

/**
 * An SVG as PNG: computed styles are written into a copy, so that it needs no style sheet.
 * @param {SVGSVGElement} drawing
 * @param {{title: string, credit: string}} heading
 */
export function saveSvgAsPng(drawing, { title, credit }) {
  const box = drawing.getBoundingClientRect();
  const copy = drawing.cloneNode(true);
  const originals = [drawing, ...drawing.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((element, i) => {
    const style = getComputedStyle(originals[i]);
    for (const name of pngStyles) element.setAttribute(name, style.getPropertyValue(name));
  });
  copy.setAttribute("width", String(box.width));
  copy.setAttribute("height", String(box.height));
  const image = new Image();
  image.addEventListener("load", () => {
    const paint = (context) => context.drawImage(image, 0, 0, box.width, box.height);
    savePng({ title, credit, width: box.width, height: box.height, paint });
  });
  const written = new XMLSerializer().serializeToString(copy);
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(written)}`;
}

function pngDownload(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000); // not before the browser has read it
}

function pngName(title) {
  return (
    title
      .toLowerCase()
      .replace(/[^\p{L}\p{N}]+/gu, "-")
      .replace(/^-|-$/g, "")
      .slice(0, 80) || "picture"
  );
}
