// One head of one attention in a trace: its tokens, its weights, its entropy.

import { entropy, rowOf } from "../core/numbers.js";
import { t } from "../core/texts.js";

/**
 * The kinds of attention that a model has, in the order of reading.
 * @param {Object} manifest
 * @returns {{id: string, label: string, name: string, says: string, layers: string[]}[]} `layers`:
 *   the names of their attentions
 */
export function attentionBlocks(manifest) {
  const alone = manifest.model.family !== "encoder-decoder";
  const blocks = [
    {
      id: "encoder",
      at: /^encoder\.\d+\.self$/,
      label: t("Encoder"),
      name: alone ? t("Self-attention") : t("Encoder self-attention"),
      description: t("Every token attends to all tokens, before and after it."),
    },
    {
      id: "decoder",
      at: /^decoder\.\d+\.self$/,
      label: t("Decoder"),
      name: alone ? t("Masked self-attention") : t("Decoder self-attention"),
      description: t("Every token attends to itself and the tokens before it. Future tokens are masked."),
    },
    {
      id: "cross",
      at: /^decoder\.\d+\.cross$/,
      label: t("Cross"),
      name: t("Cross-attention"),
      description: t("Queries come from the decoder, keys and values from the encoder: one row per target token, one column per source token."),
    },
  ];
  const names = Object.keys(manifest.thumbs);
  const found = blocks.map(({ at, ...block }) => ({
    ...block,
    layers: names.filter((name) => at.test(name)),
  }));
  return found.filter(({ layers }) => layers.length);
}

/**
 * The selected head, as far as this model has it; or else the one that the walk starts with.
 * @param {Object} manifest
 * @param {{side: ?string, layer: ?number, head: ?number}} wanted
 */
export function headNow(manifest, { side, layer, head }) {
  const { first_look: first, model } = manifest;
  const blocks = attentionBlocks(manifest);
  const block = blocks.find(({ id }) => id === side) ?? blocks.at(-1);
  const within = (n, otherwise, most) => Math.min(n >= 1 && n <= most ? n : otherwise ?? 1, most);
  return { blocks, block, layer: within(layer, first.layer, block.layers.length), head: within(head, first.head, model.heads) };
}

/**
 * The values of one head with its tokens. A file may hold the weights alone; then there are no scores.
 * @param {Object} trace
 * @param {{id: string, layers: string[]}} block
 * @param {number} layer from 1
 * @param {number} head from 1
 */
export async function headOf(trace, block, layer, head) {
  const { source, target, answers } = trace.manifest;
  const numbers = await headNumbers(trace, block.layers[layer - 1], head);
  const queries = block.id === "encoder" ? source : target;
  return {
    ...numbers,
    queries,
    keys: block.id === "decoder" ? target : source,
    next: block.id === "encoder" ? null : answers.labels,
  };
}

async function headNumbers(trace, at, head) {
  try {
    const { weights, scores, masked } = await trace.attentionHead(at, head);
    return {
      weights,
      scores: scores.values,
      hidden: Uint8Array.from(masked.values, (x) => (x === -Infinity ? 1 : 0)),
    };
  } catch (error) {
    if (error.code !== "not_in_file") throw error;
    const weights = headPart(await trace.tensor(`${at}.weights`, { as: "f16" }), head);
    return {
      weights,
      scores: null,
      hidden: at.startsWith("decoder") && at.endsWith("self") ? headFuture(weights) : null,
    };
  }
}

/** The causal mask: future tokens. */
function headFuture({ values, shape }) {
  return Uint8Array.from(values, (_, i) => (i % shape[1] > Math.floor(i / shape[1]) ? 1 : 0));
}

/**
 * One head of a value that has all of them.
 * @param {{values: ArrayLike<number>, shape: number[], kind: string}} all
 * @param {number} head from 1
 */
export function headPart(all, head) {
  const [, rows, columns] = all.shape;
  const size = rows * columns;
  return {
    values: all.values.subarray((head - 1) * size, head * size),
    shape: [rows, columns],
    kind: all.kind,
  };
}

/**
 * The mean entropy of the rows of a head, and the effective number of pieces.
 * @param {{values: ArrayLike<number>, shape: number[]}} weights
 * @returns {{entropy: number, words: number}} in nats; e to that power
 */
export function spreadOf(weights) {
  const rows = weights.shape[0];
  let sum = 0;
  for (let r = 0; r < rows; r += 1) sum += entropy(rowOf(weights, r));
  const mean = rows ? sum / rows : 0;
  return { entropy: mean, words: Math.exp(mean) };
}

/**
 * Only some keys of every row, not renormalised.
 * @param {{values: ArrayLike<number>, shape: number[]}} table
 * @param {number[]} kept
 * @returns {Float32Array}
 */
export function someColumns({ values, shape }, kept) {
  const [rows, columns] = shape;
  const found = new Float32Array(rows * kept.length);
  for (let r = 0; r < rows; r += 1)
    kept.forEach((c, i) => (found[r * kept.length + i] = values[r * columns + c]));
  return found;
}
