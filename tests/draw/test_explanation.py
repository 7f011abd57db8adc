"""`limelight explain` of a drawing: its numbers by NumPy, its checks, and what it prints."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import limelight
from limelight.cli import main
from limelight.draw.examples import caption_tokens, join
from limelight.errors import UserError
from tests.explain.by_hand import ByHand, softmax

CAPTION = "a small red circle above a large blue square"


@pytest.fixture(scope="module")
def loaded(tiny_run):
    return limelight.load(tiny_run, device="cpu")


@pytest.fixture(scope="module")
def found(loaded):
    return loaded.explain_drawing(CAPTION, seed=3, guidance=3.0, temperature=0.8)


def by_hand(loaded, caption, tokens):
    """A pass over a caption and its picture, in NumPy."""
    row = torch.tensor([caption_tokens(caption, loaded.tokenizer, loaded.recipe.images)])
    read = join(row, torch.tensor([tokens]), loaded.tokenizer)[0, :-1]
    return ByHand(loaded.model, None, read.tolist()).values


def test_every_weight_and_probability_is_that_of_numpy(loaded, found):
    tokens, caption = found.drawing.tokens[0], loaded.recipe.images.caption_tokens
    with_words, without = (by_hand(loaded, text, tokens) for text in (CAPTION, ""))
    for layer in range(2):
        wanted = with_words[f"decoder.{layer}.self.weights"][:, caption:]
        np.testing.assert_allclose(found.read.weights[layer], wanted, atol=1e-6)
    informed, blind = (
        np.log(softmax(values["logits"][caption:, len(loaded.tokenizer) :]))
        for values in (with_words, without)
    )
    wanted = softmax((blind + 3.0 * (informed - blind)) / 0.8)[np.arange(64), tokens]
    np.testing.assert_allclose(found.probabilities, wanted, rtol=1e-3)
    other = by_hand(loaded, "a large red circle above a large blue square", tokens)
    assert not np.allclose(found.read.weights[0], other["decoder.0.self.weights"][:, caption:])


def test_a_word_is_shown_where_its_weights_are(found):
    weights = found.read.weights.double()
    assert found.read.words == CAPTION.split()
    torch.testing.assert_close(found.word("red", 1, 0), weights[1, 0, :, 2].view(8, 8))
    both = weights.mean(dim=(0, 1))[:, [0, 5]].sum(dim=1)  # "a" stands twice in the caption
    torch.testing.assert_close(found.word("a"), both.view(8, 8))
    with pytest.raises(UserError, match="there is no word of the caption 'green'"):
        found.word("green")


def test_attention_of_a_patch_is_all_of_its_row(found):
    for patch in (0, 27, 63):
        shown = found.read.attention(patch, 0, 1)
        row = found.read.weights[0, 1, patch]
        assert len(shown.patches) == patch
        assert shown.patches == pytest.approx(row[17 : 17 + patch].tolist())
        total = sum(shown.words) + shown.padding + shown.separator + sum(shown.patches)
        assert total == pytest.approx(1)


def test_checks_hold_and_fail_for_another_picture(found):
    assert [check.passed for check in found.checks] == [True] * 4
    tokens = [list(found.drawing.tokens[0])]
    tokens[0][9] = (tokens[0][9] + 1) % 1000
    score = found.drawing.scores[0] + 0.01
    other = replace(found, drawing=replace(found.drawing, tokens=tokens, scores=[score]))
    assert [check.passed for check in other.checks[:2]] == [False, False]
    moved = replace(found.read, weights=found.read.weights.roll(1, dims=-1) * 1.1)
    assert [c.passed for c in replace(found, read=moved).checks[2:]] == [False, False]


@pytest.fixture
def explain(tiny_run, monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setattr(sys, "argv", ["limelight", "explain", str(tiny_run), *arguments])
        try:
            main()
            code = 0
        except SystemExit as left:
            code = left.code
        return (code, *capsys.readouterr())

    return run


def test_the_command_shows_a_patch_a_word_or_all(explain, loaded):
    found = loaded.explain_drawing(CAPTION)
    code, printed, _ = explain(CAPTION)
    least = int(found.probabilities.argmin()) + 1
    assert code == 0
    assert f"Patch {least}, in row" in printed
    assert "The word that each patch attended to most" in printed
    assert printed.count("✓") == 4
    code, printed, _ = explain(CAPTION, "--patch", "28", "--layer", "2", "--head", "1")
    assert "Patch 28, in row 4 and column 4" in printed
    assert "(layer 2, head 1)" in printed
    shown = found.read.attention(27, 1, 0)
    for name, weight in zip(CAPTION.split(), shown.words, strict=True):
        assert any(line.split()[:2] == [name, f"{weight:.4f}"] for line in printed.splitlines())
    code, printed, _ = explain(CAPTION, "--word", "red")
    numbers = [f"{x:.3f}" for x in found.word("red")[3].tolist()]
    assert any(line.split() == ["4", *numbers] for line in printed.splitlines())
    assert "Patch" not in printed


def test_json_has_all_weights(explain, loaded):
    facts = json.loads(explain(CAPTION, "--json")[1])
    found = loaded.explain_drawing(CAPTION)
    np.testing.assert_allclose(facts["weights"], found.read.weights, atol=1e-6)
    assert facts["tokens"] == found.drawing.tokens[0]
    assert len(facts["reads"]) == found.read.weights.size(-1) == 80
    assert facts["reads"][:3] == ["a", "small", "red"]
    assert all(check["passed"] for check in facts["checks"])


def test_a_figure_is_drawn(explain, tmp_path):
    from PIL import Image

    assert explain(CAPTION, "--figure", str(tmp_path / "out.png"))[0] == 0
    with Image.open(tmp_path / "out.png") as image:
        assert len(image.convert("RGB").getcolors(10**6)) > 20


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--patch", "65"], "there is no patch 65: this model has 1 to 64"),
        (["--patch", "0"], "there is no patch 0: this model has 1 to 64"),
        (["--layer", "3"], "there is no layer 3: this model has 1 to 2"),
        (["--word", "zebra"], "there is no word of the caption 'zebra'"),
        (["--patch", "1", "--word", "red"], "--word covers all patches: leave --patch out"),
        (["--patch", "1", "--json"], "--json covers all patches: leave --patch out"),
        (["--figure", "a.txt"], "the output a.txt must end in .svg, .png, .pdf"),
        (["--stage", "softmax"], "--stage is for texts, and this model draws: leave it out"),
        (["--which-head"], "--which-head is for texts, and this model draws: leave it out"),
    ],
)
def test_what_cannot_be_shown_is_refused(explain, options, sentence):
    code, printed, error = explain(CAPTION, *options)
    assert (code, printed) == (2, "")
    assert sentence in error


def test_a_text_is_not_explained_as_a_drawing_nor_a_drawing_as_a_text(loaded, monkeypatch, capsys):
    with pytest.raises(UserError, match="this model draws: write explain_drawing"):
        loaded.explain(CAPTION)
    monkeypatch.setattr(sys, "argv", ["limelight", "explain", "fill", "a ___", "--patch", "1"])
    with pytest.raises(SystemExit):
        main()
    assert "--patch is for models that draw: leave it out" in capsys.readouterr().err
