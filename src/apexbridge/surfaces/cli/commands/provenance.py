"""`apex skills verify|scan|sign` and `apex signers`: what is installed is what was published, and by whom."""

import hashlib
import os
import shutil
import sys
import zipfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any
from urllib.parse import quote

import typer

from apexbridge.errors import InvalidInputError, RequestError
from apexbridge.skills.lock_file import LOCK_FILE, read_lock
from apexbridge.surfaces.cli.completion import skill_names
from apexbridge.surfaces.cli.console import plural
from apexbridge.surfaces.cli.session import PackagePath, Session, command

app = typer.Typer(rich_markup_mode=None)
signers = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
SignerName = Annotated[str, typer.Argument(metavar="NAME", help="The signer's name.")]
_STYLES = {"high": "red", "medium": "yellow"}


# --------------------------------------------------------------------------------------------------------- verify
@command(app, "verify")
def verify(
    session: Session,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]", help="Skills.", autocompletion=skill_names)
    ] = None,
) -> None:
    """Compare installed skills with what was installed: contents, skills.lock, stored versions and signatures."""
    found = session.ask("GET", "/api/verify", params={"name": names or []}, creates=False)
    if Path(LOCK_FILE).exists():
        _compare_with_lock(found, read_lock(Path(LOCK_FILE)), names or [])
    found["ok"] = not any(skill["problems"] for skill in found["skills"])
    if not session.show_json(found):
        rows = [
            (
                skill["name"],
                skill["state"],
                skill["version"] or "",
                _signed(skill["signature"]),
                skill["source"] or "unknown",
                "; ".join(skill["problems"]),
            )
            for skill in found["skills"]
        ]
        columns = ("NAME", "CONTENT", "VERSION", "SIGNATURE", "SOURCE", "PROBLEM")
        session.console.table(columns, rows, empty="No skill is installed.")
        wrong = sum(bool(skill["problems"]) for skill in found["skills"])
        total = plural(len(found["skills"]), "skill")
        session.console.say(
            f"{wrong} of {total} not as installed. See what changed with: apex skills versions NAME, and undo it with: "
            "apex skills rollback NAME"
            if wrong
            else f"{total} verified"
        )
    if not found["ok"]:
        raise typer.Exit(1)


def _signed(signature: dict[str, Any]) -> str:
    if signature["state"] == "valid":
        return f"valid: {signature['signer']}"
    return str(signature["state"].replace("-", " "))


def _compare_with_lock(found: dict[str, Any], packages: list[dict[str, Any]], names: list[str]) -> None:
    """Add what differs from `skills.lock` of the current folder."""
    contents = [package["contents"] for package in packages if isinstance(package.get("contents"), dict)]
    locked = {str(name): str(digest) for one in contents for name, digest in one.items()}
    skills = {skill["name"]: skill for skill in found["skills"]}
    for name, digest in sorted(locked.items()):
        if skill := skills.get(name):
            if skill["contentHash"] and f"sha256:{skill['contentHash']}" != digest:
                skill["problems"].append(f"differs from {LOCK_FILE}")
        elif not names:
            found["skills"].append(
                {
                    "name": name,
                    "state": "missing",
                    "source": None,
                    "contentHash": None,
                    "recordedHash": digest.removeprefix("sha256:"),
                    "version": None,
                    "archive": "missing",
                    "signature": {"state": "unsigned", "signer": None, "fingerprint": None, "reason": None},
                    "problems": [f"in {LOCK_FILE}, but not installed: apex skills install --locked"],
                }
            )


# ----------------------------------------------------------------------------------------------------------- scan
@command(app, "scan")
def scan(
    session: Session,
    target: Annotated[str, typer.Argument(metavar="PATH|NAME", help="A folder, an archive, or an installed skill.")],
    everything: Annotated[bool, typer.Option("--all", help="Also show findings of low severity.")] = False,
) -> None:
    """Scan a skill for hostile patterns. A path needs no server. The exit code is 1 if a finding is high."""
    is_path = os.path.lexists(target)
    scans = _scan_path(Path(target)) if is_path else {target: session.ask_skill("GET", target, "scan")}
    found = {"skills": [{"name": name, **report} for name, report in scans.items()]}
    findings = [finding for report in scans.values() for finding in report["findings"]]
    if not session.show_json(found):
        for name, report in scans.items():
            _print_report(session, name, report, everything=everything)
    if any(finding["severity"] == "high" for finding in findings):
        raise typer.Exit(1)


