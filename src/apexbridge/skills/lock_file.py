"""`skills.lock`: what was installed from repositories and addresses, as a file for version control.

It is TOML, sorted, and without dates, so that it changes only if what is installed changes. Entries are plain JSON
objects here: commands read and write the file without importing the models of the server.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from apexbridge.errors import RequestError

LOCK_FILE = "skills.lock"
VERSION = 1
MAX_LOCK_BYTES = 8 * 1024 * 1024
_HEADER = """\
# Written by `apex skills`: what was installed from repositories and addresses. Do not edit it.
# Install exactly these contents with: apex skills install --locked
"""
_FIELDS = ("name", "kind", "source", "commit", "digest", "profile", "strict")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")


def format_lock(packages: Iterable[Mapping[str, Any]]) -> str:
    """The text of the file."""
    parts = [f"{_HEADER}version = {VERSION}\n"]
    for package in sorted(packages, key=lambda one: (one["name"], one["kind"])):
        fields = [f"{key} = {_value(package[key])}" for key in _FIELDS if package.get(key)]
        contents = [f"{_key(name)} = {_value(digest)}" for name, digest in sorted(package["contents"].items())]
        parts.append("\n".join(["[[package]]", *fields, "", "[package.contents]", *contents, ""]))
    return "\n".join(parts)


def read_lock(path: Path) -> list[dict[str, Any]]:
    """The packages of a file. Raises RequestError: FILE_NOT_FOUND, or INVALID_INPUT if it is something else."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_LOCK_BYTES + 1)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}", code="FILE_NOT_FOUND") from error
    if len(data) > MAX_LOCK_BYTES:
        raise _invalid(path, f"larger than {MAX_LOCK_BYTES // 1024 // 1024} MB")
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # deeply nested
        raise _invalid(path, str(error)) from error
    if document.get("version") != VERSION:
        raise _invalid(path, f"version is {document.get('version')!r}, not {VERSION}")
    packages = document.get("package", [])
    if not isinstance(packages, list) or not all(isinstance(one, dict) for one in packages):
        raise _invalid(path, "package is not a list of tables")
    return packages


def _invalid(path: Path, why: str) -> RequestError:
    return RequestError(f"{path} is not a lock file of apexbridge: {why}", code="INVALID_INPUT")


def _key(name: str) -> str:
    return name if _BARE_KEY.match(name) else _value(name)


def _value(value: object) -> str:
    """JSON strings and booleans are valid TOML, except for the character DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
