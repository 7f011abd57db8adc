"""A change is what it says, to the model itself, and leaves nothing behind."""

import copy

import pytest
import torch

from limelight.decode.generate import write
from limelight.decode.request import Request
from limelight.decode.simple import beam_search, greedy_search
from limelight.errors import UserError
from limelight.explain.interventions import applied, edits_of, parse
from limelight.model.attention import fused_attention
from limelight.model.taps import Recorder
from tests.explain.samples import trained
from tests.model.samples import TRANSFORMERS, VARIANTS, has_source, small, tokens

BLOCKS = {
    "encoder-decoder": ("encoder.1.self", "decoder.0.self", "decoder.1.cross"),
    "decoder-only": ("decoder.0.self", "decoder.1.self"),
    "encoder-only": ("encoder.0.self", "encoder.1.self"),
}
CASES = [(family, block) for family in TRANSFORMERS for block in BLOCKS[family]]


def inputs(model):
    return [tokens(2, 5), tokens(2, 4)] if has_source(model) else [tokens(2, 5)]


def under(model, given, *changes):
    with torch.no_grad(), applied(model, parse(changes)) as changed:
        return changed(*given)


def recorded(model, given, names, *changes):
    """Values of the changed pass, by a recorder of its own."""
    with torch.no_grad(), Recorder(model, names, edits=edits_of(model, parse(changes))) as recorder:
        recorder.model(*given)
    return recorder


def attention_at(model, block):
    side, layer, use = block.split(".")
    return model.get_submodule(f"{side}.layers.{layer}.{use}_attention")


@pytest.mark.parametrize("variant", ["paper", "llama"])
@pytest.mark.parametrize(("family", "block"), CASES)
def test_a_head_off_is_a_head_without_output_weights(family, block, variant):
    model = small(family, **VARIANTS[variant])
    given, head, d_head = inputs(model), 3, model.config.d_head
    without = copy.deepcopy(model)
    with torch.no_grad():
        columns = slice((head - 1) * d_head, head * d_head)
        attention_at(without, block).output.weight[:, columns] = 0
        expected, before = without(*given), model(*given)
    for change in (f"{block}.weights@3=off", f"{block}.mixed@3=off", f"{block}@3=off"):
        assert (under(model, given, change) - expected).abs().max() <= 1e-6
    assert (expected - before).abs().max() > 1e-4
    assert (under(model, given, f"{block}@2=off") - expected).abs().max() > 1e-4


@pytest.mark.parametrize(("family", "block"), CASES)
def test_a_sublayer_off_adds_nothing(family, block):
    model = small(family)
    given, without = inputs(model), copy.deepcopy(model)
    with torch.no_grad():
        for weight in attention_at(without, block).output.parameters():
            weight.zero_()
        expected = without(*given)
    assert torch.allclose(under(model, given, f"{block}=off"), expected, atol=1e-9)
    assert torch.equal(
        under(model, given, f"{block}.output=zero"), under(model, given, f"{block}=off")
    )


def test_a_layer_off_is_all_its_sublayers_off():
    model = small("encoder-decoder")
    given, parts = inputs(model), ("self", "cross", "feed_forward")
    one_by_one = under(model, given, *(f"decoder.0.{part}=off" for part in parts))
    assert torch.equal(under(model, given, "decoder.0=off"), one_by_one)
    assert not torch.equal(under(model, given, "decoder.0.self=off"), one_by_one)


@pytest.mark.parametrize(("family", "block"), CASES)
def test_uniform_weights_are_equal_over_what_is_allowed(family, block):
    model = small(family)
    given, names = (
        inputs(model),
        [f"{block}.{step}" for step in ("masked", "weights", "v", "mixed")],
    )
    found = recorded(model, given, names, f"{block}.weights@2=uniform")
    before = recorded(model, given, names)
    allowed = (found[names[0]] > -torch.inf).double()
    equal = allowed / allowed.sum(dim=-1, keepdim=True)
    weights = found[names[1]]
    assert torch.allclose(weights[:, 1], equal[:, 1])
    assert torch.equal(weights[:, 0], before[names[1]][:, 0])
    assert not torch.allclose(before[names[1]][:, 1], equal[:, 1])
    assert torch.allclose(found[names[3]], weights @ found[names[2]])  # the model went on with them


