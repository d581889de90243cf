"""What a run's processes are and what they use, read from /proc."""

import functools
import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

_PRIVATE = (b"RssAnon:", b"VmSwap:", b"VmPTE:", b"HugetlbPages:")
"""What a process has taken for itself. Mapped files do not count; page tables do: they grow without any page."""
_COUNTED = (*_PRIVATE, b"RssShmem:")
_EXACT_PRIVATE = (b"Pss_Anon:", b"SwapPss:")
_EXACT = (*_EXACT_PRIVATE, b"Pss_Shmem:")
_OUTSIDE_OF_ROLLUP = (b"VmPTE:", b"HugetlbPages:")
_HAS_MEMORY = b"VmRSS:"
MAPS_BYTES = 8 * 1024 * 1024
"""Of /proc/PID/maps, for all processes of a run. Measured: 4 KB for Python, 7 KB for Node, 30 KB for Node with eight
workers, 70 KB for Python with numpy, Arrow and LanceDB. 64 processes of the largest have 4.5 MB."""
LOCKS_BYTES = 256 * 1024
"""Of /proc/locks, which has the newest first."""
_KB = 1024


@dataclass(slots=True, kw_only=True)
class Mapped:
    """The shared memory without a file that processes have mapped."""

    ranges: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    """By device and inode: first and last offset of each mapping."""
    unreadable: set[int] = field(default_factory=set)
    """Processes whose mappings may not be read."""
    is_whole: bool = True
    """Whether everything was read; False for more mappings than any honest program has."""

    def bytes_at_most(self, largest: int) -> int:
        """The most memory that these objects can hold, if none was larger than `largest` when it was made.

        A page stays in use while any part of its object is mapped, so an object of which one page is left may hold as
        much as ever.
        """
        return sum(max(largest, _length(ranges)) for ranges in self.ranges.values())


def descendants(pid: int) -> list[int]:
    """Every process below this one that can be seen now."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for child in children(waiting.pop()):
            found.append(child)
            waiting.append(child)
    return found


def children(pid: int) -> Iterator[int]:
    """The children of all threads of a process."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        for word in _read(f"/proc/{pid}/task/{thread}/children").split():
            yield int(word)


def are_all_there(pids: Iterable[int]) -> bool:
    """Whether none of these processes has ended since it was listed."""
    return all(os.path.exists(f"/proc/{pid}") for pid in pids)


def memory_of(pids: Iterable[int]) -> int:
    """Bytes that these use, pages that several share counted for each: quick, and never too little."""
    return sum(_sum(_status(pid), _COUNTED) for pid in pids)


def private_memory_of(pids: Iterable[int]) -> int:
    """The same without shared memory."""
    return sum(_sum(_status(pid), _PRIVATE) for pid in pids)


def exact_memory_of(pids: Iterable[int], *, shared: bool = True) -> int:
    """The same with shared pages counted once: slow, for when the quick sum is above a limit."""
    total = 0
    for pid in pids:
        rollup = _read(f"/proc/{_living_thread(pid)}/smaps_rollup")
        if not rollup:  # gone, or not to be looked at: what the quick sum says has to do
            total += memory_of([pid]) if shared else private_memory_of([pid])
            continue
        total += _sum(rollup, _EXACT if shared else _EXACT_PRIVATE) + _sum(_status(pid), _OUTSIDE_OF_ROLLUP)
    return total


def shared_memory_of(pids: Iterable[int]) -> Mapped:
    """What processes share and no file holds.

    Data stays there until the last process unmaps the whole object, also if no process has the page mapped any more:
    then none of the figures above show it.
    """
    found = Mapped()
    room = MAPS_BYTES
    device = b" %b " % _shared_device()
    for pid in pids:
        try:
            text = _read_all(f"/proc/{_living_thread(pid)}/maps", room + 1)
        except PermissionError:
            found.unreadable.add(pid)
            continue
        room -= len(text)
        if room < 0:
            found.is_whole = False
            return found
        at = text.find(device)
        while at >= 0:
            end = text.find(b"\n", at)
            addresses, _, offset, _, inode, *_ = text[text.rfind(b"\n", 0, at) + 1 : end].split(None, 5)
            first, last = (int(address, 16) for address in addresses.split(b"-"))
            begin = int(offset, 16)
            if inode != b"0":
                found.ranges.setdefault(inode, []).append((begin, begin + last - first))
            at = text.find(device, end)
    return found


