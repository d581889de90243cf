"""What a content must fulfil before it is installed: its signature and its scan, in one place for every entry point."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from apexbridge.errors import ServerError, SkillError
from apexbridge.skills.config import IntakeSettings
from apexbridge.skills.models import ContentScan, ScanFinding, SkillSignature
from apexbridge.skills.package.fingerprint import FolderTooLargeError
from apexbridge.skills.package.scan.scanner import ORDER, scan_skill_folder
from apexbridge.skills.package.signatures import (
    SIGNATURE_FILE,
    BadSignatureError,
    manifest_of_folder,
    read_signature,
    verify,
)
from apexbridge.skills.store.names import own_name
from apexbridge.skills.store.signers import SignerStore, may_sign

MAX_WARNINGS = 5
"""Findings of a skill that an install prints."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What is known of a content that may be installed."""

    signature: SkillSignature
    scan: ContentScan
    warnings: tuple[str, ...] = ()
    problem: SkillError | None = None
    """Why it may not be installed."""


class Intake:
    """Checks contents. `examine` reports, `admit` refuses."""

    def __init__(self, signers: SignerStore, settings: IntakeSettings) -> None:
        self.signers = signers
        self._settings = settings

    @property
    def requires_signatures(self) -> bool:
        return self._settings.require_signed == "all"

    def signature_of(self, folder: Path, name: str) -> SkillSignature:
        """The state of the signature of a skill on disk. Never raises for what the folder contains."""
        data = read_signature(folder)
        if data is None:
            return SkillSignature(state="unsigned")
        try:
            key = verify(data, manifest_of_folder(folder))
        except (BadSignatureError, OSError, FolderTooLargeError) as error:
            return SkillSignature(state="invalid", reason=f"{SIGNATURE_FILE} is not valid: {_why(error)}")
        except ServerError as error:
            return SkillSignature(state="unchecked", reason=error.message)
        try:
            signer = self.signers.of(key)
        except ServerError as error:
            return SkillSignature(state="unknown-signer", fingerprint=key.fingerprint, reason=error.message)
        if signer is None:
            return SkillSignature(
                state="unknown-signer",
                fingerprint=key.fingerprint,
                reason=f"signed with the unknown key {key.fingerprint}",
            )
        if not may_sign(signer, own_name(name)):
            return SkillSignature(
                state="unknown-signer",
                signer=signer.name,
                fingerprint=key.fingerprint,
                reason=f"{signer.name} may sign only {', '.join(signer.skills)}",
            )
        return SkillSignature(state="valid", signer=signer.name, fingerprint=key.fingerprint)

    def examine(self, folder: Path, name: str, *, replaced: Path | None = None) -> Admission:
        """Check a content that would be served as `name`, in place of a folder that is installed."""
        signature = self.signature_of(folder, name)
        scan = ContentScan(findings=[], files=0, complete=True)
        if self._settings.scan != "off":
            scan = scan_skill_folder(folder)
        warnings = [*self._signature_warnings(folder, name, signature, replaced), *_scan_warnings(name, scan)]
        return Admission(
            signature=signature,
            scan=scan,
            warnings=tuple(warnings),
            problem=self._signature_problem(name, signature) or self._scan_problem(name, scan),
        )

    def admit(self, folder: Path, name: str, *, replaced: Path | None = None) -> Admission:
        """As `examine`.

        Raises:
            SkillError: SIGNATURE_REQUIRED or SCAN_REFUSED.
        """
        admission = self.examine(folder, name, replaced=replaced)
        if admission.problem:
            raise admission.problem
        return admission

    def check_edit(self, name: str) -> None:
        """Raises SkillError: SIGNATURE_REQUIRED, an edited skill would not be signed."""
        if self.requires_signatures:
            raise SkillError(
                f"{name} was not changed: APEX_REQUIRE_SIGNED=all, and an edit makes a signature invalid. Change its "
                "source, sign it again and install that.",
                skill=name,
                code="SIGNATURE_REQUIRED",
            )

    def _signature_problem(self, name: str, signature: SkillSignature) -> SkillError | None:
        if not self.requires_signatures or signature.state == "valid":
            return None
        why = signature.reason or "it has no signature"
        hint = "Trust the key, if it is the right one: apex signers add NAME KEY" if signature.fingerprint else ""
        hint = hint or "Sign its folder: apex skills sign FOLDER --key FILE"
        return SkillError(
            f"{name} was not installed: APEX_REQUIRE_SIGNED=all, and {why}. {hint}",
            skill=name,
            code="SIGNATURE_REQUIRED",
            signature=signature.model_dump(mode="json"),
        )

    def _signature_warnings(
        self, folder: Path, name: str, signature: SkillSignature, replaced: Path | None
    ) -> list[str]:
        warnings = []
        if signature.state in ("invalid", "unchecked"):
            warnings.append(f"signature: {signature.reason}")
        elif self._settings.require_signed != "off" and signature.state != "valid":
            warnings.append(f"signature: {signature.reason or 'the skill is not signed'}")
        before = self.signature_of(replaced, name) if replaced and replaced.is_dir() else None
        if before and before.state == "valid" and before.fingerprint != signature.fingerprint:
            now = f"with another key, {signature.fingerprint}" if signature.fingerprint else "not at all"
            warnings.append(
                f"signature: the installed content was signed by {before.signer}, the new one is signed {now}"
            )
        return warnings

    def _scan_problem(self, name: str, scan: ContentScan) -> SkillError | None:
        settings = self._settings
        refused = [one for one in scan.findings if ORDER[one.severity] >= ORDER[settings.scan_severity]]
        if settings.scan != "refuse" or not refused:
            return None
        first = "; ".join(map(str, refused[:MAX_WARNINGS]))
        return SkillError(
            f"{name} was not installed: APEX_SCAN=refuse, and the scan found {len(refused)} of severity "
            f"{settings.scan_severity} or above: {first}. See all of it: apex skills scan PATH",
            skill=name,
            code="SCAN_REFUSED",
            findings=[one.model_dump(mode="json", by_alias=True) for one in refused],
        )


def shown_findings(scan: ContentScan) -> list[ScanFinding]:
    """What is worth a person's time."""
    return [one for one in scan.findings if one.severity != "low"]


def _scan_warnings(name: str, scan: ContentScan) -> Sequence[str]:
    shown = shown_findings(scan)
    warnings = [f"scan: {one}" for one in shown[:MAX_WARNINGS]]
    if len(shown) > MAX_WARNINGS:
        warnings.append(f"scan: {len(shown) - MAX_WARNINGS} more findings; see them with: apex skills scan {name}")
    if not scan.complete:
        warnings.append(f"scan: the package is large; {scan.files} files were scanned, and not all of their bytes")
    return warnings


def _why(error: Exception) -> str:
    return (error.strerror or "it cannot be read") if isinstance(error, OSError) else str(error)
