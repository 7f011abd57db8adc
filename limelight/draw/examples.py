"""Captions and pictures become batches: of pictures for the tokenizer, of tokens for the model.

A sequence is a caption, padded to a fixed length, a separator, and the tokens of the picture row by
row. Since every picture begins at the same position, a position is a row and a column: the model's
learned positions know both, and the model itself needs to know nothing of pictures.
"""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from limelight.data.config import ImageConfig
from limelight.data.datasets import LMBatch, PictureBatch, Rows
from limelight.data.tokenizer import Tokenizer
from limelight.draw.captions import Wording, normalize
from limelight.draw.emoji import EmojiWorld
from limelight.draw.image_tokenizer import ImageTokenizer
from limelight.draw.scenes import Scenes, SceneSampler
from limelight.draw.shapes import ShapeWorld
from limelight.errors import UserError
from limelight.recipe import Recipe
from limelight.training.console import Report


class Pictures(Protocol):
    """Pictures of all splits, with captions."""

    fingerprint: str  # of their content: a resumed run must have the same

    def texts(self) -> Iterable[str]:
        """Captions that have all words, to learn a tokenizer from."""

    def count(self, split: str) -> int:
        """Pictures in an epoch."""

    def batch(
        self, split: str, epoch: int, position: int, rows: Rows, tokenizer: Tokenizer | None
    ) -> tuple[Tensor, Tensor, torch.Generator]:
        """Pictures, B 3 S S, the tokens of their captions, B L, and what else may be random."""


class _SceneWorld(Protocol):
    """A kind of scenes that can be sampled, described and drawn."""

    fingerprint: str
    sampler: SceneSampler
    wording: Wording

    def render(self, scenes: Scenes) -> Tensor:
        """Pictures, B 3 S S."""


class GeneratedPictures:
    """Scenes made on the device. A batch depends on the seed and its position alone."""

    EPOCH = 2**20  # pictures; the next epoch has others

    def __init__(
        self, world: _SceneWorld, config: ImageConfig, seed: int, device: torch.device
    ) -> None:
        self.world, self.config, self.seed, self.device = world, config, seed, device
        if world.wording.longest > config.caption_tokens:
            raise UserError(
                f"images.caption_tokens={config.caption_tokens} is too few: these captions have "
                f"up to {world.wording.longest} words"
            )
        self.token_of: Tensor | None = None  # of each word
        self.fingerprint = world.fingerprint

    def texts(self) -> Iterable[str]:
        return (f" {word}" for word in self.world.wording.words[1:])

    def count(self, split: str) -> int:
        return self.EPOCH if split == "train" else 512

    def batch(
        self, split: str, epoch: int, position: int, rows: Rows, tokenizer: Tokenizer | None
    ) -> tuple[Tensor, Tensor, torch.Generator]:
        generator = seeded(self.device, self.seed, split, epoch, position)
        scenes = self.world.sampler.sample(split, len(rows), generator)
        if tokenizer is None:
            return self.world.render(scenes), torch.empty(0), generator
        words = self.world.wording.describe(scenes, generator).words
        return self.world.render(scenes), self.tokens(words, tokenizer), generator

    def tokens(self, words: Tensor, tokenizer: Tokenizer) -> Tensor:
        """The tokens of captions, B L."""
        if self.token_of is None:
            found = [tokenizer.encode(text) for text in self.texts()]
            first = [tokens[0] for tokens in found]
            self.token_of = torch.tensor([tokenizer.pad, *first], device=self.device)
        found_tokens = self.token_of[words]
        missing = self.config.caption_tokens - words.size(1)
        return nn.functional.pad(found_tokens, (0, missing), value=tokenizer.pad)


def seeded(device: torch.device, *parts: object) -> torch.Generator:
    """Random numbers that depend on these parts alone."""
    number = int.from_bytes(sha256(" ".join(map(str, parts)).encode()).digest()[:7])
    return torch.Generator(device).manual_seed(number)


