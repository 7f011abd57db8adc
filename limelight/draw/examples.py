"""Captions and pictures become batches: of pictures for the tokenizer, of tokens for the model.

A sequence is a caption, padded to a fixed length, a separator, and the tokens of the picture row by
row. Since every picture begins at the same position, a position is a row and a column: the model's
learned positions know both, and the model itself needs to know nothing of pictures.
"""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from limelight.data.config import SPLITS, DataConfig, ImageConfig
from limelight.data.corpora import held_in
from limelight.data.datasets import Lengths, LMBatch, PictureBatch, Rows
from limelight.data.registry import resolve
from limelight.data.tokenizer import Tokenizer
from limelight.draw.captions import normalize
from limelight.draw.emoji import EmojiWorld
from limelight.draw.image_files import ImageStats, captioned, on_white, read_picture
from limelight.draw.image_tokenizer import ImageTokenizer
from limelight.draw.shapes import ShapeWorld
from limelight.errors import UserError
from limelight.recipe import Recipe
from limelight.training.console import Report

_HELD_OUT = 0.05  # of the pictures of a folder: for validation, and as many to test


class GeneratedPictures:
    """Scenes made on the device. A batch depends on the seed and its position alone."""

    EPOCH, _HELD_OUT = 2**20, 512  # pictures; the next epoch has others

    def __init__(
        self, world: ShapeWorld | EmojiWorld, config: ImageConfig, seed: int, device: torch.device
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
        """All words, to learn a tokenizer from."""
        return (f" {word}" for word in self.world.wording.words[1:])

    def count(self, split: str) -> int:
        """Pictures in an epoch."""
        return self.EPOCH if split == "train" else self._HELD_OUT

    def batch(
        self, split: str, epoch: int, position: int, rows: Rows, tokenizer: Tokenizer | None
    ) -> tuple[Tensor, Tensor, torch.Generator]:
        """Pictures, B 3 S S, the tokens of their captions, B L, and what else may be random."""
        generator = seeded(self.device, self.seed, split, epoch, position)
        scenes = self.world.sampler.sample(split, len(rows), generator)
        if tokenizer is None:
            return self.world.render(scenes), torch.empty(0), generator
        words = self.world.wording.describe(scenes, generator).words
        return self.world.render(scenes), self.tokens(words, tokenizer), generator

    def tokens(self, words: Tensor, tokenizer: Tokenizer) -> Tensor:
        """The tokens of captions, B L."""
        if self.token_of is None:
            first = [tokenizer.encode(text)[0] for text in self.texts()]
            self.token_of = torch.tensor([tokenizer.pad, *first], device=self.device)
        missing = self.config.caption_tokens - words.size(1)
        return nn.functional.pad(self.token_of[words], (0, missing), value=tokenizer.pad)


class PictureFiles:
    """Pictures of files with their captions, in memory: 3 KB for one of 32 x 32."""

    def __init__(self, recipe: Recipe, device: torch.device, report: Report) -> None:
        self.config, self.seed = recipe.images or ImageConfig(), recipe.train.seed
        self.device, self.report = device, report
        self.stats, digest = ImageStats(), sha256()
        self.names: dict[str, list[str]] = {split: [] for split in SPLITS}
        self.captions: dict[str, list[str]] = {split: [] for split in SPLITS}
        pixels: dict[str, list[NDArray[np.uint8]]] = {split: [] for split in SPLITS}
        for split, name, caption, picture in _read_files(recipe.data, self.config, self.stats):
            self.names[split].append(name)
            self.captions[split].append(caption)
            pixels[split].append(picture)
            digest.update(f"{split} {caption}".encode() + picture.tobytes())
        self.stats.check(recipe.train.max_unusable, report)
        empty = np.zeros((0, self.config.size, self.config.size, 3), np.uint8)
        self.pixels = {k: torch.from_numpy(np.stack(v) if v else empty) for k, v in pixels.items()}
        self.known: dict[str, Tensor] = {}  # the tokens of the captions of a split
        self.fingerprint = digest.hexdigest()[:16]
        if not self.captions["train"]:
            raise UserError("no picture with a caption is left to train on")

    def texts(self) -> Iterable[str]:
        """The captions that are trained on."""
        return (f" {caption}" for caption in self.captions["train"])

    def count(self, split: str) -> int:
        """Pictures of a split."""
        return len(self.captions[split])

    def batch(
        self, split: str, epoch: int, position: int, rows: Rows, tokenizer: Tokenizer | None
    ) -> tuple[Tensor, Tensor, torch.Generator]:
        """Pictures, B 3 S S, the tokens of their captions, B L, and what else may be random."""
        at = torch.from_numpy(rows)
        pictures = self.pixels[split][at].to(self.device).movedim(-1, 1) / 255
        generator = seeded(self.device, self.seed, split, epoch, position)
        if tokenizer is None:
            return pictures, torch.empty(0), generator
        if split not in self.known:
            self.known[split] = self._tokens(split, tokenizer)
        return pictures, self.known[split][at].to(self.device), generator

    def _tokens(self, split: str, tokenizer: Tokenizer) -> Tensor:
        most, long = self.config.caption_tokens, ImageStats()
        found = torch.full((self.count(split), most), tokenizer.pad)
        for row, (name, caption) in enumerate(
            zip(self.names[split], self.captions[split], strict=True)
        ):
            tokens = tokenizer.encode(f" {caption}")
            found[row, : len(tokens)] = torch.tensor(tokens[:most])
            if len(tokens) > most:
                long.reject(f"{split} captions have over {most} tokens and are cut", name)
        if long.rejected:
            self.report.warn(f"{long}: --images.caption-tokens sets how many are read")
        return found


def _read_files(
    data: DataConfig, images: ImageConfig, stats: ImageStats
) -> Iterable[tuple[str, str, str, NDArray[np.uint8]]]:
    """Split, name, caption and picture (S S 3) of every file that can be used.

    If only files to train on are named, equal pictures fall into one split, by their hash.
    """
    named = {"train": data.train, "valid": data.valid, "test": data.test}
    alone = not (data.valid or data.test)
    for split, paths in named.items():
        for path in paths:
            for found in captioned(Path(path), stats):
                picture = read_picture(found, images.size, stats)
                caption = normalize(found[1])
                if picture is None or not caption:
                    if picture is not None:
                        stats.reject("without a word as a caption", found[0])
                    continue
                stats.used += 1
                pixels = on_white(picture)
                held = held_in(sha256(pixels.tobytes()).hexdigest(), data.hold_out or _HELD_OUT)
                yield held if alone else split, found[0], caption, pixels


Pictures = GeneratedPictures | PictureFiles


def seeded(device: torch.device, *parts: object) -> torch.Generator:
    """Random numbers that depend on these parts alone."""
    number = int.from_bytes(sha256(" ".join(map(str, parts)).encode()).digest()[:7])
    return torch.Generator(device).manual_seed(number)


class PictureExamples:
    """Pictures alone, for the image tokenizer."""

    weights: NDArray[np.float64] | None = None

    def __init__(self, pictures: Pictures, split: str) -> None:
        self.pictures, self.split = pictures, split
        self.lengths: Lengths = np.ones((pictures.count(split), 1), np.int64)

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
    ) -> None:
        self.pictures, self.split, self.tokenizer = pictures, split, tokenizer
        self.image_tokenizer, self.config = image_tokenizer, pictures.config
        self.lengths: Lengths = np.full((pictures.count(split), 1), self.config.positions)

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
    data, images = resolve(recipe.data), recipe.images or ImageConfig()
    if data.scenes == "shapes":
        world = ShapeWorld(images.size, device, data.scene_objects)
        return GeneratedPictures(world, images, recipe.train.seed, device)
    if not data.train:
        named = ", or --data.name emoji" if data.scenes else ""
        raise UserError(
            "name the pictures: --data.train FOLDER, with captions.jsonl or a .txt beside "
            f"each{named}"
        )
    if data.scenes == "emoji":
        emoji = EmojiWorld(images.size, device, Path(data.train[0]), report)
        return GeneratedPictures(emoji, images, recipe.train.seed, device)
    return PictureFiles(recipe, device, report)
