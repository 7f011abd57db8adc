// Elements from words. Text becomes text nodes and nothing else: a token can be hostile.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "open", "indeterminate"]);
const MARKS = { " ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍" };

/**
 * An element. Props are attributes, but for `on` (listeners by event), `dataset` and `style`
 * (objects); null, undefined and false are left out.
 * @param {string} tag
 * @param {Object|null} [props]
 * @param {...(Node|string|number|Array|null|undefined|false)} children
 * @returns {HTMLElement}
 */
export function h(tag, props, ...children) {
  return domFilled(document.createElement(tag), props || {}, children);
}

/**
 * The same for drawings.
 * @param {string} tag
 * @param {Object|null} [props]
 * @param {...(Node|string|number|Array|null|undefined|false)} children
 * @returns {SVGElement}
 */
export function svg(tag, props, ...children) {
  return domFilled(document.createElementNS(SVG, tag), props || {}, children);
}

/**
 * Replace all children.
 * @param {Element} node
 * @param {...(Node|string|number|Array|null|undefined|false)} children
 */
export function replace(node, ...children) {
  node.replaceChildren(...domNodes(children));
  return node;
}

/**
 * Attributes, listeners and children for an element that is there.
 * @param {Element} element
 * @param {Object} props
 * @param {Array} children
 */
export function domFilled(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "dataset") {
      for (const [key, text] of Object.entries(value)) element.dataset[key] = String(text);
    } else if (name === "style") {
      for (const [key, text] of Object.entries(value)) element.style.setProperty(key, String(text));
    } else if (PROPERTIES.has(name) && name in element) {
      element[name] = value;
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...domNodes(children));
  return element;
}

function domNodes(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}

/**
 * A piece with marks for spaces and line ends, and codes for what would not show or worse.
 * @param {string} piece
 * @returns {string}
 */
export function visible(piece) {
  return Array.from(piece, (c) => {
    if (c in MARKS) return MARKS[c];
    if (!/[\p{C}\p{Z}]/u.test(c)) return c;
    const code = c.codePointAt(0).toString(16).toUpperCase();
    return code.length <= 2 ? `<${code.padStart(2, "0")}>` : `<U+${code.padStart(4, "0")}>`;
  }).join("");
}

/**
 * A button.
 * @param {string|Node} label
 * @param {function(Event): void} onClick
 * @param {Object} [props]
 */
export function button(label, onClick, props = {}) {
  return h("button", { type: "button", class: "button", ...props, on: { click: onClick, ...props.on } }, label);
}
