"""Searching by meaning: exactly the nearest texts, whatever the index has seen before."""

import gzip
import json
import re
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from limelight.errors import UserError
from limelight.tasks import search as task
from limelight.tasks.search import rank_texts, search, top_rows, update_index, why
from tests.tasks.conftest import LINES

QUERY = "the cat walks"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LIMELIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(task, "_PART", 4)
    return tmp_path / "cache/search"


@pytest.fixture
def embedded(monkeypatch):
    """The texts that were really embedded, in order."""
    seen, original = [], task.embed

    def counted(trained, texts):
        texts = list(texts)
        seen.extend(texts)
        return original(trained, texts)

    monkeypatch.setattr(task, "embed", counted)
    return seen


def written(path, lines):
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def by_hand(model, query, lines, top):
    """All cosines, sorted: what a search must find."""
    own = np.array(model.embed(query))
    scores = [float(np.dot(own, model.embed(line))) for line in lines]
    return sorted(zip(scores, lines, strict=True), key=lambda pair: -pair[0])[:top]


def scores_of(matches):
    """By file and line; the last bits depend on what else was embedded at the time."""
    return {(match.file, match.line, match.text): match.score for match in matches}


def brute_force(vectors, query, count):
    scores = (vectors.astype(np.float64) * query.astype(np.float64)).sum(axis=1)
    return [(float(scores[i]), int(i)) for i in np.argsort(-scores, kind="stable")[:count]]


# The nearest vectors


@pytest.mark.parametrize("count", [1, 7, 100, 5000])
@pytest.mark.parametrize("block", [1, 64, 999, 3000])
def test_blocks_find_what_brute_force_finds(count, block):
    draw = np.random.default_rng(count + block)
    vectors = draw.standard_normal((3000, 24)).astype(np.float32)
    vectors[::3] = vectors[0]  # a thousand equal ones, in all blocks
    vectors[1::3] += 1e-7 * vectors[2::3]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    query = draw.standard_normal(24)
    for asked in (query / np.linalg.norm(query), vectors[0], vectors[1]):
        blocks = (vectors[i : i + block] for i in range(0, 3000, block))
        found = [(score, n * block + row) for score, n, row in top_rows(blocks, asked, count)]
        assert found == brute_force(vectors, np.asarray(asked), count)


def test_without_its_margin_rounding_would_decide(monkeypatch):
    """The control: vectors that float32 cannot tell apart, and float64 can."""
    monkeypatch.setattr(task, "_ROUNDING", -1e-9)
    draw = np.random.default_rng(0)
    base = draw.standard_normal(384)
    vectors = (base + 2e-6 * draw.standard_normal((2000, 384))).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = [row for *_, row in top_rows([vectors], vectors[5], 10)]
    assert found != [row for _, row in brute_force(vectors, vectors[5], 10)]


# Files


def test_finds_the_nearest_lines_and_where_they_are(model, tmp_path):
    files = [written(tmp_path / "a.txt", LINES[:13]), written(tmp_path / "b.txt", LINES[13:])]
    found = search(model("bert"), QUERY, files, 5)
    expected = by_hand(model("bert"), QUERY, LINES, 5)
    assert [match.text for match in found] == [text for _, text in expected]
    assert [match.score for match in found] == pytest.approx([s for s, _ in expected], abs=1e-5)
    for match in found:
        number = LINES.index(match.text)
        assert (match.file, match.line) == (files[number >= 13], number % 13 + 1)
    assert model("bert").search(QUERY, [str(tmp_path)], 5) == found
    indices = rank_texts(model("bert"), QUERY, LINES, 5)
    assert [LINES[i] for _, i in indices] == [text for _, text in expected]


def test_near_leaves_out_the_text_itself(model, tmp_path):
    files = [written(tmp_path / "a.txt", [*LINES, LINES[3]])]
    assert search(model("bert"), LINES[3], files, 2)[1].text == LINES[3]
    found = search(model("bert"), f" {LINES[3]}\n", files, 100, near=True)
    assert len(found) == len(LINES) - 1
    assert LINES[3] not in {match.text for match in found}


