"""Progress of a fetch, a check or an install.

A context variable, because the phases are in several packages: a parameter would go through each function between the
request and the download.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

Phase = Literal["downloading", "unpacking", "checking", "installing", "indexing"]
Listener = Callable[[Phase, int | None], None]
"""Called with the phase and the bytes so far, if they are known. From any thread."""
_listener: ContextVar[Listener | None] = ContextVar("progress", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call the listener for everything that is done in the block, also in its tasks and threads."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report_phase(phase: Phase, size: int | None = None) -> None:
    if listener := _listener.get():
        listener(phase, size)
