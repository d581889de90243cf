"""Granted hosts inside a network namespace: a listening socket for each, on which the server accepts.

The namespace has a loopback device only. A granted host name gets a loopback address in /etc/hosts; a granted IP
address is added to the loopback device. The listening socket belongs to the namespace, its descriptor goes to the
server, and the server forwards each connection to the real host.
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
    """The content of /etc/hosts inside the sandbox."""
    names = [f"{address} {name}" for address, _, name in granted if name != address]
    return "\n".join(["127.0.0.1 localhost", *dict.fromkeys(names)]) + "\n"


def bring_up() -> None:
    """Bring up the loopback device of this namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _UP))


def limit_buffers() -> None:
    """Limit TCP buffers in this namespace to the size of other sockets' buffers.

    The watchdog counts every socket as if a buffer of that size were full, and the kernel would let TCP's grow.
    """
    size = Path("/proc/sys/net/core/wmem_default").read_text().strip()
    for name in ("tcp_rmem", "tcp_wmem"):
        with suppress(OSError):  # read-only in some containers
            Path(f"/proc/sys/net/ipv4/{name}").write_text(f"4096 {size} {size}")


def listener(address: str, port: int) -> socket.socket:
    """A listening socket in this namespace; an address outside 127.0.0.0/8 is added to the loopback device."""
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if not address.startswith("127."):
        # The alias is numbered by the address, so that two addresses do not replace each other.
        packed = socket.inet_aton(address)
        alias = f"lo:{int.from_bytes(packed, 'big') % _ALIASES}".encode()
        fcntl.ioctl(server, _SIOCSIFADDR, struct.pack("16sHH4s16x", alias, socket.AF_INET, 0, packed))
    server.bind((address, port))
    server.listen(_BACKLOG)
    return server
