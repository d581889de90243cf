"""The names under which installed skills are served, and their folders.

A skill is served under its own name. If that was taken when its plugin was installed, it is served as `plugin:skill`,
and its folder is `plugin+skill`: a colon is not allowed in file names on every system. The folder alone decides the
name, so it survives the loss of the database.
"""

from apexbridge.skills import NAME_PATTERN

_SEPARATOR, _FOLDER_SEPARATOR = ":", "+"


def qualified_name(plugin: str, skill: str) -> str:
    return f"{plugin}{_SEPARATOR}{skill}"


def own_name(name: str) -> str:
    """The name in SKILL.md."""
    return name.rpartition(_SEPARATOR)[2]


def folder_of_name(name: str) -> str:
    """The folder in which an install puts the skill that is served under this name."""
    return name.replace(_SEPARATOR, _FOLDER_SEPARATOR)


def name_of_folder(folder: str) -> str:
    """The name that the skill of an installed folder should have."""
    plugin, skill = _split(folder)
    return qualified_name(plugin, skill) if plugin else skill


def served_name(folder: str, own: str) -> str:
    """The name under which the skill of an installed folder is served."""
    plugin, _ = _split(folder)
    return qualified_name(plugin, own) if plugin else own


def _split(folder: str) -> tuple[str, str]:
    plugin, separator, skill = folder.partition(_FOLDER_SEPARATOR)
    if separator and NAME_PATTERN.match(plugin) and NAME_PATTERN.match(skill):
        return plugin, skill
    return "", folder
