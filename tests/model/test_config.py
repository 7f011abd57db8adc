"""Impossible models are refused with a sentence, before anything is allocated."""

import math
from dataclasses import replace

import pytest

from limelight.errors import UserError
from limelight.model import ModelConfig, RecurrentConfig, model_config

INTEGERS = ("vocab", "layers", "d_model", "d_ff", "heads", "kv_heads", "max_len", "classes")
INTEGERS += ("source_vocab", "decoder_layers", "head_dim", "rotary_length")


def test_defaults_are_the_papers_base_model():
    config = ModelConfig(vocab=37_000)
    assert (config.layers, config.d_model, config.ffn_dim, config.heads) == (6, 512, 2048, 8)
    assert (config.d_head, config.num_kv_heads, config.dropout, config.norm_order) == (
        64,
        8,
        0.1,
        "post",
    )


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [-1, 2**31, 10**30, 1.5, math.nan, "8", True, None, [8]])
def test_sizes_are_bounded_whole_numbers(name, value):
    with pytest.raises(UserError, match=rf"^{name}="):
        model_config(**{"vocab": 10, "family": "encoder-only", name: value})


@pytest.mark.parametrize("name", ["vocab", "layers", "d_model", "heads", "max_len"])
def test_sizes_that_must_be_there_are_not_zero(name):
    with pytest.raises(UserError, match=f"{name}=0 is out of range: should be 1 or more"):
        ModelConfig(**{"vocab": 10, name: 0})


@pytest.mark.parametrize("name", ["dropout", "attention_dropout", "norm_eps"])
@pytest.mark.parametrize("value", [-0.1, 1.0, math.nan, math.inf, "0.1", True, None])
def test_rates_are_fractions(name, value):
    with pytest.raises(UserError, match=rf"^{name}="):
        ModelConfig(**{"vocab": 10, name: value})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"heads": 3}, "heads=3 does not divide d_model=512.* 2 heads would fit"),
        ({"kv_heads": 3}, "kv_heads=3 does not divide heads=8"),
        ({"d_model": 15, "heads": 5, "positions": "rotary"}, "gives 3 per head"),
        ({"d_model": 15, "heads": 5}, "d_model=15 is odd"),
        ({"classes": 3}, "classes=3 belongs to family='encoder-only'"),
        ({"sentence_pairs": True}, "sentence_pairs=True belongs to family='encoder-only'"),
        ({"family": "encoder-only", "classes": 1}, "at least 2"),
        ({"family": "encoder-only", "classes": 2, "sentence_pairs": True}, "choose one"),
        ({"family": "encoder-only", "mask": False}, "mask=False is for decoders"),
        ({"family": "decoder-only", "decoder_cell": "ssru"}, "belongs to family='encoder-decoder'"),
        ({"decoder_cell": "ssru", "mask": False}, "nothing to mask"),
        ({"tied": 1}, "tied=1 must be true or false or 'all', 'target' or 'none'"),
        ({"source_vocab": 7}, "source_vocab=7 and vocab=10 cannot share one table"),
        ({"family": "decoder-only", "source_vocab": 7}, "belongs to family='encoder-decoder'"),
        ({"family": "encoder-only", "decoder_layers": 2}, "belongs to family='encoder-decoder'"),
        ({"family": "decoder-only", "tied": "target"}, "choose 'all' or 'none'"),
        ({"qkv_bias": True}, "qkv_bias=True is for bias=False"),
        ({"qk_norm": True}, "qk_norm=True belongs to family='decoder-only'"),
        ({"rotary_base": 500.0}, "rotary_base=500.0 is for positions='rotary'"),
        ({"rotary_scaling": "linear"}, "rotary_scaling=linear is for positions='rotary'"),
        ({"positions": "rotary", "rotary_factor": 2.0}, "scales nothing"),
        (
            {"positions": "rotary", "rotary_scaling": "llama3", "rotary_low": 4.0},
            "rotary_low=4.0 must be below rotary_high=4.0",
        ),
        ({"positions": "rotary", "head_dim": 3}, "head_dim=3 gives 3 per head"),
        ({"positions": "rotary", "rotary_base": 1.0}, "rotary_base=1.0 is out of range"),
    ],
)
def test_what_does_not_fit_together_is_said(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        ModelConfig(**{"vocab": 10, **changes})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"family": "encoder-decodr"},
            "no family 'encoder-decodr': did you mean 'encoder-decoder'",
        ),
        ({"family": ["x"]}, "no family"),
        ({"positions": "sinus"}, "no positions 'sinus': did you mean 'sinusoidal'"),
        ({"activation": "relu6"}, "did you mean 'relu'"),
        ({"norm": "batch"}, "no norm 'batch': choose one of: layer, none, rms"),
        ({"head": 8}, "no setting 'head': did you mean 'heads'"),
        ({"family": "recurrent-decoder-only", "cell": "lstn"}, "did you mean 'lstm'"),
        ({"family": "recurrent-decoder-only", "heads": 2}, "no setting 'heads'"),
    ],
)
def test_misspelt_names_get_the_nearest_right_one(values, sentence):
    with pytest.raises(UserError, match=sentence):
        model_config(**{"vocab": 10, **values})


def test_open_sizes_follow_when_others_change():
    config = replace(ModelConfig(vocab=10), d_model=1024, heads=4)
    assert (config.ffn_dim, config.num_kv_heads) == (4096, 4)


def test_a_missing_vocabulary_is_asked_for():
    with pytest.raises(UserError, match="vocab is missing"):
        model_config(layers=2)


def test_a_recurrent_encoder_needs_two_halves():
    with pytest.raises(UserError, match="d_model=7 is odd"):
        RecurrentConfig(family="recurrent-encoder-decoder", vocab=10, d_model=7)
    assert RecurrentConfig(family="recurrent-decoder-only", vocab=10, d_model=7).d_model == 7
