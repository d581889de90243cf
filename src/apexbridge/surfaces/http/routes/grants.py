"""Permissions, dependencies and secrets of skills over HTTP."""

from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Path, Query, Request
from pydantic import Field

from apexbridge.skills.models import Receipt
from apexbridge.skills.runs.grants import GrantView
from apexbridge.skills.runs.layers import DependencyView
from apexbridge.surfaces.http.deps import Skills
from apexbridge.surfaces.http.middleware.audit_trail import note
from apexbridge.wire import WireInput, WireModel

router = APIRouter(tags=["permits"])
Name = Annotated[str, Path(description="The skill's name.")]


class GrantInput(WireInput):
    """One permission."""

    permission: str = Field(max_length=4096, description="net:HOST:PORT, env:NAME, secret:NAME or fs:ro:PATH.")


class SecretInput(WireInput):
    """A secret's value; it never comes back."""

    value: str


class SecretNames(WireModel):
    """What secrets there are."""

    names: list[str]


@router.get("/api/skills/{name}/grants")
async def show_grants(name: Name, skills: Skills) -> list[GrantView]:
    """What a skill asks for and what it was given."""
    return await skills.grants_of(name)


@router.post("/api/skills/{name}/grants")
async def grant(name: Name, request: Request, skills: Skills, wanted: GrantInput) -> GrantView:
    """Allow a skill something that it asks for; a change of its content takes it back."""
    note(request, detail=wanted.permission)
    return await skills.grant(name, wanted.permission)


@router.delete("/api/skills/{name}/grants")
async def revoke(
    name: Name, request: Request, skills: Skills, permission: Annotated[str, Query(max_length=4096)]
) -> Receipt:
    """Take a permission back."""
    note(request, detail=permission)
    await skills.revoke(name, permission)
    return Receipt(name=name, message="Permission revoked")


@router.get("/api/skills/{name}/dependencies")
async def show_dependencies(name: Name, skills: Skills) -> DependencyView:
    """What a skill declares to need, and whether it is installed."""
    return await skills.dependencies_of(name)


@router.post("/api/skills/{name}/dependencies")
async def install_dependencies(name: Name, skills: Skills) -> DependencyView:
    """Install what a skill declares; answers when that is done."""
    return await skills.install_dependencies(name)


@router.get("/api/secrets")
async def list_secrets(skills: Skills) -> SecretNames:
    """The names of the secrets that are kept."""
    return SecretNames(names=await anyio.to_thread.run_sync(skills.grants.secrets.names))


@router.put("/api/secrets/{name}")
async def set_secret(
    name: Annotated[str, Path(description="The secret's name.")], skills: Skills, secret: SecretInput
) -> Receipt:
    """Keep a secret for skills that are granted it."""
    await anyio.to_thread.run_sync(skills.grants.secrets.set, name, secret.value)
    return Receipt(name=name, message="Secret kept")


@router.delete("/api/secrets/{name}")
async def remove_secret(name: Annotated[str, Path(description="The secret's name.")], skills: Skills) -> Receipt:
    """Forget a secret."""
    await anyio.to_thread.run_sync(skills.grants.secrets.remove, name)
    return Receipt(name=name, message="Secret removed")
