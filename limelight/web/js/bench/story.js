// What was generated, piece by piece, with the candidates of each: one can go back, take another, and
// walk through all branches.

import { bars } from "../charts/bars.js";
import { button, h, replace } from "../core/dom.js";
import { showPercent } from "../core/numbers.js";
import { pieceLabels } from "../core/pieces.js";
import { t } from "../core/texts.js";

/**
 * Pieces of an event of a streamed completion or chat: text, probability, candidates.
 * @param {Object} choice with logprobs, as OpenAI's API has them
 * @returns {{text: string, piece: string, share: number, top: {piece: string, share: number}[]}[]}
 */
export function streamedPieces({ text, delta, logprobs }) {
  const tokens = logprobs?.content ?? (logprobs?.tokens ?? []).map((token, i) => ({
    token,
    logprob: logprobs.token_logprobs[i],
    top_logprobs: Object.entries(logprobs.top_logprobs?.[i] ?? {}).map(([other, logprob]) => ({ token: other, logprob })),
  }));
  const written = text ?? delta?.content ?? "";
  const found = tokens.map(({ token, logprob, top_logprobs: top }) => ({
    text: "", piece: token, share: Math.exp(logprob), top: (top ?? []).map((one) => ({ piece: one.token, share: Math.exp(one.logprob) })),
  }));
  if (found.length) found.at(-1).text = written; // a cut character arrives with its last piece
  if (found.length > 1 && found.map(({ piece }) => piece).join("") === written) for (const one of found) one.text = one.piece;
  return found;
}

/** The tree of all that was generated after a prompt, and the node that is shown. */
export class Story {
  /**
   * @param {{onGo: function(string): void, onBranch: function(string): void}} use show a text; go on from a text
   */
  constructor(use) {
    this.use = use;
    this.clear("");
    this.parts = {};
    for (const name of ["pieces", "candidates", "tree"]) this.parts[name] = h("div", { class: `story-${name}` });
    this.scrub = h("input", { type: "range", min: "0", step: "1", "aria-label": t("Go back in what was generated"), on: { input: () => this.go(this.path[Number(this.scrub.value)]) } });
    this.element = h("section", { class: "story", "aria-label": t("What was generated"), hidden: true },
      h("div", { class: "card-head" }, h("h3", { class: "label" }, t("Piece by piece")), this.scrub), this.parts.pieces, this.parts.candidates, this.parts.tree);
  }

  clear(prompt) {
    this.root = { text: prompt, piece: "", parent: null, children: [], top: [] };
    this.path = [this.root]; // with what comes after the node that is shown
    this.now = this.root;
  }

  /** Begin at a text: at a node that has it, or in a new tree. */
  begin(prompt) {
    const known = storyNodes(this.root).find((node) => this.textOf(node) === prompt);
    if (!known) this.clear(prompt);
    this.now = known ?? this.root;
    this.path = storyPath(this.now);
  }

  /** One more piece; the same piece is the same branch. */
  grow(piece) {
    const known = this.now.children.find((child) => child.text === piece.text && child.piece === piece.piece);
    const node = known ?? { ...piece, parent: this.now, children: [] };
    if (!known) this.now.children.push(node);
    this.now = node;
    this.path = storyPath(node);
    this.draw();
  }

  textOf(node) {
    return storyPath(node).map(({ text }) => text).join("");
  }

  go(node) {
    this.now = node;
    if (!this.path.includes(node)) this.path = storyPath(storyDeepest(node));
    this.draw();
    this.use.onGo(this.textOf(node));
  }

  draw() {
    this.element.hidden = this.root.children.length === 0;
    const at = this.path.indexOf(this.now);
    this.scrub.max = String(this.path.length - 1);
    this.scrub.value = String(at);
    const nodes = this.path.slice(1);
    const labels = pieceLabels(nodes.map(({ piece }) => piece));
    this.scrub.setAttribute("aria-valuetext", at ? `${at} of ${nodes.length}: ${labels[at - 1]}` : t("the prompt"));
    replace(this.parts.pieces, nodes.map((node, i) => button(labels[i], () => this.go(node), {
      class: `story-piece${node.mine ? " mine" : ""}${i >= at ? " ahead" : ""}`,
      style: { "--share": node.share ?? 1 },
      "aria-pressed": String(node === this.now),
      title: node.mine ? t("chosen by you") : t("probability {0}", [showPercent(node.share)]),
    })));
    this.drawCandidates();
    replace(this.parts.tree, storyNodes(this.root).some(({ children }) => children.length > 1) ? [h("h3", { class: "label" }, t("All branches")), storyBranch(this, this.root)] : null);
  }

  /** What could have stood here; another one starts a branch. */
  drawCandidates() {
    const { now } = this;
    if (!now.top.length) {
      replace(this.parts.candidates);
      return;
    }
    const items = now.top.map(({ piece, share }) => ({ label: pieceLabels([piece])[0], value: share, marked: piece === now.piece, note: piece === now.piece ? "chosen" : "" }));
    const list = bars({ items, title: t("Candidates at this position: choose one to branch"), full: Math.max(...now.top.map(({ share }) => share)), onChoose: (i) => this.branch(now, now.top[i]) });
    replace(this.parts.candidates, list.element);
  }

  branch(node, { piece, share }) {
    if (piece === node.piece || /^[⟨<].+[⟩>]$/.test(piece)) return;
    this.now = node.parent;
    this.grow({ text: piece, piece, share, top: node.top, mine: true });
    this.use.onBranch(this.textOf(this.now));
  }
}

function storyPath(node) {
  return node ? [...storyPath(node.parent), node] : [];
}

function storyNodes(root) {
  const found = [root];
  for (const node of found) found.push(...node.children);
  return found;
}

/** The end of the newest branch from a node. */
function storyDeepest(node) {
  let last = node;
  while (last.children.length) last = last.children.at(-1);
  return last;
}

/** A run of pieces without a fork as one line, then its branches. */
function storyBranch(story, from) {
  const run = [from];
  while (run.at(-1).children.length === 1) run.push(run.at(-1).children[0]);
  const end = run.at(-1);
  const text = run.map(({ text: own }) => own).join("");
  const here = run.includes(story.now) || (story.path.includes(end) && run.includes(story.path.at(-1)));
  const line = button(text.length > 90 ? `${text.slice(0, 60)} … ${text.slice(-25)}` : text, () => story.go(end), { class: `story-run${story.path.includes(end) ? " on-path" : ""}`, "aria-current": here ? "true" : null, dir: "auto" });
  return h("ul", null, h("li", null, line, end.children.map((child) => storyBranch(story, child))));
}
