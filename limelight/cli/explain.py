"""The command that shows one forward pass, stage by stage."""

import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from limelight.cli import io
from limelight.cli import parser as arg
from limelight.errors import UserError
from limelight.files import check_ending, with_filename

if TYPE_CHECKING:
    from limelight.decode.config import DecodeConfig
    from limelight.explain.explanation import Explanation
    from limelight.explain.trace import Trace
    from limelight.loading import LoadedModel


def explain(
    run: arg.Run,
    text: arg.Text,
    target: Annotated[str | None, arg.Argument("TEXT")] = None,
    stage: Annotated[str, arg.Argument("NAME", aliases=("--stop",))] = "",
    layer: arg.OptionalInt = None,
    head: arg.OptionalInt = None,
    word: Annotated[str | None, arg.Argument("WORD")] = None,
    patch: arg.OptionalInt = None,
    follow: arg.Switch = False,
    change: Annotated[tuple[str, ...], arg.Argument("CHANGE")] = (),
    which_head: arg.Switch = False,
    step: arg.OptionalInt = None,
    figure: arg.File = "",
    html: arg.File = "",
    animate: arg.File = "",
    tag: arg.Tag = "",
    json: arg.Switch = False,
    set: arg.DecodeSettings = (),
) -> None:
    """Walk through a trained model with your own text; every number is the model's.

    At a terminal it stops at each stage; into a pipe or a file it prints all of them.

    Args:
        text: what the model reads; for a model that fills in blanks, write ___ for a missing word
        target: explain this output instead of the model's own
        stage: only this stage, such as scores, softmax, cross, loop, loss or learning (or --stop)
        layer: show this layer, counted from 1
        head: show this head, counted from 1
        word: show this word
        patch: show this patch of a drawing, counted from 1, row by row
        follow: each generated word with its candidates and what it attended to
        change: change the model and compare: decoder.0.cross@3=off, source:3=hide; may be repeated
        which_head: switch each head off once, and rank them by what that does to the answer
        step: use the checkpoint of this training step, also of a run that is training
        figure: draw the attention into this file, .svg, .png or .pdf
        html: write the walk into this file, a self-contained page for a browser
        animate: write it into this file as a film that plays anywhere, .svg
        json: print tokens, steps, shapes, ranges and checks; with --stage, that stage
    """
    focus = {"layer": layer, "head": head, "word": word}
    views = {"--follow": follow, "--stage": stage, "--html": html, "--figure": figure}
    views["--animate"] = animate
    _check_options(views, {"--which-head": which_head, "--change": change, "--json": json}, focus)
    from limelight.explain.explanation import explain

    loaded, config = io.load_for("explain", run, arg.overrides(set), step=step)
    if "draw" in loaded.tasks:
        others = {"--target": target, "--change": change, "--which-head": which_head, "--tag": tag}
        _refuse(views | others, "--figure", why="is for texts, and this model draws")
        return _explain_drawing(loaded, text, config, patch, word, (layer, head), figure, json)
    _refuse({"--patch": patch is not None}, why="is for models that draw")
    trace = explain(loaded, text, target, config, tag=tag, change=change)
    if which_head:
        return _print_ranking(trace, json)
    if figure or html or animate:
        return _save(trace, (figure, html, animate), Path(run).resolve().name, focus)
    return _print(trace, "follow" if follow else stage, focus, json)


def _explain_drawing(
    loaded: "LoadedModel",
    caption: str,
    config: "DecodeConfig",
    patch: int | None,
    word: str | None,
    where: tuple[int | None, int | None],
    figure: str,
    as_json: bool,
) -> None:
    """Draw one picture, and show what its patches attended to."""
    from limelight.draw.explanation import explain_drawing
    from limelight.explain.trace import in_range

    if patch is not None and (figure or as_json or word is not None):
        one = "--figure" if figure else "--json" if as_json else "--word"
        raise UserError(f"{one} covers all patches: leave --patch out")
    model, images = loaded.config, loaded.recipe.images
    counts = {"layer": model.layers, "head": model.heads, "patch": images.tokens if images else 0}
    asked = zip(counts.items(), (*where, patch), strict=True)
    layer, head, at = (x if x is None else in_range(name, x, most) for (name, most), x in asked)
    found = explain_drawing(loaded.drawer(), caption, config)
    if figure:
        found.save(figure, layer, head)
        io.note(f"drawn into {figure}")
    if as_json:
        io.print_json_line(found.facts())
    elif not figure:
        found.show(io.terminal(), at, word, layer, head)


