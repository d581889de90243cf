"""Makes the data directory private: earlier versions, or a lax umask, left files readable by others."""

import fnmatch
import stat
from contextlib import suppress
from pathlib import Path

from apexbridge._fs import OTHERS, is_open_to_others, take_from_others

READ_BY_RUNS = ("skills", "layers")
"""If the server runs as root, each run has its own user, which must be able to read these."""
PRIVATE = (
    ".ballast",
    ".lock",
    "server.json*",
    "apex.sqlite3*",
    "audit.sqlite3*",
    "audit*.jsonl*",
    "secrets.json*",
    "skills.snapshot*",
    "skills.lance*",
    "runs",
    "uploads",
    "workspace",
    "staging",
    "trash",
    "plugins",
    "markers",
)


def keep_private(data_dir: Path) -> None:
    """Remove all rights of group and others in the data directory, except in `skills/` and `layers/`.

    Unknown files are not changed. If there are any, neither is the mode of the directory itself.
    """
    with suppress(OSError):
        found = list(data_dir.iterdir())
        private = [path for path in found if any(fnmatch.fnmatchcase(path.name, name) for name in PRIVATE)]
        for path in private:
            if is_open_to_others(path):
                take_from_others(path)
        is_ours_alone = all(path in private or path.name in READ_BY_RUNS for path in found)
        mode = stat.S_IMODE(data_dir.stat().st_mode)
        if is_ours_alone and mode & OTHERS and not mode & stat.S_ISVTX:  # a sticky directory is meant to be shared
            data_dir.chmod(mode & ~OTHERS)
