"""Tables, messages and progress bars for people; plain lines for programs.

rich is imported for a terminal only: a command in a pipe needs none of it.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from apexbridge.surfaces.cli.hints import with_options
from apexbridge.surfaces.cli.terminal_text import printable

if TYPE_CHECKING:
    import rich.console

GAP = 2
MIN_TAIL_WIDTH = 20
MIN_STEPS = 2
"""Fewer steps finish too quickly for a progress bar."""


class Console:
    """Prints data to stdout and messages to stderr."""

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str = "", one_line: bool = False
    ) -> None:
        """Print a table, or `empty` to stderr if it has no rows. `one_line` truncates the last column on a terminal.

        In a pipe, each row is a line of values with tabs between them.
        """
        cells = [[_text(value) for value in row] for row in rows]
        if not cells:
            if empty:
                self.say(empty)
        elif sys.stdout.isatty():
            self._print_grid(columns, cells, one_line=one_line)
        else:
            sys.stdout.writelines("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in cells)

    def _print_grid(self, columns: Sequence[str], cells: Sequence[Sequence[str]], *, one_line: bool) -> None:
        from rich.cells import cell_len
        from rich.table import Table
        from rich.text import Text

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
            if one_line:  # truncated here because rich would drop whole columns
                text.truncate(max(tail_width, MIN_TAIL_WIDTH), overflow="ellipsis")
            grid.add_row(*map(Text, head), text)
        self._out.print(grid)

    def facts(self, values: Mapping[str, Any]) -> None:
        """Print one key and value per line. Empty values are omitted."""
        width = max((len(key) for key in values), default=0)
        for key, value in values.items():
            if value not in (None, "", [], {}):
                head, text = f"{printable(key):<{width}}  ", _text(value)
                if sys.stdout.isatty():
                    from rich.text import Text

                    self._out.print(Text.assemble((head, "bold"), text), soft_wrap=True)
                else:
                    sys.stdout.write(f"{head}{text}\n")

    def line(self, text: str) -> None:
        sys.stdout.write(f"{printable(text)}\n")

    def say(self, message: str, *, style: str = "") -> None:
        """Print a message. Commands in it get this command's `--data-dir` and `--url`."""
        text = printable(with_options(message))
        if style and sys.stderr.isatty():
            from rich.text import Text

            self._err.print(Text(text, style=style), soft_wrap=True)
        else:
            sys.stderr.write(f"{text}\n")

    def warn(self, warnings: Iterable[str]) -> None:
        for warning in warnings:
            self.say(f"warning: {warning}", style="yellow")

    def say_more(self, shown: int, page: Mapping[str, Any]) -> None:
        """Say how to see the next page of a list, if there is one."""
        if shown and page["total"] > page["page"] * page["limit"]:
            self.say(f"{shown} of {page['total']}; more with --page {page['page'] + 1}")

    @contextmanager
    def working(self, label: str) -> Iterator[None]:
        """Show a spinner on a terminal while the block runs. In a pipe nothing is printed."""
        if not sys.stderr.isatty():
            yield
            return
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        with Progress(*columns, console=self._err, transient=True) as bar:
            bar.add_task(printable(label), total=None)
            yield

    @contextmanager
    def progress_bar(self, label: str) -> Iterator[Callable[[int, int], None]]:
        """Yield a function that takes the number of finished steps and the total. In a pipe nothing is printed."""
        if not sys.stderr.isatty():
            yield lambda done, total: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        bar = Progress(*columns, console=self._err, transient=True)
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

    @cached_property
    def _out(self) -> "rich.console.Console":
        import rich.console

        return rich.console.Console(highlight=False)

    @cached_property
    def _err(self) -> "rich.console.Console":
        import rich.console

        return rich.console.Console(stderr=True, highlight=False)


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
