"""Our scores are those that sacrebleu's own command prints, signature and all."""

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.errors import UserError
from limelight.evaluate.bleu import score_translations
from tests.evaluate.samples import sentences, spoiled

PLAIN = sentences(1)
LINES = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n")), min_size=1)


def printed(folder, outputs, *streams):
    """What `python -m sacrebleu` says of files with these lines."""
    files = [folder / f"{i}.txt" for i in range(len(streams) + 1)]
    for file, lines in zip(files, (outputs, *streams), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    said = ["-i", files[0], "-m", "bleu", "chrf", "ter", "-w", "12", "-f", "json"]
    command = [sys.executable, "-m", "sacrebleu", *files[1:], *said]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize(
    ("outputs", "streams"),
    [
        (spoiled(PLAIN, 0.3, 1), [PLAIN]),
        (spoiled(PLAIN, 0.3, 1), [PLAIN, spoiled(PLAIN, 0.2, 2)]),
        (["", "ein Haus", "„So“ — 3,5 %, don't!"], ["ein", "ein Haus.", '"So" - 3.5 %, do not!']),
    ],
)
def test_scores_and_signatures_are_those_of_the_command(tmp_path, outputs, streams):
    several = not isinstance(streams[0], str)
    theirs = printed(tmp_path, outputs, *(streams if several else [streams]))
    ours = score_translations(outputs, streams)
    assert [score.name for score in ours] == [score["name"] for score in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.score == pytest.approx(other["score"], abs=1e-9)
        assert mine.signature == other["signature"]


def test_a_wrong_score_would_be_noticed(tmp_path):
    theirs = printed(tmp_path, spoiled(PLAIN, 0.3, 1), PLAIN)
    ours = score_translations(spoiled(PLAIN, 0.3, 2), PLAIN)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.score != pytest.approx(other["score"], abs=1e-9)


def test_a_second_reference_can_only_help():
    outputs, other = spoiled(PLAIN, 0.3, 1), spoiled(PLAIN, 0.2, 2)
    one, two = (score_translations(outputs, refs) for refs in (PLAIN, [PLAIN, other]))
    for a, b in zip(one, two, strict=True):
        assert (b.score < a.score) if a.better == "lower" else (b.score > a.score)
    assert "nrefs:2" in two[0].signature


def test_files_that_do_not_match_are_refused_with_both_counts():
    with pytest.raises(UserError, match="2 outputs and 3 references"):
        score_translations(["a", "b"], ["a", "b", "c"])
    with pytest.raises(UserError, match="2 outputs and 1 references"):
        score_translations(["a", "b"], [["a", "b"], ["c"]])
    for nothing in ([], [[]]):
        with pytest.raises(UserError, match="nothing to score"):
            score_translations([], nothing)


@settings(deadline=None, max_examples=50)
@given(LINES, st.randoms())
def test_bounds(lines, draw):
    shuffled = draw.sample(lines, len(lines))
    bleu, chrf, ter = score_translations(shuffled, lines)
    assert 0 <= bleu.score <= 100 + 1e-9
    assert 0 <= chrf.score <= 100 + 1e-9
    assert ter.score >= 0


def test_what_is_perfect_cannot_be_better():
    bleu, chrf, ter = score_translations(PLAIN, PLAIN)
    assert (bleu.score, chrf.score, ter.score) == pytest.approx((100, 100, 0))
