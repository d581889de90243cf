"""Source, tests and documents use the words of the trade. The words of this list may appear in quotations only."""

import ast
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
INSTEAD = {
    r"told|tells": "message, payload, rendered, reports, to_dict",
    r"gives back": "returns",
    r"none where there is none": "None if missing",
    r"called off": "cancelled",
    r"anew": "again",
    r"stands? (?:in|at|there|before|behind)": "is in, is at",
    r"by (?:itself|themselves)": "automatically, on its own",
    r"(?<!there )(?:is|are|was|were) no (?!longer|more|matter|need|such|less|other)\w+": "is not a",
    r"whoever|whatever|nobody": "name the subject",
    r"so (?:many|long)(?! as)": "up to N",
    r"set aside": "ignored, quarantined",
    r"walls": "sandbox backend",
    r"strangers?": "untrusted",
    r"a person's word": "approval",
    r"half a character": "lone surrogate",
    r"carr(?:y|ies|ied) out": "collect, apply",
    r"embryos?|furnish(?:ed|es)?|waiting room": "preforked child, build, queue",
    r"glances?": "stat, signature",
    r"owes|owed|keeps? up|catch(?:es)? up": "pending, sync",
    r"dear to the kernel": "oom_score",
}
NAMES = {"told", "tells", "place", "rest", "piece", "given", "wanted", "kept", "sight", "glance", "owe", "strangers"}
"""As names these say nothing: the noun itself is better (index, tail, chunk, argument, filter, row)."""
FORBIDDEN = re.compile("|".join(rf"\b(?:{words})\b" for words in INSTEAD), re.IGNORECASE)
QUOTED = re.compile(r"`[^`\n]*`|\"[^\"\n]*\"|“[^”\n]*”|「[^」\n]*」|(?<!\w)'[^'\n]*'(?!\w)")


def files(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    found = [ROOT / line for line in listed.stdout.splitlines()]
    return [path for path in found if path.is_file() and path.name != Path(__file__).name]


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Comments, and strings that are prose: docstrings, messages, descriptions; not regular expressions, which are raw
    strings. In tests, comments only.
    """
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
            elif token.type == tokenize.STRING and " " in token.string and "tests" not in path.parts:
                if "r" in token.string[:2].lower():
                    continue
                yield token.start[0], re.sub(r"\A\w*(\"\"\"|'''|\"|')(.*)\1\Z", r"\2", token.string, flags=re.DOTALL)


def names_of(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id


def found_in(path: Path, prose: Iterator[tuple[int, str]]) -> list[str]:
    name = path.relative_to(ROOT)
    return [f"{name}:{line}: {match[0]}" for line, text in prose for match in FORBIDDEN.finditer(QUOTED.sub("", text))]


def test_comments_and_messages_use_the_words_of_the_trade() -> None:
    sources = files("src/*.py", "tests/*.py", "benchmarks/*.py")
    assert sources
    assert [found for path in sources for found in found_in(path, prose_of(path))] == []


def test_names_are_nouns_and_tests_are_plain_sentences() -> None:
    found = []
    for path in files("src/*.py", "tests/*.py", "benchmarks/*.py"):
        for line, name in names_of(path):
            is_vague = name.strip("_").lower() in NAMES
            if is_vague or (name.startswith("test_") and FORBIDDEN.search(name.replace("_", " "))):
                found.append(f"{path.relative_to(ROOT)}:{line}: {name}")
    assert found == []


def test_pages_use_the_words_of_the_trade() -> None:
    pages = [path for path in files("*.md") if "examples" not in path.parts]
    texts = {path: re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL) for path in pages}
    assert texts
    assert [hit for path, text in texts.items() for hit in found_in(path, iter(enumerate(text.splitlines(), 1)))] == []
