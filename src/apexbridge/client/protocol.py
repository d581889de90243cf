"""What both clients share: addresses, errors, server-sent events, and the files that are sent."""

import inspect
import ipaddress
import json
import mimetypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from apexbridge import errors
from apexbridge.errors import (
    STATUS_OF_CODE,
    ApexBridgeError,
    InvalidInputError,
    RequestError,
    ServerError,
    SkillNotFoundError,
    ToolError,
)
from apexbridge.skills import RESERVED_NAMES, SERVED_NAME_PATTERN

DEFAULT_URL = "http://127.0.0.1:8420"
CONNECT_SECONDS = 10
READ_SECONDS = 600
"""A run may take minutes, and sends nothing until it ends."""
MAX_UPLOAD_BYTES = 50 * 1024 * 1024
"""The server refuses larger files."""
_FAMILIES: dict[str, type[ApexBridgeError]] = {
    "SkillError": errors.SkillError,
    "ToolError": ToolError,
    "RequestError": RequestError,
}
_CODE_OF_STATUS = {
    400: "INVALID_INPUT",
    401: "UNAUTHORIZED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    409: "BUSY",
    413: "PAYLOAD_TOO_LARGE",
    422: "INVALID_INPUT",
    429: "RATE_LIMITED",
    502: "UPSTREAM_ERROR",
    503: "NOT_READY",
    507: "STORAGE_FULL",
}
_OPENAI_CODES = {"invalid_api_key": "UNAUTHORIZED", "rate_limit_exceeded": "RATE_LIMITED"}
FileSource = bytes | bytearray | Path | str
"""The content of a file, or the path of one."""


def address_of(url: str | None) -> str:
    """The address of the server: as asked for, of APEX_URL, or the default one. Raises InvalidInputError."""
    address = (url or os.environ.get("APEX_URL") or DEFAULT_URL).rstrip("/")
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise InvalidInputError(f"{address!a} is not the address of a server, such as {DEFAULT_URL}")
    return address


def headers_of(api_key: str | None) -> dict[str, str]:
    key = api_key or os.environ.get("APEX_API_KEY")
    return {"authorization": f"Bearer {key}"} if key else {}


def uses_proxies(url: str) -> bool:
    """Whether proxies of the environment are used: not for a server on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return not (host == "localhost" or ipaddress.ip_address(host).is_loopback)
    except ValueError:
        return True


def path_of(*segments: str) -> str:
    """A path of the API. Raises RequestError: a segment that would lead to another route."""
    for segment in segments:
        if segment in ("", ".", ".."):
            raise RequestError(f"There is nothing named {segment!a}", code="NOT_FOUND")
    return "/".join(["", *(quote(segment, safe="") for segment in segments)])


def skill_path(name: str, *segments: str) -> str:
    """The path of a skill, or of something of it. Raises SkillNotFoundError: no skill can have this name."""
    if name in RESERVED_NAMES or not SERVED_NAME_PATTERN.match(name):
        raise SkillNotFoundError(name)
    return path_of("api", "skills", name, *segments)


def file_path(owner: str, path: str) -> str:
    """The path of a file of something. `..` would lead to another route."""
    if not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise RequestError(f"There is no file {path!a}", code="FILE_NOT_FOUND")
    return f"{owner}/files/{quote(path, safe='/', errors='surrogateescape')}"


def without_none(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


# -------------------------------------------------------------------------------------------------------------- errors
def _classes() -> dict[tuple[str, str], type[ApexBridgeError]]:
    """The classes of errors by family and code."""
    found: dict[tuple[str, str], type[ApexBridgeError]] = {}
    for _, own in inspect.getmembers(errors, inspect.isclass):
        if issubclass(own, ApexBridgeError) and own is not ApexBridgeError and "default_code" in vars(own):
            found[own.name, own.default_code] = own
    return found


_CLASSES = _classes()


def error_of(status: int, body: bytes, url: str) -> ApexBridgeError:
    """The error of a response: in this server's shape, or in OpenAI's."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
        own = answer["error"]
        written = str(own.get("code"))
        code = _OPENAI_CODES.get(written, written.upper())
        code = code if code in STATUS_OF_CODE else _CODE_OF_STATUS.get(status, "INTERNAL_ERROR")
        return make_error("ServerError" if status >= 500 else "RequestError", code, str(own.get("message")), own)
    if isinstance(answer, dict) and isinstance(answer.get("message"), str):
        details = answer.get("details")
        return make_error(
            str(answer.get("name")),
            str(answer.get("code")),
            answer["message"],
            details if isinstance(details, dict) else {},
        )
    code = _CODE_OF_STATUS.get(status, "INTERNAL_ERROR")
    return make_error("ServerError", code, f"{url} answered {status}. Is it the address of an apexbridge server?", {})


