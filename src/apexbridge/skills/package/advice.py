"""Recommendations for the author of a valid skill: length, description, links and file names."""

import re
from collections.abc import Iterator
from urllib.parse import unquote

from apexbridge._text import CJK_RANGES, estimated_tokens
from apexbridge.skills import SKILL_FILE
from apexbridge.skills.package.entry_names import is_odd
from apexbridge.skills.package.skill import Diagnostic, SkillMetadata

MAX_TOKENS = 5_000
MIN_DESCRIPTION_CHARACTERS = 20
MAX_ODD_NAMES_SHOWN = 5
_LINK = re.compile(r"\]\([ \t]{0,8}<?([^)\s>]{1,300})")
_WORD = re.compile(f"[a-z0-9]+|[{CJK_RANGES}]")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")
_BACKTICKS = re.compile(r"`+")


def advice(metadata: SkillMetadata, markdown: bytes, body: str, paths: set[str], filename: str) -> Iterator[Diagnostic]:
    """Recommendations for a valid package."""
    if filename != SKILL_FILE:
        yield Diagnostic(message=f"the file is named {filename}; rename it to {SKILL_FILE}")
    tokens = int(estimated_tokens(markdown.decode("utf-8", "replace")))
    if tokens > MAX_TOKENS:
        yield Diagnostic(
            message=f"{SKILL_FILE} has about {tokens} tokens; above {MAX_TOKENS}, move details into linked files"
        )
    if len(metadata.description) < MIN_DESCRIPTION_CHARACTERS:
        yield Diagnostic(
            message=f"description is shorter than {MIN_DESCRIPTION_CHARACTERS} characters; say what it does and when"
        )
    elif not set(_WORD.findall(metadata.description.lower())) - set(_WORD.findall(metadata.name)):
        yield Diagnostic(message="description says nothing beyond the name; say what it does and when to use it")
    for target in sorted(_missing_links(body, paths)):
        yield Diagnostic(message=f"link to {target}, which is not in the package")
    odd = sorted(path for path in paths if is_odd(path))
    if odd:
        shown = ", ".join(odd[:MAX_ODD_NAMES_SHOWN]) + (" …" if len(odd) > MAX_ODD_NAMES_SHOWN else "")
        yield Diagnostic(message=f"odd file names, better without spaces and special characters: {shown}")


def _missing_links(body: str, paths: set[str]) -> set[str]:
    """Targets of relative links outside code whose file is missing."""
    folders = {path[:index] for path in paths for index, character in enumerate(path) if character == "/"}
    missing = set()
    for line in _prose(body):
        for link in _LINK.findall(_without_code_spans(line)):
            target = unquote(link).split("#")[0].split("?")[0].removeprefix("./").rstrip("/")
            outside = not target or re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:|/|\.\./|[{$<]", target)
            if not outside and target not in paths and target not in folders:
                missing.add(target)
    return missing


def _without_code_spans(line: str) -> str:
    """The line without code spans, which are delimited by equal numbers of backticks. Linear time for any input."""
    runs = list(_BACKTICKS.finditer(line))
    last_of_length = {len(run[0]): number for number, run in enumerate(runs)}
    plain, position, number = [], 0, 0
    while number < len(runs):
        length = len(runs[number][0])
        if last_of_length[length] == number:
            number += 1
            continue
        plain.append(line[position : runs[number].start()])
        number += 1
        while len(runs[number][0]) != length:
            number += 1
        position = runs[number].end()
        number += 1
    return "".join([*plain, line[position:]])


def _prose(body: str) -> Iterator[str]:
    """The lines outside code blocks. A block ends at a fence of the same kind that is at least as long."""
    fence = ""
    for line in body.splitlines():
        mark = _FENCE.match(line)
        if not fence:
            if mark:
                fence = mark[1]
            else:
                yield line
        elif mark and mark[1].startswith(fence) and not line[mark.end() :].strip():
            fence = ""
