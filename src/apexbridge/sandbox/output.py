"""What a run prints: one budget for both streams, characters whole, secrets masked, told while it happens."""

import codecs
from collections.abc import Callable, Sequence
from typing import Literal

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
            self._streams[each].pieces.append(TRUNCATED)
            self._tell(each, TRUNCATED)

    def _tell(self, stream: Stream, text: str) -> None:
        if text and self._listener is not None:
            self._listener(stream, text)


class _Text:
    """One stream's text, decoded piece by piece."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._secrets = sorted(secrets, key=len, reverse=True)
        self._held = ""
        self.pieces: list[str] = []

    def add(self, data: bytes) -> str:
        return self._keep(self._decoder.decode(data), final=False)

    def end(self, *, cut: bool) -> str:
        rest = "" if cut else self._decoder.decode(b"", final=True)  # half a character at the cut is no damage to show
        return self._keep(rest, final=True)

    def whole(self) -> str:
        return "".join(self.pieces)

    def _keep(self, text: str, *, final: bool) -> str:
        if self._secrets:
            text = self._masked(self._held + text, final=final)
        if text:
            self.pieces.append(text)
        return text

    def _masked(self, text: str, *, final: bool) -> str:
        """Mask, and hold back an end that may be the beginning of a secret."""
        split = len(text)
        if not final:
            split -= max((_overlap(text, secret) for secret in self._secrets), default=0)
            split = min([split, *(_crossing(text, secret, split) for secret in self._secrets)])
        text, self._held = text[:split], text[split:]
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _overlap(text: str, secret: str) -> int:
    """How much of the text's end is a beginning of the secret."""
    return next((size for size in range(min(len(text), len(secret) - 1), 0, -1) if secret.startswith(text[-size:])), 0)


def _crossing(text: str, secret: str, split: int) -> int:
    """Where a secret begins that a split would cut in two; the split itself where there is none."""
    found = text.find(secret, max(0, split - len(secret) + 1), split + len(secret) - 1)
    return found if 0 <= found < split < found + len(secret) else split
