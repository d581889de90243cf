"""The searchable text of a SKILL.md body: first what says when to use the skill, then headings, then other prose."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_SCANNED_CHARACTERS = 100_000
MAX_BODY_CHARACTERS = 3_000
"""More does not improve search (docs/adr/0094-the-body-is-searched-by-words.md)."""
MAX_LINE_CHARACTERS = 500
_FENCE = re.compile(r"\s{0,3}(?P<mark>`{3,}|~{3,})")
_HEADING = re.compile(r"\s{0,3}(?P<level>#{1,6})\s+(?P<text>.*)")
_ITEM = re.compile(r"\s*(?:[-*+•]|\d{1,3}[.)])\s+(?P<text>.*)")
_NO_PROSE = re.compile(r"[\s|=*_:.-]*|\s*\|.*|\s*<!--.*")
"""Rules, rows of tables, comments."""
_MARKUP = re.compile(r"!?\[(?P<label>[^\]\n]{0,300})\]\([^)\s]{0,500}\)|[*_`]+|</?[a-z][^>\n]{0,100}>|https?://\S+")
_ABOUT_USE = re.compile(
    r"\bwhen\b|\buse (?:this|it|when|cases?|for)\b|\busage\b|\btriggers?\b|\bexamples?\b|\bscenarios?\b|\basks?\b"
    r"|\bprompts?\b|\binvoke|\bactivat|\bcapabilit|\bpurpose\b|\bwhat (?:it|this)\b|\boverview\b|\bfeatures?\b"
    r"|\bfocus\b|\bcan do\b|何时|使用|用途|场景|触发|示例|例子|适用|功能|概述|能力",
    re.IGNORECASE,
)
_AGAINST_USE = re.compile(
    r"\b(?:not|don['’]t|never|avoid|limitations?|anti-?patterns?)\b|不要|不适|请勿|限制", re.IGNORECASE
)


@dataclass(slots=True)
class Section:
    heading: str
    items: list[str] = field(default_factory=list)
    """Items of lists."""
    lines: list[str] = field(default_factory=list)
    """Everything in its order, the items included."""

    @property
    def is_about_use(self) -> bool:
        """Whether it says what the skill is for."""
        return _ABOUT_USE.search(self.heading) is not None

    @property
    def is_against_use(self) -> bool:
        """Whether it says what the skill is not for."""
        return _AGAINST_USE.search(self.heading) is not None


def searchable_body(markdown: str) -> str:
    """What of a body is compared with requests, one line each. Code, tables and "do not use" are left out."""
    return body_text(sections(markdown))


def body_text(found: list[Section]) -> str:
    useful = [section for section in found if not section.is_against_use]
    lines = dict.fromkeys(
        (
            *(line for section in useful if section.is_about_use for line in section.lines),
            *(section.heading for section in useful if section.heading),
            *(line for section in useful if not section.is_about_use for line in section.lines),
        )
    )
    return "\n".join(_up_to(MAX_BODY_CHARACTERS, lines))


def sections(markdown: str) -> list[Section]:
    """The prose of a Markdown text by heading. The first section is what precedes the first heading."""
    found = [Section("")]
    fence: str | None = None
    for line in markdown[:MAX_SCANNED_CHARACTERS].splitlines():
        if mark := _FENCE.match(line):
            if fence is None:
                fence = mark["mark"]
            elif mark["mark"].startswith(fence):
                fence = None
        elif fence is None:
            if heading := _HEADING.match(line):
                found.append(Section(_plain(heading["text"].rstrip("# "))))
            elif not _NO_PROSE.fullmatch(line):
                item = _ITEM.match(line)
                text = _plain(item["text"] if item else line)
                if text:
                    found[-1].lines.append(text)
                    if item:
                        found[-1].items.append(text)
    return found


def _up_to(characters: int, lines: dict[str, None]) -> Iterator[str]:
    for line in lines:
        characters -= len(line) + 1
        if characters < 0:
            return
        yield line


def _plain(text: str) -> str:
    return " ".join(_MARKUP.sub(lambda mark: mark["label"] or "", text[:MAX_LINE_CHARACTERS]).split())
