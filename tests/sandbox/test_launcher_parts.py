"""Units of the launcher: removing folders, messages, reading /proc."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexbridge.sandbox.launcher import process_tree, protocol
from apexbridge.sandbox.launcher.landlock_cell import is_reachable
from apexbridge.sandbox.launcher.mounts import hosts_file
from apexbridge.sandbox.launcher.removal import remove_tree
from tests.making import walk
from tests.sandbox.properties import unhurried


# ---------------------------------------------------------------------------------------------------------- removal
def locked(folder: Path) -> None:
    (folder / "a/b/c").mkdir(parents=True)
    (folder / "a/b/c/f").touch()
    for path in (folder / "a/b/c", folder / "a/b", folder / "a", folder):
        path.chmod(0)


def deep(folder: Path) -> None:
    here = os.open(folder, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def odd_names(folder: Path) -> None:
    for name in (b"\xff", b"a\nb", b"-rf", b" ", b"x" * 255, b".removing-0-1", b"..."):
        (folder / os.fsdecode(name)).mkdir()
        (folder / os.fsdecode(name) / "f").touch()


def links(folder: Path) -> None:
    (folder / "out").symlink_to(folder.parent / "other")
    (folder / "loop").symlink_to("loop")
    (folder / "sub").mkdir()
    (folder / "sub/out").symlink_to(folder.parent / "other")
    os.mkfifo(folder / "pipe")


@pytest.mark.requirement("B9")
@pytest.mark.parametrize("trap", [locked, deep, odd_names, links], ids=lambda trap: trap.__name__)
def test_a_folder_is_removed_with_any_content(tmp_path: Path, trap: Callable[[Path], None]) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("stays")
    before = walk(tmp_path)
    (tmp_path / "folder").mkdir()
    trap(tmp_path / "folder")
    remove_tree(str(tmp_path / "folder"))
    assert walk(tmp_path) == before


def test_removing_a_missing_folder_does_nothing(tmp_path: Path) -> None:
    remove_tree(str(tmp_path / "nothing"))


# ---------------------------------------------------------------------------------------------------------- messages
@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("size", [0, protocol.MAX_INLINE_BYTES, protocol.MAX_INLINE_BYTES * 30])
def test_a_message_of_any_size_arrives_with_its_files(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path, size: int
) -> None:
    files = []
    for number in range(3):
        (tmp_path / str(number)).write_text(str(number))
        files.append(os.open(tmp_path / str(number), os.O_RDONLY))
    message = {"command": "start", "text": "é\0" * (size // 2)}
    protocol.send(pair[0], message, files)
    received = protocol.receive(pair[1])
    assert received is not None
    assert received[0] == message
    assert [os.read(file, 10) for file in received[1]] == [b"0", b"1", b"2"]
    assert not any(os.get_inheritable(file) for file in received[1])
    for file in (*files, *received[1]):
        os.close(file)


@given(st.lists(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers()), max_size=5))
@unhurried
def test_messages_arrive_one_by_one(messages: list[dict[str, int]]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for message in messages:
            protocol.send(ours, message)
        ours.close()
        found = []
        while (received := protocol.receive(theirs)) is not None:
            found.append(received[0])
    assert found == messages


def test_a_closed_connection_is_detected(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].close()
    assert protocol.receive(pair[1]) is None
    with pytest.raises(OSError, match="Broken pipe"):
        protocol.send(pair[1], {})


# ---------------------------------------------------------------------------------------------------------- processes
TREE = """
import os, sys
taken = bytearray(b"x") * (30 << 20)
if os.fork() == 0:
    if os.fork() == 0: taken[:] = bytearray(b"y") * (30 << 20)
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
"""


def test_all_descendants_are_found_and_exact_memory_counts_shared_pages_once() -> None:
    with subprocess.Popen([sys.executable, "-c", TREE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        below = {int(process.stdout.readline()) for _ in range(2)}
        assert set(process_tree.descendants(process.pid)) == below
        pids = [process.pid, *below]
        assert process_tree.count_tasks(pids) == 3
        quick, exact = process_tree.memory_of(pids), process_tree.exact_memory_of(pids)
        assert quick >= 90 << 20
        assert 60 << 20 <= exact < quick
        process.communicate()
    assert (
        process_tree.descendants(process.pid),
        process_tree.memory_of(pids),
        process_tree.exact_memory_of(pids),
    ) == ([], 0, 0)


@contextmanager
def started(text: str) -> Iterator[int]:
    """A process that has printed "ready"; it ends when its stdin is closed."""
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.communicate()


READY = """
print("ready", flush=True)
sys.stdin.read()
os._exit(0)
"""


@pytest.mark.requirement("B7")
def test_mappings_of_one_shared_object_count_together_and_each_byte_once() -> None:
    text = """
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
MB = 1 << 20
parts = libc.mmap(None, 8 * MB, 3, 0x21, -1, 0)
libc.mprotect(parts + 2 * MB, 2 * MB, 1)
twice = libc.mmap(None, 4 * MB, 3, 0x21, -1, 0)
libc.mremap(twice, 0, 4 * MB, 1)
zero = mmap.mmap(os.open("/dev/zero", os.O_RDWR), 2 * MB)
if os.fork() == 0: sys.stdin.read(); os._exit(0)
"""
    with started(text + READY) as pid:
        mapped = process_tree.shared_mappings([pid, *process_tree.descendants(pid)])
        assert (mapped.is_complete, mapped.unreadable, len(mapped.ranges)) == (True, set(), 3)
        assert mapped.max_bytes(0) == 14 << 20
        assert mapped.max_bytes(8 << 20) == 24 << 20


@pytest.mark.requirement("B7")
def test_a_process_whose_first_thread_has_ended_counts() -> None:
    text = """