def _print_report(session: Session, name: str, report: dict[str, Any], *, everything: bool) -> None:
    console = session.console
    shown = [one for one in report["findings"] if everything or one["severity"] != "low"]
    for one in shown:
        where = one["path"] if one["line"] is None else f"{one['path']}:{one['line']}"
        console.line(f"{name}: {one['severity']}: {one['rule']} in {where}")
        console.line(f"    found:  {one['text']}")
        console.line(f"    why:    {one['why']}")
        console.line(f"    advice: {one['advice']}")
    low = len(report["findings"]) - len(shown)
    counts = [plural(len(shown), "finding")] + ([f"{low} of low severity, shown with --all"] if low else [])
    files = f"{plural(report['files'], 'file')} scanned"
    console.say(f"{name}: {', '.join(counts)}; {files}{'' if report['complete'] else ', not all of their bytes'}")


def _scan_path(path: Path) -> dict[str, Any]:
    """Scan each skill of a folder or an archive."""
    from apexbridge.skills.package.entry_names import is_skill_file
    from apexbridge.skills.package.scan.scanner import scan_package_entries, scan_skill_folder
    from apexbridge.skills.package.sources import open_source
    from apexbridge.skills.package.validation import ReadOptions, open_package

    if path.is_dir():
        folders = sorted({file.parent for file in path.rglob("*") if is_skill_file(file.name)})
        roots = [folder for folder in folders if not any(other in folder.parents for other in folders)]
        if not roots:
            raise RequestError(f"No SKILL.md is below {path}.", code="FILE_NOT_FOUND")
        return {
            root.resolve().name if root == path else root.relative_to(path).as_posix(): scan_skill_folder(
                root
            ).model_dump(mode="json")
            for root in roots
        }
    with open_source(path) as (file, filename):
        package = open_package(file, ReadOptions(profile="lenient"), filename=filename)
        return {
            skill.metadata.name: scan_package_entries(file, skill.entries, len(skill.root)).model_dump(mode="json")
            for skill in package.skills
        }


# ----------------------------------------------------------------------------------------------------------- sign
@command(app, "sign", connects=False)
def sign(
    session: Session,
    path: PackagePath,
    key: Annotated[
        Path | None, typer.Option("--key", help="A private ed25519 key of OpenSSH, such as ~/.ssh/id_ed25519.")
    ] = None,
    manifest: Annotated[
        bool, typer.Option("--manifest", help="Print what is signed, for ssh-keygen -Y sign -n apexbridge-skill.")
    ] = False,
) -> None:
    """Write SKILL.sig into each skill of a folder or an archive."""
    from apexbridge.skills.package.archive import read_entry
    from apexbridge.skills.package.signatures import (
        SIGNATURE_FILE,
        BadSignatureError,
        manifest_of,
        public_key_of,
        read_private_key,
    )
    from apexbridge.skills.package.signatures import sign as sign_manifest
    from apexbridge.skills.package.skill import PackageFile
    from apexbridge.skills.package.sources import open_source
    from apexbridge.skills.package.validation import ReadOptions, open_package

    if manifest == (key is not None):
        raise typer.BadParameter("name a private key with --key, or use --manifest")
    if not path.is_dir() and not zipfile.is_zipfile(path):
        raise InvalidInputError(f"{path} is neither a folder nor an archive. Sign the folder of the skill.")
    manifests: dict[tuple[str, ...], bytes] = {}
    with open_source(path) as (file, filename):
        package = open_package(file, ReadOptions(profile="lenient", strict=True), filename=filename)
        for skill in package.skills:
            hashed = [
                (
                    PackageFile(
                        path="/".join(entry.parts[len(skill.root) :]), size=entry.size, executable=entry.executable
                    ),
                    _hash(read_entry(file, entry)),
                )
                for entry in skill.entries
            ]
            try:
                manifests[skill.root] = manifest_of(hashed)
            except BadSignatureError as error:
                raise InvalidInputError(f"{skill.metadata.name} cannot be signed: {error}") from error
    if manifest:
        if len(manifests) != 1:
            raise InvalidInputError(f"{path} has {len(manifests)} skills; name the folder of one")
        sys.stdout.buffer.write(next(iter(manifests.values())))
        return
    private = read_private_key(key.expanduser() if key else Path())
    signatures = {root: sign_manifest(text, private) for root, text in manifests.items()}
    try:
        written = _write_signatures(path, signatures, SIGNATURE_FILE)
    except OSError as error:
        raise RequestError(f"{path} was not signed: {error.strerror}", code="FILE_NOT_FOUND") from error
    public = public_key_of(private)
    if not session.show_json({"signed": written, "key": public.line, "fingerprint": public.fingerprint}):
        session.console.say(f"{', '.join(written)}: signed with {public.fingerprint}")


