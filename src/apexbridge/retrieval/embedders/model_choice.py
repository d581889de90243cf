"""Which models `apex models use` has chosen: a file in the data directory."""

import json
from pathlib import Path

from apexbridge._fs import PRIVATE_FILE, replace_file
from apexbridge.errors import ServerError

CHOICE_FILE = "models.json"


def read_choice(data_dir: Path) -> tuple[str, ...]:
    """The names of the chosen models; empty for the default ones. Raises ServerError: INVALID_SETTING."""
    path = data_dir / CHOICE_FILE
    try:
        names = json.loads(path.read_bytes())["models"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("models is not a list of names")
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ServerError(
            f"{path} cannot be read ({type(error).__name__}). Remove it, then choose again: apex models use",
            code="INVALID_SETTING",
        ) from error
    return tuple(names)


def write_choice(data_dir: Path, names: tuple[str, ...]) -> None:
    """Store the choice, so that it survives a power failure; an empty one is the default."""
    content = json.dumps({"models": names}).encode() + b"\n"
    replace_file(data_dir / CHOICE_FILE, content, beside=data_dir, mode=PRIVATE_FILE, durable=True)
