"""What `apex doctor` checks besides the sandbox. Everything is read only, beside a running server too."""

import asyncio
import os
import platform
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pydantic import Field

from apexbridge._fs import is_open_to_others
from apexbridge._tasks import in_thread
from apexbridge._time import from_ms, now_ms
from apexbridge.disk import MB, RESERVE_BYTES, RESERVE_FILES
from apexbridge.errors import ServerError
from apexbridge.llm.client import UpstreamClient
from apexbridge.llm.config import LLMSettings, Upstream
from apexbridge.llm.upstream_errors import UpstreamError
from apexbridge.monitoring.upstream_checks import message_of
from apexbridge.settings import Settings
from apexbridge.skills import MARKER_FILE
from apexbridge.skills.store.markers import read_marker
from apexbridge.skills.store.roots import INSTALLED_ROOT
from apexbridge.storage.audit import AUDIT_FILE
from apexbridge.storage.database import check_database, newest_schema, schema_version, snapshot_of
from apexbridge.storage.directory import DATABASE_FILE, is_owned
from apexbridge.wire import WireModel

Section = Literal["data directory", "disk", "databases", "index", "upstream", "packages", "time", "versions"]
State = Literal["ok", "warning", "failed"]
INSTALLER_SECONDS = 20.0
CLOCK_TOLERANCE_MS = 60_000
LOW_DISK_BYTES = 2 * RESERVE_BYTES
_NETWORK = frozenset({"9p", "afs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "nfs", "nfs4", "smb3"})
"""File systems on which SQLite's WAL files do not work reliably."""
_NEWEST = (
    "SELECT max(created_at) FROM runs",
    "SELECT max(started_at) FROM chats",
    "SELECT max(created_at) FROM api_keys",
    "SELECT max(updated_at) FROM skills",
)


class HostCheck(WireModel):
    """One finding that does not concern the sandbox."""

    section: Section
    name: str
    state: State = Field(description="`failed`: the server cannot work properly. A `warning` does not stop it.")
    detail: str
    remedy: str | None = Field(default=None, description="What to do, unless the state is `ok`.")


async def check_host(settings: Settings, *, version: str) -> list[HostCheck]:
    """All checks; `version` is that of apexbridge. Those that ask other servers run at the same time, for seconds."""
    local, (upstream, skews), packages = await asyncio.gather(
        in_thread(_check_local, settings), _check_upstreams(settings.chat.llm), _check_packages()
    )
    return [*local, *upstream, *packages, *skews, *_versions(version)]


def _check_local(settings: Settings) -> list[HostCheck]:
    folder = settings.data_dir
    found = [*_directory(folder), *_disk(folder, settings.key_quota_mb)]
    database = folder / DATABASE_FILE
    if not database.exists():
        return [*found, _ok("databases", DATABASE_FILE, "is made by the first start")]
    checked, is_usable = _databases(folder)
    found += checked
    if is_usable:
        with suppress(sqlite3.Error), closing(snapshot_of(database)) as connection:
            found += [*_index(folder, connection), _clock(connection)]
    return found


def _directory(folder: Path) -> list[HostCheck]:
    section: Section = "data directory"
    if not folder.is_dir():
        parent = next(one for one in folder.parents if one.exists())
        if folder.exists() or not os.access(parent, os.W_OK | os.X_OK):
            remedy = "name another one with --data-dir, or let the server's user write to the folder above it"
            return [_failed(section, "exists", f"{folder} does not exist and cannot be made", remedy)]
        return [_ok(section, "exists", f"{folder} is made by the first start")]
    found = [_ok(section, "exists", str(folder))]
    if os.access(folder, os.W_OK | os.X_OK):
        found.append(_ok(section, "writable", "by this user"))
    else:
        remedy = f"chown it to the server's user: chown -R USER {folder}"
        found.append(_failed(section, "writable", "this user cannot write to it", remedy))
    if is_open_to_others(folder):
        remedy = f"chmod go= {folder}; starts correct the modes of everything in it"
        found.append(_warning(section, "mode", f"{folder.stat().st_mode & 0o777:o}: others can enter it", remedy))
    else:
        found.append(_ok(section, "mode", f"{folder.stat().st_mode & 0o777:o}"))
    found.append(_ok(section, "lock", "a server or a command uses it" if is_owned(folder) else "free"))
    kind = _file_system(folder)
    if kind in _NETWORK:
        remedy = "use a local disk: databases on network file systems get damaged"
        found.append(_warning(section, "file system", kind, remedy))
    else:
        found.append(_ok(section, "file system", kind))
    return found


def _file_system(folder: Path) -> str:
    """The kind of the file system that a folder is on; `unknown` without Linux's /proc."""
    best, kind = -1, "unknown"
    path = str(folder.resolve())
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
            before, _, after = line.partition(" - ")
            mount = before.split()[4].encode().decode("unicode_escape")
            is_above = path == mount or path.startswith(mount.rstrip("/") + "/")
            if is_above and len(mount) >= best:
                best, kind = len(mount), after.split()[0]
    return kind


def _disk(folder: Path, quota_mb: int) -> list[HostCheck]:
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    status = os.statvfs(existing)
    free = status.f_bavail * status.f_frsize
    quota = f"quota of a key {quota_mb} MB" if quota_mb else "keys have no quota"
    detail = f"{free // MB:,} MB, of which {RESERVE_BYTES // MB} MB are the reserve; {quota}"
    remedy = "free some space: delete runs, or entries of trash/ while no server runs"
    if free < RESERVE_BYTES:
        found = [_failed("disk", "free space", detail, remedy)]
    elif free < LOW_DISK_BYTES:
        found = [_warning("disk", "free space", detail, remedy)]
    else:
        found = [_ok("disk", "free space", detail)]
    if status.f_files:
        detail = f"{status.f_favail:,} files"
        is_low = status.f_favail < min(RESERVE_FILES, status.f_files // 10)
        found.append(_failed("disk", "inodes", detail, remedy) if is_low else _ok("disk", "inodes", detail))
    return found


def _databases(folder: Path) -> tuple[list[HostCheck], bool]:
    """The checks, and whether the main database can be read."""
    found, is_usable = [], True
    for name in (DATABASE_FILE, AUDIT_FILE):
        path = folder / name
        if not path.exists():
            continue
        try:
            problem = check_database(path)
        except ServerError as error:
            return [_failed("databases", name, "of a newer version of apexbridge", error.message)], False
        if problem:
            is_usable &= name != DATABASE_FILE
            found.append(_failed("databases", name, problem, "restore a backup: apex restore FILE --force"))
            continue
        detail = "intact"
        if name == DATABASE_FILE:
            version, newest = schema_version(path), newest_schema()
            detail += f", schema {version}" + (f"; the next start migrates it to {newest}" if version < newest else "")
        found.append(_ok("databases", name, detail))
    broken = sorted(path.name for path in folder.glob(f"{DATABASE_FILE}.broken-*"))
    if broken:
        remedy = "restore a backup if keys or records are missing; then delete it"
        found.append(_warning("databases", "damaged", f"{broken[-1]} was replaced by a new database", remedy))
    return found, is_usable


def _index(folder: Path, connection: sqlite3.Connection) -> list[HostCheck]:
    live = "FROM skills WHERE state = 'live'"
    (total,) = connection.execute(f"SELECT count(*) {live}").fetchone()
    (pending,) = connection.execute(f"SELECT count(*) {live} AND embedder IS NULL").fetchone()
    models = [model for (model,) in connection.execute(f"SELECT DISTINCT embedder {live} AND embedder IS NOT NULL")]
    row = connection.execute(
        f"SELECT folder {live} AND root = ? AND embedder IS NOT NULL", (INSTALLED_ROOT,)
    ).fetchone()
    marker = read_marker(folder / "skills" / row[0] / MARKER_FILE) if row else None
    size = f", {marker.dimensions} dimensions" if marker else ""
    found = [_ok("index", "models", f"{', '.join(models)}{size}" if models else "nothing is indexed yet")]
    if pending:
        remedy = "the server embeds them; without one: apex skills reindex"
        found.append(_warning("index", "pending", f"{pending} of {total} skills are found by words only", remedy))
    else:
        found.append(_ok("index", "pending", f"none of {total} skills"))
    path = folder / "skills.lance"
    if path.exists() and not path.is_dir():
        found.append(_warning("index", "on disk", "skills.lance is not a folder", "move it away"))
    elif (folder / "skills.lance.damaged").exists():
        remedy = "delete skills.lance.damaged, unless you want to report it"
        found.append(_warning("index", "on disk", "a damaged index was replaced by a new one", remedy))
    else:
        found.append(_ok("index", "on disk", "present" if path.exists() else "is made by the first search"))
    return found


def _clock(connection: sqlite3.Connection) -> HostCheck:
    newest = max(connection.execute(query).fetchone()[0] or 0 for query in _NEWEST)
    if newest > now_ms() + CLOCK_TOLERANCE_MS:
        remedy = "set the clock: keys expire and files are deleted by it"
        return _failed(
            "time", "clock", f"earlier than the newest record, of {from_ms(newest):%Y-%m-%d %H:%M} UTC", remedy
        )
    return _ok("time", "clock", f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, after the newest record")


# ------------------------------------------------------------------------------------------------- other servers
async def _check_upstreams(settings: LLMSettings) -> tuple[list[HostCheck], list[HostCheck]]:
    """The model servers, and their clocks."""
    if not settings.upstreams:
        return [_ok("upstream", "none", "no model server is set; apex-offline answers chats")], []
    client = UpstreamClient()
    try:
        found = await asyncio.gather(*(_check_upstream(client, one, settings) for one in settings.upstreams))
    finally:
        await client.close()
    return [check for checks, _ in found for check in checks], [skew for _, skew in found if skew]


async def _check_upstream(
    client: UpstreamClient, upstream: Upstream, settings: LLMSettings
) -> tuple[list[HostCheck], HostCheck | None]:
    dates: list[str] = []

    def seen(headers: Mapping[str, str]) -> None:
        dates.append(headers.get("date", ""))

    begun = time.monotonic()
    try:
        models = await client.models(upstream, seen=seen)
    except UpstreamError as error:
        remedy = "start the model server, or correct APEX_LLM_BASE_URL or the [[llm]] table"
        return [_warning("upstream", upstream.name, message_of(error, upstream), remedy)], None
    spent = round((time.monotonic() - begun) * 1000)
    found = [_ok("upstream", upstream.name, f"{upstream.address} answers in {spent} ms and lists {len(models)} models")]
    model = settings.default_model
    if model and settings.upstream_for(model) is upstream:
        if any(one.get("id") == model for one in models):
            found.append(_ok("upstream", "model", f"{upstream.name} has {model}"))
        else:
            remedy = "name one that it lists in APEX_LLM_MODEL: apex chat --help"
            found.append(_warning("upstream", "model", f"{upstream.name} does not list {model}", remedy))
    return found, _skew(upstream.name, dates[0] if dates else "")


def _skew(name: str, date: str) -> HostCheck | None:
    try:
        seconds = (datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds()
    except (ValueError, TypeError):
        return None
    detail = f"{abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} the model server {name}"
    if abs(seconds) * 1000 <= CLOCK_TOLERANCE_MS:
        return _ok("time", f"against {name}", detail)
    return _warning("time", f"against {name}", detail, "compare the clock with a time server")


async def _check_packages() -> list[HostCheck]:
    """Whether packages of skills can be installed, with the operator's own configuration of pip and npm."""
    with tempfile.TemporaryDirectory(prefix="apex-doctor-") as cache:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "--retries", "0"]
        npm = shutil.which("npm")
        return list(
            await asyncio.gather(
                _check_installer(
                    "pip",
                    [*pip, "--timeout", "5", "index", "versions", "pip"] if find_spec("pip") else None,
                    cache,
                    missing="python -m ensurepip",
                ),
                _check_installer(
                    "npm",
                    [npm, "view", "npm", "version", "--fetch-retries=0", "--fetch-timeout=5000"] if npm else None,
                    cache,
                    missing="apt-get install npm",
                ),
            )
        )


async def _check_installer(name: str, command: Sequence[str] | None, cache: str, *, missing: str) -> HostCheck:
    if command is None:
        return _warning("packages", name, "not found, so skills that need its packages do not run", missing)
    # Its output may name an index with credentials, so none of it is shown.
    code = await _exit_code(command, {**os.environ, "npm_config_cache": cache})
    if code == 0:
        return _ok("packages", name, "its package index answers")
    reason = "did not answer in time" if code is None else "cannot be reached, or refused the request"
    remedy = f"check the network, the proxy, and the configuration of {name}; installed packages work without it"
    return _warning("packages", name, f"its package index {reason}", remedy)


async def _exit_code(command: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """Run a program without input and output; None if it is not done in time."""
    nowhere = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdin=nowhere, stdout=nowhere, stderr=nowhere
    )
    try:
        async with asyncio.timeout(INSTALLER_SECONDS):
            return await process.wait()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _versions(version: str) -> list[HostCheck]:
    return [
        _ok("versions", "apexbridge", version),
        _ok("versions", "python", platform.python_version()),
        _ok("versions", "sqlite", sqlite3.sqlite_version),
    ]


def _ok(section: Section, name: str, detail: str) -> HostCheck:
    return HostCheck(section=section, name=name, state="ok", detail=detail)


def _warning(section: Section, name: str, detail: str, remedy: str) -> HostCheck:
    return HostCheck(section=section, name=name, state="warning", detail=detail, remedy=remedy)


def _failed(section: Section, name: str, detail: str, remedy: str) -> HostCheck:
    return HostCheck(section=section, name=name, state="failed", detail=detail, remedy=remedy)
