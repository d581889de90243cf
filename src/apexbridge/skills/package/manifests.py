"""Reads the manifests of Claude Code plugins: `.claude-plugin/plugin.json` and `.claude-plugin/marketplace.json`.

Only the fields that concern skills are used. The format is that of Claude Code's plugin marketplaces.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from apexbridge.errors import InvalidSkillStructureError

Parts = tuple[str, ...]
"""A path inside a package; `()` is its top."""
PLUGIN_MANIFEST: Parts = (".claude-plugin", "plugin.json")
MARKETPLACE_MANIFEST: Parts = (".claude-plugin", "marketplace.json")
MAX_PLUGIN_BYTES = 64 * 1024
MAX_MARKETPLACE_BYTES = 1024 * 1024
MAX_PLUGINS = 1_000
MAX_PATHS = 2_000
"""Skill paths of one plugin."""
MAX_TEXT_CHARACTERS = 1024
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]*://|git@", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginManifest:
    """The fields used from a `plugin.json`."""

    name: str | None = None
    version: str | None = None
    description: str | None = None
    skills: tuple[Parts, ...] = ()
    """Folders in addition to `skills/`, relative to the plugin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketplaceEntry:
    """One plugin of a marketplace."""

    name: str
    version: str | None = None
    description: str | None = None
    source: Parts | None = None
    """Its folder, relative to the marketplace; None if it is remote."""
    remote: str = ""
    """The remote source, for messages."""
    skills: tuple[Parts, ...] | None = None
    """Its skill folders, relative to the source; None if the plugin's own folders decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marketplace:
    """A list of plugins."""

    name: str | None
    entries: tuple[MarketplaceEntry, ...]
    problems: tuple[tuple[str, str], ...]
    """Entries that cannot be used: what identifies each, and the reason."""


def read_plugin_manifest(data: bytes, *, where: str = "plugin.json") -> PluginManifest:
    """Parse a `plugin.json`. Raises InvalidSkillStructureError: too large, not JSON, or a path leads outside."""
    manifest = _load(data, where, MAX_PLUGIN_BYTES)
    if not isinstance(manifest, dict):
        return PluginManifest()
    return PluginManifest(
        name=_text(manifest.get("name")) if isinstance(manifest.get("name"), str) else None,
        version=_text(manifest.get("version")),
        description=_text(manifest.get("description")),
        skills=_paths(manifest.get("skills"), where) or (),
    )


def read_marketplace(data: bytes) -> Marketplace:
    """Parse a `marketplace.json`.

    Raises:
        InvalidSkillStructureError: too large, not JSON, without plugins, or a path leads outside the package.
    """
    where = "marketplace.json"
    manifest = _load(data, where, MAX_MARKETPLACE_BYTES)
    plugins = manifest.get("plugins") if isinstance(manifest, dict) else None
    if not isinstance(manifest, dict) or not isinstance(plugins, list):
        raise InvalidSkillStructureError([f"{where} has no list of plugins"])
    if len(plugins) > MAX_PLUGINS:
        raise InvalidSkillStructureError(
            [f"{where} lists {len(plugins):,} plugins; at most {MAX_PLUGINS:,} are read. Install plugins one by one"]
        )
    metadata = manifest.get("metadata")
    root = metadata.get("pluginRoot") if isinstance(metadata, dict) else None
    base = relative_parts(root, f"{where}: metadata.pluginRoot") if isinstance(root, str) else ()
    entries: list[MarketplaceEntry] = []
    problems: list[tuple[str, str]] = []
    for number, entry in enumerate(plugins, start=1):
        name = _text(entry.get("name")) if isinstance(entry, dict) and isinstance(entry.get("name"), str) else None
        if not name:
            problems.append((f"plugin {number}", f"{where} lists it without a name; add one"))
        elif any(name == known.name for known in entries):
            problems.append((name, f"{where} lists this plugin twice; the first entry is used"))
        elif not isinstance(entry.get("source"), (str, dict)):
            problems.append((name, f"{where} lists it without a source; add its folder"))
        else:
            entries.append(_entry(name, entry, base, where))
    name = manifest.get("name")
    return Marketplace(
        name=_text(name) if isinstance(name, str) else None, entries=tuple(entries), problems=tuple(problems)
    )


def relative_parts(path: str, what: str) -> Parts:
    """Split a path of a manifest. Raises InvalidSkillStructureError: it leads outside the package, or is too long."""
    if len(path) > MAX_TEXT_CHARACTERS:
        raise InvalidSkillStructureError([f"{what}: a path is longer than {MAX_TEXT_CHARACTERS:,} characters"])
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    outside = path.startswith(("/", "~")) or ".." in parts or "\\" in path or re.match(r"[A-Za-z]:", path)
    if outside or "\0" in path:
        shown = ascii(path[:80])[1:-1]
        raise InvalidSkillStructureError(
            [f"{what}: {shown} leads outside the package; use a path below it, such as ./plugins/name"]
        )
    return parts


def _entry(name: str, entry: dict[str, Any], base: Parts, where: str) -> MarketplaceEntry:
    source = entry["source"]
    parts: Parts | None = None
    remote = ""
    if isinstance(source, dict):
        remote = " ".join(_text(source.get(key)) or "" for key in ("source", "repo", "url", "package", "path")).strip()
    elif _REMOTE.match(source):
        remote = _text(source) or ""
    else:
        parts = relative_parts(source, f"{where}: source of plugin {name}")
        parts = parts if source.startswith(".") else base + parts
    return MarketplaceEntry(
        name=name,
        version=_text(entry.get("version")),
        description=_text(entry.get("description")),
        source=parts,
        remote=remote or "remote source",
        skills=_paths(entry.get("skills"), f"{where}: skills of plugin {name}"),
    )


def _paths(value: object, what: str) -> tuple[Parts, ...] | None:
    written = [value] if isinstance(value, str) else value
    if not isinstance(written, list):
        return None
    if len(written) > MAX_PATHS:
        raise InvalidSkillStructureError([f"{what}: more than {MAX_PATHS:,} skills; list their common folder instead"])
    return tuple(relative_parts(path, what) for path in written if isinstance(path, str))


def _text(value: object) -> str | None:
    """A field as text without lone surrogates; None if it is not a scalar."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    return str(value).encode("utf-8", "replace").decode()[:MAX_TEXT_CHARACTERS]


def _load(data: bytes, where: str, most: int) -> Any:
    if len(data) > most:
        raise InvalidSkillStructureError([f"{where} is larger than {most // 1024} KB"])
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidSkillStructureError([f"{where} is not valid JSON"]) from error
