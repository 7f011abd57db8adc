"""The command that draws."""

import sys
from typing import Annotated

from limelight.cli import io
from limelight.cli import parser as arg
from limelight.files import check_output


def draw(
    run: arg.Run,
    caption: Annotated[str, arg.Argument("CAPTION", positional=True)],
    *,
    output: Annotated[str, arg.Argument("FILE.png", aliases=("-o",))],
    n: arg.Int = 1,
    best_of: arg.Int = 1,
    guidance: arg.DecodeFloat = None,
    temperature: arg.Temperature = None,
    top_k: arg.DecodeInt = None,
    seed: arg.Seed = None,
    json: arg.Switch = False,
    set: arg.DecodeSettings = (),
) -> None:
    """Draw a picture from a caption, and write it as a PNG file.

    Prints the name of the file. A terminal with colours shows a preview. Words that the model does
    not know are named.

    Args:
        caption: what to draw, in words that the model has learned
        output: the file to write
        n: how many pictures; several are one grid
        best_of: draw this many for each picture, and keep the one that the caption fits best
        guidance: how far to lean towards the caption; 1 is what the model learned
        top_k: sample from the N most likely image tokens; 0 means all
        json: print tokens, scores and seeds of the pictures as one JSON document
    """
    check_output(output, (".png",))
    sampling = {"guidance": guidance, "temperature": temperature, "top_k": top_k, "seed": seed}
    overrides = arg.overrides(set, **sampling)
    loaded, _ = io.load_for("draw", run, overrides)
    changes = {name.removeprefix("decode."): value for name, value in overrides.items()}
    changes.pop("precision", None)
    drawing = loaded.draw(caption, n, best_of, **changes)
    drawing.save(output)
    if drawing.note:
        io.note(drawing.note)
    if json:
        facts = {"caption": caption, "file": output, "unknown": list(drawing.unknown)}
        io.print_json_line(
            {**facts, "seeds": drawing.seeds, "scores": drawing.scores, "tokens": drawing.tokens}
        )
    else:
        io.print_line(output)
    _show_preview(drawing.pixels)


def _show_preview(pixels: object) -> None:
    from rich.console import Console

    from limelight.draw.png import as_grid, preview

    console = Console(file=sys.stderr)
    grid = as_grid(pixels)  # type: ignore[arg-type]
    if (
        console.is_terminal
        and console.color_system in ("256", "truecolor")
        and grid.shape[1] <= console.width
    ):
        console.print(preview(grid), end="")
