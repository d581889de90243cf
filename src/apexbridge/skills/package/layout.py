"""Finds the skills in a package: one skill, a skill inside wrapper folders, or a plugin with several."""

from collections.abc import Iterable
from dataclasses import dataclass

from apexbridge.errors import InvalidSkillStructureError
from apexbridge.skills.models import SKILL_FILE, Profile

Parts = tuple[str, ...]
PLUGIN_MANIFEST = (".claude-plugin", "plugin.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The skill folders of an archive, and their plugin if there is one."""

    skills: tuple[Parts, ...]
    """Folders that contain a SKILL.md; `()` is the root of the archive."""
    plugin: Parts | None = None
    """The plugin's folder; None for a single skill."""
    manifest: Parts | None = None


def find_layout(paths: Iterable[Parts], profile: Profile) -> Layout:
    """Find the skills among an archive's files.

    Raises:
        InvalidSkillStructureError: the layout is not supported; the message describes the expected one.
    """
    files = set(paths)
    skills = _topmost({parts[:-1] for parts in files if is_skill_file(parts[-1])})
    if not skills:
        raise InvalidSkillStructureError([f"{SKILL_FILE} not found"])
    if skills == [()]:
        if profile != "lenient":
            raise InvalidSkillStructureError(
                ["missing root directory: put SKILL.md and everything else into one folder"],
                message="Invalid ZIP structure: missing root directory",
            )
        return Layout(skills=((),))
    if plugin := _plugin_of(skills, files):
        return plugin
    if len(skills) > 1:
        named = ", ".join("/".join(parts) for parts in skills)
        raise InvalidSkillStructureError(
            [
                f"several skills in one archive ({named}): pack each on its own, or as a plugin: "
                "a folder with skills/ in it, or a .claude-plugin/plugin.json that names it"
            ],
            folders=["/".join(parts) for parts in skills],
        )
    return Layout(skills=tuple(skills))


def is_skill_file(name: str) -> bool:
    """Whether this is `SKILL.md` in any case; the validator warns about other spellings."""
    return name.lower() == SKILL_FILE.lower()


def _topmost(folders: set[Parts]) -> list[Parts]:
    """Folders not nested in another skill folder: a SKILL.md further down is content."""
    return sorted(folder for folder in folders if not any(folder[:depth] in folders for depth in range(len(folder))))


def _plugin_of(skills: list[Parts], files: set[Parts]) -> Layout | None:
    """The plugin that contains all these skills, found by its manifest or by `<plugin>/skills/<name>/SKILL.md`."""
    manifests = [parts for parts in files if parts[-2:] == PLUGIN_MANIFEST]
    for manifest in sorted(manifests, key=len):
        root = manifest[:-2]
        if all(folder[: len(root)] == root for folder in skills):
            return Layout(skills=tuple(skills), plugin=root, manifest=manifest)
    homes = {folder[:-2] for folder in skills if len(folder) > 2 and folder[-2] == "skills"}
    if len(homes) == 1 and all(len(folder) > 2 and folder[-2] == "skills" for folder in skills):
        return Layout(skills=tuple(skills), plugin=homes.pop())
    return None