def make_error(name: str, code: str, message: str, details: dict[str, Any]) -> ApexBridgeError:
    """The error with its own class. A code that this version does not know is INTERNAL_ERROR."""
    if code not in STATUS_OF_CODE:
        code, details = "INTERNAL_ERROR", {**details, "answeredCode": code}
    kind: type[ApexBridgeError] = _CLASSES.get((name, code)) or _FAMILIES.get(name, ServerError)
    error: ApexBridgeError = kind.__new__(kind)  # the classes have constructors of their own
    ApexBridgeError.__init__(error, message, code=code)
    error.details = details
    return error


def unexpected(url: str, error: ValueError) -> ServerError:
    return ServerError(
        f"{url} answered with something else than expected. Is it an apexbridge server of a fitting version? {error}",
        code="INTERNAL_ERROR",
    )


def unreachable(url: str, error: Exception) -> ServerError:
    reason = str(error) or type(error).__name__
    return ServerError(f"No answer from {url}: {reason}. Start a server with: apex serve", code="NOT_READY")


# -------------------------------------------------------------------------------------------------------------- events
class EventReader:
    """Reads server-sent events. Only a line feed ends a line here: texts may contain other separators, as U+2028."""

    def __init__(self) -> None:
        self._partial = bytearray()
        self._kind = ""
        self._data: list[str] = []
        self.last_id = ""

    def feed(self, data: bytes) -> Iterator[tuple[str, str]]:
        """Yields kind and data of the events that these bytes end."""
        *lines, tail = data.split(b"\n")
        for line in lines:
            self._partial += line
            text = self._partial.decode("utf-8", "replace")
            self._partial.clear()
            yield from self.read(text)
        self._partial += tail

    def read(self, line: str) -> Iterator[tuple[str, str]]:
        """Yields kind and data of an event, if the line ends one."""
        line = line.rstrip("\r\n")
        if not line:
            if self._data:
                yield self._kind, "\n".join(self._data)
            self._kind, self._data = "", []
            return
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._kind = value
        elif field == "data":
            self._data.append(value)
        elif field == "id":
            self.last_id = value


# --------------------------------------------------------------------------------------------------------------- files
def read_source(source: FileSource, name: str | None) -> tuple[str, bytes, str]:
    """Name, content and type of a file that is sent. Raises InvalidInputError: it cannot be read or is too large."""
    if isinstance(source, (bytes, bytearray)):
        name, data = name or "upload", bytes(source)
    else:
        path = Path(source)
        name = name or path.name
        try:
            size = path.stat().st_size
            data = path.read_bytes() if size <= MAX_UPLOAD_BYTES else bytes(MAX_UPLOAD_BYTES + 1)
        except OSError as error:
            raise InvalidInputError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_UPLOAD_BYTES:
        raise InvalidInputError(f"{name} is larger than {MAX_UPLOAD_BYTES // 1024 // 1024} MB")
    return name, data, mimetypes.guess_type(name)[0] or "application/octet-stream"


def read_package(source: FileSource) -> tuple[bytes, str | None] | None:
    """The archive of a skill on this machine, and its name; None if the server has to fetch the source."""
    if isinstance(source, (bytes, bytearray)):
        return bytes(source), None
    if isinstance(source, str) and not os.path.lexists(source):
        return None
    from apexbridge.skills.package.sources import open_source  # most clients install nothing

    with open_source(Path(source)) as (file, filename):
        file.seek(0)
        data = file.read(MAX_UPLOAD_BYTES + 1)
    if len(data) > MAX_UPLOAD_BYTES:
        raise InvalidInputError(f"{source} is larger than {MAX_UPLOAD_BYTES // 1024 // 1024} MB")
    return data, filename