def test_lines_and_paragraphs(model, tmp_path):
    path = tmp_path / "a.txt.gz"
    text = "\ufeffone\r\ntwo  \n\n \nthree\n".encode() + b"\xff\xfe bad\nfour"
    path.write_bytes(gzip.compress(text))
    for paragraphs, expected in (
        (False, {("one", 1), ("two", 2), ("three", 5), ("four", 7)}),
        (True, {("one two", 1), ("three four", 5)}),
    ):
        found = search(model("bert"), QUERY, [str(path)], 100, paragraphs=paragraphs)
        assert {(match.text, match.line) for match in found} == expected
        (index,) = update_index(model("bert"), [str(path)], paragraphs)
        assert (index.skipped, index.cut) == (1, 0)


def test_texts_longer_than_the_model_reads_are_counted(model, tmp_path):
    bert = model("bert")
    texts = ("cat" + " cat" * more for more in range(bert.max_len))
    sizes = {text: len(bert.tokenizer.encode(text)) for text in texts}
    lines = [max((t for t in sizes if sizes[t] <= bert.max_len - 2), key=len)]
    lines = [*lines, lines[0] + " cat", "cat"]
    (index,) = update_index(bert, [written(tmp_path / "a.txt", lines)])
    assert index.cut == 1


def test_only_new_lines_are_embedded(model, tmp_path, embedded, cache):
    bert, top = model("bert"), 100
    first, second = tmp_path / "texts/a.txt", tmp_path / "texts/b.txt"
    first.parent.mkdir()
    written(first, [*LINES[:10], LINES[0]])
    files = [str(tmp_path / "texts")]
    search(bert, QUERY, files)
    assert embedded == [*LINES[:10], QUERY]
    embedded.clear()
    search(bert, "another", files)
    assert embedded == ["another"]
    embedded.clear()
    lines = [LINES[20], *LINES[2:10]]  # a line comes, two go, the others move
    written(first, lines)
    written(second, [LINES[4], LINES[21]])  # a new file
    found = search(bert, QUERY, files, top)
    assert embedded == [LINES[20], LINES[21], QUERY]
    fresh = search(bert, QUERY, files, top, index=tmp_path / "fresh")
    assert scores_of(found) == pytest.approx(scores_of(fresh), abs=1e-5)
    second.unlink()
    assert {m.file for m in search(bert, QUERY, files, top)} == {str(first)}
    (folder,) = cache.iterdir()
    records = [json.loads(record.read_text()) for record in folder.glob("*.json")]
    assert [(record["path"], record["parts"]) for record in records] == [(str(first), 3)]
    assert len(list(folder.glob("*/vectors.npy"))) == 3  # nothing of the files as they were


def test_an_unchanged_file_is_not_read_again(model, tmp_path, monkeypatch):
    files = [written(tmp_path / "a.txt", LINES)]
    found = search(model("bert"), QUERY, files)

    def fail(*_):
        raise AssertionError("read again")

    monkeypatch.setattr(task, "raw_lines", fail)
    assert search(model("bert"), QUERY, files) == found


@pytest.mark.parametrize("after", range(4))
def test_a_killed_process_loses_one_part_at_most(model, tmp_path, monkeypatch, embedded, after):
    files = [written(tmp_path / "a.txt", LINES[:14])]
    written_parts, original = [], task.atomic_folder

    @contextmanager
    def dying(part):
        with original(part) as unfinished:
            yield unfinished
            if len(written_parts) == after:
                raise KeyboardInterrupt
        written_parts.append(part)

    monkeypatch.setattr(task, "atomic_folder", dying)
    with pytest.raises(KeyboardInterrupt):
        search(model("bert"), QUERY, files)
    monkeypatch.setattr(task, "atomic_folder", original)
    assert embedded == LINES[: min(14, 4 * after + 4)]
    embedded.clear()
    found = search(model("bert"), QUERY, files, 20)
    assert embedded == [*LINES[4 * after : 14], QUERY]
    fresh = search(model("bert"), QUERY, files, 20, index=tmp_path / "fresh")
    assert scores_of(found) == pytest.approx(scores_of(fresh), abs=1e-5)
    assert not list(tmp_path.rglob("*.tmp-*"))


