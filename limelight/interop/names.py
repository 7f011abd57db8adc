"""Reversible tables of weight names: one for each family serves import and export.

An entry names one of their tensors and what it becomes here: one of ours, or several that are its
rows. Tensors are only renamed, cut, transposed and reordered, so the way back is exact to the bit.
Whatever a table does not name is refused by its name, and so is what is missing.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.errors import UserError
from limelight.interop.imported import FORMATS
from limelight.model import ModelConfig, build_empty

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


def _layers(kind: str, theirs: str, stack: str, count: int) -> dict[str, str]:
    """The modules of all layers of a stack, by their names, from a table of formats.toml."""
    table = FORMATS["layers"][kind].items()
    return {f"{theirs}.{i}.{a}": f"{stack}.layers.{i}.{b}" for i in range(count) for a, b in table}


def _present(config: ModelConfig, modules: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Their name and ours for each weight and bias of these modules that the model has.

    Layers are alike: the names in one layer say what all of them have.
    """
    small = replace(config, layers=1, decoder_layers=min(1, config.decoder_layers))
    there = {name for name, _ in build_empty(small).named_parameters()}
    for theirs, ours in modules.items():
        for kind in _BOTH:
            if re.sub(r"layers\.\d+", "layers.0", f"{ours}.{kind}") in there:
                yield f"{theirs}.{kind}", f"{ours}.{kind}"


def _transpose(x: Tensor) -> Tensor:
    return x.t() if x.dim() == 2 else x


def gpt2(config: ModelConfig, turn: _Change = _transpose) -> NameTable:
    """GPT-2: query, key and value are one; matrices are transposed (Conv1D), but not in nanoGPT."""
    modules = {
        "transformer.wte": "target.tokens",
        "transformer.wpe": "target.positions",
        "transformer.ln_f": "decoder.norm",
        "lm_head": "classifier",
        **_layers("gpt2", "transformer.h", "decoder", config.layers),
    }
    entries = list[Entry]()
    for theirs, ours in _present(config, modules):
        parts = ("query", "key", "value") if "query" in ours else ("",)
        joined = tuple(ours.replace("query", part) for part in parts)
        entries.append(Entry(theirs, joined, *((turn, turn) if ".c_" in theirs else ())))
    # Masks that old files keep; the table again where it is tied.
    tied = "|lm_head\\.weight" if config.tying == "all" else ""
    return NameTable(entries, rf"(?:transformer\.)?h\.\d+\.attn\.(?:bias|masked_bias){tied}")


def _turned(d_head: int) -> tuple[_Change, _Change]:
    """Their rotary pairs are (j, j + K/2), ours (2j, 2j + 1): reorder the rows of each head."""
    order = torch.arange(d_head).view(2, d_head // 2).t().flatten()
    inverse = order.argsort()

    def reorder(x: Tensor, rows: Tensor) -> Tensor:
        return x.view(-1, d_head, *x.shape[1:])[:, rows].reshape(x.shape)

    return lambda x: reorder(x, order), lambda x: reorder(x, inverse)


def llama(config: ModelConfig, paired: bool = False) -> NameTable:
    """Llama, and what has its layout: SmolLM2, TinyLlama, Mistral, Qwen2, Qwen3.

    StarCoder2 too, which has layer norms, and no gate. In GGUF files of Llama's architecture the
    rotary pairs are neighbours (`paired`), as ours are.
    """
    turn = () if paired else _turned(config.d_head)
    kind = "llama" if config.activation == "swiglu" else "starcoder2"
    modules = {
        "model.embed_tokens": "target.tokens",
        "model.norm": "decoder.norm",
        "lm_head": "classifier",
        **_layers(kind, "model.layers", "decoder", config.layers),
    }
    entries = [
        Entry(theirs, (ours,), *(turn if re.search(r"\.(query|key)", ours) else ()))
        for theirs, ours in _present(config, modules)
    ]
    tied = "|lm_head\\.weight" if config.tying == "all" else ""
    return NameTable(entries, rf"(?:model\.layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq{tied}")


def bert(config: ModelConfig) -> NameTable:
    """BERT with its masked-word head, and perhaps the head for pairs; a classifier; or bare."""
    modules = {
        "bert.embeddings.word_embeddings": "source.tokens",
        "bert.embeddings.position_embeddings": "source.positions",
        "bert.embeddings.token_type_embeddings": "source.segments",
        "bert.embeddings.LayerNorm": "source.norm",
        **_layers("bert", "bert.encoder.layer", "encoder", config.layers),
        "bert.pooler.dense": "text_head.inner" if config.classes else "pair_head.inner",
        "classifier": "text_head.classifier",
        "cls.seq_relationship": "pair_head.classifier",
        "cls.predictions.transform.dense": "masked_head.inner",
        "cls.predictions.transform.LayerNorm": "masked_head.norm",
        "cls.predictions.decoder": "masked_head.classifier",
    }
    # The bias of this decoder stands beside it, and often in it once more.
    beside = {"cls.predictions.decoder.bias": "cls.predictions.bias"}
    found = _present(config, modules)
    entries = [Entry(beside.get(theirs, theirs), (ours,)) for theirs, ours in found]
    derived = [r"bert\.embeddings\.position_ids"]
    if config.masked_head and not config.classes:
        repeated = "bias|weight" if config.tying == "all" else "bias"
        derived.append(rf"cls\.predictions\.decoder\.(?:{repeated})")
    if not (config.sentence_pairs or config.classes):  # what a pooler is for is not there
        derived += [r"bert\.pooler\.dense\.(?:weight|bias)", r"cls\.seq_relationship\..*"]
    return NameTable(entries, "|".join(derived))


def bart_names(config: ModelConfig, prefix: str) -> Iterator[tuple[str, str]]:
    """Their name and ours for all that is in the stacks of Marian, Pegasus and fairseq."""
    modules = dict[str, str]()
    for side, layers in (("encoder", config.layers), ("decoder", config.num_decoder_layers)):
        modules |= _layers("bart", f"{prefix}{side}.layers", side, layers)
        modules[f"{prefix}{side}.layer_norm"] = f"{side}.norm"
    return _present(config, modules)


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
