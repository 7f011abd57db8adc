"""From pieces to words: nothing is lost, nothing is counted twice, whatever the pieces are."""

import pytest

from limelight.explain.tokens import joined, labels_of, visible
from tests.browser.conftest import visit

pytestmark = pytest.mark.system

PIECES = {
    "words of several pieces": ["Guten", " M", "or", "gen", ",", " Welt", "!", "⟨end⟩"],
    "characters": list("the cat sat."),
    "a first special": ["⟨start⟩", "The", " cat", "⟨mask⟩", " on", "⟨end⟩"],
    "lines": ["a", "\n", "b", " ", " ", "c", "\n\n"],
    "no spaces at all": ["東京", "へ", "行", "きます", "。"],
    "half characters": ["a", "<F0>", "<9F>", "<98>", "<80>", " b"],
    "half letters": ["Eine", "<20><C3>", "<9C>", "bung", "<20><D9>", "<85><D8>", "<B1>", "!"],
    "beyond 16 bits": ["😀", "👩‍👩‍👧", " \U0001d4b3", "y"],
    "right to left": ["שלום", " עולם", "!"],
    "nothing": [],
    "only spaces": [" ", " "],
}


@pytest.fixture
def words(page):
    """`words(pieces)` as the page joins them."""
    visit(page)
    return lambda pieces: page.evaluate(
        "async (pieces) => (await import('/page/js/core/words.js')).wordsIn(pieces)", pieces
    )


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
def test_every_piece_belongs_to_one_word(words, pieces):
    found = words(pieces)
    assert [place for word in found for place in word["positions"]] == list(range(len(pieces)))
    for word in found:
        assert visible(word["text"]) == joined([pieces[place] for place in word["positions"]])
        if word["special"]:
            assert len(word["positions"]) == 1


def test_words_are_what_a_person_would_call_so(words):
    def texts(name):
        return [word["text"].strip() for word in words(PIECES[name])]

    assert texts("words of several pieces") == ["Guten", "Morgen", ",", "Welt", "!", "⟨end⟩"]
    assert texts("characters") == ["the", "cat", "sat", "."]
    assert texts("a first special") == ["⟨start⟩", "The", "cat", "⟨mask⟩", "on", "⟨end⟩"]
    assert texts("right to left") == ["שלום", "עולם", "!"]
    assert texts("half characters") == ["a", "😀", "b"]
    assert texts("half letters") == ["Eine", "Übung", "مر", "!"]


def test_shares_of_words_are_those_of_their_pieces(page, words):
    pieces = PIECES["words of several pieces"]
    found = words(pieces)
    shares = [0.05, 0.1, 0.2, 0.1, 0.05, 0.3, 0.1, 0.1]
    summed = page.evaluate(
        "async (given) => (await import('/page/js/core/words.js')).wordWeights(...given)",
        [found, shares],
    )
    assert summed == pytest.approx([0.05, 0.4, 0.05, 0.3, 0.1, 0.1])


CUT = {
    "umlauts": ["Eine", "<20><C3>", "<9C>", "b", "ung"],
    "Arabic": ["<D9>", "<85><D8>", "<B1>", " "],
    "emoji": ["<F0>", "<9F>", "<98><80>", "⟨end⟩"],
    "broken": ["<9F>", "<C3>", "b", "<F0><9F>"],
    "whole": ["Guten", " Tag", "\n"],
}


@pytest.mark.parametrize("pieces", CUT.values(), ids=CUT)
def test_labels_of_pieces_are_pythons(page, pieces):
    visit(page)
    shown = page.evaluate(
        """async (pieces) => {
          const own = await import('/page/js/core/pieces.js');
          return [own.pieceLabels(pieces), own.pieceTexts(pieces)];
        }""",
        pieces,
    )
    assert shown[0] == labels_of(pieces)
    assert visible("".join(shown[1])) == joined(pieces)
