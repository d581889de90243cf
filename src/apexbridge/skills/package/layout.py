"""Finds the skills of a package: one skill, a plugin, or a marketplace with several plugins."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from apexbridge.errors import InvalidSkillStructureError
from apexbridge.skills import SKILL_FILE
from apexbridge.skills.models import LeftOut
from apexbridge.skills.package.entry_names import is_skill_file
from apexbridge.skills.package.manifests import (
    MARKETPLACE_MANIFEST,
    MAX_PLUGINS,
    PLUGIN_MANIFEST,
    MarketplaceEntry,
    Parts,
    PluginManifest,
    read_marketplace,
    read_plugin_manifest,
)

SKILLS_FOLDER = "skills"
MAX_NAMED = 20
"""Folders that a message names."""
ReadFile = Callable[[Parts], bytes]
"""Reads a manifest of the package. It may stop after the largest size that is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginLayout:
    """A plugin and the folders of its skills."""

    folder: Parts
    """Of the plugin; it names a plugin without a name."""
    manifest: PluginManifest
    skills: tuple[Parts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The skill folders of a package, by plugin."""

    skill: Parts | None = None
    """The folder of a single skill that belongs to no plugin; `()` is the top of the archive."""
    plugins: tuple[PluginLayout, ...] = ()
    name: str | None = None
    """Of the marketplace."""
    left_out: tuple[LeftOut, ...] = ()


def find_layout(files: Collection[Parts], read: ReadFile, *, flat: bool, links: Collection[Parts] = ()) -> Layout:
    """Find the skills among the files of a package. `flat` accepts a SKILL.md at the top of an archive.

    A manifest may not name a link, or a path through one.

    Raises:
        InvalidSkillStructureError: the layout is not supported, or a manifest cannot be used.
    """
    skills = _Folders(parts[:-1] for parts in files if is_skill_file(parts[-1]))
    if () in skills:
        if not flat:
            raise InvalidSkillStructureError(
                [
                    "missing root directory: put SKILL.md and everything else into one folder, "
                    "or accept the archive as it is with the profile lenient (--profile lenient)"
                ],
                message="Invalid ZIP structure: missing root directory",
                profile="lenient",
            )
        return Layout(skill=())
    manifests = [parts for parts in files if parts[-2:] in (PLUGIN_MANIFEST, MARKETPLACE_MANIFEST)]
    # A manifest below a skill's folder is content of that skill.
    manifests = [parts for parts in manifests if not any(parts[:depth] in skills for depth in range(len(parts) - 2))]
    marketplaces = sorted((parts for parts in manifests if parts[-2:] == MARKETPLACE_MANIFEST), key=_by_depth)
    if marketplaces:
        return _marketplace(marketplaces[0], skills, _Folders(files), read, set(links))
    topmost = _topmost(skills)
    if not topmost:
        raise InvalidSkillStructureError([f"{SKILL_FILE} not found"])
    if len(manifests) > MAX_PLUGINS:
        raise InvalidSkillStructureError([f"more than {MAX_PLUGINS:,} plugins; install some of their folders"])
    if manifests:
        return _plugins(sorted((parts[:-2] for parts in manifests), key=_by_depth), skills, read)
    return _folders(topmost)


def _by_depth(parts: Parts) -> tuple[int, Parts]:
    return len(parts), parts


def _topmost(folders: Iterable[Parts]) -> list[Parts]:
    """Folders not nested in another skill folder: a SKILL.md further down is content."""
    known = set(folders)
    return sorted(folder for folder in known if not any(folder[:depth] in known for depth in range(len(folder))))


class _Folders:
    """Paths that are found by bisection: an untrusted manifest may name many thousands."""

    def __init__(self, folders: Iterable[Parts]) -> None:
        self._known = set(folders)
        self._sorted = sorted(self._known)

    def __contains__(self, folder: Parts) -> bool:
        return folder in self._known

    def __iter__(self) -> Iterator[Parts]:
        return iter(self._sorted)

    def below(self, root: Parts) -> list[Parts]:
        """The folder itself and all that it contains."""
        start = end = bisect_left(self._sorted, root)
        while end < len(self._sorted) and self._sorted[end][: len(root)] == root:
            end += 1
        return self._sorted[start:end]

    def has_below(self, root: Parts) -> bool:
        index = bisect_left(self._sorted, root)
        return index < len(self._sorted) and self._sorted[index][: len(root)] == root


# ------------------------------------------------------------------------------------------------- marketplaces
def _marketplace(path: Parts, skills: _Folders, files: _Folders, read: ReadFile, links: set[Parts]) -> Layout:
    """The plugins of a marketplace, each with its own skills. Skills that no plugin lists are left out."""
    root = path[:-2]
    marketplace = read_marketplace(read(path))
    left_out = [LeftOut(name=name, path="", reason=reason) for name, reason in marketplace.problems]
    owners: dict[Parts, str] = {}
    found: dict[str, PluginLayout] = {}
    # Deeper sources first: a plugin at the top without a list takes only what no other plugin has.
    for entry in sorted(marketplace.entries, key=lambda entry: -len(entry.source or ())):
        if entry.source is None:
            reason = f"its source is remote ({entry.remote}); install it from there"
            left_out.append(LeftOut(name=entry.name, path="", reason=reason))
            continue
        source = root + entry.source
        _refuse_links([source, *(source + skill for skill in entry.skills or ())], links, f"plugin {entry.name}")
        plugin, problems = _entry_plugin(entry, root, skills, files, read, owners)
        left_out += problems
        if plugin.skills:
            found[entry.name] = plugin
            owners |= dict.fromkeys(plugin.skills, entry.name)
    owned = _Folders(owners)
    unlisted = [folder for folder in _topmost(skills) if not owned.has_below(folder)]
    left_out += [
        LeftOut(
            name=folder[-1],
            path="/".join(folder),
            reason="marketplace.json does not list it; install its folder on its own if you need it",
        )
        for folder in unlisted
    ]
    plugins = tuple(found[entry.name] for entry in marketplace.entries if entry.name in found)
    return Layout(plugins=plugins, name=marketplace.name or (root[-1] if root else None), left_out=tuple(left_out))


def _refuse_links(paths: Iterable[Parts], links: set[Parts], what: str) -> None:
    """Raise InvalidSkillStructureError: a path is a link or leads through one."""
    for path in paths:
        if depth := next((depth for depth in range(1, len(path) + 1) if path[:depth] in links), None):
            shown = "/".join(path[:depth])
            raise InvalidSkillStructureError(
                [f"marketplace.json: {what}: {shown} is a link; name the folder itself, inside the package"]
            )


def _entry_plugin(
    entry: MarketplaceEntry,
    root: Parts,
    skills: _Folders,
    files: _Folders,
    read: ReadFile,
    owners: dict[Parts, str],
) -> tuple[PluginLayout, list[LeftOut]]:
    """One plugin of a marketplace without the skills of others, and what is left out."""
    source = root + (entry.source or ())
    manifest = PluginManifest()
    if (own := (*source, *PLUGIN_MANIFEST)) in files:
        manifest = read_plugin_manifest(read(own), where="/".join(own[len(root) :]))
    manifest = PluginManifest(
        name=entry.name,
        version=entry.version or manifest.version,
        description=entry.description or manifest.description,
        skills=manifest.skills,
    )
    if entry.skills is not None:
        folders, missing = _listed(entry.skills, source, skills)
    else:
        folders, missing = _plugin_skills(source, manifest, skills)
    problems = [_missing(entry.name, "/".join(parts), "marketplace.json") for parts in missing]
    elsewhere = [folder for folder in folders if folder in owners]
    folders = [folder for folder in folders if folder not in owners]
    if elsewhere and not folders:
        problems.append(LeftOut(name=entry.name, path="", reason="other plugins of this package hold all its skills"))
    elif entry.skills is not None:
        problems += [
            LeftOut(
                name=folder[-1],
                path="/".join(folder),
                reason=f"{entry.name} lists it, but it is installed with the plugin {owners[folder]}",
            )
            for folder in elsewhere
        ]
    if not folders and not problems:
        reason = "it has no skills" if files.has_below(source) else "its folder is not in the package; check its source"
        problems.append(LeftOut(name=entry.name, path="/".join(source), reason=reason))
    return PluginLayout(folder=source, manifest=manifest, skills=tuple(folders)), problems


def _listed(paths: Iterable[Parts], source: Parts, skills: _Folders) -> tuple[list[Parts], list[Parts]]:
    """The skills in these folders, and the folders without any. Each is a skill, or contains skills."""
    found: dict[Parts, None] = {}
    missing = []
    for path in dict.fromkeys(paths):
        folder = source + path
        own = [folder] if folder in skills else _topmost(skills.below(folder))
        found |= dict.fromkeys(own)
        if not own:
            missing.append(folder)
    return list(found), missing


def _missing(plugin: str, path: str, manifest: str) -> LeftOut:
    return LeftOut(
        name=path.rsplit("/", 1)[-1] or plugin,
        path=path,
        reason=f"{manifest} lists it for {plugin}, but the package has no skill there; correct the path",
    )


# ------------------------------------------------------------------------------------------------------ plugins
def _plugin_skills(root: Parts, manifest: PluginManifest, skills: _Folders) -> tuple[list[Parts], list[Parts]]:
    """The skills of a plugin: in `skills/` and in the folders of its manifest, else anywhere in its folder."""
    listed, missing = _listed(manifest.skills, root, skills)
    standard = _topmost(skills.below((*root, SKILLS_FOLDER)))
    found = list(dict.fromkeys([*standard, *listed]))
    return found or _topmost(skills.below(root)), missing


def _plugins(roots: list[Parts], skills: _Folders, read: ReadFile) -> Layout:
    """The plugins that have a `plugin.json`. A skill belongs to the nearest one above it."""
    plugins: list[PluginLayout] = []
    left_out: list[LeftOut] = []
    owned: set[Parts] = set()
    for root in reversed(roots):
        manifest = read_plugin_manifest(read((*root, *PLUGIN_MANIFEST)))
        own = [folder for folder in skills.below(root) if folder not in owned]
        found, missing = _plugin_skills(root, manifest, _Folders(own))
        left_out += [_missing(manifest.name or "the plugin", "/".join(parts), "plugin.json") for parts in missing]
        owned |= set(own)
        inside = _Folders(found)
        left_out += [_outside(folder) for folder in _topmost(own) if not inside.has_below(folder)]
        if found:
            plugins.append(PluginLayout(folder=root, manifest=manifest, skills=tuple(found)))
    left_out += [_outside(folder) for folder in _topmost(folder for folder in skills if folder not in owned)]
    return Layout(plugins=tuple(reversed(plugins)), left_out=tuple(left_out))


def _outside(folder: Parts) -> LeftOut:
    return LeftOut(
        name=folder[-1],
        path="/".join(folder),
        reason="it is outside the plugin's skills; install its folder on its own if you need it",
    )


def _folders(topmost: list[Parts]) -> Layout:
    """Skills without a manifest: a plugin for each folder that contains `skills/`, or a single skill."""
    plugins: dict[Parts, list[Parts]] = {}
    others = []
    for folder in topmost:
        home = _home(folder)
        if home:
            plugins.setdefault(home, []).append(folder)
        else:
            others.append(folder)
    if plugins:
        return Layout(
            plugins=tuple(
                PluginLayout(folder=home, manifest=PluginManifest(), skills=tuple(folders))
                for home, folders in plugins.items()
            ),
            left_out=tuple(_outside(folder) for folder in others),
        )
    if len(topmost) > 1:
        named = ", ".join("/".join(parts) for parts in topmost[:MAX_NAMED])
        more = f" and {len(topmost) - MAX_NAMED} more" if len(topmost) > MAX_NAMED else ""
        raise InvalidSkillStructureError(
            [
                f"several skills in one archive ({named}{more}): pack each on its own, or as a plugin: "
                "a folder with skills/ in it, or a .claude-plugin/plugin.json that names it"
            ],
            folders=["/".join(parts) for parts in topmost[:MAX_NAMED]],
        )
    return Layout(skill=topmost[0])


def _home(folder: Parts) -> Parts:
    """The folder that contains the `skills/` of this skill, at any depth, such as `skills/.curated/name`."""
    above = folder[:-1]
    if SKILLS_FOLDER not in above:
        return ()
    return above[: len(above) - 1 - above[::-1].index(SKILLS_FOLDER)]
