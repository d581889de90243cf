"""What a run prints: one budget for both streams, characters whole, secrets masked, told while it happens."""

import codecs
import io
from collections.abc import Callable, Sequence
from typing import Literal

from apexbridge.sandbox.masker import Masker

Stream = Literal["stdout", "stderr"]
Listener = Callable[[Stream, str], None]
TRUNCATED = "[TRUNCATED]"


class Output:
    """Collects stdout and stderr."""

    def __init__(self, limit: int, *, secrets: Sequence[str] = (), listener: Listener | None = None) -> None:
        self._room = limit
        self._listener = listener
        self._streams: dict[Stream, _Text] = {"stdout": _Text(secrets), "stderr": _Text(secrets)}
        self.is_over = False

    def add(self, stream: Stream, data: bytes) -> bool:
        """Take what was printed; False once it was too much, and from then on nothing is kept."""
        if self.is_over:
            return False
        kept = data[: self._room]
        self._room -= len(kept)
        self._tell(stream, self._streams[stream].add(kept))
        if len(data) > len(kept):
            self.is_over = True
            self._end()
            self._mark(stream)
        return not self.is_over

    def finish(self) -> tuple[str, str]:
        """Both streams, whole."""
        if not self.is_over:
            self._end()
        return self._streams["stdout"].whole(), self._streams["stderr"].whole()

    def _end(self) -> None:
        for stream, text in self._streams.items():
            self._tell(stream, text.end(cut=self.is_over))

    def _mark(self, stream: Stream) -> None:
        """The mark stands on stdout, whichever stream it was, so that whoever reads only that one knows."""
        for each in dict.fromkeys(("stdout", stream)):
            self._streams[each].kept.write(TRUNCATED)
            self._tell(each, TRUNCATED)

    def _tell(self, stream: Stream, text: str) -> None:
        if text and self._listener is not None:
            self._listener(stream, text)


class _Text:
    """One stream's text, decoded piece by piece."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._masker = Masker(secrets)
        self.kept = io.StringIO()
        """One buffer, as a run can print millions of single characters."""

    def add(self, data: bytes) -> str:
        return self._keep(self._masker.add(self._decoder.decode(data)))

    def end(self, *, cut: bool) -> str:
        rest = "" if cut else self._decoder.decode(b"", final=True)  # half a character at the cut is no damage to show
        return self._keep(self._masker.add(rest) + self._masker.end(cut=cut))

    def whole(self) -> str:
        return self.kept.getvalue()

    def _keep(self, text: str) -> str:
        self.kept.write(text)
        return text
