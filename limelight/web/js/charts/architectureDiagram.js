// The diagram of an architecture, from the bottom up as in Figure 1 of the paper.

import { svg } from "../core/dom.js";

const DIAGRAM = { column: 310, box: 220, residual: 132, gap: 16, between: 40 };
const HEIGHTS = { box: 44, thin: 30, word: 26, add: 22 };
const TAG_HEIGHT = 16; // for a line about what comes from the other side

/**
 * @param {Object[]} sides as `architectureOf` tells them
 * @param {string} description the same in words
 * @param {number} width available: two stacks are drawn side by side only if they fit
 * @returns {SVGSVGElement}
 */
export function architectureDiagram(sides, description, width) {
  const besides = width >= sides.length * DIAGRAM.column;
  const drawn = sides.map((side) => new DiagramSide(side, besides || sides.length === 1));
  const shapes = [];
  let [across, below] = [0, 0];
  const tallest = Math.max(...drawn.map((side) => side.height));
  for (const side of drawn) {
    const down = besides ? tallest - side.height : below;
    shapes.push(svg("g", { transform: `translate(${across} ${down})` }, side.shapes));
    side.at = [across, down];
    if (besides) across += DIAGRAM.column;
    else below += side.height + DIAGRAM.between;
  }
  const [wide, high] = besides ? [across, tallest] : [DIAGRAM.column, below - DIAGRAM.between];
  if (besides && drawn.length === 2) shapes.push(diagramBridge(...drawn));
  const drawing = svg(
    "svg",
    { class: "diagram", role: "img", "aria-label": description, viewBox: `0 0 ${wide} ${high}` },
    shapes,
  );
  drawing.style.maxWidth = `${wide}px`;
  return drawing;
}

/** One stack, drawn from its height downwards, since y grows downwards. */
class DiagramSide {
  constructor(side, bridged) {
    this.middle = DIAGRAM.column / 2;
    this.bridged = bridged;
    this.shapes = [];
    this.behind = [];
    this.crossing = null; // where the other side comes in
    this.height = diagramHeight(side.parts, bridged) + (side.gives && !bridged ? TAG_HEIGHT : 0);
    this.y = this.height;
    this.draw(side.parts);
    this.top = this.y;
    if (side.gives && !bridged)
      this.shapes.push(
        diagramText(this.middle, this.y - 6, `↑ ${side.gives} for the decoder`, "diagram-tag"),
      );
    const title = diagramText(8, this.height - 8, side.title, "diagram-side");
    title.setAttribute("text-anchor", "start");
    this.shapes = [title, ...this.behind, ...this.shapes];
  }

  draw(parts) {
    for (const part of parts) this[part.kind](part);
  }

  rise(height) {
    const from = this.y;
    this.y -= height + DIAGRAM.gap;
    this.behind.push(
      svg("line", { class: "diagram-flow", x1: this.middle, x2: this.middle, y1: from, y2: this.y }),
    );
    return this.y + DIAGRAM.gap;
  }

  word({ text }) {
    const y = this.rise(HEIGHTS.word);
    const ends = this.y + DIAGRAM.gap;
    this.behind.pop(); // words stand before the flow and after it
    this.shapes.push(diagramText(this.middle, (y + ends + HEIGHTS.word) / 2, text, "diagram-word"));
    if (this.shapes.length === 1)
      this.behind.push(
        svg("line", { class: "diagram-flow", x1: this.middle, x2: this.middle, y1: y, y2: this.y }),
      );
  }

  box({ title, note, style, cross }) {
    const height = note ? HEIGHTS.box : HEIGHTS.thin;
    if (cross && !this.bridged) this.rise(TAG_HEIGHT - DIAGRAM.gap);
    const y = this.rise(height);
    const left = this.middle - DIAGRAM.box / 2;
    this.shapes.push(
      svg("rect", {
        class: `diagram-box diagram-${style}`,
        x: left,
        y,
        width: DIAGRAM.box,
        height,
        rx: 7,
      }),
    );
    this.shapes.push(diagramText(this.middle, y + (note ? 18 : height / 2 + 5), title, "diagram-title"));
    if (note) this.shapes.push(diagramText(this.middle, y + 34, note, "diagram-note"));
    if (!cross) return;
    this.crossing = y + height / 2;
    if (!this.bridged)
      this.shapes.push(
        diagramText(this.middle, y + height + 17, "↑ keys and values from the encoder", "diagram-tag"),
      );
  }

