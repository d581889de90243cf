"""Messages between the server and its launcher: JSON in packets, open files beside them."""

import json
import os
import socket
from collections.abc import Sequence
from typing import Any

MAX_PACKET = 64 * 1024
MAX_FILES = 64
LARGE = 32 * 1024
"""What is larger travels in a file of memory instead of the packet."""


def send(link: socket.socket, message: dict[str, Any], files: Sequence[int] = ()) -> None:
    """Send one message; the files stay open here.

    Raises:
        BlockingIOError: the other side is not reading.
        OSError: there is no other side.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) <= LARGE:
        socket.send_fds(link, [body], list(files))
        return
    memory = os.memfd_create("message", os.MFD_CLOEXEC)
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(body)
        socket.send_fds(link, [b'{"large":true}'], [memory, *files])
    finally:
        os.close(memory)


def receive(link: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and its files; None when the other side is gone."""
    body, files, _, _ = socket.recv_fds(link, MAX_PACKET, MAX_FILES)
    for file in files:
        os.set_inheritable(file, False)
    if not body:
        return None
    message: dict[str, Any] = json.loads(body)
    if message.get("large"):
        with open(files.pop(0), "rb") as memory:
            memory.seek(0)
            message = json.loads(memory.read())
    return message, files
