"""Tables and messages for people. They are readable without colour."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from apexbridge.surfaces.cli.printable import printable

out = Console(highlight=False)
talk = Console(stderr=True, highlight=False)
GAP = 2
MIN_ROOM = 20
PIPE_WIDTH = 2000
"""Width of tables that are not on a terminal, so that nothing is truncated for a program."""


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str, one_line: bool = False) -> None:
    """Print a table, or `empty` to stderr if it has no rows. `one_line` truncates the last column on a terminal."""
    cells = [[_word(value) for value in row] for row in rows]
    if not cells:
        if empty:
            talk.print(Text(printable(empty)))
        return
    grid = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    *firsts, last = map(printable, columns)
    room = out.width
    for number, column in enumerate(firsts):
        width = max(cell_len(text) for text in (column, *(row[number] for row in cells)))
        room -= width + GAP
        grid.add_column(column, no_wrap=True, min_width=width)
    grid.add_column(last, overflow="fold")
    for *head, tail in cells:
        text = Text(tail)
        if one_line and out.is_terminal:  # truncated here because rich would drop whole columns
            text.truncate(max(room, MIN_ROOM), overflow="ellipsis")
        grid.add_row(*map(Text, head), text)
    wide = out if out.is_terminal else Console(highlight=False, width=PIPE_WIDTH)
    wide.print(grid)


def facts(values: Mapping[str, Any]) -> None:
    """Print one key and value per line. Empty values are omitted."""
    width = max((len(key) for key in values), default=0)
    for key, value in ((printable(key), value) for key, value in values.items()):
        if value not in (None, "", [], {}):
            out.print(Text.assemble((f"{key:<{width}}  ", "bold"), _word(value)), soft_wrap=True)


def line(text: str) -> None:
    """Print text to stdout."""
    out.print(Text(printable(text)), soft_wrap=True)


def say(message: str, *, style: str = "") -> None:
    """Print a message to stderr."""
    talk.print(Text(printable(message), style=style), soft_wrap=True)


def warn(warnings: Iterable[str]) -> None:
    """Print warnings to stderr, one per line."""
    for warning in warnings:
        say(f"warning: {warning}", style="yellow")


def _word(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ("; " if any(" " in str(item) for item in value) else ", ").join(_word(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{printable(str(key))} {_word(item)}" for key, item in value.items())
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M")
    return printable(str(value))
