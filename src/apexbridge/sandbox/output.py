"""The output of a run: one limit for both streams, decoded, with secrets masked, reported while it arrives."""

import codecs
import io
from collections.abc import Callable, Sequence
from typing import Literal

from apexbridge.sandbox.masking import StreamMasker

OutputStream = Literal["stdout", "stderr"]
OutputListener = Callable[[OutputStream, str], None]
TRUNCATED = "[TRUNCATED]"


class RunOutput:
    """Collects stdout and stderr."""

    def __init__(self, limit: int, *, secrets: Sequence[str] = (), listener: OutputListener | None = None) -> None:
        self._remaining = limit
        self._listener = listener
        self._streams: dict[OutputStream, _StreamText] = {
            "stdout": _StreamText(secrets),
            "stderr": _StreamText(secrets),
        }
        self.is_truncated = False

    def add(self, stream: OutputStream, data: bytes) -> bool:
        """Add printed bytes; returns False if the limit is exceeded, after which everything is dropped."""
        if self.is_truncated:
            return False
        allowed = data[: self._remaining]
        self._remaining -= len(allowed)
        self._report(stream, self._streams[stream].add(allowed))
        if len(data) > len(allowed):
            self.is_truncated = True
            self._end()
            self._mark_truncated(stream)
        return not self.is_truncated

    def finish(self) -> tuple[str, str]:
        """All text of stdout and of stderr."""
        if not self.is_truncated:
            self._end()
        return self._streams["stdout"].text, self._streams["stderr"].text

    def _end(self) -> None:
        for stream, text in self._streams.items():
            self._report(stream, text.end(cut=self.is_truncated))

    def _mark_truncated(self, stream: OutputStream) -> None:
        """Mark this stream and always stdout, for readers of stdout alone."""
        for each in dict.fromkeys(("stdout", stream)):
            self._report(each, self._streams[each].append(TRUNCATED))

    def _report(self, stream: OutputStream, text: str) -> None:
        if text and self._listener is not None:
            self._listener(stream, text)


class _StreamText:
    """The decoded and masked text of one stream."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._masker = StreamMasker(secrets)
        self._buffer = io.StringIO()  # not a list: a run can print millions of single characters

    @property
    def text(self) -> str:
        return self._buffer.getvalue()

    def add(self, data: bytes) -> str:
        return self.append(self._masker.add(self._decoder.decode(data)))

    def end(self, *, cut: bool) -> str:
        # An incomplete character at the cut is dropped: it is not an error of the run.
        tail = "" if cut else self._decoder.decode(b"", final=True)
        return self.append(self._masker.add(tail) + self._masker.end(cut=cut))

    def append(self, text: str) -> str:
        self._buffer.write(text)
        return text
