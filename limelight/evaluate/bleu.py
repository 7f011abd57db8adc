"""BLEU, chrF and TER, all computed by sacrebleu: nobody has to trust a BLEU of our own.

sacrebleu is imported where it is used, so that nobody else waits for it.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from limelight.errors import UserError, unknown_name
from limelight.evaluate.metrics import Better, Measure, check_lines

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

References = Sequence[str] | Sequence[Sequence[str]]
BETTER: dict[str, Better] = {"BLEU": "higher", "chrF2": "higher", "TER": "lower"}


def score_translations(
    outputs: Sequence[str], references: References, tokenize: str = "13a"
) -> list[Measure]:
    """BLEU, chrF2 and TER of plain texts, as they would be printed: sacrebleu splits the words.

    There may be several references for every output: then each is a stream of its own, as long as
    the outputs. `tokenize` is for BLEU in languages without spaces, as sacrebleu's --tokenize.
    """
    streams = streams_of(references)
    for stream in streams:
        check_lines(outputs, stream)
    scores = []
    for name, metric in metrics(tokenize).items():
        score = float(metric.corpus_score(outputs, streams).score)
        scores.append(Measure(name, score, BETTER[name], str(metric.get_signature())))
    return scores


def streams_of(references: References) -> list[Sequence[str]]:
    """References as a list of streams, also when there is only one."""
    if not references:
        raise UserError("there is nothing to score: no references")
    if isinstance(references[0], str):
        return [cast(Sequence[str], references)]
    return list(references)


def metrics(tokenize: str = "13a") -> Mapping[str, "Metric"]:
    """What is computed, under sacrebleu's own names and with its own settings."""
    from sacrebleu import BLEU, CHRF, TER

    if tokenize not in BLEU.TOKENIZERS:
        raise unknown_name("tokenizer of sacrebleu", tokenize, BLEU.TOKENIZERS)
    return {"BLEU": BLEU(tokenize=tokenize), "chrF2": CHRF(), "TER": TER()}
