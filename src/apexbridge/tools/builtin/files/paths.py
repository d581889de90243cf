"""Paths from callers: relative, with slashes, never upwards."""

import os
from dataclasses import dataclass

from apexbridge.errors import InvalidInputError, PermissionDeniedError

MAX_PATH_BYTES = 4095
MAX_NAME_BYTES = 255
MAX_PARTS = 256
MAX_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class RelativePath:
    """A valid path below a folder."""

    parts: tuple[str, ...]
    """Empty for the folder itself."""
    given: str
    """The original text, safe to show in messages."""

    @property
    def text(self) -> str:
        """The path for system calls."""
        return "/".join(self.parts) or "."

    @property
    def name(self) -> str:
        return self.parts[-1]

    def __str__(self) -> str:
        return self.given


def read_path(given: str) -> RelativePath:
    """Parse a path from a caller.

    Raises:
        PermissionDeniedError: it is absolute or leads upwards.
        InvalidInputError: it is not a valid path.
    """
    told = shown(given)
    if not given:
        raise InvalidInputError("The path is empty; name a file or folder of the workspace")
    if given.startswith("/"):
        raise PermissionDeniedError(f"{told} is absolute; paths are relative to the workspace")
    parts = tuple(part for part in given.split("/") if part != ".")
    if ".." in parts:
        raise PermissionDeniedError(f"{told} leads upwards; paths stay inside the workspace, without ..")
    if problem := _problem(given, parts):
        raise InvalidInputError(f"{told} {problem}")
    return RelativePath(parts, told)


def shown(path: str) -> str:
    """A path for messages: of limited length, without control characters that a terminal would interpret."""
    cut = path if len(path) <= MAX_SHOWN_CHARACTERS else f"{path[:MAX_SHOWN_CHARACTERS]}…"
    return "".join(character if character.isprintable() else "\ufffd" for character in cut)


def _problem(given: str, parts: tuple[str, ...]) -> str | None:
    if "\0" in given:
        return "has a NUL character in it"
    if "\\" in given:
        return "has a backslash in it; folders are separated by /"
    if given.endswith("/"):
        return "ends with a slash; a file's path ends with its name"
    if "" in parts:
        return "has two slashes in a row"
    try:
        names = [len(part.encode()) for part in parts]
        length = len(os.fsencode(given))
    except UnicodeEncodeError:
        return "is no valid text"
    if length > MAX_PATH_BYTES:
        return f"is longer than {MAX_PATH_BYTES} bytes"
    if len(parts) > MAX_PARTS:
        return f"is deeper than {MAX_PARTS} folders"
    if any(name > MAX_NAME_BYTES for name in names):
        return f"has a name in it that is longer than {MAX_NAME_BYTES} bytes"
    return None
