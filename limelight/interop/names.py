"""Reversible tables of weight names: one for each family serves import and export.

An entry names one of their tensors and what it becomes here: one of ours, or several that are its
rows. Tensors are only renamed, cut, transposed and reordered, so the way back is exact to the bit.
Whatever a table does not name is refused by its name, and so is what is missing.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.errors import UserError
from limelight.interop.imported import FORMATS
from limelight.model import ModelConfig

_Change = Callable[[Tensor], Tensor]
_BOTH = ("weight", "bias")


class Entry(NamedTuple):
    """One of their tensors, our tensors whose rows it has, and how it changes there and back."""

    theirs: str
    ours: tuple[str, ...]
    there: _Change = lambda x: x
    back: _Change = lambda x: x


class NameTable(NamedTuple):
    """All tensors of a model; `derived` are names of theirs that repeat others or are constants."""

    entries: list[Entry]
    derived: str = r"(?!)"  # a pattern; by default there are none

    def to_ours(self, theirs: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
        """Our tensors from theirs."""
        known = {entry.theirs for entry in self.entries}
        for name in theirs:
            if name not in known and not re.fullmatch(self.derived, name):
                raise UserError(f"{where} has the unknown tensor {name:.120}")
        ours: dict[str, Tensor] = {}
        for entry in self.entries:
            if entry.theirs not in theirs:
                raise UserError(f"{where} lacks the tensor {entry.theirs}")
            value, parts = entry.there(theirs[entry.theirs]), len(entry.ours)
            if not value.dim() or value.size(0) % parts:
                raise UserError(f"{where}: {entry.theirs} has the odd shape {tuple(value.shape)}")
            ours |= zip(entry.ours, value.chunk(parts), strict=True)
        return ours

    def to_theirs(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Their tensors from ours, exactly as they were."""
        used = {name for entry in self.entries for name in entry.ours}
        if unknown := sorted(ours.keys() - used):
            raise UserError(f"there is no place for the weights {unknown[0]} in that format")
        found = {}
        for entry in self.entries:
            value = torch.cat([ours[name] for name in entry.ours])
            found[entry.theirs] = entry.back(value).contiguous()
        return found


def _pairs(theirs: str, ours: str, kinds: tuple[str, ...] = _BOTH) -> Iterator[Entry]:
    """Weight and bias, unchanged."""
    for kind in kinds:
        yield Entry(f"{theirs}.{kind}", (f"{ours}.{kind}",))


def _transpose(x: Tensor) -> Tensor:
    return x.t() if x.dim() == 2 else x


def gpt2(
    config: ModelConfig, prefix: str = "transformer.", turn: _Change = _transpose
) -> NameTable:
    """GPT-2: query, key and value are one; matrices are transposed (Conv1D), but not in nanoGPT."""
    entries = [
        Entry(f"{prefix}wte.weight", ("target.tokens.weight",)),
        Entry(f"{prefix}wpe.weight", ("target.positions.weight",)),
        *_pairs(f"{prefix}ln_f", "decoder.norm"),
    ]
    if config.tying == "none":
        entries.append(Entry("lm_head.weight", ("classifier.weight",)))
    for i in range(config.layers):
        old, new = f"{prefix}h.{i}", f"decoder.layers.{i}"
        entries += _pairs(f"{old}.ln_1", f"{new}.self_residual.norm")
        entries += _pairs(f"{old}.ln_2", f"{new}.feed_forward_residual.norm")
        for kind in _BOTH if config.bias else _BOTH[:1]:
            joined = tuple(f"{new}.self_attention.{p}.{kind}" for p in ("query", "key", "value"))
            parts = {
                "attn.c_attn": joined,
                "attn.c_proj": (f"{new}.self_attention.output.{kind}",),
                "mlp.c_fc": (f"{new}.feed_forward.inner.{kind}",),
                "mlp.c_proj": (f"{new}.feed_forward.outer.{kind}",),
            }
            for theirs, ours in parts.items():
                entries.append(Entry(f"{old}.{theirs}.{kind}", ours, turn, turn))
    # Masks that old files keep; the table again where it is tied.
    tied = "|lm_head\\.weight" if config.tying == "all" else ""
    return NameTable(entries, rf"(?:{prefix})?h\.\d+\.attn\.(?:bias|masked_bias){tied}")


