"""BLEU, chrF and TER, all computed by sacrebleu: nobody has to trust a BLEU of our own.

sacrebleu is imported where it is used, so that nobody else waits for it. `paper_bleu` counts as the
paper did, to compare with its table 2, and for nothing else. The paper's 27.3 and 28.4 are of
tokenized texts with hyphens split off, which gives more words to get right: they do not compare
with sacrebleu's numbers. The recipe is that of the paper's own code (tensor2tensor's
get_ende_bleu.sh): Moses' replace-unicode-punctuation and tokenizer, hyphens written as
` ##AT##-##AT## `, then multi-bleu, which does not smooth.
"""

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, cast

from limelight.errors import UserError
from limelight.evaluate.metrics import Better, Measure, check_lines

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

References = Sequence[str] | Sequence[Sequence[str]]
BETTER: dict[str, Better] = {"BLEU": "higher", "chrF2": "higher", "TER": "lower"}


def score_translations(outputs: Sequence[str], references: References) -> list[Measure]:
    """BLEU, chrF2 and TER of plain texts, as they would be printed: sacrebleu splits the words.

    With several references for every output, each set is a sequence as long as the outputs.
    """
    streams = streams_of(references)
    for stream in streams:
        check_lines(outputs, stream)
    scores = []
    for name, metric in metrics().items():
        score = float(metric.corpus_score(outputs, streams).score)
        scores.append(Measure(name, score, BETTER[name], str(metric.get_signature())))
    return scores


def streams_of(references: References) -> list[Sequence[str]]:
    """References as a list of sequences, also when there is only one.

    Where a line has fewer than others, the rest are empty: None for sacrebleu, or they would count.
    """
    if not references:
        raise UserError("there is nothing to score: no references")
    if isinstance(references[0], str):
        return [cast(Sequence[str], references)]
    first, *others = references
    return [first, *(cast(list[str], [text or None for text in other]) for other in others)]


def metrics() -> Mapping[str, "Metric"]:
    """The metrics under sacrebleu's own names and with its own settings."""
    from sacrebleu import BLEU, CHRF, TER

    return {"BLEU": BLEU(), "chrF2": CHRF(), "TER": TER()}


def is_wmt14(data_name: str) -> bool:
    """Whether the paper reports BLEU for this corpus."""
    return data_name.startswith("wmt14-")


def paper_bleu(
    data_name: str, outputs: Sequence[str], references: Sequence[str], language: str = ""
) -> Measure:
    """The paper's BLEU of plain texts, by default in the last language of the corpus' name."""
    if not is_wmt14(data_name):
        raise UserError(
            f"the paper's way to count BLEU is for wmt14 corpora, and this is {data_name!r}: "
            "the plain BLEU is the one that others can compare with"
        )
    check_lines(outputs, references)

    from sacrebleu import BLEU

    language = language or data_name.rpartition("-")[2]
    bleu = BLEU(tokenize="none", smooth_method="none", force=True)  # force: tokenised on purpose
    score = bleu.corpus_score(split_words(outputs, language), [split_words(references, language)])
    way = f"{bleu.get_signature()}|prep:moses-{language}+atat|sacremoses:"
    return Measure("BLEU of the paper", float(score.score), "higher", way + version("sacremoses"))


def split_words(texts: Sequence[str], language: str) -> list[str]:
    """Texts as multi-bleu expects them: words, punctuation and hyphens separated by spaces.

    Moses is Perl; sacremoses is the same in Python, down to escapes like `&quot;`. On the German
    newstest2014 it gives what tokenizer.perl 1.1 gives, in all of 3,003 lines.
    """
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError as error:
        raise UserError("the paper's BLEU needs sacremoses: pip install sacremoses") from error
    replace = MosesPunctNormalizer(language).replace_unicode_punct
    tokenize = MosesTokenizer(language).tokenize
    return [split_compounds(tokenize(replace(text), return_str=True)) for text in texts]


def split_compounds(text: str) -> str:
    """`a-b` becomes `a ##AT##-##AT## b`; as in the original, `a-b-c` splits once."""
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", text)
