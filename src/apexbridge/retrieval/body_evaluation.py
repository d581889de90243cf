"""Measures what the body of SKILL.md adds to search, with requests that are made from held-back lines of the bodies.

A line that says when to use a skill becomes a request for it. It is taken out of the body, with every line that has
most of its words, so that search finds the skill by what the rest of it says.
"""

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from apexbridge.errors import InvalidInputError
from apexbridge.retrieval.body import Section, body_text, searchable_body, sections
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.retrieval.evaluation import Corpus, Metrics, Progress, Question, measure
from apexbridge.retrieval.packed_body import PackedBody
from apexbridge.retrieval.text import has_cjk, tokens
from apexbridge.wire import WireModel

MIN_REQUEST_TOKENS, MAX_REQUEST_TOKENS = 3, 25
MAX_REQUEST_CHARACTERS = 160
MAX_SHARED = 0.6
"""Share of a request's tokens that another line, or the description, may have."""
_NOT_A_REQUEST = re.compile(r"[{}<>/\\=|$]|https?:")
_QUOTED = re.compile(r"[\"“「](?P<text>[^\"”」]{8,})[\"”」]")
_ABOUT_REQUESTS = re.compile(
    r"\bwhen\b|\buse (?:this|it|when|cases?)\b|\btriggers?\b|\bexamples?\b|\bscenarios?\b|\basks?\b|\bprompts?\b"
    r"|何时|场景|触发|示例|例子|适用",
    re.IGNORECASE,
)
_LEAD_IN = re.compile(
    r"(?:(?:use )?(?:this )?(?:skill )?(?:when|if|for|to) )?(?:(?:the )?(?:user|you)(?:['’]re)? )?"
    r"(?:(?:is|are) )?(?:(?:wants?|needs?|needing|asks?|asked|requests?|says?|mentions?|working) )?"
    r"(?:you |claude )?(?:to |for |about |on |with |how to )?",
    re.IGNORECASE,
)
_GERUND = re.compile(r"(?P<stem>[a-z]{3,})ing", re.IGNORECASE)
_DROPPED_E = re.compile(r"(?:[aiu]t|rg|iz|yz|ag|as|uc|id|ov|iv|us|ur|ang|ul|ir|is|ac|ev|iev|ar|ak|in)$")
_KEPT_STEM = re.compile(r"(?:ain|oin|ean|ear|eat|oor|ign|visit|edit|audit|submit|wait|ask|track|pack|check|back|sit)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillText:
    """A skill as its author wrote it."""

    id: str
    name: str
    description: str
    tags: tuple[str, ...] = ()
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """A request that was made from a line of a body, and what is left of that body."""

    id: str
    request: str
    body: str


class BodyEvaluation(WireModel):
    """The quality of search without the bodies and with them."""

    corpus: int
    embedder: str
    without_body: Metrics = Field(description="Names, descriptions and tags are compared.")
    with_body: Metrics


def evaluate_bodies(
    embedder: Embedder, skills: Sequence[SkillText], progress: Progress | None = None
) -> tuple[BodyEvaluation, list[HeldBack]]:
    """Search with a request for each skill whose body has one. Raises InvalidInputError if there is none."""
    held = hold_back(skills)
    if not held:
        raise InvalidInputError(f"No body of {len(skills)} skills has a line that can be held back as a request.")
    remaining = {one.id: one.body for one in held}
    questions = [Question(qid=one.id, query=one.request, gold=frozenset({one.id})) for one in held]
    bare = [(skill.id, _document(skill, body="")) for skill in skills]
    whole = [
        (skill.id, _document(skill, body=remaining[skill.id] if skill.id in remaining else searchable_body(skill.body)))
        for skill in skills
    ]
    total = 2 * len(skills)
    metrics = []
    for number, documents in enumerate((bare, whole)):
        report = _shifted(progress, number * len(skills), total) if progress else None
        corpus = Corpus(embedder, documents, report)
        metrics.append(measure(questions, [corpus.search(question) for question in questions]))
    without, with_body = metrics
    return (
        BodyEvaluation(corpus=len(skills), embedder=embedder.id, without_body=without, with_body=with_body),
        held,
    )


def hold_back(skills: Sequence[SkillText]) -> list[HeldBack]:
    """At most one request for each skill: a quoted example if there is one, else a line that says when to use it."""
    parsed = [sections(skill.body) for skill in skills]
    # A line that several skills have says nothing about one of them.
    common = Counter(line for found in parsed for line in {line for section in found for line in section.lines})
    held = []
    for skill, found in zip(skills, parsed, strict=True):
        lines = [line for line in _candidates(found) if common[line] == 1 and _is_request(skill, request_of(line))]
        if lines:
            best = [line for line in lines if _QUOTED.match(line)] or lines
            chosen = request_of(best[zlib.crc32(skill.id.encode()) % len(best)])
            held.append(HeldBack(id=skill.id, request=chosen, body=body_text(_without(found, chosen))))
    return held


def request_of(line: str) -> str:
    """A line as somebody would ask: quotes and "use this when the user wants to" removed, "merging" as "merge"."""
    if quoted := _QUOTED.match(line):
        return quoted["text"].strip()
    if has_cjk(line):
        return line.strip(" 。.；;")
    first, *others = _LEAD_IN.sub("", line, count=1).strip(" .;:").split(" ")
    return " ".join([_imperative(first), *others])


def _imperative(word: str) -> str:
    gerund = _GERUND.fullmatch(word)
    if gerund is None:
        return word
    stem = gerund["stem"].lower()
    if len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "lsz":
        return stem[:-1]
    return f"{stem}e" if _DROPPED_E.search(stem) and not _KEPT_STEM.search(stem) else stem


def _candidates(found: Sequence[Section]) -> list[str]:
    return [
        line
        for section in found
        if _ABOUT_REQUESTS.search(section.heading) and not section.is_against_use
        for line in section.items
        if len(line) <= MAX_REQUEST_CHARACTERS and not _NOT_A_REQUEST.search(line)
    ]


def _is_request(skill: SkillText, request: str) -> bool:
    """Whether it asks for something, without the skill's name and with other words than the description."""
    own = set(tokens(request))
    name = set(tokens(skill.name))
    return (
        MIN_REQUEST_TOKENS <= len(own) <= MAX_REQUEST_TOKENS
        and not (name and name <= own)
        and _shared(own, skill.description) <= MAX_SHARED
    )


def _without(found: Sequence[Section], request: str) -> list[Section]:
    """The sections without the lines and headings that have most of the request's words."""
    own = set(tokens(request))
    return [
        Section(
            heading=section.heading if _shared(own, section.heading) <= MAX_SHARED else "",
            lines=[line for line in section.lines if _shared(own, line) <= MAX_SHARED],
        )
        for section in found
    ]


def _shared(own: set[str], text: str) -> float:
    return len(own.intersection(tokens(text))) / len(own)


def _document(skill: SkillText, *, body: str) -> Document:
    return Document(name=skill.name, description=skill.description, tags=skill.tags, packed_body=PackedBody.of(body))


def _shifted(progress: Progress, offset: int, total: int) -> Progress:
    return lambda done, _: progress(offset + done, total)
