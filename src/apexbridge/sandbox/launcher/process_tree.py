"""The processes of a run and what they use, read from /proc."""

import functools
import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

_PRIVATE = (b"RssAnon:", b"VmSwap:", b"VmPTE:", b"HugetlbPages:")
"""Private memory. Mapped files do not count; page tables do: they can grow without any resident page."""
_COUNTED = (*_PRIVATE, b"RssShmem:")
_EXACT_PRIVATE = (b"Pss_Anon:", b"SwapPss:")
_EXACT = (*_EXACT_PRIVATE, b"Pss_Shmem:")
_OUTSIDE_OF_ROLLUP = (b"VmPTE:", b"HugetlbPages:")
_HAS_MEMORY = b"VmRSS:"
MAPS_BYTES = 8 * 1024 * 1024
"""Of /proc/PID/maps, for all processes of a run. Measured: 4 KB for Python, 7 KB for Node, 30 KB for Node with eight
workers, 70 KB for Python with numpy, Arrow and LanceDB; 64 processes of the largest: 4.5 MB."""
LOCKS_BYTES = 256 * 1024
"""Of /proc/locks, which lists the newest first."""
_KB = 1024


@dataclass(slots=True, kw_only=True)
class SharedMappings:
    """Anonymous shared memory that processes have mapped."""

    ranges: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    """By device and inode: first and last offset of each mapping."""
    unreadable: set[int] = field(default_factory=set)
    is_complete: bool = True
    """False if there are more mappings than MAPS_BYTES: more than any honest program has."""

    def max_bytes(self, largest: int) -> int:
        """The most memory that these objects can use, if none was larger than `largest` when it was created.

        The kernel frees no page of an object while any page of it is mapped, so an object of which one page is left
        mapped may still use its full size.
        """
        return sum(max(largest, _covered_bytes(ranges)) for ranges in self.ranges.values())


def descendants(pid: int) -> list[int]:
    pids: list[int] = []
    pending = [pid]
    while pending:
        for child in children(pending.pop()):
            pids.append(child)
            pending.append(child)
    return pids


