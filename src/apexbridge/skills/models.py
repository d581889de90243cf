"""Models of skills that cross the API, and constants that all subpackages use."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from apexbridge.skills import Mode, Profile
from apexbridge.wire import WireModel

SUMMARY_CHARACTERS = 200
SkillSort = Literal["name", "-name", "updated", "installed", "calls", "failures"]
SkillHealth = Literal["warnings", "access", "packages", "confirm"]


class SkillSummary(WireModel):
    """One line of the list."""

    name: str
    description: str
    version: str | None
    author: str | None
    tags: list[str]
    derived_tags: list[str]
    category: str | None
    mode: Mode
    enabled: bool
    source: str
    """`installed`, or the label of the root that it was found in."""
    plugin: str | None
    installed_at: datetime
    updated_at: datetime
    dangerous: bool
    warning_count: int = 0
    """Warnings of the last scan."""
    needs_access: bool = False
    """Whether it asks for a permission that is not granted."""
    needs_packages: bool = False
    """Whether it declares or uses a package that is not installed."""
    calls: int = 0
    failures: int = 0
    """Calls that failed."""
    last_used_at: datetime | None = None


class Origin(WireModel):
    """Where a skill or a plugin was fetched from."""

    source: str
    """As it was asked for."""
    kind: Literal["git", "archive", "index"]
    url: str
    ref: str | None = None
    """The branch, tag or commit that was asked for; None is the default branch."""
    path: str | None = None
    """The folder in the repository."""
    commit: str | None = None
    digest: str | None = None
    """SHA-256 of the download, if it is not from a repository."""
    profile: Profile | None = None
    """As it was asked for."""
    strict: bool = False
    """Whether one skill that cannot be installed refuses all of it."""
    installed_at: datetime
    content_hash: str | None = None
    """Of the skill as it was fetched. If the skill has another one now, it was edited here."""

    @property
    def revision(self) -> str:
        """The commit, or the digest of an archive."""
        return self.commit or self.digest or ""


class SkillFile(WireModel):
    """A bundled file."""

    path: str
    size: int


class SkillSignature(WireModel):
    """The signature of a skill."""

    state: Literal["valid", "unsigned", "invalid", "unknown-signer", "unchecked"]
    """`unchecked` if the package `cryptography` is missing."""
    signer: str | None = None
    fingerprint: str | None = None
    """Of the key, if it made the signature."""
    reason: str | None = None
    """Why it is not valid."""


class SkillDetail(SkillSummary):
    """Everything about one skill."""

    entry: str | None
    content: str
    """The Markdown body."""
    summary: str
    filename: str
    source_path: str
    """Relative to its root; never a path of the server."""
    files: list[SkillFile]
    scripts: list[str]
    """What can be run by name."""
    content_hash: str
    size: int
    warnings: list[str]
    parameters: dict[str, Any] | None
    """JSON Schema of the input: as declared, else as derived from the entry script."""
    script_parameters: dict[str, dict[str, Any]]
    """What scripts were seen to take, by their paths."""
    permissions: list[str]
    grants: list[str]
    allowed_tools: list[str]
    timeout: int | None
    confirm: str | None
    license: str | None
    compatibility: str | None
    disable_model_invocation: bool
    metadata: dict[str, Any]
    read_only: bool
    origin: Origin | None = None
    """Where it was fetched from; None if it was uploaded."""
    signature: SkillSignature = SkillSignature(state="unsigned")


class TagCount(WireModel):
    tag: str
    count: int
    """Skills that have it, declared or derived."""


class TagList(WireModel):
    """The most frequent tags."""

    tags: list[TagCount]
    total: int
    """All that begin with the prefix."""


class SkillPage(WireModel):
    """A page of the list; iterating gives its skills."""

    skills: list[SkillSummary]
    total: int
    page: int = 1
    limit: int | None = None

    def __iter__(self) -> Iterator[SkillSummary]:  # type: ignore[override]  # a page is a collection of skills
        return iter(self.skills)

    def __len__(self) -> int:
        return len(self.skills)


class Receipt(WireModel):
    """The answer to a change that was made."""

    success: Literal[True] = True
    name: str
    message: str


class LeftOut(WireModel):
    """A skill or a plugin of a package that was not installed, and why."""

    name: str
    path: str
    """Its folder in the package; empty if it has none."""
    reason: str
    """Why, and what to do about it."""

    def __str__(self) -> str:
        where = f" ({self.path})" if self.path and self.path != self.name else ""
        return f"{self.name}{where} was left out: {self.reason}"


class RemovalReceipt(Receipt):
    """The answer to a removal."""

    hidden: bool = False
    """Whether it stays on disk, because it is in another root than the installed skills."""
    restorable_until: datetime | None = None
    """Until when it can be restored; None for a hidden skill (no limit), or if the disk is too full to keep it."""


class RemovedItem(WireModel):
    """A skill or a plugin that can be restored."""

    id: str | None
    """None for a hidden skill."""
    kind: Literal["skill", "plugin", "hidden"]
    name: str
    skills: list[str]
    description: str
    source: str
    removed_at: datetime
    restorable_until: datetime | None
    size: int
    """Bytes on the disk; 0 for a hidden skill."""


class ScanFinding(WireModel):
    """What the scan of a skill found at one place."""

    rule: str
    kind: str
    severity: Literal["low", "medium", "high"]
    path: str
    """The file, relative to the skill's folder."""
    line: int | None
    text: str
    """The text, shortened and escaped."""
    why: str
    advice: str

    def __str__(self) -> str:
        where = self.path if self.line is None else f"{self.path} line {self.line}"
        return f"{self.severity} {self.rule}, {where}: {self.why} {self.text!r}"