class PictureExamples:
    """Pictures alone, for the image tokenizer."""

    weights: NDArray[np.float64] | None = None

    def __init__(self, pictures: Pictures, split: str) -> None:
        self.pictures, self.split = pictures, split
        self.lengths = np.ones((pictures.count(split), 1), np.int64)

    def batch(self, epoch: int, position: int, rows: Rows, width: Rows) -> PictureBatch:
        made, _, _ = self.pictures.batch(self.split, epoch, position, rows, None)
        return PictureBatch(position, torch.from_numpy(rows), made)


class SequenceExamples:
    """Captions continued with the tokens of their pictures, for the model."""

    weights: NDArray[np.float64] | None = None

    def __init__(
        self,
        pictures: Pictures,
        split: str,
        tokenizer: Tokenizer,
        image_tokenizer: ImageTokenizer,
        config: ImageConfig,
    ) -> None:
        self.pictures, self.split, self.tokenizer = pictures, split, tokenizer
        self.image_tokenizer, self.config = image_tokenizer, config
        self.lengths = np.full((pictures.count(split), 1), config.positions)

    @torch.no_grad()
    def batch(self, epoch: int, position: int, rows: Rows, width: Rows) -> LMBatch:
        pictures, captions, generator = self.pictures.batch(
            self.split, epoch, position, rows, self.tokenizer
        )
        with torch.autocast(pictures.device.type, torch.bfloat16, pictures.is_cuda):
            ids = self.image_tokenizer.encode(pictures)
        if self.split == "train":
            kept = torch.rand(len(ids), 1, generator=generator, device=ids.device)
            empty = kept < self.config.caption_dropout
            captions = captions.masked_fill(empty, self.tokenizer.pad)
        tokens = join(captions, ids, self.tokenizer)
        loss_mask = torch.arange(tokens.size(1), device=tokens.device) > self.config.caption_tokens
        loss_mask = loss_mask.expand(tokens.shape).contiguous()
        return LMBatch(position, torch.from_numpy(rows), tokens, None, loss_mask)


def join(captions: Tensor, ids: Tensor, tokenizer: Tokenizer) -> Tensor:
    """Caption, separator and picture as one sequence; image tokens follow those of text."""
    separator = captions.new_full((len(captions), 1), tokenizer.separator)
    return torch.cat([captions, separator, ids + len(tokenizer)], dim=1)


def caption_tokens(caption: str, tokenizer: Tokenizer, config: ImageConfig) -> list[int]:
    """A caption as the model reads it, padded; one that is too long is refused."""
    tokens = tokenizer.encode(f" {normalize(caption)}") if normalize(caption) else []
    if len(tokens) > config.caption_tokens:
        raise UserError(
            f"the caption {caption[:60]!r} has {len(tokens)} tokens, and this model reads "
            f"{config.caption_tokens} at most: shorten it"
        )
    return tokens + [tokenizer.pad] * (config.caption_tokens - len(tokens))


def unknown_words(caption: str, tokenizer: Tokenizer) -> list[str]:
    """Words that the tokenizer has no token for: the model has hardly seen them."""
    words = dict.fromkeys(normalize(caption).split())
    return [word for word in words if len(tokenizer.encode(f" {word}")) > 1]


def open_pictures(recipe: Recipe, device: torch.device, report: Report) -> Pictures:
    """The pictures that a recipe names."""
    data, images = recipe.data, recipe.images or ImageConfig()
    if data.scenes == "shapes":
        world = ShapeWorld(images.size, device, data.scene_objects)
        return GeneratedPictures(world, images, recipe.train.seed, device)
    if data.scenes == "emoji":
        if len(data.train) != 1:
            raise UserError(
                "scenes='emoji' needs the pictures to compose: --data.train FOLDER, or the archive "
                "that `npm pack emoji-datasource-twitter@16.0.0` writes"
            )
        emoji = EmojiWorld(images.size, device, Path(data.train[0]), report)
        return GeneratedPictures(emoji, images, recipe.train.seed, device)
    raise UserError("not yet")
