"""Paths as callers write them: relative, with slashes, never upwards."""

import os
from dataclasses import dataclass

from apexbridge.errors import InvalidInputError, PermissionDeniedError

MAX_PATH_BYTES = 4095
MAX_NAME_BYTES = 255
MAX_PARTS = 256
MAX_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class RelativePath:
    """A path that can be looked for below a folder."""

    parts: tuple[str, ...]
    """Without any for the folder itself."""
    given: str
    """As it was written, fit to be shown."""

    @property
    def text(self) -> str:
        """The path for the system."""
        return "/".join(self.parts) or "."

    @property
    def name(self) -> str:
        """Its last part."""
        return self.parts[-1]

    def __str__(self) -> str:
        return self.given


def read_path(given: str) -> RelativePath:
    """Read a path that a caller wrote.

    Raises:
        PermissionDeniedError: it is absolute or leads upwards.
        InvalidInputError: it is no path.
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
    """A path as it may stand in a message: not too long, nothing that a terminal would obey."""
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
