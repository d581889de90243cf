"""Listing a page of 50 out of 10,000 skills: plain, filtered and sorted, compared with the plain SQL."""

import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from apexbridge import Bridge, Settings
from apexbridge.bridge import DATABASE_FILE
from benchmarks.library import SKILLS, write_library
from benchmarks.measuring import Comparison, compare

GOAL, TAGS_GOAL, FILTERED_GOAL = 5.0, 10.0, 40.0
PAGE = "SELECT * FROM skills WHERE state = 'live' ORDER BY name LIMIT 50 OFFSET ?"
TOTAL = "SELECT COUNT(*) FROM skills WHERE state = 'live'"
FILTERED: dict[str, dict[str, Any]] = {
    "with two words of the description": {"query": "number says"},
    "with one tag": {"tags": ["tag-3"]},
    "in sandbox mode": {"mode": "sandbox"},
    "that need packages": {"health": "packages"},
    "that need access": {"health": "access"},
    "by update": {"sort": "updated"},
    "by calls": {"sort": "calls"},
}


async def run() -> list[Comparison]:
    """The first page, a page in the middle, filtered and sorted ones, and the tags."""
    with tempfile.TemporaryDirectory() as directory:
        data_dir = Path(directory) / "data"
        write_library(data_dir / "skills")
        for number in range(0, SKILLS, 2):
            script = data_dir / f"skills/skill-{number:05}/scripts/execute.py"
            script.write_text("import pandas\n")
        async with Bridge.open(Settings(data_dir=data_dir), watch=False, indexing="on-demand") as bridge:
            connection = sqlite3.connect(data_dir / DATABASE_FILE)
            called = [(f"skill-{number:05}", number % 97) for number in range(0, SKILLS, 3)]
            connection.executemany("INSERT INTO call_statistics VALUES (?, ?, 0, 0, 0)", called)
            connection.commit()
            results = []

            async def measure(what: str, goal: float, page: int = 1, **options: Any) -> None:
                async def ours() -> None:
                    await bridge.skills.list_skills(page=page, limit=50, **options)

                async def bare() -> None:
                    connection.execute(PAGE, ((page - 1) * 50,)).fetchall()
                    connection.execute(TOTAL).fetchone()

                results.append(await compare(what, ours, "plain SQL", bare, goal=goal, rounds=200))

            for page in (1, SKILLS // 100):
                await measure(f"page {page} of 50 out of {SKILLS:,}", GOAL, page)
            for what, options in FILTERED.items():
                await measure(f"50 out of {SKILLS:,} {what}", FILTERED_GOAL, **options)

            async def tags() -> None:
                assert len((await bridge.skills.list_tags()).tags) == 12

            async def counted() -> None:
                connection.execute("SELECT tag, COUNT(*) FROM skill_tags GROUP BY tag").fetchall()

            results.append(
                await compare("the 12 most frequent tags", tags, "plain SQL", counted, goal=TAGS_GOAL, rounds=50)
            )
            connection.close()
            return results
