// Light or dark: the system setting or the choice of the user. Canvases listen to "limelight:theme".

import { button } from "./dom.js";

const THEME_KEY = "limelight-theme";
const THEME_SIGNS = { auto: "◐", light: "○", dark: "●" };
const THEME_NEXT = { auto: "light", light: "dark", dark: "auto" };

/** A button that goes from auto to light to dark. */
export function themeButton() {
  const made = button("", () => themeShow(made, THEME_NEXT[made.dataset.chosen], true), { class: "button quiet round" });
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", () => themeShow(made, made.dataset.chosen, false));
  themeShow(made, themeKept(), false);
  return made;
}

function themeShow(made, chosen, keep) {
  made.dataset.chosen = chosen;
  made.textContent = THEME_SIGNS[chosen];
  made.title = `Theme: ${chosen}`;
  made.setAttribute("aria-label", `Theme: ${chosen}. Change it`);
  const dark = chosen === "dark" || (chosen === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  document.dispatchEvent(new Event("limelight:theme"));
  if (keep) themeKeep(chosen);
}

function themeKept() {
  try {
    return localStorage.getItem(THEME_KEY) in THEME_SIGNS ? localStorage.getItem(THEME_KEY) : "auto";
  } catch {
    return "auto";
  }
}

function themeKeep(chosen) {
  try {
    localStorage.setItem(THEME_KEY, chosen);
  } catch {
    // A browser that keeps nothing follows the system next time.
  }
}
