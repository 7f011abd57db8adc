// The walk through this very model, stop by stop.

import { h } from "../dom.js";
import { reading } from "../page.js";

export const explainTab = {
  id: "explain",
  title: "Explain",
  fits: (model) => !model.family.startsWith("recurrent"),
  mount(place) {
    place.append(h("div", null, reading("reading the model's numbers")));
    return () => {};
  },
};
