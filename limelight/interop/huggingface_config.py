"""The options of config.json, in our terms: one table for each family serves import and export.

Every option is read, or listed here as one that changes nothing, or refused by its name: an option
that is ignored gives wrong numbers without a word.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from limelight.errors import UserError
from limelight.interop import names
from limelight.interop.imported import FORMATS, known_values, refuse_unknown
from limelight.model import ModelConfig

_ANY: Any = ...
_Options = dict[str, Any]
_AT_REST: dict[str, Any] = {  # options with the only values that leave everything as it is
    **dict.fromkeys(FORMATS["false"], (False,)),
    "cross_attention_hidden_size": (None,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "use_bfloat16": (False, True),
}


class Family(NamedTuple):
    """The options of one model_type, and what they say of our settings: see formats.toml."""

    architecture: str
    kind: Any
    table: Callable[[ModelConfig], names.NameTable]
    fixed: Mapping[str, Any]
    sizes: Mapping[str, str]
    numbers: Mapping[str, tuple[str, float]]
    activation: tuple[str, str]
    tied: bool
    options: Mapping[str, Any]
    read_others: Callable[[_Options], _Options]  # our settings that these options give

    @property
    def known(self) -> dict[str, Any]:
        """All options, as `refuse_unknown` wants them."""
        named = ("vocab_size", "tie_word_embeddings", self.activation[0])
        read = dict.fromkeys((*named, *self.sizes, *self.numbers), _ANY)
        return {**dict.fromkeys(FORMATS["neutral"], _ANY), **_AT_REST, **read, **self.options}


def size_of(options: Mapping[str, Any], name: str, *others: str) -> int:
    """A whole number among the options, by its name or an older one."""
    for each in (name, *others):
        if (value := options.get(each)) is not None:
            if type(value) is not int or not 0 < value < 2**31:
                raise UserError(f"config.json: {each}={value!r:.80} must be a positive number")
            return value
    raise UserError(f"config.json has no {name}")


_OLDER = {"n_positions": "n_ctx", "num_key_value_heads": "num_attention_heads"}
_OPEN = ("n_inner", "head_dim")  # ours follow from others, where these are not said


def _sizes(options: _Options, names: Mapping[str, str]) -> _Options:
    found: _Options = {}
    first: dict[str, str] = {}  # the option that gave a setting
    for theirs, ours in names.items():
        if theirs in _OPEN and not options.get(theirs):
            continue
        value = size_of(options, theirs, *filter(None, [_OLDER.get(theirs)]))
        one = first.setdefault(ours, theirs)
        if found.setdefault(ours, value) != value:
            raise UserError(f"config.json: {one}={found[ours]} and {theirs}={value} differ")
    return found


def _number(options: Mapping[str, Any], name: str, default: float) -> float:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"config.json: {name}={value!r:.80} must be a number")
    return float(value)


_ACTIVATIONS: dict[str, str] = FORMATS["activations"]


def _activation(options: _Options, name: str, default: str) -> str:
    value = options.get(name, default)
    if value not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise UserError(f"config.json: {name}={value!r:.80} is not supported: {known}")
    return _ACTIVATIONS[value]


def _tied(options: _Options, default: bool) -> bool:
    tied = options.get("tie_word_embeddings", default)
    if not isinstance(tied, bool):
        raise UserError(f"config.json: tie_word_embeddings={tied!r:.80} must be true or false")
    return tied


def _rope(options: _Options) -> _Options:
    """Base and scaling, as version 5 has them (rope_parameters) or as the older ones."""
    scaling = dict(options.get("rope_parameters") or options.get("rope_scaling") or {})
    base = scaling.pop("rope_theta", options.get("rope_theta", 10000.0))
    kind = scaling.pop("rope_type", scaling.pop("type", "default"))
    scaling.pop("type", None)
    found: _Options = {"rotary_base": _number({"rope_theta": base}, "rope_theta", 10000.0)}
    if kind == "default":
        refuse_unknown(scaling, {}, "config.json, rope_parameters")
        return found
    parts = {"factor": "rotary_factor"}
    if kind == "llama3":
        parts |= {"low_freq_factor": "rotary_low", "high_freq_factor": "rotary_high"}
        parts["original_max_position_embeddings"] = "rotary_length"
    elif kind != "linear":
        raise UserError(f"config.json: the rope scaling {kind!r:.80} is not supported")
    refuse_unknown(scaling, dict.fromkeys(parts, _ANY), "config.json, rope_parameters")
    found["rotary_scaling"] = kind
    for theirs, ours in parts.items():
        value = _number(scaling, theirs, math.nan)
        found[ours] = int(value) if ours == "rotary_length" else value
    return found


def _rotary(options: _Options, bias: bool) -> _Options:
    if any(each != "full_attention" for each in options.get("layer_types") or ()):
        raise UserError("config.json: layer_types other than full_attention are not supported")
    found = {"bias": bias, **_rope(options)}
    usual = options["hidden_size"] == options["num_attention_heads"] * (
        options.get("head_dim") or 0
    )
    return {**found, "head_dim": 0} if usual else found


def _llama(options: _Options) -> _Options:
    bias = bool(options.get("attention_bias", False))
    if bias != bool(options.get("mlp_bias", False)):
        raise UserError("config.json: attention_bias without mlp_bias is not supported")
    return _rotary(options, bias)


def _starcoder2(options: _Options) -> _Options:
    return _rotary(options, options.get("use_bias", True))


def _bert(options: _Options) -> _Options:
    architecture = (options.get("architectures") or ["BertModel"])[0]
    heads: dict[str, _Options] = {
        "BertModel": {"masked_head": False},
        "BertForMaskedLM": {},
        "BertForPreTraining": {"sentence_pairs": True},
        "BertForSequenceClassification": {
            "classes": len(options.get("id2label") or {0: "", 1: ""})
        },
    }
    if architecture not in heads:
        raise UserError(f"config.json: {architecture!r:.80} is none of {', '.join(heads)}")
    return heads[architecture]


def _marian(options: _Options) -> _Options:
    shared, tied = options.get("share_encoder_decoder_embeddings", True), _tied(options, True)
    source = size_of(options, "vocab_size")
    vocab = size_of(options, "decoder_vocab_size", "vocab_size")
    if shared and (not tied or source != vocab):
        raise UserError(
            "config.json: one table for source and target, but not for the classifier, is not "
            "supported: tie_word_embeddings or decoder_vocab_size"
        )
    pre = options["model_type"] == "pegasus"
    if any(options.get(one, pre) != pre for one in ("normalize_before", "add_final_layer_norm")):
        raise UserError("config.json: normalize_before is not as in other models of its kind")
    same = options["encoder_layers"] == options["decoder_layers"]
    return {
        "decoder_layers": 0 if same else options["decoder_layers"],
        "vocab": vocab,
        "source_vocab": 0 if source == vocab else source,
        "tied": "all" if shared else "target" if tied else "none",
        "embedding_scale": "on" if options.get("scale_embedding", False) else "off",
    }


_READ_OTHERS: dict[str, Callable[[_Options], _Options]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _llama),
    **dict.fromkeys(("marian", "pegasus"), _marian),
    "starcoder2": _starcoder2,
    "bert": _bert,
}


def _family(name: str) -> Family:
    """A family of formats.toml, completed by its base."""
    found = dict(FORMATS["families"][name])
    for key, value in FORMATS["families"].get(found.pop("base", ""), {}).items():
        found[key] = (
            {**value, **found.get(key, {})} if isinstance(value, dict) else found.get(key, value)
        )
    found |= {"table": getattr(names, found["table"]), "options": known_values(found["options"])}
    return Family(**found, read_others=_READ_OTHERS.get(name, lambda _: {}))


FAMILIES = {name: _family(name) for name in FORMATS["families"]}


def read_config(options: _Options) -> tuple[ModelConfig, Family]:
    """Our configuration for a config.json; an unknown option is refused by its name."""
    if "auto_map" in options:
        raise UserError("config.json: auto_map asks to run code of the model: nothing is run")
    kind = options.get("model_type")
    if kind not in FAMILIES:
        raise UserError(
            f"config.json: model_type={kind!r:.80} is not supported: {', '.join(FAMILIES)}"
        )
    family = FAMILIES[kind]
    refuse_unknown(options, family.known, "config.json")
    numbers = family.numbers.items()
    settings: _Options = {
        "vocab": size_of(options, "vocab_size"),
        "activation": _activation(options, *family.activation),
        "tied": "all" if _tied(options, family.tied) else "none",
        **family.fixed,
        **_sizes(options, family.sizes),
        **{ours: _number(options, theirs, default) for theirs, (ours, default) in numbers},
        **family.read_others(options),
    }
    return ModelConfig(**settings), family
