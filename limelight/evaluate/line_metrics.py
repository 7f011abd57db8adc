"""Metrics with a score for every line, on request: exact match, ROUGE, and COMET by its command.

Two runs are compared by any of them as by accuracy, line by line.
"""

import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from limelight.errors import FailedError, UserError
from limelight.evaluate.metrics import Measure

MetricName = Literal["exact", "rouge", "comet"]
_COMET_MODEL = "Unbabel/wmt22-comet-da"
_SEGMENT = re.compile(r"\tSegment (\d+)\tscore: (\S+)")


@dataclass(frozen=True)
class LineScores:
    """The score of each line by one metric; higher is better."""

    name: str
    scores: list[float]
    signature: str

    @property
    def measure(self) -> Measure:
        return Measure(self.name, fmean(self.scores), "higher", self.signature)


def check_metrics(names: Iterable[str]) -> None:
    """Reject metrics whose package or command is not installed, before anything is decoded."""
    if "rouge" in names:
        _rouge_scorer()
    if "comet" in names and not shutil.which("comet-score"):
        raise UserError(
            "the metric comet needs the command comet-score on the PATH: install unbabel-comet in "
            "an environment of its own, as with pipx install unbabel-comet"
        )


def line_scores(
    names: Iterable[str],
    sources: Sequence[str],
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
) -> list[LineScores]:
    """The scores of each line by these metrics; of several references the best one counts."""
    found: list[LineScores] = []
    for name in dict.fromkeys(names):
        if name == "exact":
            pairs = zip(outputs, zip(*references, strict=True), strict=True)
            hits = [float(bool(text) and text in wanted) for text, wanted in pairs]
            found.append(LineScores("exact", hits, f"nrefs:{len(references)}"))
        elif name == "rouge":
            found += _rouge(outputs, references)
        elif name == "comet":
            found.append(_comet(sources, outputs, references[0]))
    return found


def _rouge_scorer() -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise UserError(
            "the metric rouge needs rouge-score: pip install 'limelight[rouge]'"
        ) from error
    return RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)


def _rouge(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> list[LineScores]:
    """F1 of words, pairs of words and the longest common sequence, times 100."""
    scorer = _rouge_scorer()
    rows = [
        scorer.score_multi([text for text in wanted if text], output)
        for output, *wanted in zip(outputs, *references, strict=True)
    ]
    way = f"nrefs:{len(references)}|stemmer:porter|rouge-score:{version('rouge-score')}"
    names = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
    return [
        LineScores(name, [100 * row[key].fmeasure for row in rows], way)
        for key, name in names.items()
    ]


def _comet(sources: Sequence[str], outputs: Sequence[str], references: Sequence[str]) -> LineScores:
    """What the command `comet-score` prints for each line; it compares with one reference."""
    with TemporaryDirectory() as folder:
        files = {"-s": sources, "-t": outputs, "-r": references}
        command = ["comet-score", "--model", _COMET_MODEL]
        command += ["--gpus", str(int(torch.cuda.is_available()))]
        for option, texts in files.items():
            path = Path(folder) / f"texts{option}.txt"
            lines = (" ".join(text.splitlines()) + "\n" for text in texts)
            path.write_text("".join(lines), "utf-8")
            command += [option, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    found = {int(number): float(score) for number, score in _SEGMENT.findall(done.stdout)}
    if done.returncode or sorted(found) != list(range(len(outputs))):
        said = (done.stderr or done.stdout).strip().splitlines()
        why = f": {said[-1][:300]}" if said else ""
        raise FailedError(f"comet-score has scored {len(found)} of {len(outputs)} lines{why}")
    scores = [found[i] for i in range(len(outputs))]
    return LineScores("COMET", scores, f"nrefs:1|model:{_COMET_MODEL}")
