"""Streams uploads to an unnamed temporary file on the disk of the skills: never whole in memory, always cleaned up."""

import asyncio
import stat
import tempfile
import zipfile
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast, get_args

from fastapi import Request
from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import parse_options_header

from apexbridge._tasks import in_thread, run_to_completion
from apexbridge.bridge import Bridge
from apexbridge.disk import BLOCK_BYTES, Claim
from apexbridge.errors import InvalidArchiveError, InvalidInputError, RequestError
from apexbridge.skills import Profile
from apexbridge.skills.package.archive import MAX_ARCHIVE_BYTES, MAX_SKILL_ENTRIES, MEGABYTE
from apexbridge.storage.directory import storage_faults
from apexbridge.surfaces.http.transport.requests import caller_of

WRITE_BYTES = MEGABYTE
"""Written to disk at a time, in a thread."""
FORM_BYTES = 64 * 1024
"""Allowed overhead of a form. An archive that exceeds its limit by less is refused when it is inspected."""
MAX_FIELDS = 16
MAX_FIELD_BYTES = 1024
MAX_HEADER_BYTES = 8 * 1024
MAX_SHOWN = 100
FILES_FORM_BYTES = 1024 * 1024
"""As FORM_BYTES, for a form with many files."""
SKILL_FILE_FIELDS = ("files[]", "files")
ENTRY_BYTES = 128
"""More than a ZIP needs for a file, apart from its name and content."""
MAX_BOUNDARY_BYTES = 70
"""RFC 2046."""
DRAIN_BYTES = 2 * MAX_ARCHIVE_BYTES
"""How much of a too large upload is read and discarded, so that the client can read the error response."""
_ARCHIVE_TYPES = {"application/zip", "application/x-zip-compressed", "application/octet-stream"}
_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    file: BinaryIO
    filename: str | None
    fields: dict[str, str]

    @property
    def overwrite(self) -> bool:
        return self._flag("overwrite")

    @property
    def strict(self) -> bool:
        return self._flag("strict")

    def _flag(self, name: str) -> bool:
        value = self.fields.get(name, "").lower()
        if value not in _TRUE + _FALSE:
            raise InvalidInputError(f"{name} must be true or false")
        return value in _TRUE

    @property
    def profile(self) -> Profile | None:
        value = self.fields.get("profile") or None
        if value is not None and value not in get_args(Profile):
            raise InvalidInputError(f"profile must be one of {', '.join(get_args(Profile))}")
        return value  # type: ignore[return-value]  # narrowed by the line above


@asynccontextmanager
async def receive_upload(request: Request, folder: Path, *, any_type: bool = False) -> AsyncIterator[Upload]:
    """Receive a form with a `file`, or a bare archive with its options in the query.

    With `any_type`, receive a file of any kind in a form. The received bytes count against the caller's disk limit
    until the block ends. An upload ends with UNAUTHORIZED if the caller's key is revoked in the meantime.
    """
    content_type, options = parse_options_header(request.headers.get("content-type", ""))
    kind = content_type.decode("latin-1").lower()
    if kind != "multipart/form-data" and (any_type or kind not in _ARCHIVE_TYPES):
        subject = "the file as" if any_type else "the archive as application/zip, or as"
        raise RequestError(f"Send {subject} the field `file` of multipart/form-data", code="UNSUPPORTED_MEDIA_TYPE")
    pending = bytearray()
    form = None if kind in _ARCHIVE_TYPES else _Form(options.get(b"boundary", b""), pending)
    feed = form.feed if form else pending.extend
    subject = "File" if any_type else "Archive"
    async with _received(request, folder, pending, feed, subject=subject) as (file, _):
        fields = dict(request.query_params)
        if form is None:
            yield Upload(file=file, filename=fields.get("filename"), fields=fields)
        else:
            form.finish()
            yield Upload(file=file, filename=form.filename, fields=fields | form.fields)


