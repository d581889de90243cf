"""Globs without a regular expression: `*`, `?` and `**`, one step for each character, whatever the pattern."""


class Glob:
    """A pattern as a set of places that a path may have come to, kept as the bits of one number.

    A state is such a number. Feeding it a folder's path once serves everything below that folder.
    """

    def __init__(self, pattern: str) -> None:
        self._moves: dict[str, int] = {}
        self._any = self._runs = self._deep = self._rest = 0
        self._place = 1
        segments = pattern.split("/")
        for number, segment in enumerate(segments):
            self._read(segment, is_last=number == len(segments) - 1)
        self._moves = {character: places | self._any for character, places in self._moves.items()}
        self._moves["/"] = (self._moves.get("/", 0) & ~self._any) | self._deep
        self.start = self._entered(1)

    def advance(self, state: int, text: str) -> int:
        """The state after this text; 0 when nothing that begins like this can match."""
        for character in text:
            stays = self._rest | self._deep | (0 if character == "/" else self._runs)
            state = self._entered((state & self._moves.get(character, self._any)) << 1) | (state & stays)
            if not state:
                break
        return state

    def accepts(self, state: int) -> bool:
        """Whether what led here matches."""
        return bool(state & self._place)

    def _read(self, segment: str, *, is_last: bool) -> None:
        if segment == "**" and is_last:
            self._rest |= self._place
            return
        if segment == "**":
            if not self._deep & (self._place >> 1):  # a second one in a row says nothing new
                self._deep |= self._place
                self._place <<= 1
            return
        for character in segment if is_last else f"{segment}/":
            if character == "*":
                self._runs |= self._place
                continue
            if character == "?":
                self._any |= self._place
            else:
                self._moves[character] = self._moves.get(character, 0) | self._place
            self._place <<= 1

    def _entered(self, state: int) -> int:
        return state | (state & self._deep) << 1  # `**/` may stand for no folder at all
