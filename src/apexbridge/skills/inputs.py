"""The files of a call: from the workspace, from an upload, or from what an earlier run left."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import PurePosixPath
from typing import BinaryIO

from apexbridge.errors import ApexBridgeError, InvalidInputError
from apexbridge.sandbox.inputs import check_count, check_size
from apexbridge.sandbox.models import InputFile
from apexbridge.skills.uploads import UploadStore, safe_name
from apexbridge.tools.builtin.files.workspace import Workspace


class InputFiles:
    """Finds what a call's `files` name."""

    def __init__(self, *, workspace: Workspace, uploads: UploadStore, reach: Callable[[str], str | None]) -> None:
        """`reach` tells whose uploads a caller may use; None for everybody's."""
        self._workspace = workspace
        self._uploads = uploads
        self._reach = reach

    @contextmanager
    def opened(self, names: Sequence[str], *, caller: str = "") -> Iterator[tuple[InputFile, ...]]:
        """All of them open, each under a name of its own.

        Raises:
            InvalidInputError: one of them is not there or is no file, or they are too many or too large.
        """
        taken: Counter[str] = Counter()
        check_count(len(names))
        with ExitStack() as stack:
            found = []
            for wanted in names:
                name, file = self._open(wanted, caller)
                stack.enter_context(file)
                found.append(InputFile(name=_free(name, taken), file=file))
            check_size([os.fstat(item.file.fileno()).st_size for item in found])
            yield tuple(found)

    def _open(self, wanted: str, caller: str) -> tuple[str, BinaryIO]:
        if self._uploads.is_id(wanted):
            return self._uploads.open(wanted, owner=self._reach(caller))
        try:
            return safe_name(wanted), self._workspace.open_file(wanted, caller=caller)
        except ApexBridgeError as error:
            raise InvalidInputError(
                f"{error.message}. Name a path below the workspace, an upload's id, or runs/ID/PATH.", file=wanted
            ) from error


def _free(name: str, taken: "Counter[str]") -> str:
    """The name, or one like it that is not taken."""
    path, free = PurePosixPath(name), name
    while taken[free]:
        taken[name] += 1
        free = f"{path.stem}-{taken[name]}{path.suffix}"
    taken[free] += 1
    return free
