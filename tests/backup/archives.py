"""Valid and hostile backups, field by field."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HEADER: dict[str, Any] = {
    "format": 1,
    "id": "0" * 32,
    "version": "0.1.0",
    "schemaVersion": 1,
    "createdAt": datetime(2026, 1, 2, tzinfo=UTC).isoformat(),
    "skills": 0,
    "bytes": 0,
    "hasSecrets": False,
}


def member(name: str, data: bytes = b"", *, type: bytes = tarfile.REGTYPE, **fields: Any) -> bytes:
    """The blocks of one entry of a tar archive."""
    info = tarfile.TarInfo(name)
    info.size, info.type = len(data), type
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape") + data + bytes(-len(data) % 512)


def declared(name: str, data: bytes | None = b"", **fields: Any) -> dict[str, Any]:
    """The line of an entry in the manifest; of a folder without data."""
    own = {"folder": True} if data is None else {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return {"path": name, "mode": "600", "mtime": 0, **own, **fields}


def archive(
    members: Sequence[bytes] = (),
    manifest: Sequence[dict[str, Any]] | bytes = (),
    *,
    header: dict[str, Any] | bytes | None = None,
    end: bytes = bytes(1024),
    after: bytes = b"",
) -> bytes:
    head = header if isinstance(header, bytes) else json.dumps({**HEADER, **(header or {})}).encode()
    if not isinstance(manifest, bytes):
        lines = [declared("backup.json", head), *manifest]
        manifest = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    tar = b"".join([member("backup.json", head), *members, member("manifest.jsonl", manifest), after, end])
    return gzip.compress(tar, 1)


def repacked(path: Path, change: Any) -> bytes:
    """A backup with entries that `change` makes of a name and a content; None removes one. Its manifest fits."""
    members, lines = [], []
    with tarfile.open(path) as tar:
        for info in tar:
            if info.name in ("manifest.jsonl",):
                continue
            if info.isdir():
                members.append(member(info.name, type=tarfile.DIRTYPE, mode=info.mode))
                lines.append(declared(info.name, None, mode="700"))
                continue
            opened = tar.extractfile(info)
            assert opened is not None
            data = change(info.name, opened.read())
            if data is not None:
                members.append(member(info.name, data))
                lines.append(declared(info.name, data))
    manifest = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return gzip.compress(b"".join([*members, member("manifest.jsonl", manifest), bytes(1024)]), 1)


def opened(data: bytes) -> io.BytesIO:
    return io.BytesIO(data)
