"""What a freshly built model is: its start, its ties, and that it holds nothing but parameters."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from limelight.model import ModelConfig, RecurrentConfig, build
from limelight.model.layers import Layer
from limelight.model.stack import Embedding
from tests.model.samples import RECURRENT, TRANSFORMERS, VARIANTS, small

EVERY = [(f, v) for f in TRANSFORMERS for v in VARIANTS.values()] + [
    (f, v)
    for f in ("recurrent-encoder-decoder", "recurrent-decoder-only")
    for v in RECURRENT.values()
]


def fresh(family, **changes):
    return build(ModelConfig(**{"family": family, "vocab": 500, "d_model": 256, **changes}))


def deviation(weight):
    return weight.detach().std().item()


@pytest.mark.parametrize(("family", "changes"), EVERY)
def test_models_hold_parameters_only(family, changes):
    model = small(family, **changes)
    assert list(model.buffers()) == []
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    assert set(model.state_dict()) == parameters


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder-only", "encoder-only"])
def test_tied_tables_are_one_parameter_and_stay_one(family):
    tied = fresh(family, tied=True, layers=1)
    classifier = tied.masked_head.classifier if family == "encoder-only" else tied.classifier
    tables = [m.tokens.weight for m in (getattr(tied, n, None) for n in ("source", "target")) if m]
    assert all(table is classifier.weight for table in tables)
    untied = fresh(family, tied=False, layers=1)
    classifier = untied.masked_head.classifier if family == "encoder-only" else untied.classifier
    assert all(p is not classifier.weight for p in untied.parameters() if p.shape != (500, 256))
    difference = len(list(untied.parameters())) - len(list(tied.parameters()))
    assert difference == (2 if family == "encoder-decoder" else 1)
    with torch.no_grad():
        tied.load_state_dict(tied.state_dict())
        classifier = tied.masked_head.classifier if family == "encoder-only" else tied.classifier
        classifier.weight[3, 5] = 7.0
    assert tables[0][3, 5] == 7.0


def test_the_papers_start():
    model = fresh("encoder-decoder", layers=1)
    attention = model.encoder.layers[0].self_attention
    bound = math.sqrt(6 / (256 + 256))
    assert attention.query.weight.abs().max() <= bound
    assert math.isclose(deviation(attention.query.weight), bound / math.sqrt(3), rel_tol=0.03)
    assert math.isclose(deviation(model.target.tokens.weight), 256**-0.5, rel_tol=0.03)
    assert attention.query.bias.abs().max() == 0
    scaled = model.source.tokens(torch.arange(500)) * model.source.scale
    assert math.isclose(deviation(scaled), 1, rel_tol=0.03)  # as large as the waves added to it


def test_gpt2s_start():
    model = fresh("decoder-only", layers=8)
    layer = model.decoder.layers[3]
    assert math.isclose(deviation(layer.self_attention.query.weight), 0.02, rel_tol=0.03)
    for last in (layer.self_attention.output, layer.feed_forward.outer):
        assert math.isclose(deviation(last.weight), 0.02 / math.sqrt(2 * 8), rel_tol=0.03)
    assert math.isclose(deviation(model.target.tokens.weight), 0.02, rel_tol=0.03)


def test_berts_start():
    model = fresh("encoder-only", layers=1, sentence_pairs=True)
    for module in (model.encoder.layers[0].feed_forward.inner, model.pair_head.inner):
        assert module.weight.abs().max() <= 0.04
        assert math.isclose(
            deviation(module.weight), 0.02 * 0.88, rel_tol=0.03
        )  # cut at two deviations


def test_an_lstm_starts_by_remembering():
    model = build(RecurrentConfig(family="recurrent-decoder-only", vocab=10, d_model=8))
    cell = model.decoder.cell
    for layer in range(2):
        forget = getattr(cell, f"bias_ih_l{layer}")[8:16] + getattr(cell, f"bias_hh_l{layer}")[8:16]
        assert torch.equal(forget, torch.ones(8))


@pytest.mark.parametrize(("family", "changes"), EVERY)
def test_a_model_made_on_the_meta_device_can_be_started_later(family, changes):
    """As large models are: shapes first, then memory, then `initialise`."""
    with torch.device("meta"):
        model = small_config(family, changes)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.constant_(parameter, math.nan)
    model.initialise()
    left = [name for name, p in model.named_parameters() if not p.isfinite().all()]
    assert left == []
    ordinary = small_config(family, changes)
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in ordinary.named_parameters()]


def small_config(family, changes):
    common = {"family": family, "vocab": 9, "layers": 1, "d_model": 16, **changes}
    if family.startswith("recurrent"):
        return build(RecurrentConfig(**common))
    return build(ModelConfig(**{**common, "heads": 4}))


@pytest.mark.parametrize(("family", "changes"), EVERY)
def test_dropout_is_for_training_only(family, changes):
    model = small(family, **{**changes, "dropout": 0.5})
    text = [torch.zeros(1, 4, dtype=torch.long)] * (2 if family.endswith("encoder-decoder") else 1)
    assert torch.equal(model(*text), model(*text))
    model.train()
    assert not torch.equal(model(*text), model(*text))


ALL = 1 - 1e-12  # so much dropout that nothing is left of what it acts on


@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_dropout_acts_on_each_sublayers_output_and_on_nothing_else(norm_order):
    """Section 5.4: with everything dropped, x still runs through every residual connection."""
    config = ModelConfig(vocab=9, d_model=16, heads=4, dropout=ALL, norm_order=norm_order)
    layer, x = Layer(config, cross=True).train(), torch.randn(2, 5, 16)
    expected = x
    if norm_order == "post":
        for part in (layer.self_residual, layer.cross_residual, layer.feed_forward_residual):
            expected = part.norm(expected)
    torch.testing.assert_close(layer(x, memory=x), expected)


def test_dropout_acts_on_the_embeddings():
    config = ModelConfig(vocab=9, d_model=16, heads=4, dropout=ALL)
    embedding = Embedding(config, config.vocab).train()
    assert embedding(torch.tensor([[1, 2, 3]]), torch.arange(3)).abs().max() == 0


@pytest.mark.parametrize("family", ["recurrent-encoder-decoder", "recurrent-decoder-only"])
def test_dropout_acts_on_a_recurrent_models_states(family):
    model = small(family, dropout=ALL, layers=1).train()
    text = [torch.zeros(1, 4, dtype=torch.long)] * (2 if family.endswith("encoder-decoder") else 1)
    torch.testing.assert_close(model(*text), model.classifier.bias.expand(1, 4, -1))


@pytest.mark.parametrize(("family", "changes"), EVERY)
def test_models_can_be_copied_and_sent_to_another_process(family, changes):
    model = small(family, **changes)
    text = [torch.zeros(1, 4, dtype=torch.long)] * (2 if family.endswith("encoder-decoder") else 1)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(again(*text), model(*text))
        assert len(list(again.parameters())) == len(list(model.parameters()))  # ties included
