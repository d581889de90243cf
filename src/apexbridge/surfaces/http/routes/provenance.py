"""Provenance over HTTP: verify installed skills, scan one, and the signers that the operator trusts."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field

from apexbridge.skills.models import ContentScan, Receipt, Signer, Verification
from apexbridge.surfaces.http.deps import SkillName, Skills
from apexbridge.surfaces.http.middleware.audit_trail import note
from apexbridge.surfaces.http.transport.requests import is_owner
from apexbridge.wire import WireInput, WireModel

MAX_NAMES = 500
MAX_PATTERNS = 100
router = APIRouter(tags=["skills"])
SignerName = Annotated[str, Path(alias="name", max_length=64, description="The signer's name.")]


class SignerInput(WireInput):
    name: str = Field(max_length=64, description="How the signer is shown.")
    key: str = Field(max_length=4096, description="A line of a `.pub` file: `ssh-ed25519 …`.")
    skills: list[Annotated[str, Field(max_length=128)]] = Field(
        default_factory=list, max_length=MAX_PATTERNS, description="Skills that it may sign, with `*` and `?`; all."
    )


class Signers(WireModel):
    signers: list[Signer]


@router.get("/api/verify")
async def verify_skills(
    request: Request,
    skills: Skills,
    name: Annotated[list[str], Query(description="Only these skills; repeatable.", max_length=MAX_NAMES)] = [],  # noqa: B006
) -> Verification:
    """Compare installed skills with what was installed: contents, stored versions, signatures."""
    verification = await skills.verification.verify(name)
    if is_owner(request.scope):
        return verification
    shown = [  # the paths of repositories on the server's disk are for its owner
        skill.model_copy(update={"source": "file:"}) if (skill.source or "").startswith("file:") else skill
        for skill in verification.skills
    ]
    return verification.model_copy(update={"skills": shown})


@router.get("/api/skills/{name}/scan")
async def scan_skill(name: SkillName, skills: Skills) -> ContentScan:
    """Scan an installed skill for hostile patterns."""
    return await skills.scan_skill(name)


@router.get("/api/signers")
async def list_signers(skills: Skills) -> Signers:
    """List the signers that are trusted."""
    return Signers(signers=await asyncio.to_thread(skills.signers.all))


@router.post("/api/signers", status_code=201)
async def add_signer(request: Request, skills: Skills, body: SignerInput) -> Signer:
    """Trust a key for all skills, or for some."""
    signer = await asyncio.to_thread(skills.signers.add, body.name, body.key, body.skills)
    note(request, target=signer.name, detail=" ".join([signer.fingerprint, *signer.skills])[:1000])
    return signer


@router.delete("/api/signers/{name}")
async def remove_signer(name: SignerName, skills: Skills) -> Receipt:
    """Stop trusting a key. Skills that it signed stay installed."""
    await asyncio.to_thread(skills.signers.remove, name)
    return Receipt(name=name, message="Signer removed")
