"""Reading untrusted text costs at most linear time.

Each function below reads text from a skill, a client, a model or a script. It is run on many kinds of repeated text,
which expose superlinear cost: a regular expression that restarts at each position, text that is copied with each chunk,
an error message that counts lines.
"""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from apexbridge._json import check_shape
from apexbridge._text import escaped, normalized
from apexbridge.agent.offline import _first_call as first_call
from apexbridge.agent.request import read_request
from apexbridge.agent.tool_refusals import is_about_tools
from apexbridge.llm.conversion import CompletionBuilder, JoinedFields
from apexbridge.llm.response import EventLines
from apexbridge.llm.text_calls import TextGate, extract_calls
from apexbridge.llm.tool_modes import neutralised, read_answer
from apexbridge.llm.turn import Turn
from apexbridge.llm.upstream_errors import UpstreamError
from apexbridge.retrieval.text import name_words, tokens, translated, visible
from apexbridge.sandbox.config import SandboxLimits
from apexbridge.sandbox.explanation import explain
from apexbridge.sandbox.masking import StreamMasker
from apexbridge.sandbox.outcome import Ending, failure_of
from apexbridge.skills.package.dependencies import parse_package, read_dependencies, script_blocks
from apexbridge.skills.package.detection import detect
from apexbridge.skills.package.entry_names import collision_key, is_odd
from apexbridge.skills.package.frontmatter import parse_leniently, replace_description
from apexbridge.skills.package.permissions import parse as parse_permission
from apexbridge.skills.package.repair import repair
from apexbridge.skills.package.scan.scanner import SourceFile, scan
from apexbridge.skills.package.script_arguments import derive
from apexbridge.skills.package.skill import PackageFile, lenient_name, slug
from apexbridge.skills.package.skill_md import read_skill_markdown
from apexbridge.skills.package.validation import assess
from apexbridge.skills.runs.code_runs import unfound
from apexbridge.skills.runs.direct import render
from apexbridge.skills.runs.input_files import safe_name
from apexbridge.storage.audit import masked
from apexbridge.surfaces.http.chat.messages_input import read_messages_request
from apexbridge.tools.callview import summary_of, whole_of
from apexbridge.tools.executor import bounded
from apexbridge.tools.schema import SchemaParameters
from tests.growth import MOST_GROWTH, growth

pytestmark = pytest.mark.slow

HEAD = "---\nname: a\ndescription: b\n"
FILES = [PackageFile(path="SKILL.md", size=1, executable=False)]
Work = Callable[[str], object]


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def read_lenient(text: str) -> object:
    return read_skill_markdown(as_bytes(text), folder="a", profile="lenient")


def in_chunks(feed: Callable[[str], object], text: str, size: int = 40) -> None:
    for start in range(0, len(text), size):
        feed(text[start : start + size])


def feed_gate(text: str) -> None:
    in_chunks(TextGate(lambda name: name == "x").feed, text, 3)


def feed_events(text: str) -> None:
    lines = EventLines()
    in_chunks(lambda chunk: lines.feed(as_bytes(chunk)), text)


def feed_reasoning(text: str) -> None:
    """Reasoning that arrives in small chunks, for a client that requested a whole completion."""
    builder = CompletionBuilder()
    in_chunks(lambda chunk: builder.add([{"choices": [{"delta": {"reasoning_content": chunk}}]}]), text, 5)
    builder.completion()


def feed_fields(text: str) -> None:
    fields = JoinedFields()
    in_chunks(lambda chunk: fields.add({"content": chunk}), text, 5)
    fields.joined()


def feed_arguments(text: str) -> None:
    """Arguments in chunks that each repeat the name of the call."""
    turn = Turn()

    def take(chunk: str) -> None:
        call = {"id": "c1", "function": {"name": "calculate", "arguments": chunk}}
        turn.take_chunk({"choices": [{"delta": {"tool_calls": [call]}}]})

    in_chunks(take, '"' + text, 5)
    assert turn.tool_calls


def feed_names(text: str) -> None:
    turn = Turn()

    def take(chunk: str) -> None:
        turn.take_chunk({"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": chunk}}]}}]})

    in_chunks(take, text, 5)


def in_messages(role: str, text: str) -> None:
    chunks = [text[start : start + 40] for start in range(0, len(text), 40)]
    messages = [{"role": role, "content": [{"type": "text", "text": chunk}]} for chunk in chunks]
    read_messages_request({"max_tokens": 1, "messages": [{"role": "user", "content": "x"}, *messages]})


