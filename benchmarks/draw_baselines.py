"""Why FSQ: against a learned codebook, and against no image tokenizer at all, at equal size.

    python benchmarks/draw_baselines.py OUT [--contestants fsq vq vq-64 pixels] [--steps 4500]

All contestants train at the same time on one device, each in its own process, with the recipe
`shapes`: the same scenes, captions, checker, sampling and loop. They differ in how a picture
becomes tokens.

fsq      the package's image tokenizer: each of 4 numbers of a patch is rounded to its levels
vq       the same autoencoder; the 4 numbers become the nearest of 1,000 learned vectors
vq-64    the same with 64 numbers, as published codebooks have them
pixels   no image tokenizer: each of 32 x 32 pixels is one of 8 x 8 x 8 colours, and the model has a
         layer more for the parameters that it saves. Its batches have as many tokens.

It writes draw_baselines.json, .md and .png into OUT: in the picture the first row is true, and each
row below it is drawn by a contestant, in the order of the table. A model that has trained for
--seconds is judged as it is then.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.data.config import ImageConfig
from limelight.data.datasets import PictureBatch
from limelight.data.tokenizer import Tokenizer
from limelight.draw.checker import judge, read_objects
from limelight.draw.evaluate import Referee, shares
from limelight.draw.examples import open_pictures
from limelight.draw.image_tokenizer import FOLDER, ImageTokenizer
from limelight.draw.png import to_pixels, write_png
from limelight.draw.sampling import SampledPictures, sample_in_steps
from limelight.draw.train import PictureTraining, ReconstructionLoss
from limelight.recipe import load_recipe
from limelight.run.atomic import make_folder
from limelight.run.folder import RunFolder
from limelight.training.console import Report
from limelight.training.distributed import init_distributed
from limelight.training.loop import fit
from limelight.training.loss import LossSums

_CODES, _COMMITMENT = 1000, 0.25  # the weight of the published VQ-VAE
_SHADES = 8  # of each of three colours
_SHOWN = 12  # pictures in a row of the figure
_BEGAN = time.monotonic()
_ABOUT = {
    "fsq": "FSQ",
    "vq": "VQ, codebook 1,000 x 4",
    "vq-64": "VQ, codebook 1,000 x 64",
    "pixels": "pixels, no tokenizer",
}


class Codebook(nn.Module):
    """The nearest of learned vectors; the gradient passes as if nothing was replaced."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.codes = _CODES
        self.entries = nn.Parameter(torch.randn(_CODES, width))  # as normalized patches are
        self.loss = torch.zeros(())

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        z = z.float()
        ids = torch.cdist(z.flatten(0, -2), self.entries.float()).argmin(dim=-1).view(z.shape[:-1])
        nearest = F.embedding(ids, self.entries)
        self.loss = F.mse_loss(nearest, z.detach()) + _COMMITMENT * F.mse_loss(z, nearest.detach())
        return z + (nearest - z).detach(), ids

    def vectors(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.entries)


