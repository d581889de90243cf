"""Settings for skills, and the subset that can be changed at run time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from apexbridge.errors import InvalidInputError
from apexbridge.skills import DefaultMode, Profile, ScanPolicy, Severity, SignaturePolicy
from apexbridge.wire import MAX_PROBLEMS, WireInput, problem, summary_of

MAX_CUSTOM_PATHS = 100


class FetchSettings(BaseModel):
    """Limits for sources that are fetched."""

    private_addresses: bool = False
    """Whether sources may be on loopback and in private networks, and on servers without TLS."""
    max_mb: int = 200
    timeout_seconds: float = 120


class VersionLimits(BaseModel):
    """Which versions of a skill are kept. The installed one and the newest one always are."""

    count: int = 50
    days: int = 365
    """0 for any age."""
    mb: int = 500
    """Space for the archives of one skill."""


class IntakeSettings(BaseModel):
    """What a content must fulfil to be installed."""

    scan: ScanPolicy = "warn"
    scan_severity: Severity = "high"
    """The lowest severity that `refuse` refuses."""
    require_signed: SignaturePolicy = "off"


class SkillsSettings(BaseModel):
    """Settings of the skills package."""

    roots: tuple[Path, ...] = ()
    """Extra roots, scanned in order before the installed skills."""
    default_mode: DefaultMode = "auto"
    enable_direct_mode: bool = True
    default_profile: Profile = "seed"
    """For archives; folders are read leniently."""
    require_entry_script: bool = False
    sandbox_timeout_ms: int = 60_000
    max_sandbox_timeout_ms: int = 300_000
    """Upper limit for the timeout of every run."""
    confirm_dangerous: bool = True
    """Whether skills that are marked dangerous need approval."""
    fetch: FetchSettings = FetchSettings()
    versions: VersionLimits = VersionLimits()
    intake: IntakeSettings = IntakeSettings()


class SkillManagerConfig(WireInput):
    """The settings that can be changed at run time, until the next start."""

    skills_path: Path
    custom_paths: tuple[Path, ...] = Field(max_length=MAX_CUSTOM_PATHS)
    default_mode: DefaultMode
    sandbox_timeout: int = Field(gt=0)
    """Milliseconds."""
    enable_direct_mode: bool

    @field_validator("skills_path", "custom_paths", mode="after")
    @classmethod
    def _absolute(cls, value: Path | tuple[Path, ...]) -> Path | tuple[Path, ...]:
        if isinstance(value, Path):
            return value.expanduser().absolute()
        return tuple(path.expanduser().absolute() for path in value)

    @property
    def paths(self) -> tuple[Path, ...]:
        """All folders that are scanned for skills, in order."""
        return (*self.custom_paths, self.skills_path)

    def changed(self, changes: Mapping[str, Any], *, max_timeout: int) -> "SkillManagerConfig":
        """A copy with these fields changed. If one is invalid, none is changed.

        `max_timeout` is the operator's cap, which cannot be changed at run time.

        Raises:
            InvalidInputError: lists the invalid fields.
        """
        # Map aliases to Python names, so that a field in either spelling replaces the current value.
        spelled = {field.alias: name for name, field in type(self).model_fields.items()}
        changed = {spelled.get(key, key): value for key, value in changes.items()}
        try:
            config = SkillManagerConfig.model_validate(self.model_dump(by_alias=False) | changed)
        except ValidationError as error:
            problems = [
                problem([to_camel(str(step)) for step in item["loc"]], item["msg"])
                for item in error.errors(include_url=False, include_input=False)[:MAX_PROBLEMS]
            ]
            raise _refused(problems) from error
        problems = [
            {"path": str(path), "message": "not a folder"}
            for path in config.paths
            if path not in self.paths and not path.is_dir()
        ]
        if len({path.resolve() for path in config.paths}) < len(config.paths):
            problems.append({"path": "customPaths", "message": "a folder is named twice"})
        if config.sandbox_timeout > max_timeout:
            problems.append({"path": "sandboxTimeout", "message": f"above the operator's cap of {max_timeout} ms"})
        if problems:
            raise _refused(problems)
        return config


def _refused(problems: list[dict[str, str]]) -> InvalidInputError:
    return InvalidInputError(f"The configuration was not changed: {summary_of(problems)}", errors=problems)
