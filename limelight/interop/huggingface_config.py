"""The options of config.json, in our terms.

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
        *(
            "chunk_size_feed_forward",
            "tokenizer_class",
            "is_llama_config",
            "return_dict",
            "output_past",
        ),
        *("num_hidden_layers_total", "gradient_checkpointing_kwargs", "sentence_transformers"),
    ),
    _ANY,
)
_AT_REST: dict[str, Any] = {  # options with the only values that leave everything as it is
    "output_attentions": (False,),
    "output_hidden_states": (False,),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "pruned_heads": ({}, None),
    "tie_encoder_decoder": (False,),
    "quantization_config": (None,),
    "torchscript": (False,),
    "use_bfloat16": (False, True),
    "is_composition": (False,),
}


class Family(NamedTuple):
    """How configs of one kind are read."""

    settings: Callable[[dict[str, Any]], dict[str, Any]]  # of our ModelConfig, from theirs
    table: Callable[[ModelConfig], names.NameTable]
    known: Mapping[str, Any]  # options that `settings` reads, and those that must be at rest
    kind: Any  # of the data that it learned from


def size_of(options: Mapping[str, Any], name: str, *others: str) -> int:
    """A whole number among the options, by its name or an older one."""
    for each in (name, *others):
        if (value := options.get(each)) is not None:
            if type(value) is not int or not 0 < value < 2**31:
                raise UserError(f"config.json: {each}={value!r:.80} must be a positive number")
            return value
    raise UserError(f"config.json has no {name}")


def _number(options: Mapping[str, Any], name: str, default: float) -> float:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"config.json: {name}={value!r:.80} must be a number")
    return float(value)


def _choice(options: Mapping[str, Any], name: str, default: str, choices: dict[str, str]) -> str:
    value = options.get(name, default)
    if value not in choices:
        raise UserError(f"config.json: {name}={value!r:.80} is not supported: {', '.join(choices)}")
    return choices[value]


def _tied(options: Mapping[str, Any], default: bool) -> bool:
    tied = options.get("tie_word_embeddings", default)
    if not isinstance(tied, bool):
        raise UserError(f"config.json: tie_word_embeddings={tied!r:.80} must be true or false")
    return tied


_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
}


def _gpt2(options: dict[str, Any]) -> dict[str, Any]:
    tied = _tied(options, True)
    return {
        "family": "decoder-only",
        "layers": size_of(options, "n_layer"),
        "d_model": size_of(options, "n_embd"),
        "heads": size_of(options, "n_head"),
        "d_ff": (options.get("n_inner") and size_of(options, "n_inner")) or 0,
        "max_len": size_of(options, "n_positions", "n_ctx"),
        "norm_order": "pre",
        "norm_eps": _number(options, "layer_norm_epsilon", 1e-5),
        "positions": "learned",
        "activation": _choice(options, "activation_function", "gelu_new", _ACTIVATIONS),
        "tied": "all" if tied else "none",
        "dropout": _number(options, "resid_pdrop", 0.1),
        "attention_dropout": _number(options, "attn_pdrop", 0.1),
    }


def _rope(options: dict[str, Any]) -> dict[str, Any]:
    """Base and scaling, as version 5 has them (rope_parameters) or as the older ones."""
    scaling = dict(options.get("rope_parameters") or options.get("rope_scaling") or {})
    base = scaling.pop("rope_theta", options.get("rope_theta", 10000.0))
    kind = scaling.pop("rope_type", scaling.pop("type", "default"))
    scaling.pop("type", None)
    found: dict[str, Any] = {"rotary_base": _number({"rope_theta": base}, "rope_theta", 10000.0)}
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


def _llama(options: dict[str, Any]) -> dict[str, Any]:
    kind, bias = options["model_type"], bool(options.get("attention_bias", False))
    if bias != bool(options.get("mlp_bias", False)):
        raise UserError("config.json: attention_bias without mlp_bias is not supported")
    heads = size_of(options, "num_attention_heads")
    d_model, head = size_of(options, "hidden_size"), options.get("head_dim")
    return {
        "family": "decoder-only",
        "layers": size_of(options, "num_hidden_layers"),
        "d_model": d_model,
        "d_ff": size_of(options, "intermediate_size"),
        "heads": heads,
        "kv_heads": size_of(options, "num_key_value_heads", "num_attention_heads"),
        "head_dim": 0 if head is None or head * heads == d_model else size_of(options, "head_dim"),
        "max_len": size_of(options, "max_position_embeddings"),
        "norm_order": "pre",
        "norm": "rms",
        "norm_eps": _number(options, "rms_norm_eps", 1e-6),
        "positions": "rotary",
        **_rope(options),
        "activation": _choice(options, "hidden_act", "silu", {"silu": "swiglu"}),
        "bias": bias,
        "qkv_bias": kind == "qwen2",
        "qk_norm": kind == "qwen3",
        "tied": "all" if _tied(options, False) else "none",
        "dropout": 0.0,
        "attention_dropout": _number(options, "attention_dropout", 0.0),
    }


def _starcoder2(options: dict[str, Any]) -> dict[str, Any]:
    """As Llama, with layer norms, biases, and no gate."""
    norm_eps, bias = _number(options, "norm_epsilon", 1e-5), options.get("use_bias", True)
    return {
        **_llama({**options, "attention_bias": bias, "mlp_bias": bias, "hidden_act": "silu"}),
        "norm": "layer",
        "norm_eps": norm_eps,
        "activation": _choice(options, "hidden_act", "gelu_pytorch_tanh", _ACTIVATIONS),
        "tied": "all" if _tied(options, True) else "none",
        "dropout": _number(options, "residual_dropout", 0.0),
    }


def _bert(options: dict[str, Any]) -> dict[str, Any]:
    architecture = (options.get("architectures") or ["BertModel"])[0]
    heads: dict[str, dict[str, Any]] = {
        "BertModel": {"masked_head": False},
        "BertForMaskedLM": {},
        "BertForPreTraining": {"sentence_pairs": True},
        "BertForSequenceClassification": {
            "classes": len(options.get("id2label") or {0: "", 1: ""})
        },
    }
    if architecture not in heads:
        raise UserError(f"config.json: {architecture!r:.80} is none of {', '.join(heads)}")
    return {
        "family": "encoder-only",
        "layers": size_of(options, "num_hidden_layers"),
        "d_model": size_of(options, "hidden_size"),
        "d_ff": size_of(options, "intermediate_size"),
        "heads": size_of(options, "num_attention_heads"),
        "max_len": size_of(options, "max_position_embeddings"),
        "norm_eps": _number(options, "layer_norm_eps", 1e-12),
        "positions": "learned",
        "activation": _choice(options, "hidden_act", "gelu", _ACTIVATIONS),
        "tied": "all" if _tied(options, True) else "none",
        "dropout": _number(options, "hidden_dropout_prob", 0.1),
        "attention_dropout": _number(options, "attention_probs_dropout_prob", 0.1),
        **heads[architecture],
    }


def _marian(options: dict[str, Any]) -> dict[str, Any]:
    for one in ("ffn_dim", "attention_heads"):
        both = [size_of(options, f"{side}_{one}") for side in ("encoder", "decoder")]
        if both[0] != both[1]:
            raise UserError(
                f"config.json: encoder_{one}={both[0]} and decoder_{one}={both[1]} differ"
            )
    layers, deeper = size_of(options, "encoder_layers"), size_of(options, "decoder_layers")
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
    return {
        "family": "encoder-decoder",
        "layers": layers,
        "decoder_layers": 0 if deeper == layers else deeper,
        "d_model": size_of(options, "d_model"),
        "d_ff": size_of(options, "encoder_ffn_dim"),
        "heads": size_of(options, "encoder_attention_heads"),
        "max_len": size_of(options, "max_position_embeddings"),
        "vocab": vocab,
        "source_vocab": 0 if source == vocab else source,
        "norm_order": "pre" if pre else "post",
        "positions": "sinusoidal",
        "activation": _choice(options, "activation_function", "gelu", _ACTIVATIONS),
        "tied": "all" if shared else "target" if tied else "none",
        "embedding_scale": "on" if options.get("scale_embedding", False) else "off",
        "dropout": _number(options, "dropout", 0.1),
        "attention_dropout": _number(options, "attention_dropout", 0.0),
    }


def _read(*read: str, **at_rest: Any) -> dict[str, Any]:
    return {**_NEUTRAL, **_AT_REST, **dict.fromkeys(("vocab_size", *read), _ANY), **at_rest}


_ROPE = ("rope_theta", "rope_scaling", "rope_parameters", "hidden_act", "rms_norm_eps", "head_dim")
_SHAPE = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_SIDES = tuple(
    f"{side}_{one}"
    for side in ("encoder", "decoder")
    for one in ("layers", "ffn_dim", "attention_heads")
)
_ROTARY = _read(
    *(*_SHAPE, *_ROPE, "num_key_value_heads", "max_position_embeddings", "tie_word_embeddings"),
    *("attention_bias", "mlp_bias", "sliding_window", "max_window_layers", "layer_types"),
    use_sliding_window=(False,),
    pretraining_tp=(1,),
    rope_interleaved=(False,),
    is_encoder_decoder=(False,),
)
_LLAMA = Family(_llama, names.llama, _ROTARY, "texts")
_DROPOUTS = dict.fromkeys(("residual_dropout", "embedding_dropout"), _ANY)
_SEQ2SEQ = _read(
    *(*_SIDES, "d_model", "max_position_embeddings", "activation_function", "scale_embedding"),
    *("tie_word_embeddings", "num_hidden_layers", "decoder_vocab_size"),
    is_encoder_decoder=(True,),
    share_encoder_decoder_embeddings=(True, False),
    static_position_embeddings=(True,),
    normalize_embedding=(False,),
    extra_pos_embeddings=(0, 1, 2),
    add_bias_logits=(False, True),
    force_bos_token_to_be_generated=(False,),
    normalize_before=(False, True),
    add_final_layer_norm=(False, True),
)
FAMILIES = {
    "gpt2": Family(
        _gpt2,
        names.gpt2,
        _read(
            *("n_layer", "n_embd", "n_head", "n_inner", "n_positions", "layer_norm_epsilon"),
            *("activation_function", "tie_word_embeddings"),
            scale_attn_weights=(True,),
            scale_attn_by_inverse_layer_idx=(False,),
            reorder_and_upcast_attn=(False, True),
            is_encoder_decoder=(False,),
        ),
        "texts",
    ),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _LLAMA),
    "starcoder2": Family(
        _starcoder2,
        names.llama,
        {**_ROTARY, **_DROPOUTS, "norm_epsilon": _ANY, "use_bias": (True, False)},
        "texts",
    ),
    "bert": Family(
        _bert,
        names.bert,
        _read(
            *(*_SHAPE, "max_position_embeddings", "hidden_act", "layer_norm_eps"),
            "tie_word_embeddings",
            type_vocab_size=(2,),
            position_embedding_type=("absolute",),
            is_encoder_decoder=(False,),
        ),
        "texts",
    ),
    "marian": Family(_marian, names.marian, _SEQ2SEQ, "pairs"),
    "pegasus": Family(_marian, names.marian, _SEQ2SEQ, "pairs"),
}


def read_config(options: dict[str, Any]) -> tuple[ModelConfig, Family]:
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
    window = options.get("sliding_window")
    if kind in ("mistral", "starcoder2") and window is not None:
        raise UserError(f"config.json: sliding_window={window!r:.80} is not supported")
    if any(each != "full_attention" for each in options.get("layer_types") or ()):
        raise UserError("config.json: layer_types other than full_attention are not supported")
    return ModelConfig(
        **{"vocab": size_of(options, "vocab_size"), **family.settings(options)}
    ), family