def children(pid: int) -> Iterator[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        for word in _read(f"/proc/{pid}/task/{thread}/children").split():
            yield int(word)


def are_alive(pids: Iterable[int]) -> bool:
    return all(os.path.exists(f"/proc/{pid}") for pid in pids)


def memory_of(pids: Iterable[int], *, shared: bool = True) -> int:
    """Bytes in use, with shared pages counted once for each process: fast, and never too low."""
    return sum(_sum(_status(pid), _COUNTED if shared else _PRIVATE) for pid in pids)


def exact_memory_of(pids: Iterable[int], *, shared: bool = True) -> int:
    """As `memory_of`, with shared pages counted once: slow, for when the fast sum is above a limit."""
    total = 0
    for pid in pids:
        rollup = _read(f"/proc/{_live_thread(pid)}/smaps_rollup")
        if not rollup:  # the process is gone or may not be read: use the fast sum
            total += memory_of([pid], shared=shared)
        else:
            total += _sum(rollup, _EXACT if shared else _EXACT_PRIVATE) + _sum(_status(pid), _OUTSIDE_OF_ROLLUP)
    return total


def shared_mappings(pids: Iterable[int]) -> SharedMappings:
    """Anonymous shared memory of these processes.

    Data stays in memory until the last process unmaps the whole object, even if no process maps that page any more.
    The figures above do not include such pages.
    """
    mappings = SharedMappings()
    remaining = MAPS_BYTES
    device = b" %b " % _shared_device()
    for pid in pids:
        try:
            text = _read(f"/proc/{_live_thread(pid)}/maps", remaining + 1, must_be_permitted=True)
        except PermissionError:
            mappings.unreadable.add(pid)
            continue
        remaining -= len(text)
        if remaining < 0:
            mappings.is_complete = False
            return mappings
        index = text.find(device)
        while index >= 0:
            end = text.find(b"\n", index)
            addresses, _, offset, _, inode, *_ = text[text.rfind(b"\n", 0, index) + 1 : end].split(None, 5)
            first, last = (int(address, 16) for address in addresses.split(b"-"))
            begin = int(offset, 16)
            if inode != b"0":
                mappings.ranges.setdefault(inode, []).append((begin, begin + last - first))
            index = text.find(device, end)
    return mappings


def host_shared_memory() -> int:
    """All shared memory and tmpfs data on this host, including what is swapped out."""
    rows = dict(line.split(b":", 1) for line in _read("/proc/meminfo").splitlines())
    pages, total, free = (int(rows[name].split()[0]) * _KB for name in (b"Shmem", b"SwapTotal", b"SwapFree"))
    return pages + total - free


def count_file_locks(pids: Iterable[int]) -> int:
    """Each lock is kernel memory that no rlimit counts."""
    owners = {b"%d" % pid for pid in pids}
    lines = (line.split() for line in _read("/proc/locks", LOCKS_BYTES).splitlines())
    return sum(1 for words in lines if len(words) > 4 and words[4] in owners)


def count_namespace_sockets(pid: int) -> int:
    """Sockets in the network namespace of a process, including those that no process has open any more."""
    words = _read(f"/proc/{pid}/net/sockstat").split(None, 3)
    return int(words[2]) if len(words) > 2 else 0


def count_internet_sockets(pid: int) -> int:
    """TCP and UDP sockets in the network namespace of a process that are bound or connected, accepted or not."""
    lines = [_read(f"/proc/{pid}/net/{name}").splitlines() for name in ("sockstat", "sockstat6")]
    words = (line.split() for line in (*lines[0], *lines[1]))
    return sum(int(word[2]) for word in words if word[0].startswith((b"TCP", b"UDP")))


def count_open_sockets(pids: Iterable[int]) -> int:
    return len({(file.st_dev, file.st_ino) for file in _open_files(pids) if stat.S_ISSOCK(file.st_mode)})


def unlinked_file_bytes(pids: Iterable[int], device: int) -> int:
    """Disk space of files that these processes have open but that are in no folder any more."""
    sizes = {
        (file.st_dev, file.st_ino): file.st_blocks * 512
        for file in _open_files(pids)
        if stat.S_ISREG(file.st_mode) and not file.st_nlink and file.st_dev == device
    }
    return sum(sizes.values())


def socket_buffer_bytes() -> int:
    return int(_read("/proc/sys/net/core/wmem_default") or 212_992)


def count_tasks(pids: Iterable[int], *, uid: int | None = None) -> int:
    """Processes and threads together; with `uid`, those of this user only."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            if uid is None or os.stat(f"/proc/{pid}").st_uid == uid:
                total += len(os.listdir(f"/proc/{pid}/task"))
    return total


def all_processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _open_files(pids: Iterable[int]) -> Iterator[os.stat_result]:
    for pid in pids:
        folder = f"/proc/{_live_thread(pid)}/fd"
        with suppress(OSError):
            for name in os.listdir(folder):
                with suppress(OSError):
                    yield os.stat(f"{folder}/{name}")


@functools.cache
def _shared_device() -> bytes:
    """The device of anonymous shared memory in /proc/PID/maps. Names there are no proof: a process can change them."""
    with mmap.mmap(-1, mmap.PAGESIZE) as own:
        own[0] = 1
        line = next(line for line in _read("/proc/self/maps", MAPS_BYTES).splitlines() if b"/dev/zero" in line)
    return line.split()[3]


def _covered_bytes(ranges: list[tuple[int, int]]) -> int:
    total = covered_until = 0
    for first, last in sorted(ranges):
        total += max(0, last - max(first, covered_until))
        covered_until = max(covered_until, last)
    return total


def _status(pid: int) -> bytes:
    """If the first thread of a process has exited, /proc/PID/status has no figures, so another thread is read."""
    text = _read(f"/proc/{pid}/status")
    if not text or _HAS_MEMORY in text:
        return text
    return _read(f"/proc/{_live_thread(pid)}/status")


def _live_thread(pid: int) -> int:
    """A thread whose /proc files show the memory of the process: the first one unless it has exited."""
    if _HAS_MEMORY in _read(f"/proc/{pid}/status"):
        return pid
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            if _HAS_MEMORY in _read(f"/proc/{pid}/task/{thread}/status"):
                return int(thread)
    return pid


def _sum(text: bytes, names: tuple[bytes, ...]) -> int:
    return sum(int(line.split()[1]) * _KB for line in text.splitlines() if line.startswith(names))


def _read(path: str, size: int = 1 << 16, *, must_be_permitted: bool = False) -> bytes:
    """Up to `size` bytes of a file; nothing if it does not exist."""
    chunks = []
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while size > 0 and (chunk := os.read(descriptor, size)):
                chunks.append(chunk)
                size -= len(chunk)
        finally:
            os.close(descriptor)
    except OSError as error:
        if must_be_permitted and isinstance(error, PermissionError):
            raise
    return b"".join(chunks)