import ctypes, os, platform, sys, threading
def hold():
    taken = bytearray(b"x") * (60 << 20)
    main.join(0.2)
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
main = threading.current_thread()
threading.Thread(target=hold).start()
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
"""
    with started(text) as pid:
        assert b"VmRSS" not in Path(f"/proc/{pid}/status").read_bytes()
        assert process_tree.memory_of([pid]) >= 60 << 20
        assert process_tree.exact_memory_of([pid]) >= 60 << 20


@pytest.mark.requirement("B7")
def test_too_many_mappings_are_reported_as_incomplete() -> None:
    text = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
for count in range(60_000): libc.mmap(None, 4096, count % 2, 0x22, -1, 0)
for _ in range(4):
    if os.fork() == 0: sys.stdin.read(); os._exit(0)
"""
    with started(text + READY) as pid:
        assert process_tree.shared_mappings([pid]).is_complete
        assert not process_tree.shared_mappings([pid, *process_tree.descendants(pid)]).is_complete


def test_locks_sockets_and_files_without_a_name_are_found(tmp_path: Path) -> None:
    text = f"""
import fcntl, os, socket, sys
os.chdir({str(tmp_path)!r})
file = os.open("locked", os.O_RDWR | os.O_CREAT)
for at in range(7): fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * at)
pair = socket.socketpair()
unnamed = os.open("unnamed", os.O_RDWR | os.O_CREAT)
os.unlink("unnamed")
os.write(unnamed, b"x" * (1 << 20))
"""
    with started(text + READY) as pid:
        assert process_tree.count_file_locks([pid]) == 7
        assert process_tree.count_open_sockets([pid]) == 2
        assert process_tree.unlinked_file_bytes([pid], tmp_path.stat().st_dev) >= 1 << 20
        assert process_tree.count_namespace_sockets(pid) >= 2
    assert process_tree.host_shared_memory() >= 0
    assert process_tree.socket_buffer_bytes() > 0


# ------------------------------------------------------------------------------------------------------------- others
def test_a_folder_is_reachable_if_all_users_can_traverse_its_parents(tmp_path: Path) -> None:
    folder = tmp_path / "open/closed/open"
    folder.mkdir(parents=True)
    (tmp_path / "open/closed").chmod(0o700)
    assert not is_reachable(str(folder))
    assert is_reachable("/usr/bin")


def test_granted_hosts_are_listed_in_the_hosts_file() -> None:
    granted = [["127.83.0.1", 443, "example.com"], ["127.83.0.1", 80, "example.com"], ["192.0.2.1", 80, "192.0.2.1"]]
    assert hosts_file(granted) == "127.0.0.1 localhost\n::1 localhost\n127.83.0.1 example.com\n"
    assert json.dumps(hosts_file([])) == '"127.0.0.1 localhost\\n::1 localhost\\n"'
