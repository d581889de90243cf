"""User IDs of runs: reserved by locks that only root can take, and released when their holder ends."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from apexbridge.sandbox.launcher.uids import UidPool

FIRST = 62_000
HOLDER = """
import sys
from apexbridge.sandbox.launcher.uids import UidPool
uids = UidPool(62_000, 2, (sys.argv[1],))
print(uids.acquire(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    tmp_path.chmod(0o755)
    return str(tmp_path)


def test_two_servers_never_have_the_same_user_id_and_a_crash_releases_it(folder: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert int(other.stdout.readline()) == FIRST
        ours = UidPool(FIRST, 2, (folder,))
        assert ours.acquire() == FIRST + 1
        with pytest.raises(OSError, match="all user IDs"):
            ours.acquire()
        other.kill()
        other.wait()
        assert ours.acquire() == FIRST
        ours.release(FIRST)
        assert UidPool(FIRST, 1, (folder,)).acquire() == FIRST


def test_abstract_sockets_do_not_reserve_a_user_id(folder: str) -> None:
    with ExitStack() as held:
        for number in range(FIRST, FIRST + 3):
            name = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            with suppress(OSError):  # bound by another program already
                name.bind(f"\0apexbridge-user-{number}")
        assert UidPool(FIRST, 3, (folder,)).acquire() == FIRST


@pytest.mark.parametrize("trap", ["owned", "writable", "link", "lock is a link", "below a folder of all"])
def test_a_folder_that_another_user_prepared_is_refused(tmp_path: Path, trap: str) -> None:
    base = tmp_path / "run"
    base.mkdir(mode=0o755)
    (tmp_path / "elsewhere").mkdir()
    if trap == "owned":
        (base / "apexbridge").mkdir()
        os.chown(base / "apexbridge", 1000, 1000)
    elif trap == "writable":
        (base / "apexbridge").mkdir()
        (base / "apexbridge").chmod(0o777)
    elif trap == "link":
        (base / "apexbridge").symlink_to(tmp_path / "elsewhere")
    elif trap == "lock is a link":
        (base / "apexbridge/users").mkdir(parents=True)
        (base / f"apexbridge/users/{FIRST}").symlink_to(tmp_path / "elsewhere/file")
    else:
        base.chmod(0o1777)
    with pytest.raises(OSError, match=r"cannot create a lock folder|symbolic links"):
        UidPool(FIRST, 1, (str(base),)).acquire()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_folder_is_private_to_root_and_the_next_is_used_if_the_first_cannot_be_written(tmp_path: Path) -> None:
    base = tmp_path / "lib"
    base.mkdir(mode=0o755)
    assert UidPool(FIRST, 1, (str(tmp_path / "missing"), str(base))).acquire() == FIRST
    assert {path.stat().st_mode & 0o777 for path in (base / "apexbridge", base / "apexbridge/users")} == {0o700}
