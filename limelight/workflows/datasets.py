"""The data of a recipe: texts become tokens, and tokens batches for a family of models."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limelight.data.batching import BatchPlan
from limelight.data.bpe_dropout import BpeDropout, merged_from, split_store
from limelight.data.config import DataConfig
from limelight.data.corpora import corpora_for_split
from limelight.data.datasets import (
    CausalLMDataset,
    ClassificationDataset,
    ContrastiveDataset,
    Examples,
    MaskedLMDataset,
    PromptDataset,
    Seq2SeqDataset,
    lengths_of,
)
from limelight.data.progress import counting
from limelight.data.registry import with_registry_defaults
from limelight.data.token_store import TokenStore, open_or_build
from limelight.data.tokenizer import Tokenizer
from limelight.errors import UserError
from limelight.files import cache_folder
from limelight.recipe import Recipe
from limelight.training.batch_size import SMALLEST
from limelight.training.console import Report
from limelight.training.distributed import World


def tokenize_splits(
    data: DataConfig, splits: Sequence[str], tokenizer: Tokenizer, world: World, report: Report
) -> dict[str, TokenStore]:
    """The token stores of some splits; the main process builds them, the others open them."""
    folder = cache_folder() / "stores"
    for split in splits if world.is_main else ():
        with counting(f"tokenizing {split}", report.console) as progress:
            open_or_build(data, split, tokenizer, folder, progress)
    world.barrier()
    return {split: open_or_build(data, split, tokenizer, folder) for split in splits}


def class_names(recipe: Recipe, data: DataConfig, store: TokenStore) -> tuple[str, ...]:
    """The names of the classes, if the model is a classifier: as many as it says, or all."""
    wanted = getattr(recipe.model, "classes", 0)
    if data.kind != "labelled" or recipe.model.family != "encoder-only":
        if not wanted:
            return ()
        raise UserError(
            f"model.classes is {wanted}, which is for labelled texts, and the data are "
            f"{data.kind}: set --data.kind labelled"
        )
    found = tuple(sorted(set(store.meta["labels"])))
    many = f"{len(found):,} labels: {', '.join(found[:10])}"
    if wanted and len(found) != wanted:
        raise UserError(
            f"model.classes is {wanted}, but the data has {many}; --model.classes 0 counts them"
        )
    if len(found) < 2:
        raise UserError(f"there is nothing to learn from one label ({found[0]}): use two or more")
    if not wanted and len(found) > max(100, len(store) // 2):
        raise UserError(
            f"the data has {many}, ... for {len(store):,} texts: is the column right? If so, set "
            f"--model.classes {len(found)}"
        )
    return found


def is_sentence_encoder(recipe: Recipe) -> bool:
    """Whether a model has no head, and its vectors are all that it gives."""
    model: Any = recipe.model
    if model.family != "encoder-only" or model.masked_head or model.classes:
        return False
    return with_registry_defaults(recipe.data).kind != "labelled"  # whose classes are counted later


@dataclass(frozen=True)
class TokenizedData:
    """A recipe with its data as tokens, and what is needed to make batches of them."""

    recipe: Recipe
    data: DataConfig  # the recipe's, with its files
    tokenizer: Tokenizer
    stores: dict[str, TokenStore]  # by split
    classes: tuple[str, ...]
    world: World

    def batches(self, split: str) -> BatchPlan:
        config, size = self.recipe.train, self.recipe.train.batch_tokens
        return BatchPlan(
            self._dataset(split, self.stores[split]),
            batch_tokens=size if isinstance(size, int) else SMALLEST,
            seed=config.seed,
            pad=self.tokenizer.pad,
            longest=min(self.recipe.model.max_len, config.pack or self.recipe.model.max_len),
            bucketed=config.compile or config.cuda_graphs,
            packed=config.pack,
            rank=self.world.data_rank,
            ranks=self.world.data_ranks,
            workers=config.data_workers,
            pinned=self.world.device.type == "cuda",
            redrawn=self._redrawn() if split == "train" and config.bpe_dropout else None,
        )

    def _redrawn(self) -> Callable[[int], Examples]:
        """The training examples of an epoch, with some tokens in pieces."""
        rate, seed = self.recipe.train.bpe_dropout, self.recipe.train.seed
        endless = self.data.kind == "texts"
        if endless or not self.tokenizer.merges:
            lacks = "a tokenizer without merges, or an imported one"
            raise UserError(
                f"bpe_dropout={rate} undoes the merges of examples one by one, and this is "
                f"{'texts end to end' if endless else lacks}: set --train.bpe-dropout 0"
            )
        dropout, store = BpeDropout(merged_from(self.tokenizer), rate), self.stores["train"]

        @lru_cache(maxsize=2)
        def of_epoch(epoch: int) -> Examples:
            return self._dataset("train", split_store(store, dropout, seed, epoch))

        return of_epoch

    @property
    def answer_share(self) -> float:
        """What answers have of source and answer together, at most a half.

        It is that of the longest tenth of the training sources, and 99 of 100 of them need no more:
        the answer to a short source may be many times as long, and says nothing of long ones.
        """
        store = self.stores["train"]
        if len(store.columns) != 2:
            return 0.5
        sizes = lengths_of(store)
        source, target = sizes[sizes[:, 0] >= np.percentile(sizes[:, 0], 90)].T
        return min(0.5, float(np.percentile(target / (source + target), 99, method="higher")))

    @property
    def class_weights(self) -> Tensor:
        """n / (classes * texts of the class): all classes count the same, and a text 1 on average.

        scikit-learn calls these weights "balanced".
        """
        counts = Counter(self.stores["train"].meta["labels"])
        sizes = torch.tensor([counts[name] for name in self.classes])
        return sizes.sum() / (len(sizes) * sizes)

    def _dataset(self, split: str, store: TokenStore) -> Examples:
        family, kind, config = self.recipe.model.family, self.data.kind, self.recipe.train
        tokenizer, length = self.tokenizer, self.recipe.model.max_len
        parts = corpora_for_split(self.data, split) if split == "train" else []
        weights = [part.weight for part in parts]
        if kind in ("pairs", "dialogues"):
            if family.endswith("encoder-decoder"):
                return Seq2SeqDataset(store, tokenizer, weights)
            if family.endswith("decoder-only"):
                return PromptDataset(store, tokenizer, weights)
        masked_head = getattr(self.recipe.model, "masked_head", False)
        if kind == "pairs" and is_sentence_encoder(self.recipe):
            return ContrastiveDataset(store, tokenizer, weights)
        if kind == "texts":
            if family.endswith("decoder-only"):
                return CausalLMDataset(store, tokenizer, length, config.seed, weights)
            if family == "encoder-only" and masked_head and not self.classes:
                rate, words = config.mask_rate, config.whole_word_masking
                return MaskedLMDataset(store, tokenizer, length, config.seed, rate, words, weights)
        if kind == "labelled" and family == "encoder-only" and self.classes:
            return ClassificationDataset(store, tokenizer, self.classes, length, weights)
        heads = ""
        if family == "encoder-only" and not self.classes:
            heads = f" without model.classes, with masked_head={masked_head},"
        raise UserError(f"a model of family {family!r}{heads} cannot learn from {kind}")