class ContentScan(WireModel):
    """The findings in a skill, the most severe first."""

    findings: list[ScanFinding]
    files: int
    complete: bool
    """Whether all bytes of all files were scanned; large packages are scanned up to a limit."""


class Signer(WireModel):
    """A key that the operator trusts."""

    name: str
    key: str
    """`ssh-ed25519 …`."""
    fingerprint: str
    skills: list[str] = Field(default_factory=list)
    """The skills that it may sign, with `*` and `?`; empty for all."""
    added_at: datetime


class SkillScan(WireModel):
    """The scan of one skill of a package."""

    name: str
    scan: ContentScan
    signature: SkillSignature


class VerifiedSkill(WireModel):
    """Whether an installed skill is what was installed."""

    name: str
    state: Literal["unchanged", "changed", "missing"]
    """`changed`: after the install, by hand or by an edit of the description."""
    source: str | None
    """Where it was fetched from; None for an upload, a folder, or a skill that was put there by hand."""
    content_hash: str | None
    """Of the files on disk; None if they are missing."""
    recorded_hash: str | None
    """Of what was installed; None if there is no record."""
    version: int | None
    """The installed version."""
    archive: Literal["intact", "damaged", "missing"]
    """The stored version, by which it can be restored."""
    signature: SkillSignature
    problems: list[str]
    """What is wrong; empty if nothing is."""


class Verification(WireModel):
    """The state of installed skills."""

    skills: list[VerifiedSkill]
    ok: bool
    """Whether nothing is wrong."""


class InstallReceipt(Receipt):
    """The answer to an install.

    `name` is the skill, the plugin, the marketplace of several plugins, or the host of several published skills.
    `names` are the names under which the skills are served.
    """

    names: list[str]
    plugins: list[str] = Field(default_factory=list)
    left_out: list[LeftOut] = Field(default_factory=list)
    replaced: bool = False
    warnings: list[str] = Field(default_factory=list)
    scans: list[SkillScan] = Field(default_factory=list)
    """The signature of each skill, and what the scan found."""
    duration: int = 0
    """Milliseconds."""


class SkillVersion(WireModel):
    """A version of a skill: a content that it has, or has had."""

    version: int
    """Its number, from 1. Numbers are not used again."""
    id: str
    name: str
    description: str
    created_at: datetime
    source: Literal["install", "upload", "edit", "update", "disk"]
    """How it came: `upload` without being installed, `disk` for a change of the folder that was found."""
    author: str
    """The id of the API key; empty without one."""
    signer: str | None = None
    """Who signed it, as known when it was stored."""
    content_hash: str
    size: int
    """Of its files together, in bytes."""
    default: bool
    """Whether it is installed: chat, search and runs use it."""
    latest: bool


class SkillVersionList(WireModel):
    """The versions of a skill, the newest first."""

    name: str
    id: str
    default_version: int
    latest_version: int
    versions: list[SkillVersion]


class FileDiff(WireModel):
    """A file that differs between two versions."""

    path: str
    change: Literal["added", "removed", "changed"]
    binary: bool
    diff: str | None
    """The lines of a unified diff, without a header; None for a binary file, or beyond the limits. Empty if only the
    mode changed."""
    truncated: bool
    """Whether lines are missing because of the limits."""


class VersionDiff(WireModel):
    """What changed between two versions of a skill."""

    name: str
    version: int
    against: int | None
    """None for the first version: all its files are new."""
    files: list[FileDiff]
    truncated: bool
    """Whether more files differ."""


class BulkError(WireModel):
    code: str
    message: str


class BulkResult(WireModel):
    """What became of one skill."""

    name: str
    success: bool
    error: BulkError | None = None
    restorable: bool = False
    """Whether it was uninstalled and can be restored."""


class BulkReport(WireModel):
    """What became of each skill, in the order of the request."""

    results: list[BulkResult]


class RollbackReceipt(Receipt):
    """The answer to a rollback."""

    version: int
    """The version that is installed now."""
    previous: int
    """The version that was installed before."""


class OriginItem(WireModel):
    """A skill or a plugin that can be updated from its source."""

    name: str
    kind: Literal["skill", "plugin"]
    origin: Origin


class LockedPackage(WireModel):
    """A fetched skill or plugin, with what is needed to install exactly the same again."""

    name: str
    kind: Literal["skill", "plugin"]
    source: str
    """As it was asked for."""
    commit: str | None = None
    digest: str | None = None
    """SHA-256 of the download, if it is not from a repository."""
    profile: Profile | None = None
    strict: bool = False
    contents: dict[str, str]
    """For each skill, the SHA-256 of its content as it was fetched."""


