"""Two trainings in one run folder, by the package's own loop: the image tokenizer, then the model.

Both can be interrupted and resumed. The first has a folder of its own inside the run's; when its
weights are finished, the second begins with them. Between the two, the tokenizer's decoder can be
trained alone, for tokens that no longer change.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from limelight.data.batching import BatchPlan
from limelight.data.config import ImageConfig
from limelight.data.datasets import Examples, PictureBatch
from limelight.data.tokenizer import Tokenizer
from limelight.device import choose_precision
from limelight.draw.evaluate import Referee, reconstruction_scores
from limelight.draw.examples import PictureExamples, Pictures, SequenceExamples
from limelight.draw.image_tokenizer import (
    DECODER,
    FOLDER,
    ImageTokenizer,
    load_image_tokenizer,
    token_entropy,
)
from limelight.draw.png import to_pixels, write_png
from limelight.errors import UserError
from limelight.model import build
from limelight.recipe import Recipe
from limelight.run.atomic import latest_valid, make_folder, remove_stale_temp
from limelight.run.folder import RunFolder
from limelight.training.config import TrainConfig
from limelight.training.console import Report
from limelight.training.distributed import World
from limelight.training.loop import fit
from limelight.training.loss import LossSums
from limelight.training.objectives import LossModule
from limelight.training.trainer import Trainer

RECONSTRUCTIONS, SAMPLES = "reconstructions.png", "samples.png"
_SHOWN = 12  # pictures in a row of a sheet
_CLOSE = 8 / 255  # a value of a pixel this near to the true one counts as right


class ReconstructionLoss(LossModule):
    """How far reconstructed pictures are from the true ones.

    In training the second sum is the entropy of the tokens, so that the log's perplexity says how
    many of them are in use; in validation it is the loss.
    """

    def forward(self, batch: PictureBatch) -> LossSums:  # type: ignore[override]
        model: ImageTokenizer = self.model  # type: ignore[assignment]
        rebuilt, ids = model(batch.pictures)
        error = rebuilt - batch.pictures
        loss = (error.abs() + error.square()).sum()
        total = torch.full((), error.numel(), device=error.device)
        second = token_entropy(ids, model.quantizer.codes) * total if self.training else loss
        return LossSums(loss, second.detach(), (error.detach().abs() < _CLOSE).sum(), total)


class _DecoderLoss(ReconstructionLoss):
    """Of a decoder alone: the tokens of a picture are those that the finished tokenizer gives."""

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        norm: nn.Module = self.model.norm  # type: ignore[assignment]
        norm.eval()  # else each batch would be normalized by its own averages
        return self


@dataclass(frozen=True)
class PictureTraining:
    """What both trainings have in common."""

    recipe: Recipe
    run: RunFolder
    world: World
    report: Report
    pictures: Pictures
    tokenizer: Tokenizer

    @property
    def images(self) -> ImageConfig:
        return self.pictures.config

    @property
    def splits(self) -> list[str]:
        return [split for split in ("train", "valid") if self.pictures.count(split)]

    def fit(self) -> int:
        """Train what is not trained yet; 0, or the signal that stopped it."""
        inner, codes = RunFolder(self.run.path / FOLDER), f"{self.images.codes:,} tokens"
        signal = self.fit_once(inner, f"the image tokenizer, {codes}", self.tokenizer_trainer)
        if self.images.decoder_steps and not signal:
            alone = RunFolder(inner.path / DECODER)
            signal = self.fit_once(alone, "its decoder alone", self.decoder_trainer)
        if signal:
            return signal
        self.report.say("2 of 2: the model that continues a caption with image tokens")
        image_tokenizer = load_image_tokenizer(self.run, self.images).to(self.world.device)
        return fit(self.model_trainer(image_tokenizer))

    def fit_once(self, run: RunFolder, about: str, make: Callable[[RunFolder], Trainer]) -> int:
        """Train a part of the image tokenizer, if it has not been."""
        if latest_valid(run.finished)[0] is not None:
            return 0
        self.report.say(f"1 of 2: {about}")
        if self.world.is_main:
            make_folder(run.path)
            for folder in (run.path, run.checkpoints, run.finished):
                remove_stale_temp(folder)
        self.world.barrier()
        return fit(make(run))

    def trainer(
        self,
        module: LossModule,
        config: TrainConfig,
        run: RunFolder,
        examples: Callable[[str], Examples],
    ) -> Trainer:
        """A trainer for the examples of each split."""
        size: Any = config.batch_tokens  # a number: `model_trainer` refuses "auto"
        plans = {
            split: BatchPlan(
                examples(split),
                batch_tokens=size,
                seed=config.seed,
                longest=self.images.positions,
                rank=self.world.data_rank,
                ranks=self.world.data_ranks,
            )
            for split in self.splits
        }
        length = int(plans["train"].examples.lengths[0, 0])
        return Trainer(
            loss_module=module,
            batches=plans["train"],
            config=config,
            run=run,
            world=self.world,
            report=self.report,
            valid=plans.get("valid"),
            d_model=self.recipe.model.d_model,
            length_range=(length, length),
            precision=choose_precision(config.precision, self.world.device),
        )

    def tokenizer_trainer(
        self,
        run: RunFolder,
        make: Callable[..., nn.Module] = ImageTokenizer,
        objective: type[ReconstructionLoss] = ReconstructionLoss,
    ) -> Trainer:
        """The training of the image tokenizer, or of another that `make` gives."""
        torch.manual_seed(self.recipe.train.seed)
        module = objective(make(self.images.levels, self.images.channels))
        examples = partial(PictureExamples, self.pictures)
        config = _tokenizer_config(self.recipe, decoder=objective is _DecoderLoss)
        trainer = self.trainer(module, config, run, examples)

        def measure(model: nn.Module) -> dict[str, float]:
            found = reconstruction_scores(model, self.some(256))
            return {"perplexity": found.pop("token_perplexity"), **found}

        @torch.no_grad()
        def show(model: nn.Module) -> list[str]:
            pictures = self.some(_SHOWN)
            both = torch.cat([pictures, model(pictures)[0]])
            return self.write_sheet(
                RECONSTRUCTIONS, both, "pictures, and below them reconstructions"
            )

        trainer.metrics, trainer.samples = measure, show
        return trainer

    def decoder_trainer(self, run: RunFolder) -> Trainer:
        """The training of its decoder alone."""

        def trained(*_: Any) -> nn.Module:
            tokenizer = load_image_tokenizer(self.run, self.images)
            tokenizer.decoder.requires_grad_(True)
            return tokenizer

        return self.tokenizer_trainer(run, trained, _DecoderLoss)

    def some(self, count: int) -> Tensor:
        """Pictures that are not trained on, if there are such."""
        split = self.splits[-1]
        rows = np.arange(min(count, self.pictures.count(split)))
        return self.pictures.batch(split, 0, 0, rows, self.tokenizer)[0]

    def write_sheet(self, name: str, pictures: Tensor, about: str) -> list[str]:
        if self.world.is_main:
            columns = min(_SHOWN, len(pictures))
            write_png(self.run.path / name, to_pixels(pictures), columns)
        return [f"{name}: {about}"]

    def model_trainer(self, image_tokenizer: ImageTokenizer) -> Trainer:
        """The training of the Transformer."""
        recipe, config = self.recipe, self.recipe.train
        torch.manual_seed(config.seed)
        model = build(recipe.model)
        init_rows_and_columns(model, self.images)
        if isinstance(config.batch_tokens, str):
            raise UserError(
                f"batch_tokens={config.batch_tokens!r} is for texts: set --train.batch-tokens to a "
                f"multiple of {self.images.positions}, the tokens of a picture and its caption"
            )

        def examples(split: str) -> Examples:
            return SequenceExamples(self.pictures, split, self.tokenizer, image_tokenizer)

        fp8 = config.precision == "fp8"
        module = LossModule(model, config.label_smoothing, config.compile, fp8=fp8)
        trainer = self.trainer(module, config, self.run, examples)
        referee = Referee(self.pictures, self.tokenizer, image_tokenizer, recipe.decode)

        def show(model: nn.Module) -> list[str]:
            captions, drawn = referee.samples(model, self.splits[-1], _SHOWN)
            sheet = self.write_sheet(SAMPLES, drawn, "drawn for captions that are held out")
            return [*sheet, *captions[:3]]

        trainer.metrics, trainer.samples = referee.measure, show
        return trainer


def _tokenizer_config(recipe: Recipe, decoder: bool) -> TrainConfig:
    """How the image tokenizer is trained: by [images], and on the device that [train] names.

    Its decoder alone is trained with half of the learning rate.
    """
    images = recipe.images or ImageConfig()
    steps = images.steps or max(1, recipe.train.steps // 4)
    steps = images.decoder_steps if decoder else steps
    every = max(1, steps // 4)
    usual = replace(recipe.train, compile=False, cuda_graphs=False, fsdp=False, ema=0.0, patience=0)
    return replace(
        usual,
        steps=steps,
        batch_tokens=images.batch,
        schedule="linear",
        learning_rate=images.learning_rate / (2 if decoder else 1),
        warmup=min(100, steps // 10),
        beta2=0.99,
        eps=1e-8,
        weight_decay=0.0,
        clip_grad_norm=1.0,
        metric="loss",
        grad_accumulation=1,
        average_checkpoints=0,
        checkpoint_every=every,
        validate_every=every,
        freeze=(),
    )


def init_rows_and_columns(model: nn.Module, images: ImageConfig) -> None:
    """Let the learned position of a patch begin as a vector of its row plus one of its column.

    The separator predicts the first patch, so position L predicts patch 0. Sinusoidal and rotary
    positions are formulas, which stay as they are.
    """
    table = getattr(getattr(model.target, "positions", None), "weight", None)
    if table is None:
        return
    side = math.isqrt(images.tokens)
    rows, columns = (torch.randn(side, table.size(1)) * 0.014 for _ in range(2))
    with torch.no_grad():
        table[images.caption_tokens :] = (rows[:, None] + columns).flatten(0, 1)
