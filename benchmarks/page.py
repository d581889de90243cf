"""Files of the console and compressed JSON, over the whole application: latency compared with other answers of it."""

import gzip
import hashlib
import json
import tempfile
from pathlib import Path

import httpx

from apexbridge import Bridge, Settings
from apexbridge.surfaces.console.built_files import MANIFEST, ConsoleFiles
from apexbridge.surfaces.http.app import create_app
from benchmarks.measuring import Comparison, compare

SKILLS = 300
PAGE_BYTES = 30_000
PAGE_GOAL = 1.5
COMPRESSED_GOAL = 1.5
KNOWN_GOAL = 1.2
ROUNDS = 60
GZIP = {"accept-encoding": "gzip"}
PLAIN = {"accept-encoding": "identity"}


async def run() -> list[Comparison]:
    """A file compared with `/healthz`; a list, compressed and as 304, compared with the same list uncompressed."""
    with tempfile.TemporaryDirectory() as directory:
        data_dir, dist = Path(directory) / "data", Path(directory) / "dist"
        _write_skills(data_dir / "skills")
        _write_page(dist)
        async with Bridge.open(Settings(data_dir=data_dir), watch=False, indexing="on-demand") as bridge:
            transport = httpx.ASGITransport(create_app(bridge, console=ConsoleFiles(dist)))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                path = f"/api/skills?limit={SKILLS}"
                etag = (await client.get(path)).headers["etag"]

                async def get(path: str, headers: dict[str, str]) -> None:
                    async with client.stream("GET", path, headers=headers) as answer:  # without decompressing
                        async for _ in answer.aiter_raw():
                            pass

                return [
                    await compare(
                        "the page",
                        lambda: get("/", GZIP),
                        "/healthz",
                        lambda: get("/healthz", PLAIN),
                        goal=PAGE_GOAL,
                        rounds=ROUNDS,
                    ),
                    await compare(
                        f"{SKILLS} skills, compressed",
                        lambda: get(path, GZIP),
                        "uncompressed",
                        lambda: get(path, PLAIN),
                        goal=COMPRESSED_GOAL,
                        rounds=ROUNDS,
                    ),
                    await compare(
                        f"{SKILLS} skills that the client has",
                        lambda: get(path, {**GZIP, "if-none-match": etag}),
                        "uncompressed",
                        lambda: get(path, PLAIN),
                        goal=KNOWN_GOAL,
                        rounds=ROUNDS,
                    ),
                ]


def _write_skills(folder: Path) -> None:
    for number in range(SKILLS):
        (folder / f"skill-{number}").mkdir(parents=True)
        digest = hashlib.sha256(str(number).encode()).hexdigest()
        text = f"Adds up numbers of the kind {digest[:20]}. Use it for tables of {digest[20:30]} and reports."
        (folder / f"skill-{number}/SKILL.md").write_text(
            f"---\nname: skill-{number}\ndescription: {text}\ntags: [{digest[:5]}, sums]\n---\nAdd.\n"
        )


def _write_page(dist: Path) -> None:
    dist.mkdir()
    content = json.dumps([hashlib.sha256(str(number).encode()).hexdigest() for number in range(PAGE_BYTES // 68)])
    (dist / "index.html").write_text(content)
    (dist / "index.html.gz").write_bytes(gzip.compress(content.encode(), mtime=0))
    (dist / MANIFEST).write_text(json.dumps({"files": {"index.html": "0" * 64}}))
