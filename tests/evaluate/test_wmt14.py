"""BLEU as the paper counted it, on cases worked out by hand."""

import sys

import pytest

from limelight.errors import UserError
from limelight.evaluate.bleu import (
    is_wmt14,
    paper_bleu,
    score_translations,
    split_compounds,
    split_words,
)

DATA = "wmt14-en-de"


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("rich-text format", "rich ##AT##-##AT## text format"),
        ("Aix-en-Provence", "Aix ##AT##-##AT## en ##AT##-##AT## Provence"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # as `perl -ple 's{(\S)-(\S)}{...}g'` does
        ("Ost- und West", "Ost- und West"),
        ("er - und sie", "er - und sie"),
    ],
)
def test_only_hyphens_inside_of_words_are_split(text, split):
    assert split_compounds(text) == split


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Das ist gut, oder?", "Das ist gut , oder ?"),
        ("Dr. Gutach kam z.B. am 3. Mai.", "Dr. Gutach kam z.B. am 3. Mai ."),
        ("Es kostet 1.000,50 Euro.", "Es kostet 1.000,50 Euro ."),
        ("“So” sagt\u2019s er …", "&quot; So &quot; sagt &apos; s er ..."),
        ("die EU-Kommission", "die EU ##AT##-##AT## Kommission"),
    ],
)
def test_words_are_split_as_moses_splits_them(text, words):
    assert split_words([text], "de") == [words]


def test_bleu_by_hand():
    # The words: Die EU ##AT##-##AT## Kommission tagt heute . (7) against the same with `morgen`.
    # Right: 6 of 7 words, 4 of 6 pairs, 3 of 5 triples, 2 of 4 fours; both are of one length.
    score = paper_bleu(DATA, ["Die EU-Kommission tagt heute."], ["Die EU-Kommission tagt morgen."])
    assert score.score == pytest.approx(100 * (6 / 7 * 4 / 6 * 3 / 5 * 2 / 4) ** 0.25)
    assert "tok:none" in score.signature
    assert "smooth:none" in score.signature
    assert "sacremoses:" in score.signature


def test_short_outputs_are_punished():
    # All 4 words and their 3, 2, 1 sequences are right, but 4 words stand for 6.
    score = paper_bleu(DATA, ["Er geht nach Hause"], ["Er geht nach Hause zurück ."])
    assert score.score == pytest.approx(100 * 2.718281828459045 ** (1 - 6 / 4))


def test_nothing_is_smoothed():
    outputs, references = ["ein Haus am See"], ["ein Haus am Meer"]
    assert paper_bleu(DATA, outputs, references).score == 0
    assert score_translations(outputs, references)[0].score > 0


def test_a_split_compound_counts_more_than_a_whole_one():
    outputs, references = ["Die EU-Kommission tagt nun."], ["Die EU-Kommission tagt morgen."]
    assert (
        paper_bleu(DATA, outputs, references).score
        > score_translations(outputs, references)[0].score
    )


def test_it_is_for_wmt14_and_nothing_else():
    assert is_wmt14(DATA)
    assert not is_wmt14("multi30k-en-de")
    with pytest.raises(UserError, match="'multi30k-en-de'"):
        paper_bleu("multi30k-en-de", ["a"], ["a"])
    with pytest.raises(UserError, match="1 outputs and 2 references"):
        paper_bleu(DATA, ["a"], ["a", "b"])


def test_the_language_can_be_said():
    assert "moses-en" in paper_bleu(DATA, ["a b c d"], ["a b c d"], language="en").signature


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(UserError, match="pip install sacremoses"):
        paper_bleu(DATA, ["a"], ["a"])
