"""Somebody swaps links for files and folders all the time, in another process; nothing outside is read or changed."""

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
"""`RACE_ATTEMPTS=100000` for a long look."""
INSIDE, OUTSIDE = b"inside", b"the marker from outside"
SWAPPING = """
import ctypes, os, sys
exchange = ctypes.CDLL(None, use_errno=True).renameat2
one, other = (os.fsencode(path) for path in sys.argv[1:])
print("ready", flush=True)
while True:
    if exchange(-100, one, -100, other, 2):
        sys.exit(os.strerror(ctypes.get_errno()))
"""
"""Swaps two names in one step, so that the link and what it stands for are each there half of the time."""


class Ground:
    """A workspace with a file that is swapped for a link to one outside, and a folder likewise."""

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
        # A link that climbs back up makes the kernel notice renames, and ask to be tried again.
        (self.workspace / "around").symlink_to("folder/../folder/below/../file")

    @contextmanager
    def swapping(self, one: str, other: str) -> Iterator[None]:
        paths = [str(self.workspace / one), str(self.workspace / other)]
        with subprocess.Popen([sys.executable, "-c", SWAPPING, *paths], stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
                yield
                assert process.poll() is None
            finally:
                process.kill()

    def untouched(self) -> bool:
        found = {path.relative_to(self.outside): path for path in self.outside.rglob("*")}
        files = [path.read_bytes() for path in found.values() if path.is_file()]
        return sorted(map(str, found)) == ["below", "below/file", "file"] and files == [OUTSIDE, OUTSIDE]


SWAPS = [("file", "aside", ["file"]), ("folder", "asides", ["folder/file", "folder/below/file", "around"])]


@pytest.fixture(params=[open_beneath, walk_beneath])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return Ground(tmp_path, request.param)


def race(attempts: int, work: Callable[[int], bytes]) -> dict[str, int]:
    """Do it so many times, and on until it both went well and was refused; gives how often each came out."""
    told = {"done": 0, "refused": 0}
    number = 0
    while number < attempts or (0 in told.values() and number < 100 * attempts):
        try:
            assert work(number) == INSIDE
            told["done"] += 1
        except ApexBridgeError:
            told["refused"] += 1
        number += 1
    return told


def reads(ground: Ground, one: str, other: str, paths: list[str], attempts: int = ATTEMPTS) -> dict[str, int]:
    def read(number: int) -> bytes:
        with ground.root.open_file(read_path(paths[number % len(paths)])) as file:
            return file.read()

    with ground.swapping(one, other):
        return race(attempts, read)


def writes(ground: Ground, one: str, other: str, paths: list[str], attempts: int = ATTEMPTS) -> dict[str, int]:
    def write(number: int) -> bytes:
        path = read_path(paths[number % len(paths)])
        if number % 2:
            ground.root.append_to_file(path, INSIDE)
        else:
            ground.root.write_file(path, INSIDE, backup=number % 1000 == 0)
        return INSIDE

    with ground.swapping(one, other):
        return race(attempts, write)


@pytest.mark.requirement("A6")
@pytest.mark.parametrize(("one", "other", "paths"), SWAPS)
def test_no_read_ever_gives_what_is_outside(ground: Ground, one: str, other: str, paths: list[str]) -> None:
    told = reads(ground, one, other, paths)
    assert min(told.values()) > 0


@pytest.mark.requirement("A6")
def test_no_write_ever_changes_what_is_outside(ground: Ground) -> None:
    told = writes(ground, "folder", "asides", ["folder/file", "folder/below/file", "folder/new/file"])
    assert min(told.values()) > 0
    assert ground.untouched()
    assert not list(ground.workspace.rglob(".apex-*"))


@pytest.mark.requirement("A6")
def test_no_write_to_a_swapped_file_goes_through_the_link(ground: Ground) -> None:
    with ground.swapping("file", "aside"):
        for number in range(ATTEMPTS):
            with suppress(ApexBridgeError):
                if number % 2:
                    ground.root.append_to_file(read_path("file"), INSIDE)
                else:
                    ground.root.write_file(read_path("file"), INSIDE)
            if number % 100 == 0:  # a write puts a file where the link was; then there is nothing left to race with
                (ground.workspace / "link").unlink(missing_ok=True)
                (ground.workspace / "link").symlink_to("../outside/file")
                (ground.workspace / "link").replace(ground.workspace / "aside")
    assert ground.untouched()


def test_no_listing_shows_what_is_outside(ground: Ground) -> None:
    (ground.outside / "telling").touch()
    with ground.swapping("folder", "asides"):
        for _ in range(ATTEMPTS // 10):
            with suppress(ApexBridgeError):
                found, _ = ground.root.list_folder(read_path("."), deep=True)
                assert not [entry.path for entry in found if entry.path.endswith("telling")]
                found, _ = ground.root.list_folder(read_path("folder"), deep=True)
                assert not [entry.path for entry in found if entry.path.endswith("telling")]
