"""Print a Markdown document's table of contents, or write it into a copy of the document."""

import argparse
import re
import sys
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

OPENING_MARK = "<!-- toc -->"
CLOSING_MARK = "<!-- /toc -->"
OUTPUT_FOLDER = Path("output")

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_NOT_A_PARAGRAPH = re.compile(r"\s*$|\s{4}|\s*(?:[-*+>|#]|\d+[.)])")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading in the table of contents."""

    level: int
    text: str
    anchor: str


class Parser(argparse.ArgumentParser):
    """Reports errors in one line, with exit code 1 like other input errors."""

    def error(self, message: str) -> NoReturn:
        """Exit with the message only; the usage is in `--help`."""
        fail(message)


def main() -> None:
    """Run as a program."""
    parser = Parser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="the document")
    parser.add_argument("--text", help="the document's text, instead of a file")
    parser.add_argument("--min-level", type=int, choices=range(1, 7), default=2)
    parser.add_argument("--max-level", type=int, choices=range(1, 7), default=3)
    parser.add_argument("--write", action="store_true", help="write a copy with the table to output/")
    options = parser.parse_args()
    path, text = _document(options.file, options.text)
    headings = [heading for heading in find_headings(text) if options.min_level <= heading.level <= options.max_level]
    if not headings:
        fail(f"There is no heading of level {options.min_level} to {options.max_level}.")
    table = render(headings)
    if not options.write:
        say(table)
        return
    OUTPUT_FOLDER.mkdir(exist_ok=True)
    target = OUTPUT_FOLDER / path.name
    target.write_bytes(insert(text, table).encode("utf-8", "replace"))
    say(f"{target.as_posix()} written, {len(headings)} headings")


def render(headings: list[Heading]) -> str:
    """A nested list. A skipped heading level does not indent twice."""
    lines = []
    parents: list[int] = []
    for heading in headings:
        while parents and parents[-1] >= heading.level:
            parents.pop()
        lines.append(f"{'  ' * len(parents)}- [{_escaped(heading.text)}](#{heading.anchor})")
        parents.append(heading.level)
    return "\n".join(lines)


def insert(text: str, table: str) -> str:
    """The text with the content between the marks replaced by the table."""
    start = text.find(OPENING_MARK)
    end = text.find(CLOSING_MARK, start)
    if start == -1 or end == -1:
        fail(f"The document needs the lines {OPENING_MARK} and {CLOSING_MARK} where the table is to stand.")
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = newline.join(["", "", *table.split("\n"), "", ""])
    return text[: start + len(OPENING_MARK)] + lines + text[end:]


# ------------------------------------------------------------------------------------- shared with check_links.py
def prose(text: str) -> list[str]:
    """The document's lines. Lines of frontmatter, code blocks and comments are empty, so that line numbers are kept."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() == "---" and (ends := [i for i, line in enumerate(lines[1:], 1) if line.rstrip() == "---"]):
        lines[: ends[0] + 1] = [""] * (ends[0] + 1)
    fence = ""
    for number, line in enumerate(lines):
        found = _FENCE.match(line)
        if fence:
            if found and found[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            lines[number] = ""
        elif found:
            fence = found[1]
            lines[number] = ""
    return _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), "\n".join(lines)).split("\n")


def find_headings(text: str) -> list[Heading]:
    """The headings in order, each with its link anchor."""
    found: list[tuple[int, str]] = []
    previous = ""
    for line in prose(text):
        if heading := _HEADING.match(line):
            found.append((len(heading[1]), plain_text(heading[2] or "")))
        elif (underline := _UNDERLINE.match(line)) and not _NOT_A_PARAGRAPH.match(previous):
            found.append((1 if underline[1][0] == "=" else 2, plain_text(previous)))
        previous = line
    taken: dict[str, int] = {}
    headings = []
    for level, words in found:
        anchor = base = slug(words)
        while anchor in taken:
            taken[base] += 1
            anchor = f"{base}-{taken[base]}"
        taken[anchor] = 0
        headings.append(Heading(level, words, anchor))
    return headings


def plain_text(markdown: str) -> str:
    """The visible text of a line: without emphasis and backticks, links as their text."""
    text = re.sub(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", markdown)
    parts = re.split(r"`+([^`]+)`+", text)
    parts[::2] = [_without_markup(part) for part in parts[::2]]  # every other part is code and is unchanged
    return "".join(parts).strip()


def slug(text: str) -> str:
    """The anchor of a heading with a unique text."""
    # Combining marks count as letters: many scripts write vowels with them.
    kept = (
        character for character in text.lower() if character in "-_ " or unicodedata.category(character)[0] in "LMN"
    )
    return "".join(kept).replace(" ", "-")


def read_document(path: Path) -> str:
    """A file's text with its original line ends."""
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}.")
    except UnicodeDecodeError:
        fail(f"{path} is not UTF-8 text.")


def find_documents() -> list[Path]:
    """Every attached Markdown file, or those below the current folder if run manually."""
    folder = Path("input") if Path("input").is_dir() else Path()
    return sorted(path for path in folder.rglob("*.md") if path.is_file())


def say(text: str) -> None:
    """Print as UTF-8, even without a locale."""
    sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\n")


def fail(message: str) -> NoReturn:
    """Exit with a one-line error message."""
    sys.stderr.buffer.write(message.encode("utf-8", "replace") + b"\n")
    sys.exit(1)


def _without_markup(text: str) -> str:
    text = re.sub(r"</?[A-Za-z][^>]*>", "", text)
    text = re.sub(r"(?<!\\)\*+(?=\S)|(?<=[^\s\\])\*+|~~", "", text)
    # Underscores are emphasis around words (_so_), but ordinary characters inside them (snake_case).
    text = re.sub(r"(?<![\w\\])_+(?=\w)|(?<=[^\W_])_+(?!\w)", "", text)
    return re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", text)


def _escaped(text: str) -> str:
    """Escape plain text for Markdown."""
    marks = r"[\\`*\[\]<]|(?<![^\W_])_+|_+(?![^\W_])"
    return re.sub(marks, lambda found: "".join(f"\\{mark}" for mark in found[0]), text)


def _document(path: Path | None, text: str | None) -> tuple[Path, str]:
    if path is not None and text is not None:
        fail("Give a file or --text, not both.")
    if text is not None:
        return Path("document.md"), text
    if path is None:
        documents = find_documents()
        if len(documents) != 1:
            fail(f"Name the document; there are {len(documents)}.")
        path = documents[0]
    return path, read_document(path)


if __name__ == "__main__":
    main()
