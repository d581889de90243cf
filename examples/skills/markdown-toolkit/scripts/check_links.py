"""Find links in Markdown documents that lead nowhere: missing files, missing headings, missing definitions."""

import difflib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from urllib.parse import unquote

# In isolated mode, Python does not import modules from the script's folder.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from table_of_contents import Parser, fail, find_documents, find_headings, prose, read_document, say

_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
_TARGET = r"(?:<([^<>\n]*)>|((?:[^\s()]|\([^\s()]*\))*))"
_LINK = re.compile(rf"\]\([ \t]*{_TARGET}(?:[ \t]+(?:\"[^\"]*\"|'[^']*'))?[ \t]*\)")
# Not after a word: there brackets are an index, rows[0][1]. A label that starts with ^ is a footnote.
_REFERENCE = re.compile(r"(?<![\w\]])\[([^\[\]]+)\]\[(?!\^)([^\[\]]*)\]")
_DEFINITION = re.compile(rf" {{0,3}}\[([^\[\]^][^\[\]]*)\]:[ \t]*{_TARGET}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:|//")
_HTML_ANCHOR = re.compile(r"<[^<>]*\s(?:id|name)\s*=\s*[\"']?([^\s\"'>]+)")


@dataclass(frozen=True, slots=True)
class Problem:
    """A broken link."""

    file: str
    line: int
    target: str
    message: str


@dataclass(slots=True)
class Check:
    """The findings in all documents."""

    root: Path
    files: int = 0
    links: int = 0
    external: int = 0

    def document(self, path: Path | None, text: str) -> Iterator[Problem]:
        """Check one document. Without a path, links to files are not checked, because they have no base."""
        self.files += 1
        name = path.as_posix() if path else "text"
        lines = [_CODE.sub("", line) for line in prose(text)]
        definitions = {_label(found[1]) for line in lines if (found := _DEFINITION.match(line))}
        for number, line in enumerate(lines, start=1):
            for target in _targets(line):
                self.links += 1
                if message := self._problem_with(target, path, text):
                    yield Problem(name, number, target, message)
            for label in _references(line):
                self.links += 1
                if _label(label) not in definitions:
                    yield Problem(name, number, label, f"[{label}] is not defined")

    def _problem_with(self, target: str, path: Path | None, text: str) -> str | None:
        if not target:
            return "the link is empty"
        if _SCHEME.match(target):
            self.external += 1
            return None
        place, _, anchor = target.partition("#")
        place, anchor = unquote(place.partition("?")[0]), unquote(anchor)
        if not place:
            return _anchor_problem(anchor, text, path.as_posix() if path else "the text")
        if path is None:
            return None
        there = self.root / place.lstrip("/") if place.startswith("/") else path.parent / place
        if not _exists(there):
            return f"{place} does not exist"
        if anchor and there.is_file() and there.suffix.lower() in (".md", ".markdown"):
            return _anchor_problem(anchor, read_document(there), there.as_posix())
        return None


def main() -> None:
    """Run as a program."""
    parser = Parser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="the documents")
    parser.add_argument("--text", help="a document's text, instead of files")
    parser.add_argument("--root", type=Path, default=Path(), help="where links with a leading / start")
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when there is a problem")
    options = parser.parse_args()
    if options.files and options.text is not None:
        fail("Give files or --text, not both.")
    check = Check(root=options.root)
    if options.text is not None:
        problems = list(check.document(None, options.text))
    else:
        files = options.files or find_documents()
        if not files:
            fail("There is no document: name files, attach some, or give --text.")
        problems = [problem for path in files for problem in check.document(path, read_document(path))]
    report(check, problems, as_json=options.json)
    if options.strict and problems:
        fail(f"{_count(len(problems), 'problem')} found.")


def report(check: Check, problems: list[Problem], *, as_json: bool) -> None:
    """Print the findings."""
    if as_json:
        counts = {"files": check.files, "links": check.links, "external": check.external}
        found = {"problems": [asdict(problem) for problem in problems], **counts}
        say(json.dumps(found, ensure_ascii=False, indent=2))
        return
    for problem in problems:
        say(f"{problem.file}:{problem.line}: {problem.message}")
    say(
        f"{_count(len(problems), 'problem')} in {_count(check.links, 'link')} of {_count(check.files, 'file')}; "
        f"{_count(check.external, 'external link')} not visited"
    )


def _targets(line: str) -> Iterator[str]:
    for found in _LINK.finditer(line):
        yield found[1] if found[1] is not None else found[2]
    if definition := _DEFINITION.match(line):
        yield definition[2] if definition[2] is not None else definition[3]


def _references(line: str) -> Iterator[str]:
    for text, label in _REFERENCE.findall(line):
        yield label or text


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name longer than any file can have
        return False


def _label(text: str) -> str:
    return " ".join(text.casefold().split())


def _anchor_problem(anchor: str, text: str, name: str) -> str | None:
    known = _anchors(text)
    if not anchor or anchor.lower() in known or anchor in known:
        return None
    close = difflib.get_close_matches(anchor.lower(), known, n=1)
    return f"#{anchor} is no heading of {name}" + (f"; close: #{close[0]}" if close else "")


@cache
def _anchors(text: str) -> tuple[str, ...]:
    by_hand = _HTML_ANCHOR.findall("\n".join(prose(text)))
    return (*(heading.anchor for heading in find_headings(text)), *by_hand)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


if __name__ == "__main__":
    main()
