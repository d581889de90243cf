"""Listing a page of 50 out of 10,000 skills, compared with the plain SQL."""

import sqlite3
import tempfile
from pathlib import Path

from apexbridge import Bridge, Settings
from apexbridge.bridge import DATABASE_FILE
from benchmarks.library import SKILLS, write_library
from benchmarks.measuring import Comparison, compare

GOAL = 5.0
PAGE = "SELECT * FROM skills WHERE state = 'live' ORDER BY name LIMIT 50 OFFSET ?"
TOTAL = "SELECT COUNT(*) FROM skills WHERE state = 'live'"


async def run() -> list[Comparison]:
    """The first page, and a page in the middle."""
    with tempfile.TemporaryDirectory() as directory:
        data_dir = Path(directory) / "data"
        write_library(data_dir / "skills")
        async with Bridge.open(Settings(data_dir=data_dir), watch=False, indexing="on-demand") as bridge:
            connection = sqlite3.connect(data_dir / DATABASE_FILE)
            results = []
            for page in (1, SKILLS // 100):

                async def ours(page: int = page) -> None:
                    assert len(await bridge.skills.list_skills(page=page, limit=50)) == 50

                async def bare(page: int = page) -> None:
                    connection.execute(PAGE, ((page - 1) * 50,)).fetchall()
                    connection.execute(TOTAL).fetchone()

                what = f"page {page} of 50 out of {SKILLS:,}"
                results.append(await compare(what, ours, "plain SQL", bare, goal=GOAL, rounds=200))
            connection.close()
            return results
