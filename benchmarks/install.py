"""Installing a small skill, compared with writing the same files with fsync."""

import io
import os
import tempfile
import zipfile
from itertools import count
from pathlib import Path

from apexbridge import Bridge, Settings
from benchmarks.library import markdown
from benchmarks.measuring import Comparison, compare

FILES = {"SKILL.md": "", "scripts/execute.py": "print('{}')\n" * 20, "reference.md": "# Reference\n" * 40}
GOAL = 20.0
MAX_MS = 100


def archive(number: int) -> tuple[str, bytes]:
    """A different skill for each round."""
    name = f"skill-{number:05}"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for path, content in FILES.items():
            packed.writestr(f"{name}/{path}", content or markdown(number))
    return name, buffer.getvalue()


def write_with_fsync(folder: Path, number: int) -> None:
    """The minimum that a durable install has to do."""
    for path, content in FILES.items():
        target = folder / f"plain-{number}" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("w") as file:
            file.write(content or markdown(number))
            file.flush()
            os.fsync(file.fileno())


async def run() -> list[Comparison]:
    """Measure installs and overwrites on the same disk."""
    with tempfile.TemporaryDirectory() as directory:
        numbers, others = count(), count()
        async with Bridge.open(Settings(data_dir=Path(directory) / "data"), watch=False) as bridge:

            async def ours() -> None:
                await bridge.skills.install_skill(archive(next(numbers))[1])

            async def overwrite() -> None:
                await bridge.skills.install_skill(archive(0)[1], overwrite=True)

            async def baseline() -> None:
                write_with_fsync(Path(directory), next(others))

            name = "writing the files with fsync"
            results = [
                await compare("install of a small skill", ours, name, baseline, goal=GOAL, rounds=60),
                await compare("overwrite of a small skill", overwrite, name, baseline, goal=GOAL, rounds=60),
            ]
            print(f"install of a small skill: median {results[0].ours_ms:.0f} ms, limit {MAX_MS} ms")
            return results
