"""Server-sent events from strangers: one piece of data a line, whatever else the stream holds."""

MAX_LINE_BYTES = 8 * 1024 * 1024


class StreamTooLongError(ValueError):
    """A line without an end."""


class EventLines:
    """Cuts a byte stream into the data of its events.

    Every `data:` line is an event of its own: that is how all these servers write, some without the blank line that
    should follow. Comments, other fields and the kind of line end do not matter.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """What is complete with this piece.

        Raises:
            StreamTooLongError: a line does not end.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise StreamTooLongError("an event is too long")
        return [data for line in lines if (data := _data(line))]

    def end(self) -> list[bytes]:
        """What was left when the stream ended without a last line end."""
        rest, self._rest = self._rest, b""
        data = _data(rest)
        return [data] if data else []


def _data(line: bytes) -> bytes:
    return line[5:].strip() if line.startswith(b"data:") else b""