@asynccontextmanager
async def receive_skill_files(request: Request, folder: Path) -> AsyncIterator[Upload]:
    """Receive the files of a skill as the clients of OpenAI and Anthropic send them, as one archive.

    The parts `files[]` or `files` of a form have paths as their names; or one part is an archive. Otherwise as
    `receive_upload`.
    """
    content_type, options = parse_options_header(request.headers.get("content-type", ""))
    kind = content_type.decode("latin-1").lower()
    how = "Send the skill's files, or one ZIP, as `files[]` of multipart/form-data"
    if kind == "application/json":  # what SDKs send without files
        raise InvalidInputError(how)
    if kind != "multipart/form-data":
        raise RequestError(how, code="UNSUPPORTED_MEDIA_TYPE")
    pending = bytearray()
    form = _Form(options.get(b"boundary", b""), pending, file_fields=SKILL_FILE_FIELDS, max_files=MAX_SKILL_ENTRIES)
    async with _received(request, folder, pending, form.feed, subject="Archive", form_bytes=FILES_FORM_BYTES) as (
        file,
        claim,
    ):
        form.finish()
        if len(form.files) == 1 and await in_thread(_is_archive, file):
            yield Upload(file=file, filename=None, fields=form.fields)
            return
        claim.take(sum(one.size + ENTRY_BYTES + 2 * len(one.name.encode()) for one in form.files))
        with tempfile.TemporaryFile(dir=folder) as packed:
            archive = cast(BinaryIO, packed)
            await in_thread(_pack, file, form.files, archive)
            claim.wrote()
            yield Upload(file=archive, filename=None, fields=form.fields)


@asynccontextmanager
async def _received(
    request: Request,
    folder: Path,
    pending: bytearray,
    feed: Callable[[bytes], None],
    *,
    subject: str,
    form_bytes: int = FORM_BYTES,
) -> AsyncIterator[tuple[BinaryIO, Claim]]:
    """Pass the body to `feed`, and write what that appends to `pending` to an unnamed file, positioned at its start."""
    bridge: Bridge = request.app.state.bridge
    caller = caller_of(request.scope)
    limit = MAX_ARCHIVE_BYTES + form_bytes
    with ExitStack() as stack:
        claiming = asyncio.to_thread(stack.enter_context, bridge.disk.claim(caller, folder))
        claim = await run_to_completion(claiming)
        claim.take(BLOCK_BYTES)
        stack.enter_context(storage_faults())
        opening = asyncio.to_thread(lambda: stack.enter_context(tempfile.TemporaryFile(dir=folder)))
        file = cast(BinaryIO, await run_to_completion(opening))

        async def write() -> None:
            claim.take(len(pending))
            # Not cancelled: the file is closed afterwards, and must not be while a thread writes to it.
            await in_thread(file.write, bytes(pending))
            claim.wrote()
            pending.clear()

        received = 0
        async for chunk in request.stream():
            bridge.keys.check(caller)
            received += len(chunk)
            if received > DRAIN_BYTES:
                break
            if received <= limit:
                feed(chunk)
                if len(pending) >= WRITE_BYTES:
                    await write()
        if received > limit:
            problem = f"{subject} too large: at most {MAX_ARCHIVE_BYTES // MEGABYTE} MB are accepted"
            raise InvalidArchiveError(problem, code="ARCHIVE_TOO_LARGE")
        await write()
        file.seek(0)
        yield file, claim


def _is_archive(file: BinaryIO) -> bool:
    start = file.read(4)
    file.seek(0)
    return start in (b"PK\x03\x04", b"PK\x05\x06")


