"""`limelight.load(RUN).draw("a small red circle above a large blue square")`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from limelight.data.config import ImageConfig
from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig
from limelight.draw.examples import caption_tokens, unknown_words
from limelight.draw.image_tokenizer import ImageTokenizer
from limelight.draw.png import Pixels, to_pixels, write_png
from limelight.draw.sampling import sample_pictures
from limelight.errors import UserError, check_count

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

    def save(self, path: str | Path) -> None:
        """Write a PNG; several pictures are a grid."""
        if Path(path).suffix.lower() != ".png":
            raise UserError(f"{path} must end in .png: that is the format that is written")
        write_png(Path(path), self.pixels)


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
        check_count("n", n, _MOST)
        check_count("best_of", best_of, _MOST // n)
        row = caption_tokens(caption, self.tokenizer, self.images)
        seeds = [config.seed + i for i in range(n * best_of)]
        made = sample_pictures(
            self.model, [row] * len(seeds), seeds, self.tokenizer, self.images, config
        )
        best = made.scores.view(n, best_of).argmax(dim=1).cpu() + torch.arange(n) * best_of
        ids = made.ids[best.to(made.ids.device)]
        pictures = self.image_tokenizer.to(self.device).decode(ids)
        return Drawing(
            caption=caption,
            pixels=to_pixels(pictures),
            tokens=ids.tolist(),
            scores=[round(float(made.scores[i]), 4) for i in best],
            seeds=[seeds[int(i)] for i in best],
            unknown=tuple(unknown_words(caption, self.tokenizer)),
        )
