"""Builders for tests: skills, valid and invalid archives, an index that records its calls, a skill manager."""

import hashlib
import io
import json
import stat
import struct
import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from apexbridge.disk import Disk
from apexbridge.skills.config import SkillsSettings
from apexbridge.skills.manager import SkillManager
from apexbridge.skills.store.catalog import Catalog
from apexbridge.skills.store.indexer import IndexDocument, SkillIndex
from apexbridge.storage.approval_store import SqliteApprovals
from apexbridge.storage.database import Database
from apexbridge.tools.approvals import Approvals
from apexbridge.tools.registry import ToolRegistry

MEGABYTE = 1024 * 1024
DESCRIPTION = "Writes commit messages out of a diff. 自动生成提交信息"


def skill_markdown(
    name: str = "git-commit", description: str = DESCRIPTION, body: str = "# How\n", **fields: Any
) -> str:
    """Return a SKILL.md. Other keywords become frontmatter fields, with hyphens for underscores."""
    lines = [f"name: {name}", f"description: {json.dumps(description, ensure_ascii=False)}"]
    lines += [f"{key.replace('_', '-')}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items()]
    return "---\n" + "\n".join(lines) + "\n---\n" + body


def zip_of(files: Mapping[str, str | bytes], *, executable: Collection[str] = ()) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            info = zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0))
            info.create_system, info.compress_type = 3, zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IFREG | (0o755 if path in executable else 0o644)) << 16
            archive.writestr(info, content)
    return buffer.getvalue()


def skill_zip(
    name: str = "git-commit", files: Mapping[str, str | bytes] | None = None, markdown: str | None = None, **fields: Any
) -> bytes:
    """Return an archive of one skill. Paths in `files` are relative to the skill folder."""
    content: dict[str, str | bytes] = {f"{name}/SKILL.md": markdown or skill_markdown(name, **fields)}
    content |= {f"{name}/{path}": data for path, data in (files or {}).items()}
    return zip_of(content)


def write_skill(
    root: Path, name: str, files: Mapping[str, str] | None = None, markdown: str | None = None, **fields: Any
) -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(skill_markdown(name, **fields) if markdown is None else markdown, "utf-8")
    for path, content in (files or {}).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content, "utf-8")
    return folder


def walk(folder: Path) -> dict[str, str]:
    """Map each path below a folder to its mode and content hash; links are not followed, databases are not read."""
    found = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[relative] = f"link {path.readlink()}"
        elif path.is_file():
            content = b"" if path.name.startswith(("apex.sqlite3", "audit.sqlite3")) else path.read_bytes()
            found[relative] = f"{path.stat().st_mode:o} {hashlib.sha256(content).hexdigest()}"
        else:
            found[relative] = "folder"
    return found


# ------------------------------------------------------------------------------------------- archives, field by field
def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def entry(name: str | bytes, data: bytes = b"", **overrides: Any) -> dict[str, Any]:
    """Return an entry for `raw_zip`. Every field of its records can be overridden."""
    return {"name": name.encode() if isinstance(name, str) else name, "data": data, **overrides}


def good_entries() -> list[dict[str, Any]]:
    return [
        entry("git-commit/SKILL.md", skill_markdown().encode()),
        entry("git-commit/scripts/execute.js", b"console.log(1)\n", mode=0o100755),
    ]


