"""Permissions that a skill can request beyond its sandbox, and their syntax."""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from apexbridge.errors import InvalidInputError

Kind = Literal["net", "env", "secret", "fs"]
FORMS = "net:HOST:PORT, env:NAME, secret:NAME or fs:ro:PATH"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_HOST = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*\Z"
)
_NUMBER = re.compile(r"(?:[0-9]+|0[xX][0-9A-Fa-f]*)\Z")
_OURS = {"PATH", "HOME", "TMPDIR", "INPUT_JSON", "TIMEOUT", "SKILL_NAME", "SKILL_PATH"}
_NEVER_SHOWN = ("proc", "sys", "dev")
_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """One requested permission."""

    kind: Kind
    name: str = ""
    """Name of a variable or secret, or a host."""
    port: int = 0
    path: str = ""

    @property
    def text(self) -> str:
        """The canonical form, which is stored, shown and compared."""
        if self.kind == "net":
            return f"net:{self.name}:{self.port}"
        return f"fs:ro:{self.path}" if self.kind == "fs" else f"{self.kind}:{self.name}"


def parse(text: str) -> Permission:
    """Parse a permission. Raises InvalidInputError: the text is not a permission; the message is the reason."""
    kind, _, body = text.partition(":")
    if kind == "net":
        return _net(text, body)
    if kind in ("env", "secret") and _NAME.match(body):
        if body in _OURS:
            raise InvalidInputError(f"{text}: {body} is set by the sandbox itself")
        return Permission(kind="env" if kind == "env" else "secret", name=body)
    if kind == "fs" and body.startswith("ro:"):
        return _path(text, body.removeprefix("ro:"))
    raise InvalidInputError(f"{text[:200]} is not a permission; write {FORMS}")


def permission_problem(text: str) -> str | None:
    """Why a text is not a permission, for the author of a skill; None if it is valid."""
    try:
        parse(text)
    except InvalidInputError as error:
        is_known = text.startswith(("net:", "env:", "secret:", "fs:ro:"))
        return f"permission {error}" if is_known else f'permission "{text[:200]}" is unknown; write {FORMS}'
    return None


def canonical(text: str) -> str:
    """The canonical form of a permission; invalid text is returned unchanged."""
    try:
        return parse(text).text
    except InvalidInputError:
        return text


def _net(text: str, body: str) -> Permission:
    host, _, port = body.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= _MAX_PORT):
        raise InvalidInputError(f"{text[:200]}: name one port, 1 to {_MAX_PORT}")
    if ":" in host:
        raise InvalidInputError(f"{text[:200]}: IPv6 addresses cannot be granted; use a name or an IPv4 address")
    if not _HOST.match(host):
        raise InvalidInputError(f"{text[:200]}: name one host, without wildcards")
    if _NUMBER.match(host.rpartition(".")[2]):  # resolvers read such names as addresses: 127.1, 0x7f000001
        try:
            ipaddress.IPv4Address(host)
        except ValueError as error:
            raise InvalidInputError(f"{text[:200]}: {host} is not an address") from error
    return Permission(kind="net", name=host.lower(), port=int(port))


def _path(text: str, path: str) -> Permission:
    plain = Path(f"/{path.lstrip('/')}")  # POSIX: two leading slashes are a different root
    if not path.startswith("/") or ".." in plain.parts or len(plain.parts) < 2 or not path.isprintable():
        raise InvalidInputError(f"{text[:200]}: name an absolute path, and not the root itself")
    if plain.parts[1] in _NEVER_SHOWN:
        raise InvalidInputError(f"{text[:200]}: {plain.parts[1]} belongs to the kernel and is never shown")
    return Permission(kind="fs", path=str(plain))