def test_a_part_that_is_gone_is_made_again_and_a_damaged_one_named(model, tmp_path, cache):
    files = [written(tmp_path / "a.txt", LINES)]
    found = search(model("bert"), QUERY, files)
    (folder,) = cache.iterdir()
    part = sorted(folder.glob("*-000002"))[0]
    for file in part.iterdir():
        file.unlink()
    part.rmdir()
    assert search(model("bert"), QUERY, files) == found
    (record,) = folder.glob("*.json")
    whole = record.read_bytes()
    record.write_bytes(whole[:9])
    assert search(model("bert"), QUERY, files) == found
    assert record.read_bytes() == whole
    (part / "vectors.npy").write_bytes(b"no array")
    with pytest.raises(UserError, match=r"vectors.npy is damaged: delete .* to build it again"):
        search(model("bert"), QUERY, files)


def test_other_weights_have_another_index(model, tmp_path, cache):
    files, bert = [written(tmp_path / "a.txt", LINES)], model("bert")
    before = search(bert, QUERY, files)
    weight = next(p for p in bert.model.parameters() if p.dim() == 2)
    kept = weight.detach().clone()
    try:
        with torch.no_grad():
            weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
        changed = search(bert, QUERY, files)
        assert changed != before
        expected = by_hand(bert, QUERY, LINES, 10)
        assert [m.score for m in changed] == pytest.approx([s for s, _ in expected], abs=1e-5)
    finally:
        with torch.no_grad():
            weight.copy_(kept)
    assert search(bert, QUERY, files) == before
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("name", ["bert", "reverse", "writer", "lstm", "rnn", "classifier"])
def test_all_that_embed_can_search_and_say_why(model, tmp_path, name):
    lines = ["a b", "c d e", "f"]
    found = search(model(name), "a b", [written(tmp_path / "a.txt", lines)])
    assert (found[0].text, found[0].score) == ("a b", pytest.approx(1, abs=1e-5))
    same = why(model(name), "a b", "a b")
    assert same.query == same.text
    assert np.diag(np.array(same.cosines)) == pytest.approx(1)
    other = why(model(name), "a b", "c d e")
    assert np.array(other.cosines).shape == (len(other.query), len(other.text))
    assert np.abs(np.array(other.cosines)).max() <= 1 + 1e-9
    assert [token for token, *_ in other.best] == list(other.query)
    assert [cosine for *_, cosine in other.best] == [max(row) for row in other.cosines]


@pytest.mark.parametrize("name", ["bert", "uncased", "reverse", "writer", "spelling"])
def test_spans_say_which_of_equal_words_is_meant(model, name):
    query, text = "the CAT sits", "🍌 the dog, the  cat; the cat walks"
    similar = why(model(name), query, text)
    for asked, tokens, spans in (
        (query, similar.query, similar.query_spans),
        (text, similar.text, similar.text_spans),
    ):
        assert len(spans) == len(tokens)
        for token, span in zip(tokens, spans, strict=True):
            if span is None:  # a space that the tokenizer puts before every word
                assert (name, token) == ("uncased", " ")
                continue
            there = asked[slice(*span)]
            assert there == there.strip() or not there.strip()
            spelled = [there, there.casefold()] if name == "uncased" else [there]
            assert token.strip() in spelled or "<" in token or there.isspace()
    starts = [span[0] for span in similar.text_spans if span]
    assert starts == sorted(starts)
    cats = [m.start() for m in re.finditer("cat", text)]
    assert {*cats} <= {*starts}
    assert [similar.text[j] for j in similar.closest] == [other for _, other, _ in similar.best]


@pytest.mark.parametrize(
    ("query", "files", "top", "says"),
    [
        (" ", ["{a}"], 3, "the query is empty"),
        ("a", [], 3, "there is nothing to search: name files"),
        ("a", ["{a}.gone"], 3, "cannot read .*a.txt.gone: No such file"),
        ("a", ["{a}"], 0, "top=0 is out of range"),
    ],
)
def test_wrong_use_is_a_sentence(model, tmp_path, query, files, top, says):
    path = written(tmp_path / "a.txt", LINES)
    with pytest.raises(UserError, match=says):
        search(model("bert"), query, [file.format(a=path) for file in files], top)


def test_an_empty_file_has_no_matches(model, tmp_path):
    assert search(model("bert"), "a", [written(tmp_path / "a.txt", ["", " "])]) == []