def _hash(chunks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _write_signatures(path: Path, signatures: dict[tuple[str, ...], bytes], name: str) -> list[str]:
    """Write the signature files; returns their paths. An archive is replaced by a copy."""
    if path.is_dir():
        for root, data in signatures.items():
            target = path.joinpath(*root[1:], name)  # the first is the folder itself
            draft = target.with_name(f".{name}.{token_hex(4)}")
            try:
                draft.write_bytes(data)
                draft.replace(target)
            finally:
                draft.unlink(missing_ok=True)
        return [path.joinpath(*root[1:], name).as_posix() for root in signatures]
    entries = {"/".join([*root, name]): data for root, data in signatures.items()}
    draft = path.with_name(f".{path.name}.{token_hex(4)}.part")
    try:
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(draft, "x", zipfile.ZIP_DEFLATED) as new:
            for info in old.infolist():
                if info.filename not in entries:
                    with old.open(info) as source, new.open(info, "w") as copy:
                        shutil.copyfileobj(source, copy)
            for entry, data in entries.items():
                new.writestr(entry, data)
        shutil.copymode(path, draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return [f"{path.name}/{entry}" for entry in entries]


# -------------------------------------------------------------------------------------------------------- signers
@command(signers, "keygen", connects=False)
def keygen(
    session: Session,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The private key; FILE.pub is the public key.")],
) -> None:
    """Create a key pair for signing: a private key that only you can read, and FILE.pub."""
    from apexbridge.skills.package.signatures import new_private_key, private_key_text, public_key_of

    public_path = path.with_name(f"{path.name}.pub")
    for one in (path, public_path):
        if os.path.lexists(one):
            raise InvalidInputError(f"{one} exists already. Choose another name, or remove it.")
    private = new_private_key()
    public = public_key_of(private)
    try:
        with ExitStack() as stack:
            stack.callback(os.umask, os.umask(0o077))
            with path.open("xb") as file:
                file.write(private_key_text(private))
        with public_path.open("x", encoding="utf-8") as text:
            text.write(f"{public.line} apexbridge\n")
    except OSError as error:
        raise RequestError(f"{error.filename} cannot be written: {error.strerror}", code="FILE_NOT_FOUND") from error
    if not session.show_json({"private": str(path), "public": str(public_path), "fingerprint": public.fingerprint}):
        session.console.say(
            f"{path} and {public_path} written, {public.fingerprint}. Sign with: apex skills sign FOLDER --key {path}\n"
            f"Trust it elsewhere with: apex signers add NAME {public_path}"
        )


@command(signers, "add")
def add_signer(
    session: Session,
    name: SignerName,
    key: Annotated[str, typer.Argument(metavar="KEY", help="A .pub file, or its line: 'ssh-ed25519 …'.")],
    skill: Annotated[
        list[str] | None, typer.Option(help="Trust it only for these skills, with * and ?; repeatable.")
    ] = None,
) -> None:
    """Trust the signatures of a key."""
    text = key
    if not key.startswith("ssh-"):
        try:
            with Path(key).expanduser().open(encoding="utf-8", errors="replace") as file:
                text = file.read(4096)
        except OSError as error:
            raise RequestError(f"{key} cannot be read: {error.strerror}", code="FILE_NOT_FOUND") from error
        if "PRIVATE KEY" in text:
            raise InvalidInputError(f"{key} is a private key, which must stay secret. Name {key}.pub instead.")
    body = {"name": name, "key": text.strip(), "skills": skill or []}
    signer = session.ask("POST", "/api/signers", json=body)
    scope = ", ".join(signer["skills"]) or "all skills"
    session.report(signer, f"{name} is trusted for {scope}: {signer['fingerprint']}")


@command(signers, "list", "ls")
def list_signers(session: Session) -> None:
    """List the signers that are trusted."""
    found = session.ask("GET", "/api/signers")
    rows = [
        (one["name"], one["fingerprint"], ", ".join(one["skills"]) or "all", one["addedAt"]) for one in found["signers"]
    ]
    session.table(found, ("NAME", "KEY", "SKILLS", "ADDED"), rows, empty="No signer is trusted.")


@command(signers, "remove", "rm")
def remove_signer(session: Session, name: SignerName) -> None:
    """Stop trusting a key. Skills that it signed stay installed."""
    session.report(session.ask("DELETE", f"/api/signers/{quote(name, safe='')}"), f"{name} is not trusted any more")
