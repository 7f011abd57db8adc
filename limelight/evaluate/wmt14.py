"""BLEU as the paper counted it, to stand beside its table 2. For nothing else.

The paper's 27.3 and 28.4 are of tokenised texts with hyphens split off, which gives more words to
be right about: they are no match for sacrebleu's numbers. The recipe is that of the paper's own
code (tensor2tensor's get_ende_bleu.sh): Moses' replace-unicode-punctuation and tokenizer, hyphens
written as ` ##AT##-##AT## `, then multi-bleu, which does not smooth.
"""

import re
from collections.abc import Sequence
from importlib.metadata import version

from limelight.errors import UserError
from limelight.evaluate.metrics import Measure, check_lines


def is_wmt14(data_name: str) -> bool:
    """Whether the paper has a number for this corpus."""
    return data_name.startswith("wmt14-")


def paper_bleu(
    data_name: str, outputs: Sequence[str], references: Sequence[str], language: str = ""
) -> Measure:
    """The paper's BLEU of plain texts; the language is the last in the corpus' name, or as said."""
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
    way = f"{bleu.get_signature()}|prep:moses-{language}+atat|sacremoses:{version('sacremoses')}"
    return Measure("BLEU of the paper", float(score.score), signature=way)


def split_words(texts: Sequence[str], language: str) -> list[str]:
    """Texts as multi-bleu wants them: words, marks and hyphens with spaces between.

    Moses is Perl; sacremoses is the same in Python, down to escapes like `&quot;`. On the German
    newstest2014 it gives what tokenizer.perl 1.1 gives, in all of 3,003 lines.
    """
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError as error:
        raise UserError(
            "BLEU as the paper counted it needs sacremoses: pip install sacremoses"
        ) from error
    replace = MosesPunctNormalizer(language).replace_unicode_punct
    tokenize = MosesTokenizer(language).tokenize
    return [split_compounds(tokenize(replace(text), return_str=True)) for text in texts]


def split_compounds(text: str) -> str:
    """`rich-text format` becomes `rich ##AT##-##AT## text format`.

    As in the original, a letter between two hyphens belongs to the first: `a-b-c` splits once.
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", text)
