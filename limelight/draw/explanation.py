"""What `limelight.load(RUN).explain(CAPTION)` returns of a model that draws.

A picture is drawn, and then read once more in one pass without a cache. The checks say whether that
pass is the drawing: the same patches by the same random numbers, and the same score.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from limelight.decode.config import DecodeConfig
from limelight.decode.sampling import uniform_draws
from limelight.draw.drawing import Drawer, Drawing, ReadPicture
from limelight.draw.png import preview
from limelight.draw.sampling import choose
from limelight.errors import unknown_name
from limelight.explain.render.figures import KINDS, file_style
from limelight.explain.render.serialize import check_data
from limelight.explain.render.terminal import check_line, show_facts, show_figure
from limelight.explain.stage import Check, Heatmap, TableFigure
from limelight.files import check_ending, with_filename

_CANDIDATES = 6
_COLUMNS = 5  # of a figure


@dataclass(frozen=True)
class ExplainedDrawing:
    """A picture, and the pass over it. Patches, layers and heads count from 0 here."""

    drawer: Drawer
    config: DecodeConfig
    drawing: Drawing
    read: ReadPicture

    @property
    def tokens(self) -> Tensor:
        return torch.tensor(self.drawing.tokens[0], device=self.read.guided.device)

    @property
    def probabilities(self) -> Tensor:
        """Of the token of each patch, N, before any are left out by top-k and the like."""
        logits = self.read.guided / (self.config.temperature or 1.0)
        return logits.softmax(dim=-1).gather(1, self.tokens[:, None])[:, 0]

    def word(self, word: str, layer: int | None = None, head: int | None = None) -> Tensor:
        """The weight of a word of the caption where each patch was chosen, rows and columns."""
        at = [i for i, each in enumerate(self.read.words) if each == word]
        if not at:
            raise unknown_name("word of the caption", word, self.read.words)
        return self.grid(self.read.mean_weights(layer, head)[:, at].sum(dim=1))

    def grid(self, values: Tensor) -> Tensor:
        """A value for each patch, in rows and columns as in the picture."""
        return values.view(math.isqrt(len(values)), -1)

    @property
    def checks(self) -> list[Check]:
        read, tokens, weights = self.read, self.tokens, self.read.weights
        draws = uniform_draws(self.drawing.seeds[0], len(tokens)).to(tokens.device)
        other = (choose(read.guided, draws, self.config) != tokens).sum()
        score = read.gain.gather(1, tokens[:, None]).sum()
        later = torch.ones(weights.shape[-2:], device=weights.device).triu(read.caption + 1)
        return [
            Check("a pass without a cache chooses the same patches", float(other), 0),
            Check("its score is the drawing's", abs(float(score) - self.drawing.scores[0]), 2e-3),
            Check("weights sum to 1", float((weights.sum(dim=-1) - 1).abs().max()), 1e-5),
            Check("no weight for what comes later", float((weights * later).max()), 0),
        ]

    def facts(self) -> dict[str, Any]:
        """All of it as a JSON document; `weights` by layer, head, patch, and what is read."""
        drawing, read = self.drawing, self.read
        padding = ["⟨padding⟩"] * (read.caption - len(read.words))
        patches = [f"patch {i + 1}" for i in range(len(self.tokens) - 1)]
        return {
            "caption": drawing.caption,
            "unknown": list(drawing.unknown),
            "seed": drawing.seeds[0],
            "score": drawing.scores[0],
            "tokens": drawing.tokens[0],
            "probabilities": self.probabilities.tolist(),
            "reads": [*read.words, *padding, "⟨separator⟩", *patches],
            "weights": read.weights.double().round(decimals=6).tolist(),
            "checks": [check_data(check) for check in self.checks],
        }

    def show(
        self, console: Console, patch: int | None, word: str | None, *where: int | None
    ) -> None:
        """Print the picture; then a word, or a patch: if none is chosen, the least certain one."""
        drawing, side = self.drawing, math.isqrt(len(self.tokens))
        weights = None if word is None else self.word(word, *where)  # or it is refused
        facts = ("caption", drawing.caption, "bold"), ("note", drawing.note or None, "yellow")
        seed = f"{drawing.seeds[0]}, score {drawing.scores[0]:.2f}"
        show_facts(console, *facts, ("seed", seed, ""))
        if console.color_system in ("256", "truecolor"):
            console.print(preview(drawing.pixels[0]), end="")
        numbers = [str(i + 1) for i in range(side)]
        if weights is None and patch is None:
            best = self.read.mean_weights(*where)[:, : len(self.read.words)].argmax(dim=1)
            rows = [[self.read.words[i] for i in row] for row in self.grid(best).tolist()]
            title = f"The word that each patch attended to most ({_name(*where)})"
            show_figure(console, TableFigure(title, numbers, rows))
        if weights is not None:
            title = f"Weight of {word!r} where each patch was chosen ({_name(*where)})"
            show_figure(console, _map(title, weights, numbers))
        else:
            least = int(self.probabilities.argmin())
            for figure in self.patch_figures(least if patch is None else patch, numbers, *where):
                show_figure(console, figure)
        console.print()
        for check in self.checks:
            console.print(check_line(check))

    def patch_figures(
        self, patch: int, numbers: Sequence[str], *where: int | None
    ) -> list[Heatmap | TableFigure]:
        """The candidates for a patch, and the words and patches that it attended to."""
        token, (row, column) = self.drawing.tokens[0][patch], divmod(patch, len(numbers))
        caption, config = self.drawing.caption, self.config
        tokens = self.drawing.tokens[0]
        view = self.drawer.inspect(caption, tokens, patch, _CANDIDATES, config)
        name = f"Patch {patch + 1}, in row {row + 1} and column {column + 1}"
        rows = list(zip(map(str, view.tokens), view.probabilities, strict=True))
        chosen = view.tokens.index(token) if token in view.tokens else None
        title = f"{name}: candidates for its token, which is {token}"
        found = self.read.attention(patch, *where)
        words = list(zip(self.read.words, found.words, strict=True))
        words += [("⟨padding⟩", found.padding), ("⟨separator⟩", found.separator)]
        words += [("all patches before it", sum(found.patches))]
        later = [-math.inf] * (len(tokens) - patch)  # as a mask has it
        earlier = torch.tensor([*found.patches, *later])
        return [
            TableFigure(title, ("token", "probability"), rows, 1, chosen),
            TableFigure(f"What it attended to ({_name(*where)})", ("", "weight"), words, 1),
            _map("The patches before it, by weight", self.grid(earlier), numbers, (row, column)),
        ]

    def save(self, path: str | Path, layer: int | None = None, head: int | None = None) -> None:
        """Draw the picture, and the weight of each word over it, into .svg, .png or .pdf."""
        check_ending(path, KINDS)
        from matplotlib.figure import Figure

        words = list(dict.fromkeys(self.read.words))
        pixels = self.drawing.pixels[0]
        rows = -(-(1 + len(words)) // _COLUMNS)
        with file_style(), with_filename(Path(path)):
            figure = Figure(figsize=(1.5 * _COLUMNS, 1.75 * rows + 0.3), layout="constrained")
            figure.suptitle(self.drawing.caption, fontsize=10)
            panels = figure.subplots(rows, _COLUMNS, squeeze=False).flatten()
            for panel in panels:
                panel.axis("off")
            panels[0].imshow(pixels, interpolation="nearest")
            panels[0].set_title("drawn")
            for panel, word in zip(panels[1:], words, strict=False):
                weights = self.word(word, layer, head).cpu().numpy()
                extent = (-0.5, len(pixels) - 0.5, len(pixels) - 0.5, -0.5)
                panel.imshow(pixels.mean(axis=-1), cmap="gray", vmin=0, vmax=255)
                panel.imshow(weights, cmap="Reds", alpha=0.65, vmin=0, extent=extent)
                panel.set_title(f"{word}\nup to {float(weights.max()):.0%}", fontsize=8)
            figure.savefig(path, dpi=160)


def explain_drawing(drawer: Drawer, caption: str, config: DecodeConfig) -> ExplainedDrawing:
    """Draw one picture, and read it."""
    drawing = drawer.draw(caption, 1, 1, config)
    read = drawer.read(caption, drawing.tokens[0], config)
    return ExplainedDrawing(drawer, config, drawing, read)


def _name(layer: int | None = None, head: int | None = None) -> str:
    layers = "mean of all layers" if layer is None else f"layer {layer + 1}"
    return f"{layers}, {'mean of all heads' if head is None else f'head {head + 1}'}"


def _map(
    title: str,
    values: Tensor,
    numbers: Sequence[str],
    focus: tuple[int | None, int | None] = (None, None),
) -> Heatmap:
    names = ("row", "column")
    return Heatmap(title, (), values, numbers, numbers, names, "size", focus=focus)
