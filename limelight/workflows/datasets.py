"""What a family of models learns from: texts become tokens, and tokens batches of examples."""

from limelight.data.batching import Batches
from limelight.data.config import DataConfig, parts_of
from limelight.data.datasets import (
    BlockExamples,
    Examples,
    LabelledExamples,
    MaskedExamples,
    PairExamples,
    PromptExamples,
)
from limelight.data.progress import counting
from limelight.data.token_store import Store, prepare
from limelight.data.tokenizer import Tokenizer
from limelight.errors import UserError
from limelight.files import cache_folder
from limelight.recipe import Recipe
from limelight.training.batch_size import SMALLEST
from limelight.training.console import Report
from limelight.training.distributed import Workers


def tokenise(
    data: DataConfig, split: str, tokenizer: Tokenizer, workers: Workers, report: Report
) -> Store:
    """The store of a split; the first process makes it, the others find it."""
    stores = cache_folder() / "stores"
    if workers.first:
        with counting(f"tokenising {split}", report.console) as progress:
            prepare(data, split, tokenizer, stores, progress)
    workers.wait()
    return prepare(data, split, tokenizer, stores)


def classes_of(recipe: Recipe, data: DataConfig, store: Store) -> tuple[str, ...]:
    """The names of the classes, if texts are to be classified."""
    wanted = getattr(recipe.model, "classes", 0)
    if not wanted:
        return ()
    if data.kind != "labelled":
        raise UserError(
            f"model.classes is {wanted}, which is for labelled texts, and the data are "
            f"{data.kind}: set --data.kind labelled"
        )
    found = tuple(sorted(set(store.facts["labels"])))
    if len(found) != wanted:
        raise UserError(
            f"model.classes is {wanted}, but the data has {len(found)} labels: "
            f"{', '.join(found[:10])}"
        )
    return found


def batches_of(
    recipe: Recipe,
    store: Store,
    split: str,
    data: DataConfig,
    tokenizer: Tokenizer,
    classes: tuple[str, ...],
    workers: Workers,
) -> Batches:
    """A split as this family of models learns from it."""
    config, longest = recipe.train, recipe.model.max_len
    weights = [part.weight for part in parts_of(data, split)] if split == "train" else []
    examples = examples_of(recipe, data, tokenizer, classes, store, weights)
    return Batches(
        examples,
        config.batch_tokens if isinstance(config.batch_tokens, int) else SMALLEST,
        config.seed,
        pad=tokenizer.pad,
        longest=longest,
        rounded=config.compile or config.repeat,
        rank=workers.rank,
        ranks=workers.ranks,
        workers=config.workers,
        pinned=workers.device.type == "cuda",
    )


def examples_of(
    recipe: Recipe,
    data: DataConfig,
    tokenizer: Tokenizer,
    classes: tuple[str, ...],
    store: Store,
    weights: list[float],
) -> Examples:
    """What this family of models makes of this kind of data."""
    family, config, length = recipe.model.family, recipe.train, recipe.model.max_len
    if data.kind in ("pairs", "dialogues"):
        if family.endswith("encoder-decoder"):
            return PairExamples(store, tokenizer, weights)
        if family.endswith("decoder-only"):
            return PromptExamples(store, tokenizer, weights)
    if data.kind == "texts":
        if family.endswith("decoder-only"):
            return BlockExamples(store, tokenizer, length, config.seed, weights)
        if family == "encoder-only" and not classes:
            rate, whole = config.mask_rate, config.whole_words
            return MaskedExamples(store, tokenizer, length, config.seed, rate, whole, weights)
    if data.kind == "labelled" and family == "encoder-only" and classes:
        return LabelledExamples(store, tokenizer, classes, length, weights)
    heads = " without model.classes" if family == "encoder-only" and not classes else ""
    raise UserError(f"a model of family {family!r}{heads} cannot learn from {data.kind}")
