"""What is said of heads is what their weights say."""

import numpy as np
import pytest
import torch

from limelight.errors import UserError
from limelight.lab import alignment, heads
from limelight.lab.experiment import Subject
from limelight.lab.report import draw
from limelight.model.taps import Recorder


def _reading(folder, path, sentences=8):
    loaded = heads.load(path, device="cpu", precision="auto")
    return heads._read(loaded, Subject(str(path), folder), sentences)


def _values(path, folder):
    made = heads.measurements(True, Subject(str(path), folder))
    return {name: measure() for name, measure in made.items()}


def test_model_1_finds_the_dictionary():
    random = np.random.default_rng(1)
    sources = [random.integers(5, 25, size=random.integers(2, 7)) for _ in range(200)]
    pairs = [(source, random.permutation(source) + 30) for source in sources]
    model = alignment.fit(pairs, 60)
    for word in range(5, 25):
        found = model.of(np.arange(5, 25), np.array([word + 30]))[0]
        assert int(found.argmax()) + 5 == word
    table = model.of(np.arange(5, 25), np.arange(60))
    assert np.allclose(table.sum(axis=0), 1.0), "of each source word the probabilities sum to 1"
    shuffled = [(a, pairs[i - 1][1]) for i, (a, _) in enumerate(pairs)]
    assert alignment.fit(pairs[:100], 60).loss(pairs[100:]) < 2
    assert alignment.fit(shuffled[:100], 60).loss(shuffled[100:]) > 2.5
    assert model.of(np.array([59]), np.array([59])) == 0, "an unknown pair"


def test_where_each_kind_of_token_is():
    tokens = torch.tensor([[1, 7, 8, 7, 9]])  # 1 is special
    special = torch.arange(10) < 5
    found = {k: v[0].nonzero().tolist() for k, v in heads.positions_of(tokens, special).items()}
    assert found["previous"] == [[1, 0], [2, 1], [3, 2], [4, 3]]
    assert found["same"] == [[i, i] for i in range(5)]
    assert found["next"] == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert found["special"] == [[i, 0] for i in range(5)]
    assert found["induction"] == [[3, 2]], "7 was followed by 8"


def test_shares_are_means_of_the_weights(run, tmp_path):
    """Against plain loops over every query and key."""
    read = _reading(tmp_path, run("reverse"))
    found = heads._shares(lambda: read, ["encoder.0.self", "decoder.0.self"])["shares"]
    sums = {}
    for batch in read.batches:
        with Recorder(read.loaded.model, "*.self.weights") as recorder, torch.no_grad():
            read.loaded.model(batch.source, batch.target[:, :-1], batch.source_real)
        sizes = batch.source_real.sum(dim=1).tolist(), (batch.target_real.sum(dim=1) - 1).tolist()
        for name, lengths in zip(("encoder.0.self", "decoder.0.self"), sizes, strict=True):
            for row, length in enumerate(lengths):
                for query in range(1, length):
                    weight = recorder[f"{name}.weights"][row, 2, query, query - 1].item()
                    seen = query + 1 if name.startswith("decoder") else length
                    total = sums.setdefault(name, [0.0, 0.0, 0])
                    sums[name] = [total[0] + weight, total[1] + 1 / seen, total[2] + 1]
    for name, (weight, uniform, count) in sums.items():
        assert found[f"{name}@3"]["previous"] == pytest.approx(weight / count, rel=1e-4)
        assert found[f"{name} uniform"]["previous"] == pytest.approx(uniform / count, rel=1e-4)


def test_a_head_is_worth_what_the_loss_rises_without_it(run, tmp_path):
    read = _reading(tmp_path, run("reverse"))
    before = {name: p.clone() for name, p in read.loaded.model.named_parameters()}
    rises = heads._rises(lambda: read, "decoder.0.cross")
    assert all(torch.equal(p, before[n]) for n, p in read.loaded.model.named_parameters())
    output = read.loaded.model.decoder.layers[0].cross_attention.output

    def off(_, given):
        mixed = given[0].clone()
        mixed[..., 16:32] = 0
        return (mixed,)

    loss = heads._loss(read.batches, read.loaded.model)
    handle = output.register_forward_pre_hook(off)
    assert heads._loss(read.batches, read.loaded.model) - loss == pytest.approx(rises[1], abs=1e-5)
    handle.remove()
    assert max(rises) > 0.01, "a model that reverses needs its cross-attention"


def test_cross_attention_of_reverse_is_on_the_letter_that_is_written(run, tmp_path):
    values = _values(run("reverse"), tmp_path)
    best = heads.best_heads(values["shares"]["shares"])
    share = values["shares"]["shares"][best["aligned"]]["aligned"]
    uniform = values["shares"]["shares"]["decoder.0.cross uniform"]["aligned"]
    assert best["aligned"].startswith("decoder.0.cross@")
    assert share > uniform + 0.1
    found = heads.findings(values)
    assert "its validation texts" in found.conclusion[0]
    header, *rows = found.table
    assert [row[0] for row in rows[:4]] == [f"encoder.0.self@{head}" for head in range(1, 5)]
    assert {len(row) for row in rows} == {len(header)}


@pytest.mark.parametrize("name", ["gpt", "writer", "bert", "classifier", "tagged"])
def test_every_family_is_examined(run, tmp_path, name):
    values = _values(run(name), tmp_path)
    shares = values["shares"]["shares"]
    assert all(0 <= share <= 1.0001 for own in shares.values() for share in own.values())
    for head, own in shares.items():
        if ".self" in head:
            assert ("next" in own) == head.startswith("encoder"), "a decoder sees no next token"
    found = heads.findings(values)
    assert draw(found.panels).axes[1].get_ylabel().startswith("rise of the loss")
    assert len(found.conclusion) >= 5


def test_without_its_own_texts_a_model_reads_bundled_ones(run, tmp_path):
    for name, file in (("chat", "sentences.tsv"), ("bert", "sentences.txt")):
        loaded = heads.load(run(name), device="cpu", precision="auto")
        lost = heads.replace(loaded.recipe.data, name="multi30k-en-de", train=(), valid=())
        loaded.recipe = heads.replace(loaded.recipe, data=lost)
        read = heads._read(loaded, Subject(name, tmp_path), 8)
        assert read.texts.startswith("bundled")
        assert (tmp_path / file).read_text().startswith("Hello, my dear Limelight!")


def test_a_recurrent_model_has_no_heads(run, tmp_path):
    with pytest.raises(UserError, match="is recurrent and has no heads"):
        heads.measurements(True, Subject(str(run("lstm")), tmp_path))
