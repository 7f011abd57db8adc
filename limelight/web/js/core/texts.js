// The page's own words in other languages. A catalogue is a JSON file with the English text as index;
// what it lacks stays English. Text of a model is never looked up.

const TEXTS_KEY = "limelight-language";
export const LANGUAGES = [["en", "English"], ["de", "Deutsch"], ["zh", "中文"]];
const TEXTS_SENTENCE = /(?<=[.?!][)”]?) (?=[A-Z(])/;
let textsNow = {};

/**
 * A text of the page in the chosen language. Numbers in it stand for themselves: "3 of 21" is looked up as
 * "{0} of {1}"; and several sentences are looked up one by one.
 * @param {string} text
 * @param {Array<string|number>} [values] for {0}, {1} ...
 * @returns {string}
 */
export function t(text, values = null) {
  if (values) return textsFilled(textsNow[text] ?? text, values);
  if (text in textsNow || !text) return textsNow[text] ?? text;
  const sentences = text.split(TEXTS_SENTENCE);
  return sentences.length > 1 ? sentences.map(textsSentence).join(" ").replace(/([。？！]) /g, "$1") : textsSentence(text);
}

function textsSentence(text) {
  const numbers = [];
  const found = textsNow[text.replace(/\d[\d,.]*\d|\d/g, (number) => `{${numbers.push(number) - 1}}`)];
  return found === undefined ? text : textsFilled(found, numbers);
}

function textsFilled(text, values) {
  return text.replace(/\{(\d)\}/g, (_, n) => String(values[n]));
}

/** The language: from ?lang=, or as chosen before. @returns {string} */
export function language() {
  const wanted = new URLSearchParams(location.search).get("lang") ?? textsKept();
  return LANGUAGES.some(([code]) => code === wanted) ? wanted : "en";
}

/**
 * Load the catalogue of the chosen language.
 * @param {function(string): Promise<Object>} read the catalogue of a language code
 */
export async function loadTexts(read) {
  const code = language();
  document.documentElement.lang = code;
  textsNow = code === "en" ? {} : Object.assign(Object.create(null), await read(code).catch(() => ({})));
}

/** Choose a language: the page is loaded again, where it was. */
export function chooseLanguage(code) {
  try {
    localStorage.setItem(TEXTS_KEY, code);
  } catch {
    // A browser that keeps nothing has it in the address.
  }
  const params = new URLSearchParams(location.search);
  params.set("lang", code);
  location.search = params;
}

function textsKept() {
  try {
    return localStorage.getItem(TEXTS_KEY);
  } catch {
    return null;
  }
}