class VQTokenizer(ImageTokenizer):
    """The package's autoencoder with a codebook in place of FSQ."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__((1,) * width, channels)
        self.quantizer = Codebook(width)  # type: ignore[assignment]


class VQLoss(ReconstructionLoss):
    """Reconstruction, codebook and commitment."""

    def forward(self, batch: PictureBatch) -> LossSums:  # type: ignore[override]
        sums, model = super().forward(batch), self.model
        return sums._replace(loss=sums.loss + model.quantizer.loss * sums.total)  # type: ignore


class PixelTokenizer(nn.Module):
    """Each pixel is a token: one of 512 colours."""

    quantizer = SimpleNamespace(codes=_SHADES**3)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        ids = self.encode(pictures)
        return self.decode(ids), ids

    def encode(self, pictures: Tensor) -> Tensor:
        red, green, blue = (pictures * (_SHADES - 1)).round().long().flatten(2).unbind(dim=1)
        return (red * _SHADES + green) * _SHADES + blue

    def decode(self, ids: Tensor) -> Tensor:
        colours = torch.stack([ids // _SHADES**2, ids // _SHADES % _SHADES, ids % _SHADES], dim=1)
        side = int(ids.size(1) ** 0.5)
        return (colours / (_SHADES - 1)).view(len(ids), 3, side, side)


class ManyAtOnce(Referee):
    """Draws as the package does, but more pictures at once: 1,024 steps take long."""

    def draw(self, model: Any, captions: Tensor) -> Tensor:
        seeds = [self.decode.seed + i for i in range(len(captions))]
        rows, images = captions.tolist(), self.pictures.config
        steps = sample_in_steps(
            model, rows, seeds, self.tokenizer, images, self.decode, at_once=500
        )
        (made,) = (step for step in steps if isinstance(step, SampledPictures))
        return self.image_tokenizer.decode(made.ids)


def train_tokenizer(name: str, training: PictureTraining) -> tuple[Any, float]:
    """An image tokenizer, and the seconds that it trained."""
    device = training.world.device
    if name == "pixels":
        return PixelTokenizer().to(device), 0.0
    inner = RunFolder(training.run.path / FOLDER)
    make_folder(inner.path)
    make: Callable[..., nn.Module] = ImageTokenizer
    if name != "fsq":
        width = 64 if name == "vq-64" else 4
        make = lambda levels, channels: VQTokenizer(channels, width)  # noqa: E731
    objective = ReconstructionLoss if name == "fsq" else VQLoss
    trainer = training.tokenizer_trainer(inner, make, objective)
    began = time.monotonic()
    fit(trainer)
    return trainer.loss_module.model.eval().requires_grad_(False), time.monotonic() - began


def stop_after(seconds: float) -> threading.Timer:
    """Ask the loop to stop then, as Ctrl-C does: it finishes its step."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    return timer


