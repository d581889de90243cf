"""Scans the files of a skill for hostile patterns. Bounded bytes, linear time, no model and no network.

A finding is a hint for a person, not a proof. Quotations of attacks, as in a skill about security, count as low.
"""

import binascii
import re
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from apexbridge._safe_open import open_file_beneath
from apexbridge._text import escaped
from apexbridge.skills import Severity
from apexbridge.skills.models import ContentScan, ScanFinding
from apexbridge.skills.package.archive import Entry, read_entry
from apexbridge.skills.package.entry_names import is_skill_file
from apexbridge.skills.package.fingerprint import scan_folder
from apexbridge.skills.package.scan.rules import ADVICE, DECODED, INSTRUCTION, QUOTING, RULES, Kind, Rule
from apexbridge.skills.package.scan.text import (
    BETWEEN_LETTERS,
    DIRECTIONS,
    FLAG,
    MIXED_WORD,
    SELECTORS,
    TAGS,
    Lines,
    hidden_texts,
    paragraphs,
    plain,
)

MAX_FILE_BYTES = 256 * 1024
"""Of one file that are read."""
MAX_TOTAL_BYTES = 2 * 1024 * 1024
"""Of all files of a skill."""
MAX_FILES = 2_000
MAX_FINDINGS_OF_A_RULE = 5
"""In one file."""
MAX_FINDINGS = 200
MAX_MATCHES = 200
"""Of one rule in one file that are looked at."""
WINDOW, OVERLAP = 8_000, 1_000
"""Characters; a match that begins in a window may end in the overlap."""
MAX_SHOWN = 160
"""Characters of the text that a finding shows."""
ORDER: dict[Severity, int] = {"low": 0, "medium": 1, "high": 2}

