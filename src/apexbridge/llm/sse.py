"""Tolerant parser of server-sent events: each `data:` line is one event."""

MAX_LINE_BYTES = 8 * 1024 * 1024
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class StreamTooLongError(ValueError):
    """A line exceeds the limit."""


class EventLines:
    """Splits a byte stream into the data of its events.

    Every `data:` line is an event: all known servers write it that way, some without the blank line that should
    follow. Comments and other fields are ignored; any line ending is accepted.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        """The beginning of an incomplete line."""
        self._size = 0
        self._has_begun = False

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that this piece completes.

        Raises:
            StreamTooLongError: a line exceeds the limit.
        """
        if b"data:" not in piece and not self._rest:  # only comments
            self._has_begun = self._has_begun or b"\n" in piece
            piece = piece[max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1 :]
        *lines, rest = piece.replace(b"\r", b"\n").split(b"\n")
        if lines:
            lines[0] = b"".join([*self._rest, lines[0]])
            self._rest, self._size = [], 0
            if not self._has_begun:
                self._has_begun = True
                lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
        if rest:
            self._rest.append(rest)
            self._size += len(rest)
        if self._size > MAX_LINE_BYTES:
            raise StreamTooLongError("an event is too long")
        return [data for line in lines if (data := _data(line))]

    def end(self) -> list[bytes]:
        """The event of a last line without a line ending."""
        data = _data(b"".join(self._rest))
        self._rest, self._size = [], 0
        return [data] if data else []


def _data(line: bytes) -> bytes:
    return line[5:].strip() if line.startswith(b"data:") else b""
