"""Pictures drawn for captions that are held out, judged by a checker that knows no model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from limelight.data.batching import BatchPlan
from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig
from limelight.draw.captions import Captions
from limelight.draw.checker import Verdict, judge, read_objects
from limelight.draw.examples import Pictures, SequenceExamples, open_pictures, seeded
from limelight.draw.image_tokenizer import ImageTokenizer, token_entropy
from limelight.draw.sampling import SampledPictures, sample_in_steps
from limelight.draw.scenes import Scenes
from limelight.draw.shapes import ShapeWorld
from limelight.errors import UserError
from limelight.evaluate.tables import new_table
from limelight.loading import LoadedModel
from limelight.recipe import Recipe
from limelight.training.console import Report
from limelight.training.distributed import World
from limelight.training.evaluate import loss_on
from limelight.training.objectives import LossModule

_CAPTIONS, _QUICK = 1000, 48  # that are drawn for


def shares(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Shares of objects, relations and pictures that are right."""
    relations = sum(one.relations for one in verdicts)
    return {
        "objects": sum(one.right for one in verdicts) / sum(one.objects for one in verdicts),
        "relations": sum(one.relations_right for one in verdicts) / max(1, relations),
        "pictures": sum(one.exact for one in verdicts) / len(verdicts),
    }


@dataclass(frozen=True)
class Referee:
    """Draws for held-out captions, and judges the result."""

    pictures: Pictures
    tokenizer: Tokenizer
    image_tokenizer: ImageTokenizer
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
        rows, images = captions.tolist(), self.pictures.config
        steps = sample_in_steps(model, rows, seeds, self.tokenizer, images, self.decode)
        (drawn,) = (made for made in steps if isinstance(made, SampledPictures))
        return self.image_tokenizer.decode(drawn.ids)

    def scenes(self, count: int, split: str) -> tuple[Scenes, Captions]:
        """Scenes of a split and their captions, always the same ones."""
        generator = seeded(self.world.device, "judged", split)
        scenes = self.world.sampler.sample(split, count, generator)
        return scenes, self.world.wording.describe(scenes, generator)

    def judged(self, model: Any, count: int, split: str) -> tuple[list[str], Tensor, list[Verdict]]:
        """This many captions of shapes, what is drawn for them, and the verdicts."""
        scenes, captions = self.scenes(count, split)
        source: Any = self.pictures
        drawn = self.draw(model, source.tokens(captions.words, self.tokenizer))
        verdicts = judge(scenes, captions.sized, read_objects(drawn))
        return self.world.wording.text(captions.words), drawn, verdicts

    def samples(self, model: Any, split: str, count: int) -> tuple[list[str], Tensor]:
        """Captions, and pictures drawn for them."""
        rows = np.arange(min(count, self.pictures.count(split)))
        _, captions, _ = self.pictures.batch(split, 0, 1, rows, self.tokenizer)
        texts = [self.tokenizer.decode(row).strip() for row in captions.tolist()]
        return texts, self.draw(model, captions)

    def measure(self, model: Any) -> dict[str, float]:
        """A few scores in the middle of a training, of what the checker can read."""
        return shares(self.judged(model, _QUICK, "valid")[2]) if self.readable else {}

    @torch.no_grad()
    def rebuild(self, split: str) -> dict[str, Any]:
        """What the image tokenizer loses: errors, tokens in use, and what the checker says."""
        rows = np.arange(min(_CAPTIONS, self.pictures.count(split)))
        found: dict[str, Any] = reconstruction_scores(
            self.image_tokenizer, self.pictures.batch(split, 0, 0, rows, self.tokenizer)[0]
        )
        if self.readable:
            scenes, captions = self.scenes(_CAPTIONS, split)
            true = self.world.render(scenes)
            both = {"truth": true, "reconstructions": self.image_tokenizer(true)[0]}
            for name, shown in both.items():
                found[name] = shares(judge(scenes, captions.sized, read_objects(shown)))
        return found


@torch.no_grad()
def reconstruction_scores(model: Any, pictures: Tensor) -> dict[str, float]:
    """The mean squared error of a value, and how many tokens are in use."""
    rebuilt, ids = model(pictures)
    return {
        "mse": float((rebuilt.clamp(0, 1) - pictures).square().mean()),
        "tokens_used": ids.unique().numel(),
        "token_perplexity": float(token_entropy(ids, model.quantizer.codes).exp()),
    }


def score_drawing(loaded: LoadedModel, recipe: Recipe, split: str) -> dict[str, Any]:
    """All scores of a run on captions of a split, as the JSON document of `limelight evaluate`."""
    pictures, decode = open_pictures(recipe, loaded.device, Report(silent=True)), recipe.decode
    if not pictures.count(split):
        raise UserError(f"there is no {split} split: use --data.{split} FOLDER, or --split")
    image_tokenizer = loaded.image_tokenizer.to(loaded.device)
    referee = Referee(pictures, loaded.tokenizer, image_tokenizer, decode)
    examples = SequenceExamples(pictures, split, loaded.tokenizer, image_tokenizer)
    plan = BatchPlan(examples, batch_tokens=64 * pictures.config.positions, seed=1)
    losses = loss_on(LossModule(loaded.model), plan, World(loaded.device), "float32")
    settings = {k: getattr(decode, k) for k in ("temperature", "top_k", "guidance", "seed")}
    found = {"step": loaded.step, "split": split, **losses, "settings": settings}
    found |= referee.rebuild(split)
    if referee.readable:
        _, _, verdicts = referee.judged(loaded.model, _CAPTIONS, split)
        forms = {}
        for form in sorted({one.form for one in verdicts}):
            some = [one for one in verdicts if one.form == form]
            forms[form] = {"count": len(some), **shares(some)}
        found |= {"captions": _CAPTIONS, "drawn": shares(verdicts), "forms": forms}
    return found


def show(scores: dict[str, Any], console: Console) -> None:
    """Print the scores for people."""
    used = f"{scores['tokens_used']:,} image tokens in use"
    console.print(
        f"[bold]{scores['split']}[/]  step {scores['step']:,}, {used}, mse {scores['mse']:.5f}"
    )
    heads = ("share that is right", "captions", "objects", "relations", "pictures")
    table = new_table(heads, "lrrrr")
    lines = {"true pictures": scores.get("truth"), "reconstructions": scores.get("reconstructions")}
    lines |= {"drawn": scores.get("drawn"), **scores.get("forms", {})}
    for name, values in lines.items():
        if values:
            shares = [f"{values[key]:.1%}" for key in ("objects", "relations", "pictures")]
            table.add_row(name, str(values.get("count", scores.get("captions"))), *shares)
    console.print(table)