def _pack(file: BinaryIO, parts: Sequence["_FilePart"], target: BinaryIO) -> None:
    """Write the parts of a form as a ZIP, which is then inspected like any other. Forms have no modes: a script that
    names its interpreter is executable."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for part in parts:
            info = zipfile.ZipInfo(part.name, (1980, 1, 1, 0, 0, 0))
            start = file.read(min(2, part.size))
            info.create_system = 3
            info.external_attr = (stat.S_IFREG | (0o755 if start == b"#!" else 0o644)) << 16
            with archive.open(info, "w") as written:
                written.write(start)
                left = part.size - len(start)
                while left:
                    chunk = file.read(min(left, WRITE_BYTES))
                    written.write(chunk)
                    left -= len(chunk)
    target.seek(0)


@dataclass(slots=True, kw_only=True)
class _FilePart:
    """A file of a form."""

    name: str
    size: int = 0


class _Form:
    """A form. Its files are appended to `pending`, its small fields go to `fields`."""

    def __init__(
        self,
        boundary: bytes,
        pending: bytearray,
        *,
        file_fields: Collection[str] = ("file",),
        max_files: int = 1,
    ) -> None:
        if not boundary:
            raise InvalidInputError("multipart/form-data without a boundary")
        if len(boundary) > MAX_BOUNDARY_BYTES:
            raise InvalidInputError("the boundary of the form is too long")
        self._pending = pending
        self._file_fields = file_fields
        self._max_files = max_files
        self.files: list[_FilePart] = []
        self._names: set[str] = set()
        self.fields: dict[str, str] = {}
        self._part_count = 0
        self._is_complete = False
        self._header_name, self._header_value = bytearray(), bytearray()
        self._name: str | None = None
        self._is_file = False
        self._value = bytearray()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: _extend(self._header_name, data[start:end]),
                "on_header_value": lambda data, start, end: _extend(self._header_value, data[start:end]),
                "on_header_end": self._end_header,
                "on_part_data": self._data,
                "on_part_end": self._end,
                "on_end": self._complete,
            },
        )

    def feed(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except MultipartParseError as error:
            raise InvalidInputError(f"The form cannot be read: {error}") from error

    def finish(self) -> None:
        if not self._is_complete:
            raise InvalidInputError("The form is cut off")
        if not self.files:
            subject = "`file` with the archive" if self._max_files == 1 else "`files[]` with the files of the skill"
            raise InvalidInputError(f"The form has no field {subject}")

    @property
    def filename(self) -> str | None:
        return self.files[0].name or None if self.files else None

    def _begin(self) -> None:
        self._part_count += 1
        if self._part_count > MAX_FIELDS + self._max_files:
            raise InvalidInputError("The form has too many fields")
        self._name, self._is_file = None, False
        self._value.clear()

    def _end_header(self) -> None:
        if bytes(self._header_name).lower() == b"content-disposition":
            _, options = parse_options_header(bytes(self._header_value))
            self._name = options.get(b"name", b"").decode("utf-8", "replace")
            self._is_file = self._name in self._file_fields
            if self._is_file:
                self._add_file(options.get(b"filename", b"").decode("utf-8", "replace"))
        self._header_name.clear()
        self._header_value.clear()

    def _add_file(self, name: str) -> None:
        if self._max_files > 1:
            if not name or "\0" in name:
                raise InvalidInputError("Each file needs a filename with its path, such as my-skill/SKILL.md")
            if name in self._names:
                raise InvalidInputError(f"The form has two files named {name[:MAX_SHOWN]}")
            if len(self.files) >= self._max_files:
                raise InvalidArchiveError(f"More than {self._max_files:,} files", code="ARCHIVE_TOO_LARGE")
        elif self.files:
            raise InvalidInputError("The form has more than one `file`; send one archive at a time")
        self._names.add(name)
        self.files.append(_FilePart(name=name))

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._pending += data[start:end]
            self.files[-1].size += end - start
        else:
            self._value += data[start:end]
            if len(self._value) > MAX_FIELD_BYTES:
                raise InvalidInputError(f"The field {self._name} is too long")

    def _end(self) -> None:
        if not self._is_file and self._name:
            self.fields[self._name] = self._value.decode("utf-8", "replace")
            if len(self.fields) > MAX_FIELDS:
                raise InvalidInputError("The form has too many fields")

    def _complete(self) -> None:
        self._is_complete = True


def _extend(text: bytearray, data: bytes) -> None:
    text += data
    if len(text) > MAX_HEADER_BYTES:
        raise InvalidInputError("A header of the form is too long")
