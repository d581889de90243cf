"""Messages between the server and its launcher: JSON packets over a Unix socket, with file descriptors attached."""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_PACKET_BYTES = 64 * 1024
MAX_FILES = 64
MAX_INLINE_BYTES = 32 * 1024
"""Larger messages travel in a memfd instead of the packet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one run may use; sizes in bytes."""

    memory: int
    """All processes of the run together."""
    shared: int
    """The largest anonymous shared mapping that the seccomp filter allows."""
    processes: int
    disk: int
    inodes: int
    files: int
    slack: int
    """Added to `memory` for the limit of each process: interpreters reserve more than they use. The watchdog enforces
    `memory` for the whole tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherConfig:
    """Sent once, with the command `begin`: how the launcher builds its cells."""

    backend: str
    base: str = ""
    """The launcher's own folder."""
    temporary_folder: str
    """The host's."""
    bubblewrap: str | None = None
    loaders: str
    programs: Mapping[str, str]
    """Interpreters by the names under which scripts start them."""
    interpreters: Sequence[str]
    """Folders that interpreters need in addition to the system's."""
    hidden: Sequence[str] = ()
    """Folders below `interpreters` that runs must not see."""
    filters: Sequence[str] = ()
    """Seccomp programs in hexadecimal: without and, if the backend can grant hosts, with network."""
    niceness: int
    first_uid: int
    limits: Limits

    @classmethod
    def parse(cls, message: Mapping[str, Any]) -> "LauncherConfig":
        return cls(**{**message, "limits": Limits(**message["limits"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """What a run gets in its cell: mounted when a cold cell starts, or later in a warm one."""

    skill: str | None = None
    """The skill's folder; None for code that belongs to no skill."""
    folder: Sequence[int] | None = None
    """Device and inode that the skill's folder must have; None if it does not matter."""
    layers: Mapping[str, str] = field(default_factory=dict)
    skills: Mapping[str, tuple[str, Sequence[int]]] = field(default_factory=dict)
    """Folders of other skills that the run can read, by name, each with its device and inode."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Folders with packages of those skills, by a name of their own."""

    @property
    def has_mounts(self) -> bool:
        """Whether a warm cell lacks something that its job needs from the start."""
        return self.skill is not None or bool(self.layers or self.skills or self.packages)

    @classmethod
    def parse(cls, message: Mapping[str, Any]) -> "Attachment":
        return cls(**message)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """Sent with the command `start`: what to start in a cell."""

    command: Sequence[str]
    environment: Mapping[str, str]
    workspace: str
    """Its path inside the sandbox."""
    attachment: Attachment | None = None
    """None for a warm cell, which gets it later with `attach`."""
    paths: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Granted host paths, mounted read-only at the same path, and the device and inode that each must have."""
    hosts: Sequence[Sequence[Any]] = ()
    """Granted hosts: the address inside the sandbox, the port, the name."""

    @classmethod
    def parse(cls, message: Mapping[str, Any]) -> "StartRequest":
        attachment = message["attachment"]
        return cls(**{**message, "attachment": attachment and Attachment.parse(attachment)})


def send(link: socket.socket, message: dict[str, Any], files: Sequence[int] = ()) -> None:
    """Send one message; the caller's descriptors stay open. Raises BlockingIOError if the peer is not reading."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) <= MAX_INLINE_BYTES:
        socket.send_fds(link, [body], list(files))
        return
    with open(os.memfd_create("message", os.MFD_CLOEXEC), "wb", buffering=0) as memory:
        memory.write(body)
        socket.send_fds(link, [b'{"large":true}'], [memory.fileno(), *files])


def receive(link: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and its files; None if the peer is gone."""
    body, files, _, _ = socket.recv_fds(link, MAX_PACKET_BYTES, MAX_FILES)
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