def read_package(text: str) -> None:
    with TemporaryDirectory() as folder:
        (Path(folder) / "package.json").write_text(text, "utf-8", "replace")
        read_dependencies(Path(folder))


def read_script(text: str) -> None:
    with TemporaryDirectory() as folder:
        (Path(folder) / "scripts").mkdir()
        (Path(folder) / "scripts/execute.py").write_text(text, "utf-8", "replace")
        read_dependencies(Path(folder))


def detect_in(name: str) -> Work:
    def work(text: str) -> None:
        with TemporaryDirectory() as folder:
            (Path(folder) / name).write_text(text, "utf-8", "replace")
            detect(Path(folder))

    return work


def scan_in(path: str) -> Work:
    def work(text: str) -> None:
        data = as_bytes(text)
        scan([SourceFile(path=path, size=len(data), read=lambda limit: data[:limit])])

    return work


READERS: dict[str, Work] = {
    "imports of Python": detect_in("a.py"),
    "imports of JavaScript": detect_in("a.js"),
    "programs of a shell script": detect_in("a.sh"),
    "code in Markdown": detect_in("a.md"),
    "a package to add": lambda text: parse_package(f"npm:a@{text}") and parse_package(text),
    "what a failed script misses": lambda text: explain(text, 1, "shell", code=text, skill="a"),
    "packages that code installs": lambda text: explain("code ENOTCACHED", 1, "shell", code=f"npm i {text}"),
    "files that code did not find": lambda text: unfound(f"{text}No such file{text}"),
    "a whole SKILL.md": read_lenient,
    "the body of a SKILL.md": lambda text: read_lenient(f"{HEAD}---\n{text}"),
    "the frontmatter": lambda text: read_lenient(f"{HEAD}{text}\n---\n"),
    "frontmatter without an end": lambda text: parse_leniently(HEAD + text),
    "frontmatter without a beginning": lambda text: parse_leniently(f"name: a\n{text}"),
    "the header of a block scalar": lambda text: parse_leniently(f"---\nname: a\ndescription: |{text}\n  b\n---\n"),
    "a value": lambda text: parse_leniently(f"---\nname: a\ndescription: {text}\n---\n"),
    "allowed tools": lambda text: read_lenient(f"{HEAD}allowed-tools: {json.dumps(text)}\n---\n"),
    "permissions": lambda text: read_lenient(f"{HEAD}permissions: {json.dumps(text.split())}\n---\n"),
    "tags": lambda text: read_lenient(f"{HEAD}tags: {json.dumps(text)}\n---\n"),
    "an edit": lambda text: replace_description(f"{HEAD}{text}\n---\n", "new", name="a"),
    "a repair": lambda text: repair(as_bytes(f"{HEAD}{text}\n---\n"), "a"),
    "a judgement": lambda text: assess(
        as_bytes(f"{HEAD}---\n{text}"),
        FILES,
        filename="SKILL.md",
        folder="a",
        profile="lenient",
        require_entry_script=False,
    ),
    "instructions": lambda text: render(name="a", body=text, source_path="x", input={"a": "y"}),
    "a Python script": lambda text: derive("a.py", as_bytes(f"import argparse\np=argparse.ArgumentParser()\n{text}")),
    "a shell script": lambda text: derive("a.sh", as_bytes(f"while true; do case $1 in\n{text}")),
    "inline dependencies": lambda text: script_blocks(f"# /// script\n{text}"),
    "a name": lambda text: (slug(text), lenient_name(text, "a"), is_odd(text)),
    "a name of a file": safe_name,
    "a question to the offline planner": lambda text: first_call(text, {"calculate", "file_read", "datetime"}),
    "text to compare": lambda text: (normalized("NFKC", text), visible(text), collision_key((text,))),
    "package.json": lambda text: read_package(json.dumps({"dependencies": {"a": "1", "b": text}}) + text),
    "a script block": lambda text: read_script(f"# /// script\n# a = '{text[:100]}'\n# ///\n{text}"),
    "a permission": lambda text: parse_permission(f"net:{text}"),
    "a path": lambda text: parse_permission(f"fs:ro:/{text}"),
    "stderr of a failed script": lambda text: failure_of(Ending(code=1), f"{text}    at x\n", limits=SandboxLimits()),
    "a traceback": lambda text: failure_of(
        Ending(code=1), f"Traceback (most recent call last):\n{text}", limits=SandboxLimits()
    ),
    "text with calls": lambda text: extract_calls(text, lambda name: name == "x"),
    "a marked call": lambda text: extract_calls(f"<tool_call>{text}", lambda name: name == "x"),
    "text in chunks": feed_gate,
    "events in chunks": feed_events,
    "reasoning in chunks": feed_reasoning,
    "fields in chunks": feed_fields,
    "arguments in chunks": feed_arguments,
    "a name in chunks": feed_names,
    "a tool's output": neutralised,
    "a cut answer": lambda text: read_answer("schema", f'{{"action":"answer","text":"{text}'),
    "output for a model": bounded,
    "JSON": lambda text: check_shape(as_bytes("[" * 65 + text)),
    "an audit line": masked,
    "words": tokens,
    "a skill's name": name_words,
    "words to translate": translated,
    "a refusal of a model's server": lambda text: is_about_tools(
        UpstreamError.of_ours(400, f"tools: {text}", "x"), {"messages": [{"content": text}], "tool not allowed": text}
    ),
    "a call to approve": lambda text: (summary_of({"input": {"a": text}}), whole_of({"input": {"a": text}})),
    "the scan of Markdown": scan_in("SKILL.md"),
    "the scan of a script": scan_in("scripts/execute.py"),
    "a line of the log": escaped,
    "output with secrets": lambda text: in_chunks(StreamMasker([" " * 50, "a0-_:" * 20, "\n" * 9]).add, text, 7),
    "a chat": lambda text: read_request({"messages": [{"role": "user", "content": text}]}),
    "messages of a user": lambda text: in_messages("user", text),
    "messages of the system": lambda text: in_messages("system", text),
    "messages of an assistant": lambda text: in_messages("assistant", text),
}
UNITS = [
    *" \n\t\ra0-_:#'\"`()[]{}<>|\\/*.,^$~=@?!中é",
    "\u0301",
    "\u0f73",
    "\x7f",
    "\r\n",
    " \n",
    "a ",
    "a\n",
    "a: ",
    "a: b\n",
    "- a\n",
    "---\n",
    "# a\n",
    "```\n",
    "` ",
    "[a](b)",
    "](a",
    "import a, ",
    "import {a, ",
    "require( ",
    "`pip install ",
    "x=(",
    "Cannot find module '",
    "a: line 1: ",
    "{{",
    "{{ input.",
    "{{input.a}}",
    "<tool>",
    "<tool>[",
    "<tool_call>{",
    "```json\n{",
    '\\"',
    '"a",',
    '{"a":',
    "name: a\n",
    " name: b\n",
    "-a)",
    ";;\n",
    "case $1 in\n",
    "esac\n",
    "shift\n",
    "getopts a ",
    "p.add_argument('--a')\n",
    "def f():\n",
    "f(",
    "'''",
    "/*",
    "${",
    "`${",
    "a=/",
    ".option('a',{",
    "    at x\n",
    "    ^\n",
    "  ^^^\n\n",
    "Traceback (most recent call last):\n",
    "E: x\n",
    "  | ExceptionGroup: a\n",
    "data:",
    "data: {}\n\n",
    "apex_01234567_a",
    "net:a:1 ",
    "ab.",
    "a: |\n",
    "a: [\n",
    "a: {\n",
    'a: "\n',
    "&a ",
    "*a ",
]