@pytest.mark.parametrize("family", TRANSFORMERS)
def test_scaling(family):
    model = small(family)
    given, tap = inputs(model), f"{BLOCKS[family][0]}.output"
    before, plain = recorded(model, given, [tap])[tap], under(model, given)
    assert torch.equal(recorded(model, given, [tap], f"{tap}=scale:-1.5")[tap], before * -1.5)
    assert torch.equal(under(model, given, f"{tap}=scale:1"), plain)
    assert torch.equal(under(model, given, f"{tap}=scale:0"), under(model, given, f"{tap}=zero"))
    # One after the other, in the order of the list.
    assert torch.equal(under(model, given, f"{tap}=scale:2", f"{tap}=scale:0.5"), plain)


def test_a_mask_survives_zero_and_scaling():
    model = small("decoder-only")
    given = inputs(model)
    for change in ("zero", "scale:-2"):
        weights = recorded(model, given, "*.weights", f"decoder.0.self.masked={change}")
        assert weights["decoder.0.self.weights"].triu(diagonal=1).max() == 0


def test_a_pattern_means_all_that_fit():
    model = small("encoder-decoder")
    given = inputs(model)
    both = [f"encoder.{layer}.self.weights@1=off" for layer in range(2)]
    assert torch.equal(under(model, given, "encoder.*.weights@1=off"), under(model, given, *both))


@pytest.mark.parametrize(("family", "side"), [("encoder-decoder", 0), ("encoder-only", 0)])
def test_a_hidden_token_is_like_padding(family, side):
    """With the positions of the others unchanged: so it is the last one here."""
    model = small(family)
    given = inputs(model)
    real = torch.ones_like(given[0], dtype=torch.bool)
    real[:, -1] = False
    padded = model(*given, real) if family == "encoder-decoder" else model(*given, None, real)
    hidden = under(model, given, "source:5=hide")
    if family == "encoder-only":  # what is predicted at the padding itself means nothing
        padded, hidden = padded[:, :-1], hidden[:, :-1]
    assert torch.allclose(hidden, padded, atol=1e-9)
    assert not torch.allclose(under(model, given, "source:4=hide"), under(model, given), atol=1e-4)


def test_a_hidden_token_of_a_prompt_is_read_by_itself_alone():
    model = small("decoder-only")
    given = inputs(model)
    found = recorded(model, given, "*.weights", "source:1=hide", "decoder.0.self.weights=uniform")
    for layer in range(2):
        column = found[f"decoder.{layer}.self.weights"][..., 0]
        assert (column[..., 0] == 1).all()
        assert (column[..., 1:] == 0).all()
    assert torch.allclose(
        found["decoder.0.self.weights"][0, 0, 3, 1:4], torch.tensor(1 / 3).double()
    )
    assert torch.isfinite(under(model, given, "source:1=hide")).all()


def everything(model):
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    attends = [m.attend is fused_attention for m in model.modules() if hasattr(m, "attend")]
    own = [sorted(k for k in vars(m)) for m in model.modules()]
    return hooks, attends, own, {k: v.clone() for k, v in model.state_dict().items()}


@pytest.mark.parametrize("family", [*TRANSFORMERS, "recurrent-encoder-decoder"])
def test_nothing_is_left_behind(family):
    model = small(family)
    given = inputs(model)
    before, answer = everything(model), model(*given)
    with applied(model, parse(["*.output=zero"])):
        assert not torch.equal(model(*given), answer)
        assert model.state_dict().keys() == before[3].keys()
    with pytest.raises(RuntimeError), applied(model, parse(["*.output=zero"])):
        raise RuntimeError
    with pytest.raises(UserError), applied(model, parse(["*.output=zero", "nothing=zero"])):
        pass
    after = everything(model)
    assert after[:3] == before[:3]
    assert all(torch.equal(after[3][name], value) for name, value in before[3].items())
    assert torch.equal(model(*given), answer)


