"""Downloads archives over HTTPS: redirects and addresses are checked, size is limited, nothing is decompressed."""

import errno
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import aiohttp
from yarl import URL

from apexbridge._tasks import in_thread
from apexbridge.errors import InvalidArchiveError, RequestError
from apexbridge.skills.remote.egress import Egress, check_literal, http_session
from apexbridge.skills.remote.source_text import RemoteSource
from apexbridge.skills.remote.tree import RAISE_LIMIT, Listing, TreeEntry, too_large, write_tree

GITHUB_ARCHIVES = "https://codeload.github.com"
MAX_REDIRECTS = 5
MB = 1024 * 1024
CHUNK_BYTES = MB
CONNECT_SECONDS = 15
SILENCE_SECONDS = 30
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HEADERS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "apexbridge"}
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)


async def download(
    egress: Egress,
    url: str,
    target: BinaryIO,
    *,
    max_bytes: int,
    claim: Callable[[int], None],
    advice: str = RAISE_LIMIT,
) -> None:
    """Write the body of a URL to a file. `claim` is called with the bytes so far, before they are written.

    `advice` is for a body that is larger than `max_bytes`.

    Raises:
        RequestError: ADDRESS_REFUSED, SOURCE_NOT_FOUND or SOURCE_UNREACHABLE.
        InvalidArchiveError: ARCHIVE_TOO_LARGE.
    """
    try:
        async with http_session(egress) as session:
            address = URL(url)
            for _ in range(MAX_REDIRECTS + 1):
                await _check(egress, address)
                request = session.get(address, headers=_HEADERS, allow_redirects=False, timeout=_TIMEOUT)
                async with request as response:
                    if response.status in _REDIRECTS and "location" in response.headers:
                        address = address.join(URL(response.headers["location"]))
                        continue
                    await _save(response, target, url, max_bytes=max_bytes, claim=claim, advice=advice)
                    return
        raise RequestError(f"{url} redirects more than {MAX_REDIRECTS} times", code="SOURCE_UNREACHABLE")
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        if isinstance(refusal := error.__cause__, RequestError):  # of the resolver
            raise refusal from error
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            reason = getattr(error.certificate_error, "verify_message", str(error.certificate_error))
            problem = (
                f"the certificate of {error.host} is not trusted: {reason}. Add its authority to the certificates of "
                "the server's system, or name a file with it in SSL_CERT_FILE"
            )
        else:
            problem = f"{type(error).__name__}. Check the address and the network of the server"
        raise RequestError(f"{url} could not be downloaded: {problem}.", code="SOURCE_UNREACHABLE") from error


async def _check(egress: Egress, address: URL) -> None:
    """Check the address of a request, which may come from a redirect."""
    allowed = ("https", "http") if egress.allow_private else ("https",)
    if address.scheme not in allowed or not address.host:
        raise RequestError(
            f"{address.scheme}://{address.host or ''} is not used for downloads; use https://. Plain HTTP needs "
            "APEX_INSTALL_PRIVATE_ADDRESSES=true.",
            code="ADDRESS_REFUSED",
        )
    if address.user or address.password:
        raise RequestError("The address contains credentials", code="ADDRESS_REFUSED")
    await check_literal(egress, address.host, address.port or 443)


async def _save(
    response: aiohttp.ClientResponse,
    target: BinaryIO,
    url: str,
    *,
    max_bytes: int,
    claim: Callable[[int], None],
    advice: str,
) -> None:
    if response.status in (404, 410):
        raise RequestError(f"{url} was not found. Check the address.", code="SOURCE_NOT_FOUND")
    if response.status != 200:
        raise RequestError(f"{url} answered {response.status}", code="SOURCE_UNREACHABLE")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestError(f"{url} compressed its answer, which was not requested", code="SOURCE_UNREACHABLE")
    size, pending = 0, bytearray()
    if (response.content_length or 0) > max_bytes:
        raise too_large(f"more than {max_bytes // MB} MB", advice=advice)
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > max_bytes:
            raise too_large(f"more than {max_bytes // MB} MB", advice=advice)
        pending += chunk
        if len(pending) >= CHUNK_BYTES:
            claim(size)
            await in_thread(target.write, bytes(pending))
            pending.clear()
    claim(size)
    await in_thread(target.write, bytes(pending))
    await in_thread(target.flush)


async def fetch_from_github(
    egress: Egress, source: RemoteSource, folder: Path, *, max_bytes: int, claim: Callable[[int], None]
) -> tuple[Path, str | None]:
    """Without git: a folder of a repository on GitHub from its archive, and the commit that the archive names."""
    url = f"{GITHUB_ARCHIVES}/{source.github_repository}/zip/{source.ref or 'HEAD'}"
    archive = folder / "repository.zip"
    with archive.open("xb") as file:
        try:
            await download(egress, url, file, max_bytes=max_bytes, claim=claim)
        except RequestError as error:
            if error.code != "SOURCE_NOT_FOUND":
                raise
            at = f" at {source.ref}" if source.ref else ""
            raise RequestError(
                f"{source.github_repository}{at} was not found on GitHub, or it is private. Check name and ref.",
                code="SOURCE_NOT_FOUND",
            ) from error
    return await in_thread(_extract, archive, source, folder / "tree", max_bytes)


def _extract(archive: Path, source: RemoteSource, target: Path, max_bytes: int) -> tuple[Path, str | None]:
    try:
        with zipfile.ZipFile(archive) as opened:
            commit = opened.comment.decode("ascii", "replace")
            path = source.path
            entries = _entries(opened, path, max_bytes)
            if [entry.path for entry in entries] == [path] and path.lower().endswith("skill.md"):
                path = path.rpartition("/")[0]
                entries = _entries(opened, path, max_bytes)
            if not entries or [entry.path for entry in entries] == [path]:
                raise RequestError(
                    f"{source.github_repository} has no folder {path or 'with files'}. Check the path.",
                    code="SOURCE_NOT_FOUND",
                )
            folder = target / (path.rpartition("/")[2] or source.name)
            write_tree(folder, _contents(opened, entries, f"{path}/" if path else ""))
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError) as error:
        raise InvalidArchiveError(f"Invalid ZIP archive: {error}", code="INVALID_ZIP") from error
    return folder, commit if re.fullmatch(r"[0-9a-f]{40}", commit) else None


def _entries(opened: zipfile.ZipFile, path: str, max_bytes: int) -> list[TreeEntry]:
    listing = Listing(max_bytes=max_bytes)
    for info in opened.infolist():
        name = info.filename.partition("/")[2]  # GitHub puts everything into one folder
        if info.is_dir() or not name or not (not path or name == path or name.startswith(f"{path}/")):
            continue
        mode = info.external_attr >> 16 or stat.S_IFREG | 0o644
        listing.add(TreeEntry(path=name, mode=mode, size=info.file_size, id=info.filename))
    return listing.entries


def _contents(opened: zipfile.ZipFile, entries: list[TreeEntry], prefix: str) -> Iterator[tuple[TreeEntry, bytes]]:
    for entry in entries:
        with opened.open(entry.id) as file:
            data = file.read(entry.size)
        path = entry.path.removeprefix(prefix)
        yield TreeEntry(path=path, mode=entry.mode, size=entry.size, id=entry.id), data
