"""Packages before they are installed: their origin, the part of them that is installed, and what they ask for."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import BinaryIO

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from apexbridge.errors import RequestError
from apexbridge.skills import DefaultMode, Profile
from apexbridge.skills.models import (
    Origin,
    OriginItem,
    PackageDependencies,
    PackageSkill,
    ReplacedSkill,
    ValidationReport,
)
from apexbridge.skills.package.skill import effective_mode, runnable_scripts
from apexbridge.skills.package.validation import Package
from apexbridge.skills.remote.fetcher import Fetched
from apexbridge.skills.remote.source_text import RemoteSource
from apexbridge.skills.store.installer import ExaminedSkill
from apexbridge.skills.store.names import own_name
from apexbridge.wire import WireModel


class CheckedNote(WireModel):
    """How a package was read when it was checked, so that it is installed in the same way."""

    origin: Origin | None = None
    filename: str | None = None
    profile: Profile | None = None
    """As it was asked for."""
    profiles: tuple[Profile, Profile]
    """If none was asked for: of one skill, and of several."""
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPackage:
    """The findings about a package, and the package if it can be installed."""

    report: ValidationReport
    file: BinaryIO | None = None
    note: CheckedNote | None = None


def packaged_skill(examined: ExaminedSkill, default_mode: DefaultMode, replaced: ReplacedSkill | None) -> PackageSkill:
    """What a report says about one skill."""
    metadata, uses = examined.skill.metadata, examined.uses

    def used(kind: str) -> set[str]:
        return {use.package for use in uses if use.kind == kind and use.package}

    declared_python = {canonicalize_name(Requirement(text).name) for text in examined.declared.python}
    declared_node = {name for name, _ in examined.declared.node}
    return PackageSkill(
        name=examined.name,
        description=metadata.description,
        mode=effective_mode(metadata.mode, examined.skill.entry, default_mode),
        size=examined.skill.size,
        files=len(examined.paths),
        scripts=runnable_scripts(examined.paths),
        permissions=list(metadata.permissions),
        dependencies=PackageDependencies(
            python=sorted([*examined.declared.python, *(used("python") - declared_python)]),
            node=sorted([*examined.declared.node_requirements, *(used("node") - declared_node)]),
            programs=sorted({use.name for use in uses if use.kind == "program"}),
        ),
        warnings=[*examined.skill.warnings, *examined.declared.problems, *examined.admission.warnings],
        confirm=metadata.confirm or "" if metadata.dangerous else None,
        scan=examined.admission.scan,
        signature=examined.admission.signature,
        content_hash=examined.skill.content_hash,
        replaces=replaced,
    )


def origin_of(source: RemoteSource, fetched: Fetched, profile: Profile | None, strict: bool) -> Origin:
    return Origin(
        source=source.text,
        kind=source.kind,
        url=source.url,
        ref=source.ref,
        path=source.path or None,
        commit=fetched.commit,
        digest=fetched.digest,
        profile=profile,
        strict=strict,
        installed_at=datetime.now(UTC),
    )


def local_refused() -> RequestError:
    return RequestError(
        "Files of the server are not installed over HTTP. Upload the archive, or use the command line on the server.",
        code="FORBIDDEN",
    )


def part_of(item: OriginItem, members: Collection[str], package: Package) -> Package:
    """The skill or plugin of a package that an update installs; of a repository, the other plugins are left alone.

    Raises:
        RequestError: SOURCE_CHANGED, the source no longer contains it.
    """
    if item.kind == "skill" and package.skill and package.name == own_name(item.name):
        return package
    for plugin in package.plugins:
        if (plugin.name, "plugin") == (item.name, item.kind):
            own = {*map(own_name, members)}
            left_out = (
                package.left_out
                if len(package.plugins) == 1
                else (tuple(one for one in package.left_out if one.name in own))
            )
            return replace(package, name=plugin.name, plugins=(plugin,), left_out=left_out)
    kind = "skill" if package.skill else "plugin" if len(package.plugins) == 1 else "plugins of"
    raise RequestError(
        f"The source of the {item.kind} {item.name} now contains the {kind} {package.name}. Nothing was changed. "
        f"Install it with: apex skills install {item.origin.source}",
        code="SOURCE_CHANGED",
    )
