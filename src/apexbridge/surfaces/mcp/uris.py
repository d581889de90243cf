"""URIs of resources: `skill://NAME/PATH`, `run://ID/PATH` and `workspace://ID/PATH`."""

from typing import NamedTuple
from urllib.parse import quote, unquote

MAX_URI_CHARACTERS = 4096


class ResourceUri(NamedTuple):
    scheme: str
    owner: str
    """The skill, run or workspace."""
    path: str
    """Empty for the folder itself."""


def skill_uri(name: str, path: str = "") -> str:
    return _uri("skill", name, path)


def run_uri(id: str, path: str) -> str:
    return _uri("run", id, path)


def workspace_uri(id: str, path: str) -> str:
    return _uri("workspace", id, path)


def _uri(scheme: str, owner: str, path: str) -> str:
    end = f"/{quote(path, safe='/', errors='surrogateescape')}" if path else ""
    return f"{scheme}://{quote(owner, safe='')}{end}"


def parse_uri(uri: str) -> ResourceUri | None:
    """The parts of a URI; None if it is not one of ours. A URI with another spelling of a path is not the same one."""
    scheme, separator, tail = uri.partition("://")
    owner, _, path = tail.partition("/")
    if not separator or not owner or len(uri) > MAX_URI_CHARACTERS or "?" in tail or "#" in tail:
        return None
    parts = path.split("/") if path else []
    decoded = unquote(path, errors="surrogateescape")
    if "\0" in decoded or any(part in ("", ".", "..") for part in parts) or ".." in decoded.split("/"):
        return None
    return ResourceUri(scheme, unquote(owner), decoded)