def _refuse(options: dict[str, object], *but: str, why: str) -> None:
    for option, value in options.items():
        if value and option not in but:
            raise UserError(f"{option} {why}: leave it out")


def _check_options(
    views: dict[str, object], others: dict[str, object], focus: dict[str, Any]
) -> None:
    chosen = [f"--{name}" for name, value in focus.items() if value is not None]
    # Both files together are possible, and a stage as JSON.
    for one, file in product(("--stage", "--json"), ("--html", "--figure", "--animate")):
        _check_exclusive({name: {**views, **others}[name] for name in ("--follow", one, file)})
    for option in (*views, "--change", *chosen):
        value = {**views, **others}.get(option, True)
        _check_exclusive({"--which-head": others["--which-head"], option: value})
    if others["--json"] and chosen and not views["--stage"]:
        raise UserError(f"--json covers all layers, heads and words: leave {chosen[0]} out")
    if others["--change"] and chosen and not any(views.values()):
        raise UserError(f"{chosen[0]} is for a stage: add --stage to see one of the changed model")
    if views["--figure"] and not views["--html"] and focus["word"] is not None:
        raise UserError("--figure draws all words: leave --word out")


def _check_exclusive(options: dict[str, object]) -> None:
    given = [option for option, value in options.items() if value]
    if len(given) > 1:
        raise UserError(f"{given[0]} and {given[1]} cannot be combined: choose one")


def _save(trace: "Trace", files: tuple[str, ...], name: str, focus: dict[str, Any]) -> None:
    from limelight.explain.focus import focus_on
    from limelight.explain.render import figures
    from limelight.explain.render.animation import as_svg
    from limelight.explain.render.html import LEFT_OUT, html_in_steps
    from limelight.explain.traced_text import run_through

    figure, html, animate = files
    if figure:
        view = focus_on(trace, **focus)
        figures.save(trace, Path(figure), *(None if x is None else x + 1 for x in view.asked))
        io.note(f"drawn into {figure}")
    if html:
        page, holds = run_through(html_in_steps(trace, name, **focus))
        _write(html, page, f", {len(page.encode()) / 1e6:.1f} MB: open it in a browser")
        if holds < 1:
            io.note(f"it holds {holds:.1%} of this walk: {LEFT_OUT}; limelight serve shows all")
    if animate:
        check_ending(animate, (".svg",))
        film = as_svg(trace, **focus)
        _write(animate, film, ": it plays in a browser, a README or a slide")


def _write(file: str, content: str, note: str) -> None:
    with with_filename(Path(file)):
        Path(file).write_text(content, encoding="utf-8")
    io.note(f"written into {file}{note}")


def _print_ranking(trace: "Trace", as_json: bool) -> None:
    from limelight.data.progress import counting
    from limelight.explain.comparison import all_heads, answer_logprob, answer_of, rank_heads
    from limelight.explain.render.terminal import show_ranking

    with counting("heads off", total=len(all_heads(trace))) as progress:
        ranked = rank_heads(trace, progress)
    if as_json:
        before = answer_logprob(trace, trace.logits)
        heads = [{"tap": tap, "head": head, "falls_by": effect} for tap, head, effect in ranked]
        facts = {"answer": answer_of(trace), "log_probability": before, "heads": heads}
        io.print_json_line(facts)
    else:
        show_ranking(io.terminal(), answer_of(trace), ranked)


def _print(trace: "Explanation", stage: str, focus: dict[str, Any], as_json: bool) -> None:
    from limelight.explain.render import serialize
    from limelight.explain.render.terminal import show, show_comparison, step_through
    from limelight.explain.stages import stage_at, walk
    from limelight.explain.starting_point import first_focus

    console = io.terminal()
    if stage:
        found = stage_at(trace, stage, first_focus(trace, **focus))
    if as_json:
        facts = (
            serialize.stage_data(found) if stage else serialize.manifest(trace, trace.comparison)
        )
        io.print_text(serialize.as_json(facts), end="\n")
    elif stage:
        show(console, trace, [found])
    elif trace.comparison:
        show_comparison(console, trace.comparison)
    elif sys.stdin.isatty() and console.is_terminal:
        step_through(console, trace, walk(trace, **focus), io.prompt_user)
    else:
        show(console, trace, walk(trace, **focus))
