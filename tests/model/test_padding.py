"""Padding does not matter, on either side; nor do a row's neighbours in the batch."""

import pytest
import torch
from torch.nn import functional as F

from tests.model.samples import RECURRENT, TRANSFORMERS, VARIANTS, VOCAB, small, tokens

EVERY = [(family, name, v) for family in TRANSFORMERS for name, v in VARIANTS.items()] + [
    (family, name, v)
    for family in ("recurrent-encoder-decoder", "recurrent-decoder-only")
    for name, v in RECURRENT.items()
]
LENGTHS = [7, 3, 1, 5]
models = pytest.mark.parametrize(
    ("family", "changes"), [pytest.param(f, v, id=f"{f}, {n}") for f, n, v in EVERY]
)


def padded(rows, side, extra):
    """Rows of different lengths in one batch, and which of it is real; the padding is noise."""
    width = max(len(row) for row in rows) + extra
    batch, real = tokens(len(rows), width), torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        batch[i, place], real[i, place] = row, True
    return batch, real


def run(model, family, sources, targets, side=None, extra=0):
    """Logits of the real target positions, row by row."""
    if side is None:
        return [
            one_row(model, family, s[None], t[None])[0]
            for s, t in zip(sources, targets, strict=True)
        ]
    source, source_real = padded(sources, side, extra)
    target, target_real = padded(targets, side, extra)
    if family.endswith("encoder-decoder"):
        out, real = model(source, target, source_real, target_real), target_real
    elif family == "encoder-only":
        out, real = model(source, None, source_real), source_real
    else:
        out, real = model(target, target_real), target_real
    return [row[kept] for row, kept in zip(out, real, strict=True)]


def one_row(model, family, source, target):
    if family.endswith("encoder-decoder"):
        return model(source, target)
    return model(source) if family == "encoder-only" else model(target)


def loss_and_gradients(model, outputs):
    loss = sum(
        F.cross_entropy(row, torch.arange(len(row)) % VOCAB, reduction="sum") for row in outputs
    )
    model.zero_grad()
    loss.backward()
    return loss.detach(), {
        n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
    }


@models
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("extra", [0, 9])
def test_padding_changes_neither_logits_nor_loss_nor_gradients(family, changes, side, extra):
    model = small(family, **changes)
    sources = [tokens(1, n)[0] for n in LENGTHS]
    targets = [tokens(1, n)[0] for n in reversed(LENGTHS)]
    alone = run(model, family, sources, targets)
    together = run(model, family, sources, targets, side, extra)
    for a, b in zip(alone, together, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    loss, gradients = loss_and_gradients(model, alone)
    padded_loss, padded_gradients = loss_and_gradients(model, together)
    torch.testing.assert_close(loss, padded_loss, rtol=0, atol=1e-10)
    assert gradients.keys() == padded_gradients.keys()
    for name in gradients:
        torch.testing.assert_close(gradients[name], padded_gradients[name], rtol=0, atol=1e-10)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_classifier_ignores_padding(changes, side):
    model = small("encoder-only", classes=3, **changes)
    text, real = padded([tokens(1, n)[0] for n in LENGTHS], side, 4)
    for row, kept, answer in zip(text, real, model(text, None, real), strict=True):
        torch.testing.assert_close(model(row[kept][None])[0], answer, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("family", "changes"), [(f, v) for f, _, v in EVERY if f != "encoder-only"]
)
def test_right_padding_of_a_decoder_needs_no_mask(family, changes):
    model = small(family, **changes)
    targets = [tokens(1, n)[0] for n in LENGTHS]
    target, real = padded(targets, "right", 4)
    source = tokens(len(targets), 5)
    whole = one_row(model, family, source, target)
    for i, row in enumerate(targets):
        alone = one_row(model, family, source[i : i + 1], row[None])[0]
        torch.testing.assert_close(whole[i][real[i]], alone, rtol=0, atol=1e-10)


@models
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_rows_answer_does_not_depend_on_its_neighbours(family, changes, dtype):
    model = small(family, dtype, **changes)
    sources = [tokens(1, n)[0] for n in LENGTHS]
    targets = [tokens(1, n)[0] for n in LENGTHS]
    with torch.no_grad():
        expected = run(model, family, sources, targets)
        for order in ([3, 1, 0, 2], [2, 2, 1, 0], [1], [0, 3]):
            got = run(
                model, family, [sources[i] for i in order], [targets[i] for i in order], "right", 1
            )
            for i, row in zip(order, got, strict=True):
                tolerance = 1e-12 if dtype == torch.float64 else 2e-5
                torch.testing.assert_close(row, expected[i], rtol=0, atol=tolerance)


def test_heads_for_pairs_and_pooling_ignore_padding():
    model = small("encoder-only", sentence_pairs=True)
    rows = [tokens(1, n)[0] for n in LENGTHS]
    for side in ("left", "right"):
        text, real = padded(rows, side, 3)
        states = model.encode(text, None, real)
        for i, row in enumerate(rows):
            alone = model.encode(row[None])
            for head in (model.pool, model.next_sentence):
                torch.testing.assert_close(
                    head(states, real)[i], head(alone)[0], rtol=0, atol=1e-10
                )


def test_counting_padding_would_be_noticed():
    """The negative control: without its mask a padded batch gives other numbers."""
    model = small("encoder-only")
    text, real = padded([tokens(1, n)[0] for n in LENGTHS], "right", 3)
    assert (model(text) - model(text, None, real)).abs().max() > 1e-3
