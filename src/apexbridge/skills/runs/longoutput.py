"""Long output of runs: stored in files and streamed from there in chunks."""

import codecs
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

READ_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True)
class RecordedText:
    """Text stored in a file."""

    path: Path

    def pieces(self) -> Iterator[str]:
        """Chunks of the text in order; none if the run was deleted meanwhile."""
        try:
            file = self.path.open("rb")
        except OSError:
            return
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with file:
            while data := file.read(READ_BYTES):
                yield decoder.decode(data)
            yield decoder.decode(b"", final=True)

    def read(self) -> str:
        return "".join(self.pieces())


TextSource = str | RecordedText
LongOutput = Mapping[str, TextSource]
"""The long streams of a run, by name: `stdout`, `stderr`."""
