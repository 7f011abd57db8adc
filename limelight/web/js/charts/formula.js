// Formulas as MathML. A long sum comes in several pieces, so that a narrow page can break the line.

import { domFilled, h } from "../core/dom.js";
import { show } from "../core/numbers.js";

const MATH = "http://www.w3.org/1998/Math/MathML";

/**
 * An element of a formula; a string is a name, a number is a number.
 * @param {string} tag
 * @param {...(Node|string|number)} children
 */
function math(tag, ...children) {
  return domFilled(document.createElementNS(MATH, tag), {}, children.map(formulaPart));
}

/** Things in a row. */
export function mrow(...children) {
  return math("mrow", ...children);
}

/** An operator, with space on both sides even at the start of a piece. */
export function mo(sign) {
  const infix = "+=×−→∼".includes(sign) ? { form: "infix", lspace: "0.22em", rspace: "0.22em" } : {};
  return domFilled(document.createElementNS(MATH, "mo"), infix, [sign]);
}

/** Words. */
export function mwords(text) {
  return domFilled(document.createElementNS(MATH, "mtext"), {}, [text]);
}

/** A number with three digits; below zero in brackets where it is a factor. */
export function mnum(value, digits = 3) {
  return domFilled(document.createElementNS(MATH, "mn"), {}, [show(value, digits)]);
}

/** A whole number, or a constant, as it is. */
export function mint(value) {
  return domFilled(document.createElementNS(MATH, "mn"), {}, [String(value)]);
}

/** A number inside a product. */
export function mfactor(value) {
  return value < 0 ? mrow(mo("("), mnum(value), mo(")")) : mnum(value);
}

/** A fraction. */
export function mfrac(above, below) {
  return math("mfrac", above, below);
}

/** A root. */
export function msqrt(inside) {
  return math("msqrt", inside);
}

/** With something below. */
export function msub(base, below) {
  return math("msub", base, below);
}

/** A letter in the colour of its role: q, k or v. */
export function mrole(letter, below) {
  return domFilled(math("msub", letter, below), { class: `role-${letter}` }, []);
}

/** With two letters below. */
export function mij(base, i, j) {
  return math("msub", base, mrow(i, j));
}

/** With something above. */
export function msup(base, above) {
  return math("msup", base, above);
}

/** A sum over something. */
export function msum(over) {
  return math("munder", mo("∑"), over);
}

/**
 * A formula in letters, on a line of its own.
 * @param {string} spoken how it is read
 * @param {...(Node|string|number)} children
 */
export function formula(spoken, ...children) {
  const drawn = formulaDisplayed(children);
  drawn.setAttribute("aria-label", spoken);
  return h("div", { class: "formula" }, drawn);
}

/**
 * A calculation with numbers: pieces between which a line may break.
 * @param {Node[]} pieces each a row of a formula
 */
export function calculation(pieces) {
  return h("div", { class: "calculation" }, pieces.map((piece) => formulaDisplayed([piece])));
}

/**
 * a . b with its largest terms spelled out, and the others in one number.
 * @param {ArrayLike<number>} a
 * @param {ArrayLike<number>} b
 * @param {number} sum as the model has it
 */
export function sumOfProducts(a, b, sum) {
  const products = Array.from(a, (x, i) => x * b[i]);
  const order = products.map((_, i) => i).sort((i, j) => Math.abs(products[j]) - Math.abs(products[i]) || i - j);
  const largest = order.slice(0, 3);
  const pieces = largest.map((i, n) => domFilled(mrow(...(n ? [mo("+")] : []), mfactor(a[i]), mo("×"), mfactor(b[i])), { dataset: { number: String(i), of: String(a.length) } }, []));
  if (products.length > largest.length) {
    const others = order.slice(3).reduce((all, i) => all + products[i], 0);
    pieces.push(mrow(mo("+"), mfactor(others), mwords(`\u00a0from ${products.length - largest.length} more`)));
  }
  return calculation([...pieces, mrow(mo("="), mnum(sum))]);
}

/** With fractions at their full size. */
function formulaDisplayed(children) {
  const drawn = math("math", ...children);
  drawn.setAttribute("displaystyle", "true");
  return drawn;
}

function formulaPart(child) {
  if (typeof child === "number") return mnum(child);
  if (typeof child !== "string") return child;
  return domFilled(document.createElementNS(MATH, "mi"), {}, [child]);
}
