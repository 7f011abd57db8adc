"""What simple methods score on the test sets of `language` and of the recipe text-tasks.

python benchmarks/text_baselines.py languages     # logistic regression on words, and on n-grams
python benchmarks/text_baselines.py questions     # logistic regression on a bag of words
python benchmarks/text_baselines.py paraphrases   # the source itself

The corpora are looked for, fetched or made as everywhere. Needs scikit-learn.
"""

import sys
from dataclasses import replace

from sacrebleu.metrics import CHRF
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline

from limelight.data.config import DataConfig
from limelight.data.corpora import read_split
from limelight.data.lines import LineStats
from limelight.data.questions import QUESTIONS
from limelight.data.registry import resolve

SENTENCES = {"path": 4}  # of a paragraph at most, as in the recipe; of other tasks 5
EXAMPLES = 5000  # to learn from


def main() -> None:
    {"languages": languages, "questions": questions, "paraphrases": paraphrases}[sys.argv[1]]()


def columns(data: DataConfig, split: str) -> tuple[list[str], list[str]]:
    rows = list(read_split(resolve(data), split, LineStats()))
    return [row[0] for row in rows], [row[1] for row in rows]


def languages() -> None:
    data = DataConfig(name="languages")
    texts, labels = columns(data, "train")
    test, wanted = columns(data, "test")
    for name, features in {
        "words": TfidfVectorizer(token_pattern=r"(?u)\w+"),
        "n-grams of 1 to 3 letters": TfidfVectorizer(
            analyzer="char_wb", ngram_range=(1, 3), max_features=30_000
        ),
    }.items():
        linear = make_pipeline(features, LogisticRegression(C=10, max_iter=300)).fit(texts, labels)
        found = linear.predict(test)
        right = sum(map(str.__eq__, found, wanted)) / len(wanted)
        f1 = f1_score(wanted, found, average="macro")
        print(f"{name}: accuracy {right:.4f}, macro F1 {f1:.4f}", flush=True)


def questions() -> None:
    """The last word of the answer alone: a place, a name, a number, yes or no."""
    for task in QUESTIONS:
        data = DataConfig(toy=task, toy_length=SENTENCES.get(task, 5), toy_examples=EXAMPLES)
        texts, answers = columns(data, "train")
        known = [answer.split()[-1] for answer in answers]
        test, answers = columns(replace(data, toy_examples=10_000), "test")
        wanted = [answer.split()[-1] for answer in answers]
        right = 0
        if {*known} & {*wanted}:  # else only names that it has never seen are right
            words = make_pipeline(CountVectorizer(), LogisticRegression(max_iter=100))
            found = words.fit(texts, known).predict(test)
            right = sum(map(str.__eq__, found, wanted))
        print(f"{task}: last word right {right / len(wanted):.4f} of {len(wanted):,}", flush=True)


def paraphrases() -> None:
    sources, targets = columns(DataConfig(name="paraphrases"), "test")
    print(f"the source itself: {CHRF().corpus_score(sources, [targets])}, {len(sources):,} pairs")


if __name__ == "__main__":
    main()
