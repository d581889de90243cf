"""A start with 10,000 known skills, compared with a stat walk of the same tree."""

import os
import tempfile
from pathlib import Path

from apexbridge import Bridge, Settings
from benchmarks.library import SKILLS, write_library
from benchmarks.measuring import Comparison, compare

GOAL = 3.0


async def run() -> list[Comparison]:
    """Open the data directory; imports are not measured."""
    with tempfile.TemporaryDirectory() as directory:
        settings = Settings(data_dir=Path(directory) / "data")
        skills = settings.data_dir / "skills"
        write_library(skills)

        async def ours() -> None:
            async with Bridge.open(settings, watch=False, indexing="on-demand") as bridge:
                assert (await bridge.skills.list_skills(limit=1)).total == SKILLS

        async def walk() -> None:
            for folder, _, files in os.walk(skills):
                for name in files:
                    os.lstat(os.path.join(folder, name))  # noqa: PTH118  # the cheapest way

        return [await compare(f"start with {SKILLS:,} known skills", ours, "a stat walk", walk, goal=GOAL, rounds=7)]