_PROSE = frozenset({".md", ".mdx", ".markdown", ".txt", ".rst", ".adoc", ".html", ".htm", ".mdc"})
_MARKUP = frozenset({".md", ".mdx", ".markdown", ".html", ".htm", ".mdc"})
_NATIVE = (
    b"\x7fELF",
    b"MZ\x90",
    b"\xfe\xed\xfa\xce",
    b"\xfe\xed\xfa\xcf",
    b"\xce\xfa\xed\xfe",
    b"\xcf\xfa\xed\xfe",
    b"\0asm",
    b"dex\n",
)
_NATIVE_SUFFIXES = frozenset(
    {".exe", ".dll", ".so", ".dylib", ".scr", ".msi", ".node", ".com", ".pif", ".appimage", ".apk"}
)
_BYTECODE_SUFFIXES = frozenset({".pyc", ".pyo", ".class", ".jar", ".luac", ".wasm", ".jsc"})
_ARCHIVES = frozenset(
    {".zip", ".rar", ".7z", ".tar", ".tgz", ".gz", ".xz", ".bz2", ".iso", ".img", ".cab", ".whl", ".dmg", ".pkg"}
)
_LAUNCHERS = frozenset({".lnk", ".url", ".desktop", ".hta", ".vbs", ".vbe", ".jse", ".wsf", ".scpt"})
_HEAD_BYTES = 8 * 1024
"""By which a binary file is recognised."""
_DATA = frozenset(
    {".json", ".jsonl", ".csv", ".tsv", ".xml", ".xsd", ".svg", ".lock", ".sql", ".geojson", ".css", ".yaml", ".yml"}
)
_SOURCES = frozenset({".py", ".js", ".mjs", ".cjs", ".ts", ".sh", ".ps1", ".rb", ".md", ".txt", ".json"})
_ENCRYPTED = 0x1
_ADDRESS = re.compile(r"https?://([^\s/\"'`)>|;&]{1,200})")
_KNOWN_INSTALLERS = (
    "astral.sh",
    "sh.rustup.rs",
    "rustup.rs",
    "get.docker.com",
    "bun.sh",
    "deno.land",
    "raw.githubusercontent.com/homebrew/install",
    "deb.nodesource.com",
    "fnm.vercel.app",
    "install.python-poetry.org",
    "get.helm.sh",
    "cli.github.com",
    "claude.ai",
    "get.pnpm.io",
    "starship.rs",
    "get.sdkman.io",
    "ollama.com",
    "fly.io",
    "tailscale.com",
    "mise.run",
    "just.systems",
    "proto.moonrepo.dev",
    "get.volta.sh",
    "packages.cloud.google.com",
    "sdk.cloud.google.com",
    "aka.ms",
    "brew.sh",
    "raw.githubusercontent.com/nvm-sh/nvm",
    "raw.githubusercontent.com/helm/helm",
    "foundry.paradigm.xyz",
    "get.k3s.io",
    "cursor.com",
    "opencode.ai",
    "pixi.sh",
    "bootstrap.pypa.io",
    "getcomposer.org",
    "get.rvm.io",
    "nixos.org",
    "raw.githubusercontent.com/astral-sh/uv",
    "dl.yarnpkg.com",
    "ghcr.io",
    "apt.releases.hashicorp.com",
    "community.chocolatey.org",
)
_LOCAL = re.compile(r"(?:localhost|127\.0\.0\.1)(?::\d{1,5})?(?:/|\Z)")
_IN_A_NAME = re.compile(r"[\w.:@%-]")
_PLAIN_HTTP = re.compile(r"(?<!\w)http://")
_SUSPICIOUS = re.compile(
    r"\A(?:\d{1,3}(?:\.\d{1,3}){3}\b(?<!127\.0\.0\.1)|[^/]*(?:pastebin|paste\.|hastebin|transfer\.sh|0x0\.st|glot\.io|rentry|gofile|catbox|"
    r"bit\.ly|tinyurl|(?:^|\.)t\.co\b|(?:^|\.)is\.gd|goo\.gl|cutt\.ly|rb\.gy|ngrok|trycloudflare|webhook\.site|gist\.githubusercontent|\.onion|"
    r"\.tk\b|\.xyz\b|\.top\b|\.icu\b|discordapp|workers\.dev|duckdns))"
)
_QUOTED_BEFORE = 240
"""Characters before a match in which a word shows that an attack is only described."""
_BLOB = re.compile(r"[A-Za-z0-9+/]{24,8192}={0,2}")
_COMPUTED: dict[str, tuple[Kind, str]] = {
    "hidden-instructions": ("hidden-text", "Text that a renderer does not show instructs the model."),
    "invisible-element": ("hidden-text", "A style makes this text invisible for people, but not for the model."),
    "tag-characters": ("unicode", "Invisible characters spell a text that only the model reads."),
    "variation-selectors": ("unicode", "A run of invisible characters can carry a hidden text."),
    "invisible-in-word": ("unicode", "Invisible characters inside words hide them from people and from scanners."),
    "text-direction": (
        "unicode",
        "Characters that change the direction make text or code look different from what it is.",
    ),
    "look-alike-letters": ("unicode", "Letters of another alphabet make a word look like another one."),
    "encoded-payload": ("obfuscation", "An encoded text contains a command or an instruction."),
    "native-program": ("binary", "A compiled program cannot be reviewed."),
    "bytecode": ("binary", "Compiled code cannot be reviewed."),
    "launcher": ("binary", "A file of this kind starts programs when it is opened."),
    "archive": ("binary", "The content of an archive in the package is not scanned."),
    "encrypted-archive": ("binary", "An encrypted archive cannot be scanned."),
    "link-outside": ("link", "A link leads out of the skill's folder, to files of the user."),
    "not-scanned": ("obfuscation", "The file is too large, or the skill has too many files, to be scanned whole."),
    "unreadable-source": ("obfuscation", "A file with the name of source code is not text."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file to be scanned."""

    path: str
    size: int
    read: Callable[[int], bytes]
    """Returns its first bytes, up to a limit."""
    link: str | None = None
    """The target, if it is a symbolic link."""


def scan_skill_folder(folder: Path) -> ContentScan:
    """Scan a skill on disk. Links are not followed."""
    return scan(_files_of(folder))


def scan_package_entries(file: BinaryIO, entries: Iterable[Entry], depth: int) -> ContentScan:
    """Scan the files of one skill of an archive, whose names have `depth` components in front."""
    return scan(
        SourceFile(path="/".join(entry.parts[depth:]), size=entry.size, read=_entry_reader(file, entry))
        for entry in entries
    )


def scan(files: Iterable[SourceFile]) -> ContentScan:
    """Scan the files of a skill."""
    findings: list[ScanFinding] = []
    budget, count, is_cut = MAX_TOTAL_BYTES, 0, False
    for file in sorted(files, key=_importance):
        count += 1
        if file.link is not None:
            findings += _link_findings(file.path, file.link)
            continue
        limit = min(MAX_FILE_BYTES, budget) if count <= MAX_FILES else 0
        data = file.read(min(_HEAD_BYTES, limit))
        if _text_of(data) is not None:
            data = file.read(limit)
            budget -= len(data)
            if len(data) < file.size:
                is_cut = True
                weight: Severity = "low" if _suffix(file.path) in _DATA else "medium"
                size = f"{len(data)} of {file.size} bytes were scanned"
                findings.append(_computed("not-scanned", weight, file.path, None, size))
        findings += _bounded(_scan_file(file.path, data))
    findings.sort(key=lambda one: (-ORDER[one.severity], one.path, one.line or 0, one.rule))
    return ContentScan(findings=findings[:MAX_FINDINGS], files=count, complete=not is_cut)


def _importance(file: SourceFile) -> tuple[bool, bool, int, str]:
    """The order of the scan: `SKILL.md`, then text and scripts, then data, which could use up what may be read."""
    is_data = _suffix(file.path) in _DATA
    return not is_skill_file(file.path), is_data, file.path.count("/"), file.path


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _text_of(data: bytes) -> str | None:
    """The text of a file; None if it is binary."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    return None if b"\0" in data[:_HEAD_BYTES] else data.decode("utf-8", "replace")


def _bounded(found: Iterable[ScanFinding]) -> Iterator[ScanFinding]:
    """Of each kind and line the most severe finding, and at most some of each rule."""
    worst: dict[tuple[str, int | None], ScanFinding] = {}
    for one in found:
        key = one.kind, one.line
        if key not in worst or ORDER[one.severity] > ORDER[worst[key].severity]:
            worst[key] = one
    counts: Counter[str] = Counter()
    for one in worst.values():
        counts[one.rule] += 1
        if counts[one.rule] <= MAX_FINDINGS_OF_A_RULE:
            yield one


def _scan_file(path: str, data: bytes) -> Iterator[ScanFinding]:
    name, suffix = PurePosixPath(path), _suffix(path)
    text = _text_of(data)
    if data.startswith(_NATIVE) or suffix in _NATIVE_SUFFIXES or data[:4] == b"\xca\xfe\xba\xbe":
        yield _computed("native-program", "high", path, None, name.name)
        return
    if suffix in _BYTECODE_SUFFIXES:
        yield _computed("bytecode", "high", path, None, name.name)
        return
    if suffix in _LAUNCHERS:
        yield _computed("launcher", "medium", path, None, name.name)
    if suffix in _ARCHIVES and (text is None or data.startswith(b"PK")):
        is_encrypted = data[:4] == b"PK\x03\x04" and bool(data[6:7] and data[6] & _ENCRYPTED)
        if is_encrypted:
            yield _computed("encrypted-archive", "high", path, None, name.name)
        else:
            yield _computed("archive", "low", path, None, name.name)
        return
    if text is None:
        if suffix in _SOURCES or data.startswith(b"#!"):
            yield _computed("unreadable-source", "high", path, None, name.name)
        return
    is_prose = suffix in _PROSE or not suffix
    yield from _unicode_findings(path, text, is_prose)
    if suffix in _MARKUP:
        yield from _hidden_findings(path, text)
    yield from _rule_findings(path, text, is_prose)
    yield from _payload_findings(path, text)


# ------------------------------------------------------------------------------------------------------- by rule
def _rule_findings(path: str, text: str, is_prose: bool) -> Iterator[ScanFinding]:
    seen = plain(text)
    view = paragraphs(seen) if is_prose else seen
    lines = Lines(seen)
    for rule in RULES:
        severity = rule.text if is_prose else rule.code
        if severity is None:
            continue
        for found in islice(_matches(rule, view if rule.id != "download-and-run" else seen), MAX_MATCHES):
            weight = _by_address(found[0], severity) if rule.by_address else severity
            if is_prose and weight != "low" and _is_quoted(view, found.start(), found.end()):
                weight = "low"
            start = found.start() + len(found[0]) - len(found[0].lstrip())
            yield _finding(rule, weight, path, lines.number(start), found[0])


def _matches(rule: Rule, text: str) -> Iterator[re.Match[str]]:
    """The matches of a rule. A regular expression blocks all threads, so it reads one window of the text at a time."""
    for start in range(0, len(text), WINDOW):
        end = start + WINDOW + OVERLAP
        if any(text.find(trigger, start, end) >= 0 for trigger in rule.triggers):
            for found in rule.pattern.finditer(text, start, end):
                if found.start() < start + WINDOW:
                    yield found


def _by_address(match: str, severity: Severity) -> Severity:
    """The severity of running what an address returns: well-known installers are common in documentation."""
    hosts = [match[found.start(1) :] for found in _ADDRESS.finditer(match)]
    if not hosts:
        return severity
    if any(not _LOCAL.match(match[found.end() :]) for found in _PLAIN_HTTP.finditer(match)):
        return "high"
    if all(map(_is_known, hosts)):
        return "low"
    return "high" if any(_SUSPICIOUS.match(host) for host in hosts if not _is_known(host)) else severity


def _is_known(host: str) -> bool:
    """Whether an address, without its scheme, is that of a known installer: exactly, not only at its beginning."""
    return bool(_LOCAL.match(host)) or any(
        host.startswith(known) and (len(host) == len(known) or not _IN_A_NAME.match(host[len(known)]))
        for known in _KNOWN_INSTALLERS
    )


def _is_quoted(text: str, start: int, end: int) -> bool:
    """Whether the words around a match show that it describes an attack or forbids it."""
    before = text[max(0, start - _QUOTED_BEFORE) : start]
    after = text[end : end + 80].split("\n", 1)[0]
    return bool(QUOTING.search(before)) or bool(QUOTING.search(after))


# ------------------------------------------------------------------------------------------------------ computed
def _unicode_findings(path: str, text: str, is_prose: bool) -> Iterator[ScanFinding]:
    if text.isascii():
        return
    lines = Lines(text)
    for found in islice(TAGS.finditer(text), MAX_MATCHES):
        if text[found.start() - 1 : found.start()] != FLAG:
            spelled = "".join(chr(ord(one) - 0xE0000) for one in found[0] if 0xE0020 <= ord(one) < 0xE007F)
            yield _computed("tag-characters", "high", path, lines.number(found.start()), spelled)
    for found in islice(SELECTORS.finditer(text), MAX_MATCHES):
        yield _computed("variation-selectors", "high", path, lines.number(found.start()), found[0])
    for found in islice(BETWEEN_LETTERS.finditer(text), MAX_MATCHES):
        around = text[max(0, found.start() - 20) : found.end() + 20]
        yield _computed("invisible-in-word", "medium", path, lines.number(found.start()), around)
    for found in islice(DIRECTIONS.finditer(text), MAX_MATCHES):
        around = text[max(0, found.start() - 20) : found.end() + 20]
        yield _computed("text-direction", "medium" if is_prose else "high", path, lines.number(found.start()), around)
    for found in islice(MIXED_WORD.finditer(text), MAX_MATCHES):
        yield _computed("look-alike-letters", "medium", path, lines.number(found.start()), found[0])


def _hidden_findings(path: str, text: str) -> Iterator[ScanFinding]:
    lines = Lines(text)
    for hidden in islice(hidden_texts(text), MAX_MATCHES):
        words = plain(hidden.text)
        line = lines.number(hidden.start)
        is_hostile = any(
            (rule.text or "low") != "low" and any(True for _ in _matches(rule, paragraphs(words))) for rule in RULES
        )
        if is_hostile:
            yield _computed("hidden-instructions", "high", path, line, hidden.text)
        elif hidden.by_style and len(words.strip()) >= _MIN_HIDDEN and INSTRUCTION.search(words):
            yield _computed("invisible-element", "high", path, line, hidden.text)
        elif INSTRUCTION.search(words):
            yield _computed("hidden-instructions", "medium", path, line, hidden.text)


_MIN_HIDDEN = 12


def _payload_findings(path: str, text: str) -> Iterator[ScanFinding]:
    lines = Lines(text)
    for found in islice(_BLOB.finditer(text), MAX_MATCHES):
        blob = found[0].rstrip("=")
        try:
            decoded = b64decode(blob[: len(blob) // 4 * 4])
        except (binascii.Error, ValueError):
            continue
        readable = sum(32 <= byte < 127 or byte in b"\n\r\t" for byte in decoded)
        if readable < len(decoded) * 0.95:
            continue
        words = decoded.decode("ascii", "replace").lower()
        if DECODED.search(words):
            yield _computed("encoded-payload", "high", path, lines.number(found.start()), words)


def _link_findings(path: str, target: str) -> Iterator[ScanFinding]:
    depth = path.count("/")
    for part in target.split("/"):
        depth += -1 if part == ".." else 0 if part in ("", ".") else 1
        if depth < 0:
            break
    if target.startswith("/") or depth < 0:
        yield _computed("link-outside", "high", path, None, target)


def _finding(rule: Rule, severity: Severity, path: str, line: int, text: str) -> ScanFinding:
    return ScanFinding(
        rule=rule.id,
        kind=rule.kind,
        severity=severity,
        path=path,
        line=line,
        text=_shown(text),
        why=rule.why,
        advice=ADVICE[rule.kind],
    )


def _computed(rule: str, severity: Severity, path: str, line: int | None, text: str) -> ScanFinding:
    kind, why = _COMPUTED[rule]
    return ScanFinding(
        rule=rule, kind=kind, severity=severity, path=path, line=line, text=_shown(text), why=why, advice=ADVICE[kind]
    )


def _shown(text: str) -> str:
    """The text on one line, short and with unprintable characters escaped."""
    line = " ".join(text[: MAX_SHOWN * 4].split())
    return escaped(line if len(line) <= MAX_SHOWN else f"{line[:MAX_SHOWN]} …")


# ---------------------------------------------------------------------------------------------------------- files
def _files_of(folder: Path) -> Iterator[SourceFile]:
    found = scan_folder(folder)
    regular = {file.path for file in found.files}
    for path, status in found.stats:
        if path in regular:
            yield SourceFile(path=path, size=status.st_size, read=_file_reader(folder, path))
        elif (folder / path).is_symlink():
            yield SourceFile(path=path, size=0, read=lambda limit: b"", link=str((folder / path).readlink()))


def _file_reader(folder: Path, path: str) -> Callable[[int], bytes]:
    def read(limit: int) -> bytes:
        try:
            with open_file_beneath(folder, path) as file:
                return file.read(limit)
        except (OSError, ValueError):
            return b""

    return read


def _entry_reader(file: BinaryIO, entry: Entry) -> Callable[[int], bytes]:
    def read(limit: int) -> bytes:
        parts, size = [], 0
        for chunk in read_entry(file, entry):
            parts.append(chunk)
            size += len(chunk)
            if size >= limit:
                break
        return b"".join(parts)[:limit]

    return read
