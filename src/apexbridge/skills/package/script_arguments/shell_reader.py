"""Reads the options of a shell script from a loop with `case "$1" in`."""

import re
from collections.abc import Iterator

from apexbridge.skills.package.script_arguments.model import Argument, ScriptArguments, assemble

_CASE = re.compile(r"\bcase\s++[\"']?\$\{?(\w{1,40}+)[^\s]{0,10}+\s++in\b")
_PATTERN = re.compile(r"\(?\s*+([\"']?-[-\w=*|\"' ]{0,200}+)\)")
_ESAC = re.compile(r"esac\b")
_TAKES_NEXT = re.compile(r"\$\{?2\b|\bshift\s++2\b|\bshift\b.{0,200}?\$\{?1\b", re.DOTALL)
_TAKES_FIRST = re.compile(r"\$\{?[12]\b|\bshift\s++2\b")
"""Used if the loop stores the option in a variable and shifts it away."""
_LOOP = re.compile(r"(?:while|until|for)\b")
_DONE = re.compile(r"(?:^|[;\s])done\b")
_HELP_LINE = re.compile(r"\s*+(?:#|echo\s++[\"']|printf\s++[\"'])?\s*+(-[^\n]{1,300}+)")
_WORDS_OF_HELP = re.compile(r"(-{1,2}[A-Za-z0-9][-\w]{0,60}+)")
_NOT_OPTIONS = frozenset({"-h", "--help", "--version", "-", "--", "-*", "--*"})
MAX_LINE_CHARACTERS = 2_000


def shell_arguments(source: str) -> ScriptArguments | None:
    """Read the options that a script accepts. The source does not show required options or positionals."""
    lines = [line[:MAX_LINE_CHARACTERS] for line in source.splitlines()]
    return assemble(_from_loop(lines, _help_texts(lines)), joins=False)


def _from_loop(lines: list[str], helps: dict[str, str]) -> list[Argument]:
    """Each pattern `-o|--out)` of a `case` inside a loop. Its body, up to `;;`, shows whether it takes a value."""
    found: list[Argument] = []
    loops = 0
    depth = 0  # of nested `case` statements
    subject = ""
    patterns: str | None = None
    body: list[str] = []
    for chunk, is_end in _chunks(lines):
        words = chunk.strip()
        loops += bool(_LOOP.match(words))
        if loops and (case := _CASE.search(words)):
            depth += 1
            if depth == 1:
                subject, words = case[1], words[case.end() :].strip()
        if depth == 1 and patterns is None and (pattern := _PATTERN.match(words)):
            patterns, words = pattern[1], words[pattern.end() :]
        if patterns is not None:
            body.append(words)
            if is_end and depth == 1:
                takes_value = (_TAKES_NEXT if subject == "1" else _TAKES_FIRST).search("\n".join(body))
                found += _option(patterns, bool(takes_value), helps)
                patterns, body = None, []
        if depth and _ESAC.match(words):
            depth -= 1
            patterns = patterns if depth else None
        if not depth and loops and _DONE.search(words):
            loops -= 1
    return found


def _chunks(lines: list[str]) -> Iterator[tuple[str, bool]]:
    """Lines without comments, split at each `;;`, and whether a `;;` followed."""
    for line in lines:
        if not line.lstrip().startswith("#"):
            *ended, last = line.split(";;")
            yield from ((chunk, True) for chunk in ended)
            yield last, False


def _option(patterns: str, takes_value: bool, helps: dict[str, str]) -> list[Argument]:
    """One option by its long spelling; `--out=` if the script only accepts it joined with its value."""
    spelled = [word.strip(" \"'") for word in patterns.split("|")]
    if not _NOT_OPTIONS.isdisjoint(word for word in spelled if word != "-h"):
        return []
    plain = [word for word in spelled if "=" not in word and "*" not in word and word != "-h"]
    flags = plain or [word.removesuffix("*") for word in spelled if word.endswith("=*")]
    if not flags:
        return []
    flag = next((word for word in flags if word.startswith("--")), flags[0])
    described = next((helps[word] for word in [flag.removesuffix("="), *flags] if word in helps), "")
    return [Argument(name=flag.strip("-="), flag=flag, is_flag=bool(plain) and not takes_value, description=described)]


def _help_texts(lines: list[str]) -> dict[str, str]:
    """Descriptions from a usage text: `  -o, --out FILE   Where to write`."""
    found: dict[str, str] = {}
    for line in lines:
        match = _HELP_LINE.match(line)
        if match is None or ")" in match[1].partition("  ")[0]:
            continue
        head, _, text = match[1].replace("\t", "  ").partition("  ")
        if text.strip():
            for flag in _WORDS_OF_HELP.findall(head):
                found.setdefault(flag, text.strip(" \"'"))
    return found
