"""Spans of what the server does. Only `monitoring/otel.py` records them; without it, they cost next to nothing.

A span has names and numbers of an act, never content: no message, argument, result, path or key.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Literal, Protocol, Self

Attribute = str | bool | int | float | Sequence[str]
SpanKind = Literal["server", "client", "internal"]
MAX_CHARACTERS = 200
"""Of a name that comes from a client or a model server."""


class Span(Protocol):
    """One act. It ends with its block; an exception of the block is its error."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def rename(self, name: str) -> None: ...

    def add(self, attributes: Mapping[str, Attribute | None]) -> None:
        """Add attributes, except those that are None."""

    def fail(self, kind: str) -> None:
        """Mark the act as failed. `kind` is a code or the name of a class, not a message."""

    def current(self) -> AbstractContextManager[object]:
        """While this block runs, new spans are children of this one. It must end in the task that began it."""


class Tracer(Protocol):
    def start(
        self,
        name: str,
        attributes: Mapping[str, Attribute | None],
        *,
        kind: SpanKind = "internal",
        headers: Mapping[str, str] | None = None,
    ) -> Span:
        """Start a child of the current span; with `headers` of a request, of the client's span instead."""

    def headers(self) -> Mapping[str, str]:
        """The trace context of the current span, as headers for a request to another server."""


class _NoSpan:
    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def rename(self, name: str) -> None:
        pass

    def add(self, attributes: Mapping[str, Attribute | None]) -> None:
        pass

    def fail(self, kind: str) -> None:
        pass

    def current(self) -> AbstractContextManager[object]:
        return _NOTHING


class NoTracer:
    """Records nothing."""

    def start(
        self,
        name: str,
        attributes: Mapping[str, Attribute | None],
        *,
        kind: SpanKind = "internal",
        headers: Mapping[str, str] | None = None,
    ) -> Span:
        return NO_SPAN

    def headers(self) -> Mapping[str, str]:
        return _NO_HEADERS


NO_SPAN = _NoSpan()
_NOTHING: AbstractContextManager[object] = nullcontext()
_NO_HEADERS: Mapping[str, str] = {}
NO_TRACER = NoTracer()
