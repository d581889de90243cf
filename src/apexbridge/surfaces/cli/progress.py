"""A progress bar on a terminal, silence in a pipe."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from apexbridge.surfaces.cli.console import talk

MIN_STEPS = 2
"""Less than this is done before anybody looks."""


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Gives a function to be told how many of how many are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=talk, transient=True, disable=not talk.is_terminal)
    task = bar.add_task(label, total=None)

    def update(done: int, total: int) -> None:
        if total >= MIN_STEPS:
            bar.start()  # only now: a terminal is not touched for nothing
            bar.update(task, completed=done, total=total)
        if done == total:
            bar.stop()  # whatever comes next has the terminal to itself

    try:
        yield update
    finally:
        bar.stop()