def shared_memory_of_host() -> int:
    """All memory on this host that processes share or file systems in memory hold, also what was swapped out."""
    rows = dict(line.split(b":", 1) for line in _read("/proc/meminfo").splitlines())
    pages, total, free = (int(rows[name].split()[0]) * _KB for name in (b"Shmem", b"SwapTotal", b"SwapFree"))
    return pages + total - free


def locks_of(pids: Iterable[int]) -> int:
    """Locks on files that these processes hold; each is kernel memory that no limit counts."""
    owners = {b"%d" % pid for pid in pids}
    lines = (line.split() for line in _read("/proc/locks", LOCKS_BYTES).splitlines())
    return sum(1 for words in lines if len(words) > 4 and words[4] in owners)


def sockets_of_namespace(pid: int) -> int:
    """Sockets of the network namespace of a process, also those that no process has open any more."""
    words = _read(f"/proc/{pid}/net/sockstat").split(None, 3)
    return int(words[2]) if len(words) > 2 else 0


def open_sockets_of(pids: Iterable[int]) -> int:
    """Sockets that these processes have open."""
    return len({(found.st_dev, found.st_ino) for found in _open_files(pids) if stat.S_ISSOCK(found.st_mode)})


def unnamed_bytes_of(pids: Iterable[int], device: int) -> int:
    """What files take of a disk that these processes have open and that no folder names any more."""
    unnamed = {
        (found.st_dev, found.st_ino): found.st_blocks * 512
        for found in _open_files(pids)
        if stat.S_ISREG(found.st_mode) and not found.st_nlink and found.st_dev == device
    }
    return sum(unnamed.values())


def socket_bytes() -> int:
    """What the kernel lets a socket have under way."""
    return int(_read("/proc/sys/net/core/wmem_default") or 212_992)


def tasks_of(pids: list[int]) -> int:
    """Processes and threads together."""
    total = 0
    for pid in pids:
        try:
            total += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:
            continue
    return total


def tasks_of_user(uid: int) -> int:
    """Processes and threads of a user on the whole host."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return tasks_of([pid for pid in pids if _owner(pid) == uid])


def _owner(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def _open_files(pids: Iterable[int]) -> Iterator[os.stat_result]:
    for pid in pids:
        folder = f"/proc/{_living_thread(pid)}/fd"
        with suppress(OSError):
            for name in os.listdir(folder):
                with suppress(OSError):
                    yield os.stat(f"{folder}/{name}")


@functools.cache
def _shared_device() -> bytes:
    """The device that the kernel shows for shared memory without a file; the name in /proc/PID/maps can be changed."""
    with mmap.mmap(-1, mmap.PAGESIZE) as own:
        own[0] = 1
        line = next(line for line in _read("/proc/self/maps", MAPS_BYTES).splitlines() if b"/dev/zero" in line)
    return line.split()[3]


def _length(ranges: list[tuple[int, int]]) -> int:
    """How many bytes ranges cover, those that overlap counted once."""
    total = reached = 0
    for first, last in sorted(ranges):
        total += max(0, last - max(first, reached))
        reached = max(reached, last)
    return total


def _status(pid: int) -> bytes:
    """The figures of a process. If its first thread has ended, /proc/PID shows none, so another thread is asked."""
    text = _read(f"/proc/{pid}/status")
    if not text or _HAS_MEMORY in text:
        return text
    return _read(f"/proc/{_living_thread(pid)}/status")


def _living_thread(pid: int) -> int:
    """A thread of the process that has its memory; the first one if it lives."""
    if _HAS_MEMORY in _read(f"/proc/{pid}/status"):
        return pid
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            if _HAS_MEMORY in _read(f"/proc/{pid}/task/{thread}/status"):
                return int(thread)
    return pid


def _sum(text: bytes, names: tuple[bytes, ...]) -> int:
    return sum(int(line.split()[1]) * _KB for line in text.splitlines() if line.startswith(names))


def _read(path: str, size: int = 1 << 16) -> bytes:
    """What a file holds, up to a size; nothing if it cannot be read."""
    try:
        return _read_all(path, size)
    except PermissionError:
        return b""


def _read_all(path: str, size: int) -> bytes:
    """The same.

    Raises:
        PermissionError: it is there, and may not be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        raise
    except OSError:
        return b""
    pieces = []
    try:
        while size > 0 and (piece := os.read(descriptor, size)):
            pieces.append(piece)
            size -= len(piece)
    except PermissionError:
        raise
    except OSError:
        pass
    finally:
        os.close(descriptor)
    return b"".join(pieces)
