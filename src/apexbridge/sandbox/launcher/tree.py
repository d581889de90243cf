"""What a run's processes are and what they use, read from /proc."""

import os
from collections.abc import Iterator

_COUNTED = (b"RssAnon:", b"RssShmem:", b"VmSwap:", b"VmPTE:")
"""What a process has taken for itself. Mapped files do not count; page tables do: they grow without any page."""
_EXACT = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")
_SHARED = b"/dev/zero (deleted)"
"""What the kernel calls such memory."""
MAPS_BYTES = 1 << 20
_KB = 1024


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


def memory_of(pids: list[int]) -> int:
    """Bytes that these use, pages that several share counted for each: quick, and never too little."""
    return sum(_sum(_read(f"/proc/{pid}/status"), _COUNTED) for pid in pids)


def exact_memory_of(pids: list[int]) -> int:
    """The same with shared pages counted once: slow, for when the quick sum is above a limit."""
    total = 0
    for pid in pids:
        rollup = _read(f"/proc/{pid}/smaps_rollup")
        if not rollup:  # gone, or not to be looked at: what the quick sum says has to do
            total += memory_of([pid])
            continue
        total += _sum(rollup, _EXACT) + _sum(_read(f"/proc/{pid}/status"), (b"VmPTE:",))
    return total


def shared_memory_of(pids: list[int]) -> int:
    """Bytes of memory that processes share and no file holds, as large as it was asked for.

    What was written there stays until the last of them lets go of it, also when nobody has it mapped into its own pages
    any more: then none of the figures above show it.
    """
    found: dict[bytes, int] = {}
    for pid in pids:
        for line in _read(f"/proc/{pid}/maps", MAPS_BYTES).splitlines():
            if line.endswith(_SHARED):
                addresses, _, _, _, inode, *_ = line.split(None, 5)
                first, last = addresses.split(b"-")
                found[inode] = max(found.get(inode, 0), int(last, 16) - int(first, 16))
    return sum(found.values())


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


def _sum(text: bytes, names: tuple[bytes, ...]) -> int:
    return sum(int(line.split()[1]) * _KB for line in text.splitlines() if line.startswith(names))


def _read(path: str, size: int = 1 << 16) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        pieces = []
        while size > 0 and (piece := os.read(descriptor, size)):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