def test_recurrent_models_can_be_changed_too():
    model = small("recurrent-encoder-decoder", attention=True)
    given = inputs(model)
    weights = recorded(model, given, "*.weights", "decoder.cross.weights=uniform")
    assert torch.allclose(weights["decoder.cross.weights"], torch.full((2, 4, 5), 0.2).double())


@pytest.mark.parametrize("kind", ["paper", "pre-norm", "gpt-answers", "llama"])
@pytest.mark.parametrize("change", ["*.self.output=scale:-1", "decoder.output=scale:-1"])
def test_generation_under_a_change_is_the_plain_forward_pass(kind, change):
    """`decoder.output` is where a cached step never goes."""
    text = trained(kind)
    words = text.tokenizer
    source = [*words.encode("Hi how are you"), words.end]
    request = Request([words.start], 6, source if kind in ("paper", "pre-norm") else ())
    two = [request, Request([words.start, 40, 41], 6, request.source[1:])]
    unchanged = [text.engine.generate(two, text.decode, beam) for beam in (1, 3)]
    with applied(text.model, parse([change])) as model:
        searched = text.engine.generate(two, text.decode)
        greedy = write(text.engine.model, two, text.decode, words)
        for i, each in enumerate(two):
            assert greedy[i].tokens == greedy_search(model, each, words.end).tokens
            best = beam_search(model, each, words.end, 3, text.decode.length_penalty)[0]
            assert searched[i][0].tokens == best.tokens
    assert abs(searched[0][0].score - unchanged[0][0][0].score) > 1e-3
    again = [text.engine.generate(two, text.decode, beam) for beam in (1, 3)]
    assert again == unchanged


MISTAKES = {
    "decoder.0.cross.weights": "is not a change",
    "=off": "is not a change",
    "decoder.0.cross.weights@0=off": "not a number from 1",
    "decoder.0.cross.weights@x=off": "not a number from 1",
    "decoder.0.cross.weights=of": "did you mean 'off'",
    "decoder.0.cross.weights=scale": "did you mean 'scale:X'",
    "decoder.0.cross.weights=scale:": "ends too early",
    "decoder.0.cross.weights=scale:nan": "finite number",
    "decoder.0.cross.weights=scale:big": "finite number",
    "decoder.0.cross.weights=from:": "ends too early",
    "source:3=off": "write source:3=hide",
    "source:0=hide": "not a number from 1",
    "sorce:3=hide": "did you mean 'source'",
}


@pytest.mark.parametrize("spelling", MISTAKES)
def test_a_malformed_change_is_explained(spelling):
    with pytest.raises(UserError, match=MISTAKES[spelling]):
        parse([spelling])


IMPOSSIBLE = {
    "decoder.0.cros.weights=off": "did you mean 'decoder.0.cross.weights'",
    "decoder.2.cross.weights=off": "there is no tap 'decoder.2.cross.weights': did you mean",
    "decoder.2=off": "did you mean 'decoder.",
    "decoder.0.cross.weights@5=off": "there is no head 5: this model has 1 to 4",
    "decoder.0.cross.output@1=off": "has no heads",
    "decoder.0.cross.scores=off": "write zero",
    "decoder.0.cross.scores=uniform": "only the weights",
    "decoder.0.feed_forward=uniform": "name one value",
    "decoder.0.cross=scale:2": "name one value",
    "decoder=off": "name one value",
    "decoder.0.cross.weights=from:Hi": "only explain reads one",
    "source:6=hide": "there is no source token 6: it has 5",
}


@pytest.mark.parametrize("spelling", IMPOSSIBLE)
def test_an_impossible_change_is_explained(spelling):
    model = small("encoder-decoder")
    with pytest.raises(UserError, match=IMPOSSIBLE[spelling]):
        under(model, inputs(model), spelling)


def test_a_single_string_is_no_list():
    with pytest.raises(UserError, match="not a list"):
        parse("decoder.0=off")
