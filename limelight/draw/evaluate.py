"""Pictures drawn for captions that are held out, judged by a checker that knows no model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from limelight.data.config import ImageConfig
from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig
from limelight.draw.captions import Captions
from limelight.draw.checker import Verdict, judge, read_objects
from limelight.draw.examples import Pictures, open_pictures, seeded
from limelight.draw.image_tokenizer import ImageTokenizer, token_entropy
from limelight.draw.sampling import sample_pictures
from limelight.draw.scenes import Scenes
from limelight.draw.shapes import ShapeWorld
from limelight.loading import LoadedModel
from limelight.recipe import Recipe
from limelight.training.console import Report

_CAPTIONS = 1000  # that are drawn for


@dataclass(frozen=True)
class Scores:
    """Verdicts on a number of pictures."""

    verdicts: Sequence[Verdict]

    def means(self, form: str = "") -> dict[str, float]:
        """Shares of objects, relations and pictures that are right, of all or of one form."""
        some = [one for one in self.verdicts if form in ("", one.form)]
        if not some:
            return {}
        relations = sum(one.relations for one in some)
        return {
            "objects": sum(one.right for one in some) / sum(one.objects for one in some),
            "relations": sum(one.relations_right for one in some) / max(1, relations),
            "pictures": sum(one.exact for one in some) / len(some),
        }

    def by_form(self) -> dict[str, dict[str, float]]:
        forms = sorted({one.form for one in self.verdicts})
        counts = {form: sum(one.form == form for one in self.verdicts) for form in forms}
        return {form: {"count": counts[form], **self.means(form)} for form in forms}


@dataclass(frozen=True)
class Judged:
    """What is needed to draw for held-out captions, and to judge the result."""

    pictures: Pictures
    tokenizer: Tokenizer
    image_tokenizer: ImageTokenizer
    images: ImageConfig
    decode: DecodeConfig

    def draw(self, model: Any, captions: Tensor) -> Tensor:
        """A picture for each caption, B 3 S S; the seeds count up from that of the recipe."""
        seeds = [self.decode.seed + i for i in range(len(captions))]
        rows = captions.tolist()
        drawn = sample_pictures(model, rows, seeds, self.tokenizer, self.images, self.decode)
        return self.image_tokenizer.decode(drawn.ids)

    @property
    def world(self) -> ShapeWorld | None:
        """The shapes that the checker can read, if the pictures are of that kind."""
        world = getattr(self.pictures, "world", None)
        return world if isinstance(world, ShapeWorld) else None

    def scenes(self, count: int, split: str) -> tuple[Scenes, Captions]:
        """Scenes of a split and their captions, always the same ones."""
        world: Any = self.world
        generator = seeded(world.device, "judged", split)
        scenes = world.sampler.sample(split, count, generator)
        return scenes, world.wording.describe(scenes, generator)

    def tokens(self, words: Tensor) -> Tensor:
        source: Any = self.pictures
        found: Tensor = source.tokens(words, self.tokenizer)
        return found

    def samples(self, model: Any, split: str, count: int) -> tuple[list[str], Tensor]:
        """Captions, and pictures drawn for them."""
        rows = torch.arange(count).numpy()
        _, captions, _ = self.pictures.batch(split, 0, 1, rows, self.tokenizer)
        texts = [self.tokenizer.decode(row).strip() for row in captions.tolist()]
        return texts, self.draw(model, captions)


def score_pictures(judged: Judged, model: Any, count: int, split: str = "test") -> Scores:
    """Draw for this many captions of generated scenes, and judge."""
    if judged.world is None:
        return Scores([])
    scenes, described = judged.scenes(count, split)
    drawn = judged.draw(model, judged.tokens(described.words))
    return Scores(judge(scenes, described.sized, read_objects(drawn)))


def score_drawing(loaded: LoadedModel, recipe: Recipe, split: str) -> dict[str, Any]:
    """All scores of a run on captions of a split, as the JSON document of `limelight evaluate`."""
    images, report = recipe.images or ImageConfig(), Report(silent=True)
    pictures = open_pictures(recipe, loaded.device, report)
    image_tokenizer = loaded.image_tokenizer.to(loaded.device)
    judged = Judged(pictures, loaded.tokenizer, image_tokenizer, images, recipe.decode)
    settings = {k: getattr(recipe.decode, k) for k in ("temperature", "top_k", "guidance", "seed")}
    found: dict[str, Any] = {"step": loaded.step, "split": split, "settings": settings}
    found |= rebuild(judged, split)
    scores = score_pictures(judged, loaded.model, _CAPTIONS, split)
    if scores.verdicts:
        found |= {"captions": _CAPTIONS, "pictures": scores.means(), "forms": scores.by_form()}
    return found


@torch.no_grad()
def rebuild(judged: Judged, split: str) -> dict[str, Any]:
    """What the image tokenizer loses: errors, tokens in use, and what the checker says."""
    rows = np.arange(min(_CAPTIONS, judged.pictures.count(split)))
    true, _, _ = judged.pictures.batch(split, 0, 0, rows, judged.tokenizer)
    rebuilt, ids = judged.image_tokenizer(true)
    found: dict[str, Any] = {
        "mse": float((rebuilt.clamp(0, 1) - true).square().mean()),
        "tokens_used": ids.unique().numel(),
        "token_perplexity": float(token_entropy(ids, judged.images.codes).exp()),
    }
    if judged.world is not None:
        scenes, described = judged.scenes(_CAPTIONS, split)
        true = judged.world.render(scenes)
        both = {"truth": true, "reconstructions": judged.image_tokenizer(true)[0]}
        for name, shown in both.items():
            found[name] = Scores(judge(scenes, described.sized, read_objects(shown))).means()
    return found


def show(scores: dict[str, Any], console: Console) -> None:
    """Print the scores for people."""
    used = f"{scores['tokens_used']:,} image tokens in use"
    console.print(
        f"[bold]{scores['split']}[/]  step {scores['step']:,}, {used}, mse {scores['mse']:.5f}"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("share that is right", "captions", "objects", "relations", "pictures"):
        table.add_column(head, justify="left" if head.startswith("share") else "right")
    lines = {"true pictures": scores.get("truth"), "reconstructions": scores.get("reconstructions")}
    lines |= {"drawn": scores.get("pictures"), **scores.get("forms", {})}
    for name, values in lines.items():
        if values:
            shares = [f"{values[key]:.1%}" for key in ("objects", "relations", "pictures")]
            table.add_row(name, str(values.get("count", scores.get("captions"))), *shares)
    console.print(table)
