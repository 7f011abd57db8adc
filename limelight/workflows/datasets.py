"""What a family of models learns from: texts become tokens, and tokens batches of examples."""

from limelight.data.batching import BatchPlan
from limelight.data.config import DataConfig
from limelight.data.corpora import corpora_for_split
from limelight.data.datasets import (
    CausalLMDataset,
    ClassificationDataset,
    Examples,
    MaskedLMDataset,
    PromptDataset,
    Seq2SeqDataset,
)
from limelight.data.progress import counting
from limelight.data.token_store import TokenStore, open_or_build
from limelight.data.tokenizer import Tokenizer
from limelight.errors import UserError
from limelight.files import cache_folder
from limelight.recipe import Recipe
from limelight.training.batch_size import SMALLEST
from limelight.training.console import Report
from limelight.training.distributed import World


def tokenize_split(
    data: DataConfig, split: str, tokenizer: Tokenizer, workers: World, report: Report
) -> TokenStore:
    """The store of a split; the first process makes it, the others find it."""
    stores = cache_folder() / "stores"
    if workers.is_main:
        with counting(f"tokenising {split}", report.console) as progress:
            open_or_build(data, split, tokenizer, stores, progress)
    workers.barrier()
    return open_or_build(data, split, tokenizer, stores)


def class_names(recipe: Recipe, data: DataConfig, store: TokenStore) -> tuple[str, ...]:
    """The names of the classes, if texts are to be classified."""
    wanted = getattr(recipe.model, "classes", 0)
    if not wanted:
        return ()
    if data.kind != "labelled":
        raise UserError(
            f"model.classes is {wanted}, which is for labelled texts, and the data are "
            f"{data.kind}: set --data.kind labelled"
        )
    found = tuple(sorted(set(store.meta["labels"])))
    if len(found) != wanted:
        raise UserError(
            f"model.classes is {wanted}, but the data has {len(found)} labels: "
            f"{', '.join(found[:10])}"
        )
    return found


def build_batches(
    recipe: Recipe,
    store: TokenStore,
    split: str,
    data: DataConfig,
    tokenizer: Tokenizer,
    classes: tuple[str, ...],
    workers: World,
) -> BatchPlan:
    """A split as this family of models learns from it."""
    config, longest = recipe.train, recipe.model.max_len
    weights = [part.weight for part in corpora_for_split(data, split)] if split == "train" else []
    examples = _build_dataset(recipe, data, tokenizer, classes, store, weights)
    return BatchPlan(
        examples,
        config.batch_tokens if isinstance(config.batch_tokens, int) else SMALLEST,
        config.seed,
        pad=tokenizer.pad,
        longest=longest,
        bucketed=config.compile or config.cuda_graphs,
        rank=workers.rank,
        ranks=workers.world_size,
        workers=config.data_workers,
        pinned=workers.device.type == "cuda",
    )


def _build_dataset(
    recipe: Recipe,
    data: DataConfig,
    tokenizer: Tokenizer,
    classes: tuple[str, ...],
    store: TokenStore,
    weights: list[float],
) -> Examples:
    """What this family of models makes of this kind of data."""
    family, config, length = recipe.model.family, recipe.train, recipe.model.max_len
    if data.kind in ("pairs", "dialogues"):
        if family.endswith("encoder-decoder"):
            return Seq2SeqDataset(store, tokenizer, weights)
        if family.endswith("decoder-only"):
            return PromptDataset(store, tokenizer, weights)
    if data.kind == "texts":
        if family.endswith("decoder-only"):
            return CausalLMDataset(store, tokenizer, length, config.seed, weights)
        if family == "encoder-only" and not classes:
            rate, whole = config.mask_rate, config.whole_word_masking
            return MaskedLMDataset(store, tokenizer, length, config.seed, rate, whole, weights)
    if data.kind == "labelled" and family == "encoder-only" and classes:
        return ClassificationDataset(store, tokenizer, classes, length, weights)
    heads = " without model.classes" if family == "encoder-only" and not classes else ""
    raise UserError(f"a model of family {family!r}{heads} cannot learn from {data.kind}")
