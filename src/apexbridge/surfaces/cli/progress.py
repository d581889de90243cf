"""A progress bar on a terminal, silence in a pipe."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from apexbridge.surfaces.cli.output import talk

MIN_STEPS = 2
"""Less than this is done before anybody looks."""


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Gives a function to be told how many of how many are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=talk, transient=True, disable=not talk.is_terminal) as bar:
        task = bar.add_task(label, total=None, visible=False)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=total >= MIN_STEPS)

        yield update
