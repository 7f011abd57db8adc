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

from limelight.data.batching import BatchPlan
from limelight.data.config import ImageConfig
from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig
from limelight.draw.captions import Captions
from limelight.draw.checker import Verdict, judge, read_objects
from limelight.draw.examples import Pictures, SequenceExamples, open_pictures, seeded
from limelight.draw.image_tokenizer import ImageTokenizer, token_entropy
from limelight.draw.sampling import sample_pictures
from limelight.draw.scenes import Scenes
from limelight.draw.shapes import ShapeWorld
from limelight.errors import UserError
from limelight.loading import LoadedModel
from limelight.recipe import Recipe
from limelight.training.console import Report
from limelight.training.distributed import World
from limelight.training.evaluate import loss_on
from limelight.training.objectives import LossModule

_CAPTIONS, _QUICK = 1000, 48  # that are drawn for


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
class Referee:
    """Draws for held-out captions, and judges the result."""

    pictures: Pictures
    tokenizer: Tokenizer
    image_tokenizer: ImageTokenizer
    images: ImageConfig
    decode: DecodeConfig

    @property
    def world(self) -> Any:
        """What generates the scenes, if something does."""
        return getattr(self.pictures, "world", None)

    @property
    def readable(self) -> bool:
        """Whether the checker can read the pictures."""
        return isinstance(self.world, ShapeWorld)

    def draw(self, model: Any, captions: Tensor) -> Tensor:
        """A picture for each caption, B 3 S S; the seeds count up from that of the recipe."""
        seeds = [self.decode.seed + i for i in range(len(captions))]
        rows = captions.tolist()
        drawn = sample_pictures(model, rows, seeds, self.tokenizer, self.images, self.decode)
        return self.image_tokenizer.decode(drawn.ids)

    def scenes(self, count: int, split: str) -> tuple[Scenes, Captions]:
        """Scenes of a split and their captions, always the same ones."""
        generator = seeded(self.world.device, "judged", split)
        scenes = self.world.sampler.sample(split, count, generator)
        return scenes, self.world.wording.describe(scenes, generator)

    def score(self, model: Any, count: int, split: str) -> Scores:
        """Draw for this many captions of shapes, and judge."""
        scenes, captions = self.scenes(count, split)
        source: Any = self.pictures
        drawn = self.draw(model, source.tokens(captions.words, self.tokenizer))
        return Scores(judge(scenes, captions.sized, read_objects(drawn)))

    def samples(self, model: Any, split: str, count: int) -> tuple[list[str], Tensor]:
        """Captions, and pictures drawn for them."""
        _, captions, _ = self.pictures.batch(split, 0, 1, np.arange(count), self.tokenizer)
        texts = [self.tokenizer.decode(row).strip() for row in captions.tolist()]
        return texts, self.draw(model, captions)

    def measure(self, model: Any) -> dict[str, float]:
        """A few scores in the middle of a training, of what the checker can read."""
        return self.score(model, _QUICK, "valid").means() if self.readable else {}

    @torch.no_grad()
    def rebuild(self, split: str) -> dict[str, Any]:
        """What the image tokenizer loses: errors, tokens in use, and what the checker says."""
        rows = np.arange(min(_CAPTIONS, self.pictures.count(split)))
        true, _, _ = self.pictures.batch(split, 0, 0, rows, self.tokenizer)
        rebuilt, ids = self.image_tokenizer(true)
        found: dict[str, Any] = {
            "mse": float((rebuilt.clamp(0, 1) - true).square().mean()),
            "tokens_used": ids.unique().numel(),
            "token_perplexity": float(token_entropy(ids, self.images.codes).exp()),
        }
        if self.readable:
            scenes, captions = self.scenes(_CAPTIONS, split)
            true = self.world.render(scenes)
            for name, shown in {
                "truth": true,
                "reconstructions": self.image_tokenizer(true)[0],
            }.items():
                found[name] = Scores(judge(scenes, captions.sized, read_objects(shown))).means()
        return found


def score_drawing(loaded: LoadedModel, recipe: Recipe, split: str) -> dict[str, Any]:
    """All scores of a run on captions of a split, as the JSON document of `limelight evaluate`."""
    images, decode = recipe.images or ImageConfig(), recipe.decode
    pictures = open_pictures(recipe, loaded.device, Report(silent=True))
    if not pictures.count(split):
        raise UserError(f"there is no {split} split: use --data.{split} FOLDER, or --split")
    image_tokenizer = loaded.image_tokenizer.to(loaded.device)
    referee = Referee(pictures, loaded.tokenizer, image_tokenizer, images, decode)
    examples = SequenceExamples(pictures, split, loaded.tokenizer, image_tokenizer, images)
    plan = BatchPlan(examples, batch_tokens=64 * images.positions, seed=1)
    losses = loss_on(LossModule(loaded.model), plan, World(loaded.device), "float32")
    settings = {k: getattr(decode, k) for k in ("temperature", "top_k", "guidance", "seed")}
    found = {"step": loaded.step, "split": split, **losses, "settings": settings}
    found |= referee.rebuild(split)
    if referee.readable:
        scores = referee.score(loaded.model, _CAPTIONS, split)
        found |= {"captions": _CAPTIONS, "drawn": scores.means(), "forms": scores.by_form()}
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
    lines |= {"drawn": scores.get("drawn"), **scores.get("forms", {})}
    for name, values in lines.items():
        if values:
            shares = [f"{values[key]:.1%}" for key in ("objects", "relations", "pictures")]
            table.add_row(name, str(values.get("count", scores.get("captions"))), *shares)
    console.print(table)
