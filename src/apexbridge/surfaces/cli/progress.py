"""A progress bar on a terminal, no output in a pipe."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from apexbridge.surfaces.cli.console import talk

MIN_STEPS = 2
"""Fewer steps finish too quickly for a progress bar."""


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that takes the number of finished steps and the total."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=talk, transient=True, disable=not talk.is_terminal)
    task = bar.add_task(label, total=None)

    def update(done: int, total: int) -> None:
        if total >= MIN_STEPS:
            bar.start()  # not earlier, so that short work leaves the terminal untouched
            bar.update(task, completed=done, total=total)
        if done == total:
            bar.stop()  # later output must not mix with the bar

    try:
        yield update
    finally:
        bar.stop()