  add({ note }) {
    const y = this.rise(HEIGHTS.add) + HEIGHTS.add / 2;
    this.plus(y);
    this.shapes.push(
      svg("line", { class: "diagram-flow", x1: this.middle + 11, x2: this.middle + 24, y1: y, y2: y }),
    );
    const text = diagramText(this.middle + 28, y + 4, note, "diagram-note");
    text.setAttribute("text-anchor", "start");
    this.shapes.push(text);
  }

  plus(y) {
    this.shapes.push(
      svg("circle", { class: "diagram-plus", cx: this.middle, cy: y, r: 10 }),
      diagramText(this.middle, y + 5, "+", "diagram-title"),
    );
  }

  /** A residual connection. */
  around({ parts, after }) {
    const from = this.y + DIAGRAM.gap / 2;
    this.draw(parts);
    const y = this.rise(HEIGHTS.add) + HEIGHTS.add / 2;
    this.plus(y);
    const far = this.middle - DIAGRAM.residual;
    this.behind.push(
      svg("path", {
        class: "diagram-around",
        d: `M${this.middle} ${from}H${far + 8}Q${far} ${from} ${far} ${from - 8}V${y + 8}Q${far} ${y} ${far + 8} ${y}H${this.middle - 11}`,
      }),
    );
    this.draw(after);
  }

  stack({ times, parts }) {
    const from = this.y;
    this.y -= 6;
    this.draw(parts);
    const left = this.middle - DIAGRAM.residual - 10;
    this.behind.unshift(
      svg("rect", {
        class: "diagram-stack",
        x: left,
        y: this.y + 4,
        width: 2 * (DIAGRAM.residual + 10),
        height: from - this.y,
        rx: 12,
      }),
    );
    const text = diagramText(this.middle + DIAGRAM.residual, this.y + 26, `× ${times}`, "diagram-times");
    text.setAttribute("text-anchor", "end");
    this.shapes.push(text);
    this.y -= 6;
    this.behind.push(
      svg("line", { class: "diagram-flow", x1: this.middle, x2: this.middle, y1: this.y + 12, y2: this.y }),
    );
  }
}

function diagramHeight(parts, bridged) {
  const heights = parts.map((part) => {
    if (part.kind === "stack") return diagramHeight(part.parts, bridged) + 12;
    if (part.kind === "around")
      return diagramHeight([...part.parts, ...part.after], bridged) + HEIGHTS.add + DIAGRAM.gap;
    const tag = part.cross && !bridged ? TAG_HEIGHT : 0;
    return HEIGHTS[part.kind === "box" && !part.note ? "thin" : part.kind] + DIAGRAM.gap + tag;
  });
  return heights.reduce((a, b) => a + b, 0);
}

/** From the top of the encoder to the cross-attention of the decoder. */
function diagramBridge(from, to) {
  const start = [from.at[0] + from.middle, from.at[1] + from.top];
  const end = to.at[0] + to.middle - DIAGRAM.box / 2 - 2;
  const y = to.at[1] + (to.crossing ?? to.height - 40);
  const between = to.at[0] - 4;
  const top = start[1] - 4;
  const d = `M${start[0]} ${start[1] + 12}V${top}H${between - 8}Q${between} ${top} ${between} ${top + Math.sign(y - top) * 8}V${y - Math.sign(y - top) * 8}Q${between} ${y} ${between + 8} ${y}H${end}`;
  const tip = svg("path", {
    class: "diagram-tip",
    d: `M${end - 7} ${y - 5}L${end} ${y}L${end - 7} ${y + 5}Z`,
  });
  const text = diagramText(start[0] + 12, top - 7, "keys and values", "diagram-tag");
  text.setAttribute("text-anchor", "start");
  return svg("g", null, svg("path", { class: "diagram-bridge", d }), tip, text);
}

function diagramText(x, y, text, style) {
  return svg("text", { class: style, x, y, "text-anchor": "middle" }, text);
}