class Lock(WireModel):
    """Everything that was fetched."""

    packages: list[LockedPackage]
    others: list[str] = Field(default_factory=list)
    """Installed skills without a source, such as uploads. They are not locked."""
    edited: list[str] = Field(default_factory=list)
    """Locked skills whose content was changed after it was fetched."""


class LockReport(WireModel):
    """What became of a locked package."""

    name: str
    kind: Literal["skill", "plugin"]
    state: Literal["installed", "unchanged", "failed"]
    error: dict[str, Any] | None = None
    """Why the source does not deliver what is locked."""


class SkillChange(WireModel):
    """What an update does to one skill."""

    name: str
    change: Literal["added", "changed", "removed", "unchanged"]
    files_added: list[str] = Field(default_factory=list)
    files_changed: list[str] = Field(default_factory=list)
    files_removed: list[str] = Field(default_factory=list)
    old_description: str | None = None
    new_description: str | None = None
    """Both descriptions, if they differ."""
    permissions_added: list[str] = Field(default_factory=list)
    permissions_removed: list[str] = Field(default_factory=list)
    """Permissions that it asks for. Those that were granted to other content are void."""
    edited: bool = False
    """Whether it was edited here after it was fetched. An update replaces the edits."""


class UpdateReport(WireModel):
    """What an update of a skill or a plugin changes, or has changed."""

    name: str
    kind: Literal["skill", "plugin"]
    source: str
    old_revision: str
    """The commit that is installed; for an archive, its SHA-256."""
    new_revision: str
    changed: bool
    applied: bool = False
    skills: list[SkillChange]
    warnings: list[str] = Field(default_factory=list)
    error: dict[str, Any] | None = None
    """Why nothing is known about it; only in the reports on all plugins of a source."""


class PackageDependencies(WireModel):
    """What a skill of a package declares, and what its code uses."""

    python: list[str]
    node: list[str]
    programs: list[str]


class ReplacedSkill(WireModel):
    """The installed skill that an install would replace."""

    version: str | None
    content_hash: str
    updated_at: datetime
    calls: int
    edited: bool
    """Whether it was edited here after it was fetched. The edits would be replaced."""


class PackageSkill(WireModel):
    """A skill of a package: what it asks for, and what it would replace."""

    name: str
    """Under which it would be served."""
    description: str
    mode: Mode
    size: int
    """Bytes of its files together."""
    files: int
    scripts: list[str]
    permissions: list[str]
    dependencies: PackageDependencies
    warnings: list[str]
    confirm: str | None
    """What is asked before each run; empty if the skill says nothing. None if nothing is asked."""
    scan: ContentScan
    signature: SkillSignature
    content_hash: str
    replaces: ReplacedSkill | None


class ValidationReport(WireModel):
    """Whether a package could be installed, and everything that was found."""

    valid: bool
    name: str | None = None
    names: list[str] = Field(default_factory=list)
    """The skills that would be installed, by their own names."""
    errors: list[str]
    warnings: list[str]
    left_out: list[LeftOut] = Field(default_factory=list)
    upload: str | None = None
    """Under which the package can be installed for an hour, by the same key."""
    packages: list[PackageSkill] = Field(default_factory=list)


class Problem(WireModel):
    """A folder that is not served as a skill, and why."""

    name: str
    source: str
    source_path: str
    kind: Literal["broken", "shadowed"]
    reason: str


class SkillStatistics(WireModel):
    """The library in numbers."""

    total: int
    by_tag: dict[str, int]
    by_derived_tag: dict[str, int]
    by_mode: dict[str, int]
    calls: int
    success_rate: float
    unused: int
    """How many skills were never called."""
    unused_names: list[str]
    """The first of them by name, at most 100."""


class CallStatistics(WireModel):
    """How often one skill was called and how it went."""

    tool_name: str
    call_count: int
    success_count: int
    average_duration: int
    """Milliseconds."""
    success_rate: float


class GrowthPoint(WireModel):
    """How many skills were installed for the first time on a day or in a week."""

    date: str
    count: int


class PluginSummary(WireModel):
    """A plugin and the skills that came with it."""

    name: str
    version: str | None
    description: str | None
    installed_at: datetime
    skills: list[str]
    origin: Origin | None = None


class ScanReport(WireModel):
    """What a look at the disk changed in the index."""

    indexed: int = 0
    skipped: int = 0
    removed: int = 0


class DirectMetadata(WireModel):
    """Where a direct answer came from."""

    skill_name: str
    source_path: str
    generated_at: int
    """Milliseconds since 1970."""


class DirectSkillResult(WireModel):
    """A skill's instructions, with the input filled in."""

    mode: Literal["direct"] = "direct"
    content: str
    metadata: DirectMetadata
    warnings: list[str] = Field(default_factory=list)


class Upload(WireModel):
    """A file that can be named in `files` of a call."""

    id: str
    name: str
    size: int
    workspace: str | None = None
    """The workspace that contains the file, under its name."""
