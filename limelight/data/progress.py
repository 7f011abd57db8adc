"""A progress counter on standard error, on a terminal alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def counting(
    what: str, console: Console | None = None, total: int | None = None
) -> Iterator[Callable[[int], object]]:
    """Show a count on a terminal, as a bar if the total is known.

    Call the function that this yields with each further number.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal or console.quiet:
        yield lambda _: None
        return
    text = TextColumn("{task.description} {task.completed:,.0f}")
    bars = () if total is None else (BarColumn(), TextColumn("of {task.total:,.0f}"))
    columns = (SpinnerColumn(), text, *bars, TimeElapsedColumn())
    # On its own rich would print to this console what goes to stdout, and the data is there.
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        yield partial(bar.advance, bar.add_task(what, total=total))
