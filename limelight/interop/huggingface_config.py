"""The options of config.json, in our terms: one table for each family serves import and export.

Every option is read, or listed here as one that changes nothing, or refused by its name: an option
that is ignored gives wrong numbers without a word.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from limelight.errors import UserError
from limelight.interop import names
from limelight.interop.imported import refuse_unknown
from limelight.model import ModelConfig

_ANY: Any = ...
_Options = dict[str, Any]
# Options that change no number of a forward pass, whatever they say: names, training, generation.
_NEUTRAL: dict[str, Any] = dict.fromkeys(
    (
        *("_name_or_path", "architectures", "model_type", "transformers_version", "torch_dtype"),
        *("dtype", "use_cache", "initializer_range", "init_std", "gradient_checkpointing"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id"),
        *("decoder_start_token_id", "forced_eos_token_id", "forced_bos_token_id", "cls_token_id"),
        *("id2label", "label2id", "problem_type", "task_specific_params", "finetuning_task"),
        *("num_beams", "max_length", "min_length", "length_penalty", "early_stopping", "do_sample"),
        *("num_beam_groups", "no_repeat_ngram_size", "bad_words_ids", "temperature", "top_p"),
        *("attention_dropout", "activation_dropout", "dropout", "classifier_dropout", "top_k"),
        *("classif_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob", "summary_type"),
        *("resid_pdrop", "embd_pdrop", "attn_pdrop", "encoder_layerdrop", "decoder_layerdrop"),
        *("summary_use_proj", "summary_activation", "summary_proj_to_labels", "n_ctx"),
        *("summary_first_dropout", "_num_labels", "num_labels", "repetition_penalty"),
        *("chunk_size_feed_forward", "tokenizer_class", "is_llama_config", "return_dict"),
        "output_past",
        *("num_hidden_layers_total", "gradient_checkpointing_kwargs", "sentence_transformers"),
    ),
    _ANY,
)
_FALSE = (
    *("output_attentions", "output_hidden_states", "is_decoder", "add_cross_attention"),
    *("tie_encoder_decoder", "torchscript", "is_composition", "is_encoder_decoder"),
)
_AT_REST: dict[str, Any] = {  # options with the only values that leave everything as it is
    **dict.fromkeys(_FALSE, (False,)),
    "cross_attention_hidden_size": (None,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "use_bfloat16": (False, True),
}


class Family(NamedTuple):
    """The options of one model_type, and what they say of our settings."""

    architecture: str  # of transformers; "": it depends on the head
    kind: Any  # of the data that it learned from
    table: Callable[[ModelConfig], names.NameTable]
    fixed: Mapping[str, Any]  # our settings that all of its models have
    sizes: Mapping[str, str]  # their option: our setting
    numbers: Mapping[str, tuple[str, float]]  # the same, and the value if it is not there
    activation: tuple[str, str]  # their option, and the value if it is not there
    tied: bool  # if nothing is said
    others: Mapping[str, Any]  # options besides, and the values that are read
    read_others: Callable[[_Options], _Options] = lambda _: {}  # our settings that these give

    @property
    def known(self) -> dict[str, Any]:
        """All options, as `refuse_unknown` wants them."""
        named = ("vocab_size", "tie_word_embeddings", self.activation[0])
        read = dict.fromkeys((*named, *self.sizes, *self.numbers), _ANY)
        return {**_NEUTRAL, **_AT_REST, **read, **self.others}


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


_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
}


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


_DECODER = {"family": "decoder-only", "norm_order": "pre", "dropout": 0.0}
_SHAPE = {
    "num_hidden_layers": "layers",
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_attention_heads": "heads",
    "max_position_embeddings": "max_len",
}
_ROTARY = {
    **dict.fromkeys(("rope_theta", "rope_scaling", "rope_parameters"), _ANY),
    **dict.fromkeys(("sliding_window", "max_window_layers", "layer_types"), _ANY),
    "use_sliding_window": (False,),
    "pretraining_tp": (1,),
    "rope_interleaved": (False,),
}
_GPT2 = Family(
    architecture="GPT2LMHeadModel",
    kind="texts",
    table=names.gpt2,
    fixed={**_DECODER, "positions": "learned"},
    sizes={
        "n_layer": "layers",
        "n_embd": "d_model",
        "n_head": "heads",
        "n_inner": "d_ff",
        "n_positions": "max_len",
    },
    numbers={
        "layer_norm_epsilon": ("norm_eps", 1e-5),
        "embd_pdrop": ("dropout", 0.1),
        "resid_pdrop": ("dropout", 0.1),  # the one that is kept
        "attn_pdrop": ("attention_dropout", 0.1),
    },
    activation=("activation_function", "gelu_new"),
    tied=True,
    others={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "reorder_and_upcast_attn": (False, True),
    },
)
_LLAMA = Family(
    architecture="LlamaForCausalLM",
    kind="texts",
    table=names.llama,
    fixed={**_DECODER, "norm": "rms", "positions": "rotary", "activation": "swiglu"},
    sizes={**_SHAPE, "num_key_value_heads": "kv_heads", "head_dim": "head_dim"},
    numbers={
        "rms_norm_eps": ("norm_eps", 1e-6),
        "attention_dropout": ("attention_dropout", 0.0),
    },
    activation=("hidden_act", "silu"),
    tied=False,
    others={**_ROTARY, "hidden_act": ("silu",), "attention_bias": _ANY, "mlp_bias": _ANY},
    read_others=_llama,
)
_NO_WINDOW = {**_LLAMA.others, "sliding_window": (None,)}
_MARIAN = Family(
    architecture="MarianMTModel",
    kind="pairs",
    table=names.marian,
    fixed={"family": "encoder-decoder", "norm_order": "post", "positions": "sinusoidal"},
    sizes={
        "d_model": "d_model",
        "max_position_embeddings": "max_len",
        "encoder_layers": "layers",
        "decoder_layers": "decoder_layers",
        **{f"{side}_ffn_dim": "d_ff" for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": "heads" for side in ("encoder", "decoder")},
    },
    numbers={"dropout": ("dropout", 0.1), "attention_dropout": ("attention_dropout", 0.0)},
    activation=("activation_function", "gelu"),
    tied=True,
    others={
        **dict.fromkeys(("scale_embedding", "num_hidden_layers", "decoder_vocab_size"), _ANY),
        "is_encoder_decoder": (True,),
        "share_encoder_decoder_embeddings": (True, False),
        "static_position_embeddings": (True,),
        "normalize_embedding": (False,),
        "extra_pos_embeddings": (0, 1, 2),
        "add_bias_logits": (False, True),
        "force_bos_token_to_be_generated": (False,),
        "normalize_before": (False, True),
        "add_final_layer_norm": (False, True),
    },
    read_others=_marian,
)
FAMILIES = {
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "mistral": _LLAMA._replace(architecture="MistralForCausalLM", others=_NO_WINDOW),
    "qwen2": _LLAMA._replace(
        architecture="Qwen2ForCausalLM", fixed={**_LLAMA.fixed, "qkv_bias": True}
    ),
    "qwen3": _LLAMA._replace(
        architecture="Qwen3ForCausalLM", fixed={**_LLAMA.fixed, "qk_norm": True}
    ),
    "starcoder2": _LLAMA._replace(  # layer norms, biases, and no gate
        architecture="Starcoder2ForCausalLM",
        fixed={**_DECODER, "norm": "layer", "positions": "rotary"},
        numbers={
            "norm_epsilon": ("norm_eps", 1e-5),
            "attention_dropout": ("attention_dropout", 0.0),
            "embedding_dropout": ("dropout", 0.0),
            "residual_dropout": ("dropout", 0.0),
        },
        activation=("hidden_act", "gelu_pytorch_tanh"),
        tied=True,
        others={**_ROTARY, "sliding_window": (None,), "use_bias": (True, False)},
        read_others=_starcoder2,
    ),
    "bert": Family(
        architecture="",
        kind="texts",
        table=names.bert,
        fixed={"family": "encoder-only", "positions": "learned"},
        sizes=_SHAPE,
        numbers={
            "layer_norm_eps": ("norm_eps", 1e-12),
            "hidden_dropout_prob": ("dropout", 0.1),
            "attention_probs_dropout_prob": ("attention_dropout", 0.1),
        },
        activation=("hidden_act", "gelu"),
        tied=True,
        others={
            "type_vocab_size": (2,),
            "position_embedding_type": ("absolute",),
        },
        read_others=_bert,
    ),
    "marian": _MARIAN,
    "pegasus": _MARIAN._replace(
        architecture="PegasusForConditionalGeneration",
        fixed={**_MARIAN.fixed, "norm_order": "pre"},
    ),
}


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
