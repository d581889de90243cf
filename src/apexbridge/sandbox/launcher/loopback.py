"""Granted hosts inside a network namespace: an address for each, where a listener waits that the server answers.

The namespace has nothing but loopback. A granted host gets a loopback address of its own in /etc/hosts, or, where it
was granted as a number, that very number on the loopback device; the listening socket belongs to the namespace and its
descriptor to the server, which connects to the real host for whoever comes.
"""

import fcntl
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_SIOCSIFADDR = 0x8916
_SIOCSIFFLAGS = 0x8914
_UP = 0x1
_BACKLOG = 64
_ALIASES = 100_000


def hosts_file(granted: Sequence[Sequence[Any]]) -> str:
    """What /etc/hosts says inside."""
    names = [f"{address} {name}" for address, _, name in granted if name != address]
    return "\n".join(["127.0.0.1 localhost", *dict.fromkeys(names)]) + "\n"


def raise_loopback() -> None:
    """Let the namespace's own loopback device carry something."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _UP))


def limit_buffers() -> None:
    """Give TCP connections of this namespace buffers no larger than those of other sockets: the kernel's are unlimited.

    The watchdog counts every socket as if its buffer were full.
    """
    size = Path("/proc/sys/net/core/wmem_default").read_text().strip()
    for name in ("tcp_rmem", "tcp_wmem"):
        with suppress(OSError):  # some containers have these read-only
            Path(f"/proc/sys/net/ipv4/{name}").write_text(f"4096 {size} {size}")


def listener(address: str, port: int) -> socket.socket:
    """A listening socket in this namespace; an address that it does not have is added to loopback."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if not address.startswith("127."):
        # An alias, numbered by the address so that two do not take each other's place.
        packed = socket.inet_aton(address)
        alias = f"lo:{int.from_bytes(packed, 'big') % _ALIASES}".encode()
        fcntl.ioctl(made, _SIOCSIFADDR, struct.pack("16sHH4s16x", alias, socket.AF_INET, 0, packed))
    made.bind((address, port))
    made.listen(_BACKLOG)
    return made
