"""Agent Skills Discovery: the index of published skills, and their downloads. No key is needed."""

import os
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Response
from fastapi.responses import StreamingResponse

from apexbridge.errors import RequestError
from apexbridge.skills import SKILL_FILE
from apexbridge.skills.published import PublishedSkills
from apexbridge.skills.remote.discovery import INDEX_PATH, DownloadKind
from apexbridge.surfaces.http.deps import ServedBridge, SkillName
from apexbridge.surfaces.http.transport.content_coding import is_known
from apexbridge.surfaces.http.transport.responses import download

router = APIRouter(tags=["discovery"])
_FOLDER = INDEX_PATH.rpartition("/")[0]
_CACHING = {"cache-control": "no-cache"}
"""Caches ask each time: an index with the digest of an older download would make clients refuse the skill."""
IfNoneMatch = Annotated[str | None, Header()]


async def _published(bridge: ServedBridge) -> PublishedSkills:
    if bridge.published is None:
        raise RequestError("This server does not publish its skills.", code="NOT_FOUND")
    return bridge.published


Published = Annotated[PublishedSkills, Depends(_published)]


@router.head(INDEX_PATH, include_in_schema=False)
@router.get(INDEX_PATH, response_class=Response)
async def published_index(published: Published, if_none_match: IfNoneMatch = None) -> Response:
    """List the published skills with their digests."""
    index = await published.index()
    headers = {**_CACHING, "etag": index.etag}
    if is_known(index.etag, if_none_match):
        return Response(status_code=304, headers=headers)
    return Response(index.body, media_type="application/json", headers=headers)


@router.head(f"{_FOLDER}/{{name}}.zip", include_in_schema=False)
@router.get(f"{_FOLDER}/{{name}}.zip", response_class=StreamingResponse)
async def published_archive(name: SkillName, published: Published, if_none_match: IfNoneMatch = None) -> Response:
    """Download a published skill as a flat ZIP."""
    return await _send(published, name, "archive", f"{name}.zip", "application/zip", if_none_match)


@router.head(f"{_FOLDER}/{{name}}/{SKILL_FILE}", include_in_schema=False)
@router.get(f"{_FOLDER}/{{name}}/{SKILL_FILE}", response_class=StreamingResponse)
async def published_file(name: SkillName, published: Published, if_none_match: IfNoneMatch = None) -> Response:
    """Download a published skill that has no other file than its SKILL.md."""
    return await _send(published, name, "skill-md", SKILL_FILE, "text/markdown; charset=utf-8", if_none_match)


async def _send(
    published: PublishedSkills, name: str, kind: DownloadKind, filename: str, media_type: str, if_none_match: str | None
) -> Response:
    file, packed = await published.open(name, kind)
    headers = {**_CACHING, "etag": f'"{packed.digest}"'}
    if is_known(headers["etag"], if_none_match):
        file.close()
        return Response(status_code=304, headers=headers)
    response = download(file, filename, media_type)
    response.headers.update({**headers, "content-length": str(os.fstat(file.fileno()).st_size)})
    return response