def _turned(d_head: int) -> tuple[_Change, _Change]:
    """Their rotary pairs are (j, j + K/2), ours (2j, 2j + 1): reorder the rows of each head."""
    order = torch.arange(d_head).view(2, d_head // 2).t().flatten()
    inverse = order.argsort()

    def reorder(x: Tensor, rows: Tensor) -> Tensor:
        return x.view(-1, d_head, *x.shape[1:])[:, rows].reshape(x.shape)

    return lambda x: reorder(x, order), lambda x: reorder(x, inverse)


_GATED = {"gate_proj": "gate", "up_proj": "inner", "down_proj": "outer"}


def llama(config: ModelConfig, prefix: str = "model.", paired: bool = False) -> NameTable:
    """Llama, and what has its layout: SmolLM2, TinyLlama, Mistral, Qwen2, Qwen3.

    StarCoder2 too, which has layer norms, and no gate. In GGUF files of Llama's architecture the
    rotary pairs are neighbours (`paired`), as ours are.
    """
    turn = () if paired else _turned(config.d_head)
    biased = _BOTH if config.bias or config.qkv_bias else _BOTH[:1]
    others = _BOTH if config.bias else _BOTH[:1]
    normed = _BOTH if config.norm == "layer" else _BOTH[:1]
    gated = config.activation == "swiglu"
    feed_forward = _GATED if gated else {"c_fc": "inner", "c_proj": "outer"}
    entries = [Entry(f"{prefix}embed_tokens.weight", ("target.tokens.weight",))]
    entries += _pairs(f"{prefix}norm", "decoder.norm", normed)
    if config.tying == "none":
        entries.append(Entry("lm_head.weight", ("classifier.weight",)))
    for i in range(config.layers):
        old, new = f"{prefix}layers.{i}", f"decoder.layers.{i}"
        attention = f"{new}.self_attention"
        norms = {"input_layernorm": "self", "post_attention_layernorm": "feed_forward"}
        for theirs, ours in norms.items():
            entries += _pairs(f"{old}.{theirs}", f"{new}.{ours}_residual.norm", normed)
        for letter, part in (("q", "query"), ("k", "key")):
            for kind in biased:
                name = (f"{attention}.{part}.{kind}",)
                entries.append(Entry(f"{old}.self_attn.{letter}_proj.{kind}", name, *turn))
            if config.qk_norm:
                name = (f"{attention}.{part}_norm.weight",)
                entries.append(Entry(f"{old}.self_attn.{letter}_norm.weight", name, *turn))
        entries += _pairs(f"{old}.self_attn.v_proj", f"{attention}.value", biased)
        entries += _pairs(f"{old}.self_attn.o_proj", f"{attention}.output", others)
        for theirs, ours in feed_forward.items():
            entries += _pairs(f"{old}.mlp.{theirs}", f"{new}.feed_forward.{ours}", others)
    tied = "|lm_head\\.weight" if config.tying == "all" else ""
    return NameTable(entries, rf"(?:{prefix}layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq{tied}")


def bert(config: ModelConfig, prefix: str = "bert.") -> NameTable:
    """BERT with its masked-word head, and perhaps the head for pairs; a classifier; or bare."""
    entries = list[Entry]()
    for theirs, ours in (("word", "tokens"), ("position", "positions"), ("token_type", "segments")):
        name = f"{prefix}embeddings.{theirs}_embeddings.weight"
        entries.append(Entry(name, (f"source.{ours}.weight",)))
    entries += _pairs(f"{prefix}embeddings.LayerNorm", "source.norm")
    for i in range(config.layers):
        for theirs, ours in FORMATS["layers"]["bert"].items():
            entries += _pairs(f"{prefix}encoder.layer.{i}.{theirs}", f"encoder.layers.{i}.{ours}")
    derived = [rf"{prefix}embeddings\.position_ids"]
    if config.classes:
        entries += _pairs(f"{prefix}pooler.dense", "text_head.inner")
        entries += _pairs("classifier", "text_head.classifier")
    elif config.masked_head:
        entries += _pairs("cls.predictions.transform.dense", "masked_head.inner")
        entries += _pairs("cls.predictions.transform.LayerNorm", "masked_head.norm")
        entries.append(Entry("cls.predictions.bias", ("masked_head.classifier.bias",)))
        derived.append(r"cls\.predictions\.decoder\.bias")
        if config.tying == "all":
            derived.append(r"cls\.predictions\.decoder\.weight")
        else:
            weight = ("masked_head.classifier.weight",)
            entries.append(Entry("cls.predictions.decoder.weight", weight))
    if config.sentence_pairs:
        entries += _pairs(f"{prefix}pooler.dense", "pair_head.inner")
        entries += _pairs("cls.seq_relationship", "pair_head.classifier")
    elif not config.classes:  # what a pooler is for is not there
        derived += [rf"{prefix}pooler\.dense\.(?:weight|bias)", r"cls\.seq_relationship\..*"]
    return NameTable(entries, "|".join(derived))


def bart_names(config: ModelConfig, prefix: str) -> Iterator[tuple[str, str]]:
    """Their name and ours for all that is in the stacks of Marian, Pegasus and fairseq."""
    for side, layers in (("encoder", config.layers), ("decoder", config.num_decoder_layers)):
        parts = {
            f"layers.{i}.{theirs}": f"layers.{i}.{ours}"
            for i in range(layers)
            for theirs, ours in FORMATS["layers"]["bart"].items()
            if side == "decoder" or not theirs.startswith("encoder_attn")
        }
        parts |= {"layer_norm": "norm"} if config.norm_order == "pre" else {}
        for theirs, ours in parts.items():
            for kind in _BOTH:
                yield f"{prefix}{side}.{theirs}.{kind}", f"{side}.{ours}.{kind}"


_READS = (  # what is left writes D numbers: its rows are reordered
    *("query.weight", "key.weight", "value.weight", "inner.weight", "tokens.weight"),
    "classifier.weight",
)
_KEEPS = ("query.bias", "key.bias", "value.bias", "inner.bias", "classifier.bias")


def _interleaved(ours: str, d_model: int) -> tuple[_Change, _Change]:
    """Their sinusoids are all sines, then all cosines; ours alternate, as the paper's do.

    So the numbers of every D-wide vector are reordered: where they are read, and where written.
    """
    order = torch.arange(d_model).view(2, d_model // 2).t().flatten()
    inverse = order.argsort()
    if ours.endswith(_KEEPS):
        return (lambda x: x), (lambda x: x)
    if ours.endswith(_READS):
        return (lambda x: x[:, order]), (lambda x: x[:, inverse])
    return (lambda x: x[order]), (lambda x: x[inverse])


def marian(config: ModelConfig) -> NameTable:
    """Marian's translators as Hugging Face has them, and Pegasus, which is their pre-norm form."""

    def entry(theirs: str, ours: str) -> Entry:
        return Entry(theirs, (ours,), *_interleaved(ours, config.d_model))

    def bias_there(x: Tensor) -> Tensor:
        return x[0] if x.dim() == 2 else x

    if config.tying == "all":  # the source is the first to have a shared table
        entries = [entry("model.shared.weight", "source.tokens.weight")]
    else:
        entries = [
            entry(f"model.{side}coder.embed_tokens.weight", f"{ours}.tokens.weight")
            for side, ours in (("en", "source"), ("de", "target"))
        ]
    bias = ("classifier.bias",)
    entries.append(Entry("final_logits_bias", bias, bias_there, lambda x: x[None]))
    derived = [r"model\.(?:en|de)coder\.embed_positions\.weight"]
    if config.tying != "none":
        derived.append(r"lm_head\.weight")
    else:
        entries.append(entry("lm_head.weight", "classifier.weight"))
    shared = r"model\.(?:en|de)coder\.embed_tokens\.weight"
    derived.append(shared if config.tying == "all" else r"model\.shared\.weight")
    entries += [entry(*both) for both in bart_names(config, "model.")]
    return NameTable(entries, "|".join(derived))
