"""Tables, messages and progress bars for people. They are readable without colour."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import rich.console
from rich.cells import cell_len
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from apexbridge.surfaces.cli.terminal_text import printable

GAP = 2
MIN_TAIL_WIDTH = 20
PIPE_WIDTH = 2000
"""Width of tables that are not on a terminal, so that nothing is truncated for a program."""
MIN_STEPS = 2
"""Fewer steps finish too quickly for a progress bar."""


class Console:
    """Prints data to stdout and messages to stderr."""

    def __init__(self) -> None:
        self._out = rich.console.Console(highlight=False)
        self._err = rich.console.Console(stderr=True, highlight=False)

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str = "", one_line: bool = False
    ) -> None:
        """Print a table, or `empty` to stderr if it has no rows. `one_line` truncates the last column on a terminal."""
        cells = [[_text(value) for value in row] for row in rows]
        if not cells:
            if empty:
                self.say(empty)
            return
        grid = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
        *heads, last = map(printable, columns)
        tail_width = self._out.width
        for number, column in enumerate(heads):
            width = max(cell_len(text) for text in (column, *(row[number] for row in cells)))
            tail_width -= width + GAP
            grid.add_column(column, no_wrap=True, min_width=width)
        grid.add_column(last, overflow="fold")
        for *head, tail in cells:
            text = Text(tail)
            if one_line and self._out.is_terminal:  # truncated here because rich would drop whole columns
                text.truncate(max(tail_width, MIN_TAIL_WIDTH), overflow="ellipsis")
            grid.add_row(*map(Text, head), text)
        wide = self._out if self._out.is_terminal else rich.console.Console(highlight=False, width=PIPE_WIDTH)
        wide.print(grid)

    def facts(self, values: Mapping[str, Any]) -> None:
        """Print one key and value per line. Empty values are omitted."""
        width = max((len(key) for key in values), default=0)
        for key, value in values.items():
            if value not in (None, "", [], {}):
                self._out.print(Text.assemble((f"{printable(key):<{width}}  ", "bold"), _text(value)), soft_wrap=True)

    def line(self, text: str) -> None:
        self._out.print(Text(printable(text)), soft_wrap=True)

    def say(self, message: str, *, style: str = "") -> None:
        self._err.print(Text(printable(message), style=style), soft_wrap=True)

    def warn(self, warnings: Iterable[str]) -> None:
        for warning in warnings:
            self.say(f"warning: {warning}", style="yellow")

    @contextmanager
    def progress_bar(self, label: str) -> Iterator[Callable[[int, int], None]]:
        """Yield a function that takes the number of finished steps and the total. In a pipe nothing is printed."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        bar = Progress(*columns, console=self._err, transient=True, disable=not self._err.is_terminal)
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


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ("; " if any(" " in str(item) for item in value) else ", ").join(_text(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{printable(str(key))} {_text(item)}" for key, item in value.items())
    return printable(str(value))