@pytest.mark.parametrize("name", READERS)
def test_the_cost_grows_at_most_linearly(name: str) -> None:
    costly = {
        unit: ratio
        for unit in UNITS
        if (ratio := growth(READERS[name], lambda size, unit=unit: unit * (size // len(unit)))) > MOST_GROWTH  # type: ignore[misc]
    }
    assert not costly


@pytest.mark.parametrize("name", ["a name", "text to compare", "words", "a skill's name"])
def test_combining_marks_that_must_be_sorted_cost_linear_time(name: str) -> None:
    assert growth(READERS[name], lambda size: "\u0301" * (size // 2) + "\u0316" * (size // 2)) <= MOST_GROWTH


def test_the_cost_of_a_schema_grows_linearly_with_the_input() -> None:
    schema = SchemaParameters({"properties": {"a": {"items": {"anyOf": [{"minimum": n} for n in range(100)]}}}})

    def read(text: str) -> None:
        schema.read({"a": [-1] * len(text)})

    assert growth(read, lambda size: "x" * size, base=500) <= MOST_GROWTH


def test_quadratic_cost_is_detected() -> None:
    def read_each_prefix(text: str) -> None:
        for end in range(0, len(text), 64):
            sum(1 for _ in text[:end])

    assert growth(read_each_prefix, lambda size: "x" * size) > MOST_GROWTH
