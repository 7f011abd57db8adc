"""`limelight.load(RUN).draw("a small red circle above a large blue square")`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from limelight.data.config import ImageConfig
from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig
from limelight.decode.sampling import ranked_probabilities
from limelight.draw.examples import caption_tokens, unknown_words
from limelight.draw.image_tokenizer import PATCH, ImageTokenizer
from limelight.draw.png import Pixels, base64_pngs, to_pixels, write_png
from limelight.draw.sampling import guide, sample_in_steps, with_and_without
from limelight.errors import UserError, check_count
from limelight.files import check_output
from limelight.model.taps import Recorder

_MOST = 256  # pictures in one request


@dataclass(frozen=True)
class Drawing:
    """Pictures for one caption, and how they came about."""

    caption: str
    pixels: Pixels  # n S S 3
    tokens: list[list[int]]  # of each picture, row by row
    scores: list[float]  # log p(picture | caption) - log p(picture)
    seeds: list[int]
    unknown: tuple[str, ...]  # words of the caption that the model does not know

    @property
    def note(self) -> str:
        """A sentence about unknown words, or ""."""
        if not self.unknown:
            return ""
        words = ", ".join(map(repr, self.unknown))
        return f"the model has not learned {words}: the picture may ignore what it cannot read"

    @property
    def base64_pngs(self) -> list[str]:
        """Each picture, for JSON."""
        return base64_pngs(self.pixels)

    def save(self, path: str | Path) -> None:
        """Write a PNG; several pictures are a grid."""
        check_output(path, (".png",))
        write_png(Path(path), self.pixels)


@dataclass(frozen=True)
class PatchAttention:
    """Weights where a patch was chosen; together they are 1."""

    words: list[float]  # of the caption
    padding: float  # behind the caption
    separator: float
    patches: list[float]  # those drawn before


@dataclass(frozen=True)
class PatchView:
    """One patch of a picture: what the model could choose from, most likely first."""

    tokens: list[int]
    probabilities: list[float]
    pixels: Pixels  # the picture with that token, around the patch
    words: list[str]  # of the caption, as tokens
    attention: list[PatchAttention]  # of each layer, the mean of its heads
    maps: list[list[float]]  # of each word, its weight at every patch: the mean of layers and heads

    @property
    def base64_pngs(self) -> list[str]:
        """Each picture, for JSON."""
        return base64_pngs(self.pixels)


@dataclass(frozen=True)
class ReadPicture:
    """A pass over a caption and all patches of its picture."""

    words: list[str]  # of the caption, as tokens
    guided: Tensor  # N V: logits to choose each patch by
    gain: Tensor  # N V: how much more likely the caption makes each token
    weights: Tensor  # layers, heads, N, T: of each patch, for all that is read
    caption: int  # tokens of it, with padding

    def mean_weights(self, layer: int | None = None, head: int | None = None) -> Tensor:
        """N T, of one layer or head; the mean over those that are not chosen."""
        chosen = self.weights.double()
        chosen = chosen.mean(dim=0) if layer is None else chosen[layer]
        return chosen.mean(dim=0) if head is None else chosen[head]

    def attention(
        self, patch: int, layer: int | None = None, head: int | None = None
    ) -> PatchAttention:
        """What a patch attended to when it was chosen."""
        values, words = self.mean_weights(layer, head)[patch], len(self.words)
        return PatchAttention(
            words=values[:words].tolist(),
            padding=float(values[words : self.caption].sum()),
            separator=float(values[self.caption]),
            patches=values[self.caption + 1 :][:patch].tolist(),
        )


@dataclass(frozen=True)
class Drawer:
    """A model with all that it needs to draw."""

    model: Any
    tokenizer: Tokenizer
    image_tokenizer: ImageTokenizer
    images: ImageConfig
    device: torch.device

    def draw(self, caption: str, n: int, best_of: int, config: DecodeConfig) -> Drawing:
        """`n` pictures; of each, the best of several by the model's likelihood of the caption.

        Picture i of a seed is the same whatever n is: its random numbers are its own.
        """
        *_, drawing = self.draw_in_steps(caption, n, best_of, config)
        return cast(Drawing, drawing)

    def draw_in_steps(
        self,
        caption: str,
        n: int,
        best_of: int,
        config: DecodeConfig,
        given: Sequence[int] = (),
        at_once: int = 64,
    ) -> Iterator[Tensor | Drawing]:
        """After each patch the tokens so far, of `at_once` pictures at a time; then the drawing.

        The first patches are those that are `given`, if there are any.
        """
        check_count("n", n, _MOST)
        check_count("best_of", best_of, _MOST // n)
        self.check_patches(given)
        row = caption_tokens(caption, self.tokenizer, self.images)
        seeds = [config.seed + i for i in range(n * best_of)]
        rows = [row] * len(seeds)
        settings = (self.tokenizer, self.images, config, given, at_once)
        for step in sample_in_steps(self.model, rows, seeds, *settings):
            if isinstance(step, Tensor):
                yield step
            else:
                made = step
        best = made.scores.view(n, best_of).argmax(dim=1).cpu() + torch.arange(n) * best_of
        ids = made.ids[best.to(made.ids.device)]
        yield Drawing(
            caption=caption,
            pixels=self.pixels(ids),
            tokens=ids.tolist(),
            scores=[round(float(made.scores[i]), 4) for i in best],
            seeds=[seeds[int(i)] for i in best],
            unknown=tuple(unknown_words(caption, self.tokenizer)),
        )

    def pixels(self, ids: Tensor) -> Pixels:
        """Pictures of tokens; patches that are missing are as beyond the edge."""
        tokenizer = self.image_tokenizer.to(self.device)
        return to_pixels(tokenizer.decode(ids, self.images.tokens))

    def base64_pngs(self, ids: Tensor) -> list[str]:
        """Pictures of tokens, for JSON."""
        return base64_pngs(self.pixels(ids))

    def check_patches(self, tokens: Sequence[int], fewest: int = 0) -> None:
        """Refuse tokens that cannot be those of a picture."""
        images = self.images
        if not fewest <= len(tokens) <= images.tokens:
            raise UserError(f"there are {len(tokens)} patches: a picture has {images.tokens}")
        if wrong := [token for token in tokens if not 0 <= token < images.codes]:
            raise UserError(f"{wrong[0]} is not an image token: there are 0 to {images.codes - 1}")

    @torch.no_grad()
    def read(self, caption: str, tokens: Sequence[int], config: DecodeConfig) -> "ReadPicture":
        """One pass over a whole picture, without a cache: row k is where patch k was chosen."""
        images, first = self.images, len(self.tokenizer)
        self.check_patches(tokens, fewest=images.tokens)
        row = caption_tokens(caption, self.tokenizer, images)
        ids = torch.tensor([tokens[:-1]], device=self.device)
        head = with_and_without(torch.tensor([row], device=self.device), self.tokenizer)
        with Recorder(self.model, ["*.self.weights"]) as recorder:
            logits = recorder.model(torch.cat([head, (ids + first).repeat(2, 1)], dim=1))
        guided, gain = guide(logits[:, len(row) :, first:], config)
        weights = [value[0, :, len(row) :] for value in recorder.values.values()]
        words = self.tokenizer.pieces([token for token in row if token != self.tokenizer.pad])
        return ReadPicture(
            words=[word.strip() or word for word in words],
            guided=guided[0],
            gain=gain[0],
            weights=torch.stack(weights),
            caption=len(row),
        )

    @torch.no_grad()
    def inspect(
        self, caption: str, tokens: Sequence[int], patch: int, count: int, config: DecodeConfig
    ) -> PatchView:
        """What could stand at a patch of a picture, and what the model attended to there."""
        if not 0 <= patch < self.images.tokens:
            last = self.images.tokens - 1
            raise UserError(f"there is no patch {patch}: this picture has 0 to {last}")
        config = replace(config, temperature=config.temperature or 1.0)
        read = self.read(caption, tokens, config)
        found, ranked = ranked_probabilities(read.guided[patch][None], config)
        shares, best = (found / found.sum())[0, :count], ranked[0, :count]
        others = torch.tensor([tokens], device=self.device).repeat(len(best), 1)
        others[:, patch] = best
        return PatchView(
            tokens=best.tolist(),
            probabilities=shares.tolist(),
            pixels=_around(self.pixels(others), patch),
            words=read.words,
            attention=[read.attention(patch, layer) for layer in range(len(read.weights))],
            maps=read.mean_weights()[:, : len(read.words)].T.tolist(),
        )


def _around(pixels: Pixels, patch: int) -> Pixels:
    """A patch of each picture (N S S 3) with its neighbours, 3 x 3 patches."""
    side = pixels.shape[1] // PATCH
    y, x = (PATCH * min(max(at - 1, 0), side - 3) for at in divmod(patch, side))
    return pixels[:, y : y + 3 * PATCH, x : x + 3 * PATCH]