def compete(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Train one contestant, and judge it."""
    changes: dict[str, Any] = {
        "train.steps": given.steps,
        "train.warmup": min(500, given.steps // 10),
        "train.validate_every": given.steps,
        "train.checkpoint_every": given.steps,
        "train.compile": torch.cuda.is_available(),
        "train.batch_tokens": given.pictures * (24 + 64),
        "train.seed": given.seed,
        "images.steps": given.tokenizer_steps,
    }
    if name == "pixels":
        ImageConfig.tokens = property(lambda self: self.size**2)  # type: ignore  # not (size / 4)^2
        changes |= {"images.levels": [_SHADES] * 3, "model.layers": 7}
        # As many tokens as the others in all, and the time of an image tokenizer besides.
        changes["train.steps"] = round(given.steps * 1.15)
        changes["train.batch_tokens"] = max(1, given.pictures * 88 // 1048) * 1048
    recipe = load_recipe("shapes", changes)
    with init_distributed(recipe.train) as world:
        report = Report()
        pictures = open_pictures(recipe, world.device, report)
        tokenizer = Tokenizer.train(recipe.tokenizer.kind, pictures.texts(), recipe.tokenizer.vocab)
        run = RunFolder(Path(given.runs) / name)
        make_folder(run.path)
        training = PictureTraining(recipe, run, world, report, pictures, tokenizer)
        image_tokenizer, tokenizer_seconds = train_tokenizer(name, training)
        trainer = training.model_trainer(image_tokenizer)
        trainer.metrics, trainer.samples = (lambda model: {}), (lambda model: [])
        timer, began = stop_after(given.seconds), time.monotonic()
        fit(trainer)
        timer.cancel()
        seconds = time.monotonic() - began
        model: Any = trainer.loss_module.model.eval()
        trained = {
            "parameters": {"tokenizer": _size(image_tokenizer), "model": _size(model)},
            "tokens": recipe.images.tokens if recipe.images else 0,
            "seconds": {"tokenizer": round(tokenizer_seconds, 1), "model": round(seconds, 1)},
            "steps": trainer.state.step,
            "pictures": trainer.state.step
            * (int(changes["train.batch_tokens"]) // recipe.model.max_len),
        }
        referee = ManyAtOnce(pictures, tokenizer, image_tokenizer, recipe.decode)
        return {"name": name, **trained, **judged(referee, model, given, run.path)}


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.dim() > 0)


def judged(referee: Referee, model: Any, given: argparse.Namespace, run: Path) -> dict[str, Any]:
    """All scores on held-out captions; the pictures go into a file."""
    scenes, captions = referee.scenes(given.captions, "test")
    true = referee.world.render(scenes)
    found = referee.rebuild("test")
    began = time.monotonic()
    source: Any = referee.pictures
    drawn = referee.draw(model, source.tokens(captions.words, referee.tokenizer))
    found["draw_seconds"] = round(time.monotonic() - began, 1)
    found["captions"] = referee.world.wording.text(captions.words[:_SHOWN])
    found["drawn"] = shares(judge(scenes, captions.sized, read_objects(drawn)))
    np.savez(run / "shown.npz", true=to_pixels(true[:_SHOWN]), drawn=to_pixels(drawn[:_SHOWN]))
    return found


def table(results: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    heads = ("", "parameters, M", "tokens", "codes used", "trained, s", "pictures seen, M")
    heads += ("rebuilt: objects", "relations", "drawn: objects", "relations", "pictures")
    lines = [f"| {' | '.join(heads)} |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for one in results:
        rebuilt, drawn = one["reconstructions"], one["drawn"]
        cells = [
            _ABOUT[one["name"]],
            f"{one['parameters']['tokenizer'] / 1e6:.2f} + {one['parameters']['model'] / 1e6:.2f}",
            f"{one['tokens']:,}",
            f"{one['tokens_used']:,}",
            f"{one['seconds']['tokenizer']:.0f} + {one['seconds']['model']:.0f}",
            f"{one['pictures'] / 1e6:.2f}",
            *(f"{100 * rebuilt[k]:.1f}" for k in ("objects", "relations")),
            *(f"{100 * drawn[k]:.1f}" for k in ("objects", "relations", "pictures")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _finished(process: "subprocess.Popen[bytes]", limit: float) -> bool:
    """Whether a contestant ended well before the time, which is measured from the start of all."""
    try:
        return process.wait(max(1.0, limit - time.monotonic() + _BEGAN)) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        return False


def main() -> None:
    wanted = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    wanted.add_argument("out", type=Path)
    wanted.add_argument("--contestants", nargs="+", default=list(_ABOUT), choices=list(_ABOUT))
    wanted.add_argument("--steps", type=int, default=4500)
    wanted.add_argument("--tokenizer-steps", type=int, default=2500)
    wanted.add_argument("--pictures", type=int, default=512, help="in a batch")
    wanted.add_argument("--captions", type=int, default=1000)
    wanted.add_argument("--seconds", type=float, default=380.0, help="that a model trains at most")
    wanted.add_argument("--limit", type=float, default=570.0, help="seconds for all of it")
    wanted.add_argument("--seed", type=int, default=1)
    wanted.add_argument("--runs", default="runs/draw_baselines")
    wanted.add_argument("--one", choices=list(_ABOUT), help=argparse.SUPPRESS)
    given = wanted.parse_args()
    if given.one:
        result = compete(given.one, given)
        (Path(given.runs) / given.one / "result.json").write_text(json.dumps(result))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    began = {}
    for name in given.contestants:
        with open(given.out / f"{name}.log", "w", encoding="utf-8") as log:
            command = [sys.executable, *sys.argv, "--one", name]
            began[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    failed = [name for name, process in began.items() if not _finished(process, given.limit)]
    done = [name for name in given.contestants if name not in failed]
    files = [Path(given.runs) / name for name in done]
    results = [json.loads((file / "result.json").read_text()) for file in files]
    shown = [np.load(file / "shown.npz") for file in files]
    (given.out / "draw_baselines.json").write_text(json.dumps(results, indent=1))
    (given.out / "draw_baselines.md").write_text(table(results))
    print(table(results))
    if shown:
        rows = np.concatenate([shown[0]["true"], *(each["drawn"] for each in shown)])
        write_png(given.out / "draw_baselines.png", rows, len(shown[0]["true"]))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}: see their logs in {given.out}")


if __name__ == "__main__":
    main()
