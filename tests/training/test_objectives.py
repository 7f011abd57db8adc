"""What each family is asked for, held against the plain way: one example at a time, no padding."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from limelight.data.batching import BatchPlan
from limelight.data.config import DataConfig
from limelight.data.datasets import (
    CausalLMDataset,
    ClassificationDataset,
    ContrastiveDataset,
    MaskedLMDataset,
    PromptDataset,
    Seq2SeqDataset,
)
from limelight.data.token_store import open_or_build
from limelight.data.tokenizer import Tokenizer
from limelight.training.objectives import LossModule, count_tokens
from tests.model.samples import small
from tests.training.samples import labelled, texts

TOKENIZER = Tokenizer.train("char", ["a"], 261)


def cut(tokens, real):
    """One row without its padding, as a batch."""
    return tokens[real][None]


def pairs_plainly(model, batch, i):
    target = cut(batch.target[i], batch.target_real[i])
    logits = model(cut(batch.source[i], batch.source_real[i]), target[:, :-1])
    return logits[0], target[0, 1:]


def texts_plainly(model, batch, i):
    real = (
        torch.ones_like(batch.tokens[i], dtype=torch.bool) if batch.real is None else batch.real[i]
    )
    tokens, asked = cut(batch.tokens[i], real), batch.loss_mask[i][real][1:]
    return model(tokens[:, :-1])[0][asked], tokens[0, 1:][asked]


def masked_plainly(model, batch, i):
    asked = batch.loss_mask[i]
    return model(batch.tokens[i][None])[0][asked], batch.labels[i][asked]


def labelled_plainly(model, batch, i):
    return model(cut(batch.tokens[i], batch.real[i])), batch.labels[i][None]


def pairs_of(make, folder):
    data = DataConfig(toy="reverse", toy_examples=40, toy_length=6)
    return make(open_or_build(data, "train", TOKENIZER, folder / "stores"), TOKENIZER)


def others_of(kind, make, folder):
    return make(open_or_build(kind(folder), "train", TOKENIZER, folder / "stores"), TOKENIZER)


KINDS = {  # the families that learn from examples of a kind, the examples, and the plain way
    "pairs": (
        ("encoder-decoder", "recurrent-encoder-decoder"),
        lambda folder: pairs_of(Seq2SeqDataset, folder),
        pairs_plainly,
    ),
    "prompts": (
        ("decoder-only", "recurrent-decoder-only"),
        lambda folder: pairs_of(PromptDataset, folder),
        texts_plainly,
    ),
    "blocks": (
        ("decoder-only", "recurrent-decoder-only"),
        lambda folder: others_of(texts, lambda s, t: CausalLMDataset(s, t, 12, 1), folder),
        texts_plainly,
    ),
    "blanks": (
        ("encoder-only",),
        lambda folder: others_of(texts, lambda s, t: MaskedLMDataset(s, t, 12, 1), folder),
        masked_plainly,
    ),
    "labels": (
        ("encoder-only",),
        lambda folder: others_of(
            labelled, lambda s, t: ClassificationDataset(s, t, ("one", "two"), 15), folder
        ),
        labelled_plainly,
    ),
}
CASES = [(family, kind) for kind, (families, _, _) in KINDS.items() for family in families]


def model_for(family, kind):
    classes = {"classes": 2} if kind == "labels" else {}
    return small(family, vocab=len(TOKENIZER), **classes)


def score_by_hand(logits, answers, smoothing):
    """Loss, surprise, right and asked, from the definition."""
    chances = logits.log_softmax(dim=-1)
    surprise = -chances[range(len(answers)), answers].sum()
    spread = -chances.mean(dim=-1).sum()
    right = sum(int(row.argmax() == wanted) for row, wanted in zip(logits, answers, strict=True))
    loss = (1 - smoothing) * surprise + smoothing * spread
    return torch.stack([loss, surprise, torch.tensor(right), torch.tensor(len(answers))])


def summed(learner, batches):
    return sum(torch.stack([x.double() for x in learner(batch)]) for batch in batches)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("family", "kind"), CASES)
def test_a_learner_scores_as_one_does_by_hand(tmp_path, family, kind, smoothing):
    _, examples, plainly = KINDS[kind]
    model = model_for(family, kind)
    for batch in BatchPlan(examples(tmp_path), batch_tokens=80, seed=1).epoch(0):
        rows = range(len(batch.examples))
        by_hand = sum(score_by_hand(*plainly(model, batch, i), smoothing) for i in rows)
        ours = summed(LossModule(model, smoothing), [batch])
        torch.testing.assert_close(ours, by_hand.double(), rtol=1e-11, atol=1e-11)


def seeded_loss(model, batch, alpha, training=True):
    torch.manual_seed(3)
    return LossModule(model, rdrop_alpha=alpha).train(training)(batch).loss


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_rdrop_punishes_passes_that_differ_in_training_alone(tmp_path, family, kind):
    config = {"classes": 2} if kind == "labels" else {}
    model = small(family, vocab=len(TOKENIZER), dropout=0.2, **config).train()
    batch = next(iter(BatchPlan(KINDS[kind][1](tmp_path), batch_tokens=80, seed=1).epoch(0)))
    without, some, more = (seeded_loss(model, batch, alpha) for alpha in (1e-12, 1.0, 3.0))
    assert some - without > 1e-4
    torch.testing.assert_close(more - without, 3 * (some - without))
    assert seeded_loss(model, batch, 3.0, False) == seeded_loss(model, batch, 0.0, False)


def test_rdrop_of_a_classifier_is_the_divergence_of_its_classes(tmp_path):
    model = small("encoder-only", vocab=len(TOKENIZER), dropout=0.2, classes=2).train()
    batch = next(iter(BatchPlan(KINDS["labels"][1](tmp_path), batch_tokens=80, seed=1).epoch(0)))
    loss = seeded_loss(model, batch, 2.0)
    torch.manual_seed(3)
    logits = model(torch.cat([batch.tokens] * 2), real=torch.cat([batch.real] * 2)).double()
    one, other = logits.log_softmax(dim=-1).chunk(2)
    total = partial(F.kl_div, reduction="none", log_target=True)
    both = (total(one, other) + total(other, one)).sum(dim=-1) / 2
    entropy = F.cross_entropy(logits, torch.cat([batch.labels] * 2), reduction="sum")
    expected = entropy + 2.0 * both[batch.labels >= 0].sum()
    torch.testing.assert_close(loss.double(), expected)
    slopes = [
        torch.autograd.grad(x, model.text_head.classifier.weight, retain_graph=True)[0]
        for x in (loss, expected)
    ]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize(
    ("family", "kind"),
    [("encoder-decoder", "pairs"), ("decoder-only", "prompts"), ("decoder-only", "blocks")],
)
def test_training_without_the_mask_sees_no_padding_either(tmp_path, family, kind):
    _, examples, plainly = KINDS[kind]
    model = small(family, vocab=len(TOKENIZER), mask=False, dropout=0.0).train()
    batch = next(iter(BatchPlan(examples(tmp_path), batch_tokens=80, seed=1).epoch(0)))
    rows = range(len(batch.examples))
    by_hand = sum(score_by_hand(*plainly(model, batch, i), 0.0) for i in rows)
    learner = LossModule(model)
    torch.testing.assert_close(summed(learner, [batch]), by_hand.double(), rtol=1e-11, atol=1e-11)
    assert not torch.isclose(learner(batch).loss, learner.eval()(batch).loss)


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_padding_and_empty_rows_change_nothing(tmp_path, family, kind):
    """Rounded shapes have more padding and rows with nothing in them: the sums stay the same."""
    examples = KINDS[kind][1](tmp_path)
    plain, rounded = (
        list(BatchPlan(examples, batch_tokens=200, seed=1, bucketed=rounded).epoch(0))
        for rounded in (False, True)
    )
    assert any((batch.examples < 0).any() for batch in rounded)
    if kind == "blanks":  # which tokens are hidden hangs on the shape of the batch
        plain = [row_cut(batch) for batch in rounded]
    learner = LossModule(model_for(family, kind), 0.1)
    torch.testing.assert_close(summed(learner, plain), summed(learner, rounded))
    loss = sum(learner(batch).loss for batch in rounded)
    grads = torch.autograd.grad(loss, list(learner.parameters()))
    assert all(torch.isfinite(grad).all() for grad in grads)


def row_cut(batch):
    """A batch without its empty rows."""
    some = batch.examples >= 0
    return type(batch)(*(x[some] if isinstance(x, torch.Tensor) else x for x in batch))


def test_a_bert_computes_its_scores_only_where_it_is_asked(tmp_path):
    examples = KINDS["blanks"][1](tmp_path)
    model = model_for("encoder-only", "blanks")
    seen = []
    model.masked_head.inner.register_forward_pre_hook(lambda _, x: seen.append(x[0].shape))
    batches = list(BatchPlan(examples, batch_tokens=48, seed=1).epoch(0))
    for batch in batches:
        LossModule(model)(batch)
    assert seen == [(int(batch.loss_mask.sum()), 16) for batch in batches]
    assert any(batch.loss_mask.numel() > 4 * batch.loss_mask.sum() > 0 for batch in batches)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_counted_without_padding(tmp_path, kind):
    for batch in BatchPlan(KINDS[kind][1](tmp_path), batch_tokens=100, seed=1).epoch(0):
        masks = [x for name, x in batch._asdict().items() if "real" in name and x is not None]
        real = sum(int(mask.sum()) for mask in masks) if masks else batch.tokens.numel()
        assert count_tokens(batch) == real


# Texts that mean the same


def contrastive_by_hand(model, batch, rows):
    """Each text against all partners and back, one pair at a time, without padding."""

    def vector(tokens, real):
        states = model.encode(cut(tokens, real))[0].mean(dim=0)
        return states / states.norm()

    source = [vector(batch.source[i], batch.source_real[i]) for i in rows]
    target = [vector(batch.target[i], batch.target_real[i]) for i in rows]
    texts = [(tuple(batch.source[i].tolist()), tuple(batch.target[i].tolist())) for i in rows]
    loss = right = 0.0
    for ours, theirs in ((source, target), (target, source)):
        for i in range(len(rows)):
            others = [
                j for j in range(len(rows))
                if i == j or not (texts[i][0] == texts[j][0] or texts[i][1] == texts[j][1])
            ]  # fmt: skip
            scores = torch.stack([ours[i] @ theirs[j] / 0.05 for j in others])
            loss = loss - scores.log_softmax(dim=0)[others.index(i)] / 2
            right += float(others[int(scores.argmax())] == i) / 2
    return torch.stack([loss, loss, torch.tensor(right), torch.tensor(len(rows))]).double()


@pytest.mark.parametrize("bucketed", [False, True])
def test_a_text_finds_its_partner_among_those_of_the_batch(tmp_path, bucketed):
    """Equal texts are no negatives, and rows that only fill up a shape take no part."""
    lines = [f"{a}{b}\t{b * n}{a}" for n, a in enumerate("abcd", 1) for b in "xy"]
    lines += ["ax\tother", "another\txa", "ax\txa"]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    data = DataConfig(train=(str(tmp_path / "train.tsv"),))
    store = open_or_build(data, "train", TOKENIZER, tmp_path / "stores")
    model = small("encoder-only", vocab=len(TOKENIZER), masked_head=False)
    plan = BatchPlan(ContrastiveDataset(store, TOKENIZER), 90, seed=1, bucketed=bucketed)
    empty = 0
    for batch in plan.epoch(0):
        rows = (batch.examples >= 0).nonzero()[:, 0].tolist()
        empty += len(batch.examples) - len(rows)
        ours = summed(LossModule(model), [batch])
        expected = contrastive_by_hand(model, batch, rows)
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
        loss = LossModule(model)(batch).loss
        loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        real = batch.source_real.sum() + batch.target_real.sum()
        assert count_tokens(batch) == int(real)
    assert bool(empty) is bucketed
