"""Imported by every Python that code starts: a script of a loaded skill finds the modules of its own skill first."""

import os
import sys


def skill_of(script: str) -> str | None:
    """The folder of the skill to which a script belongs."""
    skills = os.path.realpath(os.environ.get("SKILLS_PATH", "/skills"))
    path = os.path.realpath(script)
    if not path.startswith(f"{skills}/"):
        return None
    name, separator, _ = path[len(skills) + 1 :].partition("/")
    return f"{skills}/{name}" if separator else None


if folder := skill_of(sys.argv[0]):
    sys.path.insert(0, folder)  # Python then puts the folder of the script before it
