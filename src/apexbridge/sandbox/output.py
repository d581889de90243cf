"""The output of a run: one limit for both streams, decoded, with secrets masked, reported while it arrives."""

import codecs
import io
from collections.abc import Callable, Sequence
from typing import Literal

from apexbridge.sandbox.masking import StreamMasker

OutputStream = Literal["stdout", "stderr"]
STREAMS: tuple[OutputStream, ...] = ("stdout", "stderr")
OutputListener = Callable[[OutputStream, str], None]
TRUNCATED = "[TRUNCATED]"


class RunOutput:
    def __init__(self, limit: int, *, secrets: Sequence[str] = (), listener: OutputListener | None = None) -> None:
        self._remaining = limit
        self._listener = listener
        self._decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in STREAMS}
        self._maskers = {stream: StreamMasker(secrets) for stream in STREAMS}
        self._texts = {stream: io.StringIO() for stream in STREAMS}  # not lists: a run can print single characters
        self.is_truncated = False

    def add(self, stream: OutputStream, data: bytes) -> bool:
        """Add printed bytes; returns False if the limit is exceeded, after which everything is dropped."""
        if self.is_truncated:
            return False
        allowed = data[: self._remaining]
        self._remaining -= len(allowed)
        self._append(stream, self._maskers[stream].add(self._decoders[stream].decode(allowed)))
        if len(data) > len(allowed):
            self.is_truncated = True
            self._end()
            for each in dict.fromkeys(("stdout", stream)):  # always stdout too, for readers of stdout alone
                self._append(each, TRUNCATED)
        return not self.is_truncated

    def finish(self) -> tuple[str, str]:
        if not self.is_truncated:
            self._end()
        return self._texts["stdout"].getvalue(), self._texts["stderr"].getvalue()

    def _end(self) -> None:
        for stream, masker in self._maskers.items():
            # An incomplete character at the cut is dropped: it is not an error of the run.
            tail = "" if self.is_truncated else self._decoders[stream].decode(b"", final=True)
            self._append(stream, masker.add(tail) + masker.end(cut=self.is_truncated))

    def _append(self, stream: OutputStream, text: str) -> None:
        self._texts[stream].write(text)
        if text and self._listener is not None:
            self._listener(stream, text)