def raw_zip(
    entries: Sequence[dict[str, Any]],
    *,
    comment: bytes = b"",
    prefix: bytes = b"",
    suffix: bytes = b"",
    gap: bytes = b"",
    **overrides: Any,
) -> bytes:
    """Return a ZIP in which every field can be overridden, to build invalid ones."""
    body, directory = bytearray(prefix), bytearray()
    for item in entries:
        data, method, flags = item["data"], item.get("method", 8), item.get("flags", 0x800)
        payload = item.get("payload", deflated(data) if method == 8 else data)
        name = item["name"]
        crc = item.get("crc", zlib.crc32(data))
        packed, size = item.get("packed", len(payload)), item.get("size", len(data))
        extra = item.get("extra", b"")
        offset = item.get("offset", len(body))
        if "offset" not in item:
            local_sizes = (0, 0, 0) if flags & 8 else (crc, packed, size)
            local_sizes = item.get("local_sizes", local_sizes)
            local_name = item.get("local_name", name)
            body += struct.pack("<4sHHHHH", b"PK\3\4", 20, item.get("local_flags", flags), method, 0, 0x5C21)
            body += struct.pack("<LLLHH", *local_sizes, len(local_name), len(extra)) + local_name + extra + payload
            if flags & 8:
                body += struct.pack("<4sLLL", b"PK\7\x08", crc, packed, size)
        directory += struct.pack("<4sBBHHHHH", b"PK\1\2", 20, item.get("system", 3), 20, flags, method, 0, 0x5C21)
        directory += struct.pack("<LLLHHH", crc, packed, size, len(name), len(extra), 0)
        directory += (
            struct.pack("<HHLL", item.get("disk", 0), 0, item.get("mode", 0o100644) << 16, offset) + name + extra
        )
    body += gap
    count = overrides.get("count", len(entries)) & 0xFFFF
    end = struct.pack(
        "<4sHHHHLLH",
        b"PK\5\6",
        overrides.get("disk", 0),
        overrides.get("disk", 0),
        overrides.get("count_here", count),
        count,
        overrides.get("directory_size", len(directory)),
        overrides.get("directory_offset", len(body)),
        overrides.get("comment_size", len(comment)),
    )
    return bytes(body + directory + end + comment + suffix)


# ---------------------------------------------------------------------------------------------- index and manager
class WatchedIndex:
    """An index in memory whose vectors are hashes of the text. Records what was embedded, and can fail on demand."""

    def __init__(self, embedder: str = "hash", dimensions: int = 4) -> None:
        self.embedder = embedder
        self.dimensions = dimensions
        self.vectors: dict[str, list[float] | None] = {}
        self.held: dict[str, str] = {}
        """The version of each skill that its vector was made from."""
        self.embedded: list[str] = []
        self.fault: Exception | None = None

    async def embed(self, documents: Sequence[IndexDocument]) -> list[list[float]]:
        if self.fault:
            raise self.fault
        self.embedded += [document.name for document in documents]
        return [self.vector_of(document.metadata.name, document.metadata.description) for document in documents]

    def vector_of(self, name: str, description: str) -> list[float]:
        digest = hashlib.sha256(f"{self.embedder} {name} {description}".encode()).digest()
        return [byte / 255 for byte in digest[: self.dimensions]]

    async def upsert(self, documents: Sequence[IndexDocument], vectors: Sequence[list[float] | None]) -> None:
        for document, vector in zip(documents, vectors, strict=True):
            self.vectors[document.name] = vector
            self.held[document.name] = document.version

    async def remove(self, names: Collection[str]) -> None:
        for name in names:
            self.vectors.pop(name, None)

    async def missing(self, versions: Mapping[str, str]) -> set[str]:
        return {
            name for name, version in versions.items() if self.vectors.get(name) is None or self.held[name] != version
        }

    async def retain(self, names: Collection[str]) -> int:
        removed = self.vectors.keys() - set(names)
        for name in removed:
            del self.vectors[name]
        return len(removed)


def skill_manager(data_dir: Path, database: Database, index: SkillIndex, **settings: Any) -> SkillManager:
    """Return a manager without a sandbox: it installs and renders skills but cannot run them."""
    skills = SkillsSettings(**settings)
    approvals = Approvals(SqliteApprovals(database), enabled=skills.confirm_dangerous)
    return SkillManager(
        data_dir=data_dir,
        database=database,
        catalog=Catalog(database, skills.default_mode),
        index=index,
        tools=ToolRegistry(approvals=approvals),
        approvals=approvals,
        tracker=None,
        disk=Disk(data_dir),
        settings=skills,
    )
