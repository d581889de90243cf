"""The public index of 1,000 skills: packing all of them once, then asking again, also after one has changed."""

import hashlib
import io
import shutil
import tempfile
import time
import zipfile
from pathlib import Path

import anyio.to_thread

from apexbridge import Bridge, Settings
from benchmarks.measuring import Comparison, within_limit

SKILLS = 1_000
PACKING_GOAL = 2.0
AGAIN_LIMIT_MS = 50.0
CHANGED_LIMIT_MS = 200.0
SCRIPT = "import json, sys\nprint(json.load(sys.stdin))\n" * 40


async def run() -> list[Comparison]:
    """The first index compared with zipfile and hashlib, and further ones with a limit."""
    with tempfile.TemporaryDirectory() as directory:
        data_dir = Path(directory) / "data"
        await anyio.to_thread.run_sync(_write, data_dir / "skills")
        settings = Settings(data_dir=data_dir, publish_skills=True)
        async with Bridge.open(settings, watch=False, indexing="on-demand") as bridge:
            published = bridge.published
            assert published is not None
            begun = time.perf_counter()
            await anyio.to_thread.run_sync(_pack_plainly, data_dir / "skills")
            plain = time.perf_counter() - begun
            first = await _timed(published.index)
            again = await _timed(published.index)
            await bridge.skills.update_skill_description("skill-7", "Does something else with numbers from now on.")
            changed = await _timed(published.index)
        return [
            Comparison(
                what=f"first index of {SKILLS:,} skills",
                ours_ms=first,
                baseline="zipfile and hashlib",
                baseline_ms=plain * 1000,
                goal=PACKING_GOAL,
                spread=1.0,
            ),
            within_limit("the same index again", again, AGAIN_LIMIT_MS),
            within_limit("the index after one change", changed, CHANGED_LIMIT_MS),
        ]


async def _timed(work: object) -> float:
    begun = time.perf_counter()
    await work()  # type: ignore[operator]
    return (time.perf_counter() - begun) * 1000


def _write(folder: Path) -> None:
    for number in range(SKILLS):
        skill = folder / f"skill-{number}"
        (skill / "scripts").mkdir(parents=True)
        text = (
            f"---\nname: skill-{number}\ndescription: Adds up numbers of the kind {number}.\n---\n{number}\n"
            + "Add. " * 300
        )
        (skill / "SKILL.md").write_text(text)
        (skill / "scripts/run.py").write_text(SCRIPT)


def _pack_plainly(folder: Path) -> None:
    target = folder.parent / "plain"
    target.mkdir()
    for skill in folder.iterdir():
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(skill.rglob("*")):
                if path.is_file():
                    archive.write(path, path.relative_to(skill))
        data = buffer.getvalue()
        (target / hashlib.sha256(data).hexdigest()).write_bytes(data)
    shutil.rmtree(target)
