"""Another process keeps swapping symlinks for files and folders; nothing outside is read or changed."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from apexbridge._safe_open import Opener, open_beneath, walk_beneath
from apexbridge.errors import ApexBridgeError
from apexbridge.tools.builtin.files.file_roots import Root
from apexbridge.tools.builtin.files.paths import read_path

pytestmark = pytest.mark.slow

ATTEMPTS = int(os.environ.get("RACE_ATTEMPTS", "5000"))
"""`RACE_ATTEMPTS=100000` for a long run."""
INSIDE, OUTSIDE = b"inside", b"the marker from outside"
SWAP_SCRIPT = """
import ctypes, os, sys
exchange = ctypes.CDLL(None, use_errno=True).renameat2
one, other = (os.fsencode(path) for path in sys.argv[1:])
print("ready", flush=True)
while True:
    if exchange(-100, one, -100, other, 2):
        sys.exit(os.strerror(ctypes.get_errno()))
"""
"""Swaps two names atomically: each of them is the symlink half of the time."""


class RacingWorkspace:
    """A workspace with a file and a folder that are swapped for symlinks to the outside."""

    def __init__(self, folder: Path, opener: Opener) -> None:
        self.workspace = folder / "workspace"
        self.outside = folder / "outside"
        self.root = Root(self.workspace, opener=opener)
        (self.workspace / "folder" / "below").mkdir(parents=True)
        (self.outside / "below").mkdir(parents=True)
        for path in ("file", "folder/file", "folder/below/file"):
            (self.workspace / path).write_bytes(INSIDE)
            (self.outside / path.removeprefix("folder/")).write_bytes(OUTSIDE)
        (self.workspace / "aside").symlink_to("../outside/file")
        (self.workspace / "asides").symlink_to(self.outside)
        # With `..` in a symlink, the kernel notices renames and fails with EAGAIN.
        (self.workspace / "around").symlink_to("folder/../folder/below/../file")

    @contextmanager
    def swapping(self, one: str, other: str) -> Iterator[None]:
        paths = [str(self.workspace / one), str(self.workspace / other)]
        with subprocess.Popen([sys.executable, "-c", SWAP_SCRIPT, *paths], stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
                yield
                assert process.poll() is None
            finally:
                process.kill()

    def outside_is_unchanged(self) -> bool:
        found = {path.relative_to(self.outside): path for path in self.outside.rglob("*")}
        files = [path.read_bytes() for path in found.values() if path.is_file()]
        return sorted(map(str, found)) == ["below", "below/file", "file"] and files == [OUTSIDE, OUTSIDE]


SWAPS = [("file", "aside", ["file"]), ("folder", "asides", ["folder/file", "folder/below/file", "around"])]


@pytest.fixture(params=[open_beneath, walk_beneath])
def racing(request: pytest.FixtureRequest, tmp_path: Path) -> RacingWorkspace:
    return RacingWorkspace(tmp_path, request.param)


def race(attempts: int, work: Callable[[int], bytes]) -> dict[str, int]:
    """Run the work at least this many times, until it has succeeded and been refused; count both outcomes."""
    counts = {"done": 0, "refused": 0}
    number = 0
    while number < attempts or (0 in counts.values() and number < 100 * attempts):
        try:
            assert work(number) == INSIDE
            counts["done"] += 1
        except ApexBridgeError:
            counts["refused"] += 1
        number += 1
    return counts


def reads(racing: RacingWorkspace, one: str, other: str, paths: list[str], attempts: int = ATTEMPTS) -> dict[str, int]:
    def read(number: int) -> bytes:
        with racing.root.open_file(read_path(paths[number % len(paths)])) as file:
            return file.read()

    with racing.swapping(one, other):
        return race(attempts, read)


def writes(racing: RacingWorkspace, one: str, other: str, paths: list[str], attempts: int = ATTEMPTS) -> dict[str, int]:
    def write(number: int) -> bytes:
        path = read_path(paths[number % len(paths)])
        if number % 2:
            racing.root.append_to_file(path, INSIDE)
        else:
            racing.root.write_file(path, INSIDE, backup=number % 1000 == 0)
        return INSIDE

    with racing.swapping(one, other):
        return race(attempts, write)


@pytest.mark.requirement("A6")
@pytest.mark.parametrize(("one", "other", "paths"), SWAPS)
def test_no_read_returns_outside_content(racing: RacingWorkspace, one: str, other: str, paths: list[str]) -> None:
    counts = reads(racing, one, other, paths)
    assert min(counts.values()) > 0


@pytest.mark.requirement("A6")
def test_no_write_changes_outside_files(racing: RacingWorkspace) -> None:
    counts = writes(racing, "folder", "asides", ["folder/file", "folder/below/file", "folder/new/file"])
    assert min(counts.values()) > 0
    assert racing.outside_is_unchanged()
    assert not list(racing.workspace.rglob(".apex-*"))


@pytest.mark.requirement("A6")
def test_no_write_to_a_swapped_file_follows_the_symlink(racing: RacingWorkspace) -> None:
    with racing.swapping("file", "aside"):
        for number in range(ATTEMPTS):
            with suppress(ApexBridgeError):
                if number % 2:
                    racing.root.append_to_file(read_path("file"), INSIDE)
                else:
                    racing.root.write_file(read_path("file"), INSIDE)
            if number % 100 == 0:  # a write replaces the symlink with a file: restore it
                (racing.workspace / "link").unlink(missing_ok=True)
                (racing.workspace / "link").symlink_to("../outside/file")
                (racing.workspace / "link").replace(racing.workspace / "aside")
    assert racing.outside_is_unchanged()


def test_no_listing_contains_outside_files(racing: RacingWorkspace) -> None:
    (racing.outside / "telling").touch()
    with racing.swapping("folder", "asides"):
        for _ in range(ATTEMPTS // 10):
            with suppress(ApexBridgeError):
                found, _ = racing.root.list_folder(read_path("."), deep=True)
                assert not [entry.path for entry in found if entry.path.endswith("telling")]
                found, _ = racing.root.list_folder(read_path("folder"), deep=True)
                assert not [entry.path for entry in found if entry.path.endswith("telling")]
