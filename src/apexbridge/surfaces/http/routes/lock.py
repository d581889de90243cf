"""The lock over HTTP: what was fetched, and installing exactly that."""

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import Field

from apexbridge.skills import Profile
from apexbridge.skills.models import Lock, LockedPackage, LockReport
from apexbridge.skills.remote.source_text import MAX_SOURCE_CHARACTERS, parse_source
from apexbridge.surfaces.http.deps import Caller, Skills
from apexbridge.surfaces.http.middleware.audit_trail import note
from apexbridge.surfaces.http.transport.disconnect import run_while_connected
from apexbridge.surfaces.http.transport.requests import is_owner
from apexbridge.wire import WireInput, WireModel

MAX_PACKAGES = 1_000
MAX_SKILLS = 2_000
_DIGEST = r"^sha256:[0-9a-f]{64}$"

router = APIRouter(tags=["skills"])


class LockedInput(WireInput):
    name: str = Field(max_length=200)
    kind: Literal["skill", "plugin"]
    source: str = Field(max_length=MAX_SOURCE_CHARACTERS)
    commit: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")
    digest: str | None = Field(default=None, pattern=_DIGEST)
    profile: Profile | None = None
    strict: bool = False
    contents: dict[str, str] = Field(
        min_length=1, max_length=MAX_SKILLS, description="The content of each skill: `sha256:…`."
    )


class LockInput(WireInput):
    packages: list[LockedInput] = Field(max_length=MAX_PACKAGES)


class LockReports(WireModel):
    packages: list[LockReport]


@router.get("/api/lock")
async def show_lock(request: Request, skills: Skills) -> Lock:
    """Show what was installed from repositories and addresses, with commits, digests and contents."""
    lock = await skills.lock()
    if is_owner(request.scope):
        return lock
    shown = [  # the paths of repositories on the server's disk are for its owner
        package.model_copy(update={"source": "file:"}) if package.source.startswith("file:") else package
        for package in lock.packages
    ]
    return lock.model_copy(update={"packages": shown})


@router.post("/api/lock")
async def install_locked(request: Request, skills: Skills, caller: Caller, body: LockInput) -> LockReports:
    """Install exactly these contents, or report which source no longer delivers them."""
    for package in body.packages:
        parse_source(package.source)  # refuses passwords, which must not be in the audit log
    note(request, detail=", ".join(package.name for package in body.packages)[:1000])
    packages = [LockedPackage(**package.model_dump(by_alias=False)) for package in body.packages]
    installing = skills.install_locked(packages, local=is_owner(request.scope), caller=caller)
    return LockReports(packages=await run_while_connected(request, installing))
