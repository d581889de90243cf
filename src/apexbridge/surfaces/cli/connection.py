"""Where a command finds its server or data directory: flags, then the environment, then `apex.toml`.

The rules are those of `Settings`. Reading a few values here keeps its imports out of commands beside a running server.
"""

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apexbridge.errors import ServerError
from apexbridge.skills import Profile
from apexbridge.storage.directory import SETTINGS_FILE, default_data_dir


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    data_dir: Path
    url: str | None = None
    """A server to use instead of the data directory."""
    api_key: str | None = None


def find_connection(*, data_dir: str | None = None, url: str | None = None) -> Connection:
    """Raises INVALID_SETTING if `apex.toml` cannot be read."""
    named_dir = data_dir if data_dir is not None else _setting("data_dir", may_be_empty=False)
    # --data-dir takes precedence over a URL from the environment or apex.toml.
    remote = url if url is not None or data_dir is not None else _setting("url")
    folder = default_data_dir() if named_dir is None else Path(named_dir).expanduser().absolute()
    return Connection(data_dir=folder, url=remote, api_key=_setting("api_key"))


def default_profile() -> Profile:
    """How archives are read. Raises INVALID_SETTING."""
    match _setting("default_profile"):
        case None:
            return "seed"
        case "seed" | "lenient" | "strict" as profile:
            return profile
    from apexbridge.settings import load_settings  # its error names the source and the choices

    return load_settings().default_profile


def _setting(name: str, *, may_be_empty: bool = True) -> str | None:
    environment = {key.upper(): value for key, value in os.environ.items() if value or may_be_empty}
    value = environment.get(f"APEX_{name.upper()}", _file().get(name))
    return None if value is None else str(value)


def _file() -> dict[str, Any]:
    try:
        return tomllib.loads(Path(SETTINGS_FILE).read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ServerError(f"{SETTINGS_FILE} cannot be read: {error}", code="INVALID_SETTING") from error
