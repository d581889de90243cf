"""The documentation is complete, and its examples run and print what the pages show."""

import contextlib
import io
import itertools
import json
import logging
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
import typer

import apexbridge
from apexbridge import errors
from apexbridge.agent import suspended_turns
from apexbridge.agent.budget import StopCause
from apexbridge.agent.model_turn import GRACE_SECONDS
from apexbridge.agent.records.chat_records import ChatRecords
from apexbridge.agent.records.content import MAX_RECORD_BYTES
from apexbridge.agent.request import Options
from apexbridge.agent.strategy import ReActStrategy
from apexbridge.bridge import Bridge
from apexbridge.disk import RESERVE_BYTES
from apexbridge.errors import STATUS_OF_CODE
from apexbridge.llm import client, response
from apexbridge.sandbox.backends import FIRST_UID, NICENESS, SLACK_BYTES
from apexbridge.sandbox.config import GUARANTEES, MB
from apexbridge.sandbox.launcher.main import MAX_UIDS, WATCH_SECONDS
from apexbridge.sandbox.layers import MAX_LAYER_BYTES
from apexbridge.sandbox.models import ErrorCode
from apexbridge.sandbox.run_input import MAX_INPUT_BYTES, MAX_INPUT_FILES
from apexbridge.sandbox.seccomp import refused_numbers
from apexbridge.sandbox.workspace_files import MAX_BYTES, MAX_DEPTH, MAX_FILES
from apexbridge.settings import SETTINGS_FILE, Settings, load_settings
from apexbridge.skills.config import FetchSettings
from apexbridge.skills.manager import SkillManager
from apexbridge.skills.remote import git, tree
from apexbridge.skills.runs.tracker import RunTracker
from apexbridge.skills.sandbox_executor import SkillsSandboxExecutor
from apexbridge.skills.store import trash
from apexbridge.surfaces.cli.app import app as cli
from apexbridge.surfaces.cli.app import main as apex
from apexbridge.surfaces.cli.lazy_commands import LazyCommand
from apexbridge.surfaces.http.app import create_app
from apexbridge.tools.approvals import Approvals
from apexbridge.tools.conversation import LOOP_CALLS
from apexbridge.tools.registry import BuiltInExecutor, ToolRegistry

ROOT = Path(__file__).parent.parent.parent
REFERENCE = ROOT / "docs/reference"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("README.md")])
NEED_A_SERVER = {"frameworks.md"}
"""Pages whose Python examples need a server and a model: `tests/client/test_framework_examples.py` runs them."""
LANGUAGES = {"console", "python", "text", "sh", "json", "toml", "markdown"}
SERVER_SECONDS = 60
INHERITED = {
    "SkillDetail": "SkillSummary",
    "RunDetail": "RunSummary",
    "NewKey": "KeyView",
    "KeyDetail": "KeyView",
    "ChatDetail": "ChatSummary",
    "ChatStatistics": "ModelTotals",
    "ApprovalDetail": "Approval",
    "MessagesRequest": "TokensRequest",
}
"""Models whose section describes only the fields they add."""
OF_INSTANCES: dict[type, set[str]] = {
    SkillsSandboxExecutor: set(),
    RunTracker: {"inputs", "uploads"},
    ToolRegistry: {"executor"},
    BuiltInExecutor: {"tools"},
    Approvals: set(),
    ReActStrategy: {"settings"},
    ChatRecords: {"has_texts"},
}
"""Public attributes that exist only on instances."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def text_of(name: str) -> str:
    return (REFERENCE / name).read_text("utf-8")


def sections_of(text: str) -> dict[str, str]:
    """Map each heading, without markup, to the text up to the next heading."""
    split = re.split(r"^#{1,6} (.+)\n", prose_of(text, keep_code_spans=True), flags=re.MULTILINE)
    return {title.replace("`", "").strip(): body for title, body in zip(split[1::2], split[2::2], strict=True)}


# ------------------------------------------------------------------------------------------------- pages and blocks
@dataclass(frozen=True, slots=True)
class Block:
    """A fenced code block of a page."""

    language: str
    text: str
    line: int
    follows: str
    """The text between the previous block and this one; empty if this block is the output of the previous one."""


def blocks_of(text: str) -> Iterator[Block]:
    end = 0
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(match[1], match[2], text.count("\n", 0, match.start()) + 1, text[end : match.start()].strip())
        end = match.end()


def prose_of(text: str, *, keep_code_spans: bool = False) -> str:
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return text if keep_code_spans else re.sub(r"`[^`\n]*`", "", text)


def anchors_of(page: Path) -> set[str]:
    titles = re.findall(r"^#{1,6} (.+)$", prose_of(page.read_text("utf-8"), keep_code_spans=True), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


# ------------------------------------------------------------------------------------------------- completeness
@pytest.mark.requirement("H2")
@pytest.mark.parametrize("name", list(Settings.model_fields))
def test_every_setting_is_in_the_reference_with_its_default(name: str) -> None:
    (row,) = re.findall(rf"^\| `APEX_{name.upper()}` \|.*$", text_of("settings.md"), re.MULTILINE)
    field, documented = Settings.model_fields[name], row.split("|")[2].strip()
    if field.default_factory is not None:  # depends on the machine, so the page describes it in words
        assert documented
        assert "`" not in documented
    elif isinstance(field.default, tuple) and field.default:  # written as in the environment variable
        assert getattr(Settings(**{name: documented.strip("`")}), name) == field.default
    elif isinstance(field.default, bool):
        assert documented.strip("`") == str(field.default).lower()
    else:
        assert documented.strip("`") == {None: "none", (): "none"}.get(field.default, str(field.default))


@pytest.mark.requirement("H2")
def test_no_page_names_a_setting_that_does_not_exist() -> None:
    known = {f"APEX_{name.upper()}" for name in Settings.model_fields}
    for page in PAGES:
        assert set(re.findall(r"\bAPEX_[A-Z][A-Z_]*\b", page.read_text("utf-8"))) - known == set(), page.name


def commands_of(command: Any, path: tuple[str, ...] = ("apex",)) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(command, LazyCommand):
        hidden, command = command.hidden, command.load()
        command.hidden = hidden
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands_of(child, (*path, name))


COMMANDS = dict(commands_of(typer.main.get_command(cli)))
FINAL_COMMANDS = [
    pytest.param(path, id=" ".join(path))
    for path, command in COMMANDS.items()
    if not command.hidden and not hasattr(command, "commands")
]


def options_of(path: tuple[str, ...]) -> set[str]:
    return {option for parameter in COMMANDS[path].params for option in parameter.opts if option.startswith("-")}


@pytest.mark.requirement("H2")
@pytest.mark.parametrize("path", FINAL_COMMANDS)
def test_every_command_has_a_section_with_exactly_its_options(path: tuple[str, ...]) -> None:
    section = sections_of(text_of("cli.md"))[" ".join(path)]
    documented = [cell for row in re.findall(r"^\| (`-.*?) \|", section, re.MULTILINE) for cell in row.split(",")]
    assert {re.split(r"[ `]", cell.strip().strip("`"))[0] for cell in documented} == options_of(path)
    for parameter in COMMANDS[path].params:
        if parameter.param_type_name == "argument":
            assert f"`{(parameter.metavar or parameter.name.upper()).strip('[]')}`" in section


@pytest.mark.requirement("H2")
def test_every_alias_group_and_general_option_is_documented() -> None:
    text = text_of("cli.md")
    for path, command in COMMANDS.items():
        if command.hidden or hasattr(command, "commands"):
            assert f"`{' '.join(path)}`" in text
    for option in options_of(("apex",)) | {"--help"}:
        assert f"`{option}`" in text


@pytest.mark.anyio
@pytest.mark.requirement("H2")
@pytest.mark.computes_in_loop
async def test_every_route_has_a_section_with_its_parameters(bridge: Bridge) -> None:
    api = create_app(bridge).openapi()
    sections = sections_of(text_of("http.md"))
    routes = {
        f"{method.upper()} {path}": operation
        for path, operations in api["paths"].items()
        for method, operation in operations.items()
    }
    documented = {title for title in sections if re.match(r"(GET|POST|PUT|PATCH|DELETE) ", title)}
    assert documented == routes.keys()
    for title, operation in routes.items():
        for parameter in operation.get("parameters", []):
            if parameter["in"] == "query":
                assert f"`{parameter['name']}`" in sections[title], title


@pytest.mark.anyio
@pytest.mark.requirement("H2")
@pytest.mark.computes_in_loop
async def test_every_field_of_the_http_api_is_documented(bridge: Bridge) -> None:
    sections = sections_of(text_of("http.md"))
    for name, schema in create_app(bridge).openapi()["components"]["schemas"].items():
        inherited = sections.get(INHERITED.get(name, ""), "")
        assert "properties" in schema or "oneOf" in schema, name
        for field in schema.get("properties", ()):
            assert f"`{field}`" in sections[name] + inherited, f"{name}.{field}"


@pytest.mark.requirement("H2")
def test_every_option_and_every_stop_cause_of_a_chat_request_is_documented() -> None:
    sections = sections_of(text_of("http.md"))
    for option in fields(Options):
        assert re.search(rf"^\| `{option.name}` \|", sections["x_bridge of a request"], re.MULTILINE), option.name
    for cause in get_args(StopCause):
        assert f"`{cause}`" in sections["x_bridge of an answer"], cause


@pytest.mark.requirement("H2")
def test_exactly_the_existing_error_codes_are_documented_with_their_status() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (\d{3}) \| \S.* \| \S.* \|$", text_of("errors.md"), re.MULTILINE)
    assert {code: int(status) for code, status in rows} == STATUS_OF_CODE
    assert len(rows) == len(STATUS_OF_CODE)


@pytest.mark.requirement("H2")
def test_exactly_the_existing_run_errors_are_documented() -> None:
    section = sections_of(text_of("errors.md"))["A run that failed"]
    assert re.findall(r"^\| `([A-Z_]+)` \| \S.* \| \S.* \|$", section, re.MULTILINE) == list(get_args(ErrorCode))


@pytest.mark.requirement("H2")
def test_the_security_page_lists_every_guarantee_for_every_backend() -> None:
    section = sections_of((ROOT / "docs/security.md").read_text("utf-8"))["What each backend holds"]
    rows = re.findall(r"^\| `(\w+)` \| \S.* \| \S.* \| \S.* \|$", section, re.MULTILINE)
    assert tuple(rows) == GUARANTEES


@pytest.mark.requirement("H2")
def test_the_numbers_of_the_security_page_match_the_code() -> None:
    sections = sections_of((ROOT / "docs/security.md").read_text("utf-8"))
    defaults = {name: field.default for name, field in Settings.model_fields.items() if name.startswith("sandbox_")}
    limits = {name: value for name, value in defaults.items() if isinstance(value, int) and name != "sandbox_warm"}
    rows = [row for row in sections["Limits"].splitlines() if "APEX_" in row]
    for name, value in limits.items():
        (row,) = [row for row in rows if f"`APEX_{name.upper()}`" in row]
        assert re.search(rf"\b{value:,}\b", row), name
    calls = f"{len(refused_numbers('x86_64'))} system calls ({len(refused_numbers('aarch64'))} on arm64)"
    assert calls in sections["What a run cannot do"]
    assert f"a number from {FIRST_UID} to {FIRST_UID + MAX_UIDS - 1}" in sections["Root and normal users"]
    expected = {
        "What a run cannot do": (
            f"looks every {WATCH_SECONDS * 1000:g} ms",
            f"the limit, {SLACK_BYTES // MB} MB, and what the host's Node reserves",
            f"At most {MAX_FILES:,} files, {MAX_BYTES // MB} MB together and {MAX_DEPTH} folders deep",
            f"would have less than {RESERVE_BYTES // MB} MB free",
        ),
        "Limits": (f"{MAX_INPUT_FILES} files, {MAX_INPUT_BYTES // MB} MB",),
        "Dependencies": (f"at most {MAX_LAYER_BYTES // MB // 1024} GB",),
        "Remaining risks": (
            f"niceness {NICENESS}",
            f"kept for {Settings.model_fields['run_retention_days'].default} days",
        ),
    }
    for title, texts in expected.items():
        section = " ".join(sections[title].split())
        assert [text for text in texts if text not in section] == [], title


@pytest.mark.requirement("H2")
def test_the_numbers_about_sources_and_removed_skills_match_the_code() -> None:
    fetch = FetchSettings()
    limits = f"{fetch.max_mb} MB, {tree.MAX_FILES:,} files or {fetch.timeout_seconds:g} seconds"
    memory = f"{git.MAX_MEMORY_KB // MB} GB of memory and {git.MAX_CPU_SECONDS} seconds of CPU time"
    expected = {
        "docs/security.md": ("Sources", limits, memory),
        "docs/guides/install-skills.md": ("Change, disable, remove", f"restored for {trash.KEEP_DAYS} days"),
        "docs/guides/operate.md": (
            "The data directory",
            f"kept for {trash.KEEP_DAYS} days, at most {trash.MAX_TRASH_BYTES // MB // 1024} GB",
        ),
    }
    for page, (title, *texts) in expected.items():
        section = " ".join(sections_of((ROOT / page).read_text("utf-8"))[title].split())
        assert [text for text in texts if text not in section] == [], page


@pytest.mark.requirement("H2")
def test_the_numbers_of_the_chat_page_match_the_code() -> None:
    sections = sections_of((ROOT / "docs/concepts/chat.md").read_text("utf-8"))
    expected = {
        "Limits": (
            f"| turns of the model | {Settings.model_fields['chat_max_turns'].default} |",
            f"| tool calls | {Settings.model_fields['chat_max_calls'].default} |",
            f"| time | {Settings.model_fields['chat_max_seconds'].default} s | a call that goes on is ended; "
            f"a last turn, which may take {GRACE_SECONDS:g} s more |",
            f"| the same call in a row | {LOOP_CALLS} times |",
            f"| an upstream's silence in a stream | {client.SILENCE_SECONDS} s | 504 |",
            f"| an upstream's answer in one piece | {response.MAX_ANSWER_BYTES // MB} MB | 502 |",
        ),
        "Hidden calls": (f"at most {suspended_turns.MAX_TURNS:,} of them and {suspended_turns.MAX_BYTES // MB} MB",),
        "Upstreams": (
            ", ".join(str(status) for status in sorted(client.RETRIED_STATUSES)[:-1]),
            f"and {max(client.RETRIED_STATUSES)}.",
            f"for more than {client.MAX_WAIT_SECONDS:g} seconds",
        ),
    }
    for title, texts in expected.items():
        section = " ".join(sections[title].split())
        assert [text for text in texts if text not in section] == [], title


@pytest.mark.requirement("H2")
def test_the_numbers_about_chat_records_match_the_code() -> None:
    size = f"{MAX_RECORD_BYTES // 1024} KiB"
    days = Settings.model_fields["chat_retention_days"].default
    expected = {
        "docs/guides/chat.md": (
            "See what was asked",
            f"beyond {size}",
            f"`APEX_CHAT_RETENTION_DAYS`, {days} by default",
        ),
        "docs/reference/http.md": ("ChatDetail", f"{size} together"),
        "docs/security.md": ("Remaining risks", f"steps and tokens: for {days} days"),
    }
    for page, (title, *texts) in expected.items():
        section = " ".join(sections_of((ROOT / page).read_text("utf-8"))[title].split())
        assert [text for text in texts if text not in section] == [], page


@pytest.mark.requirement("H2")
@pytest.mark.parametrize("owner", OF_INSTANCES, ids=lambda owner: owner.__name__)
def test_the_python_reference_lists_every_method(owner: type) -> None:
    documented = re.findall(
        r"^\| `(\w+)(?:\(.*\))?` \|", sections_of(text_of("python.md"))[owner.__name__], re.MULTILINE
    )
    assert set(documented) == {name for name in dir(owner) if not name.startswith("_")} | OF_INSTANCES[owner]


@pytest.mark.requirement("H2")
def test_the_python_reference_lists_exactly_the_public_names() -> None:
    text = text_of("python.md")
    for name in apexbridge.__all__:
        assert f"`{name}`" in text
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, Exception):
            assert f"`{name}`" in text, name
    public = {name for name in dir(SkillManager) if not name.startswith("_")}
    documented = re.findall(r"^\| `(\w+)(?:\(.*\))?` \|", sections_of(text)["SkillManager"], re.MULTILINE)
    assert set(documented) == public


def test_the_architecture_page_lists_every_package_and_shows_the_checked_import_direction() -> None:
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"][0]
    layers = [layer.replace("apexbridge.", "").split(" | ") for layer in contract["layers"]]
    public = [names for layer in layers if (names := [name for name in layer if not name.startswith("_")])]
    package = ROOT / "src/apexbridge"
    for name in (name for layer in public for name in layer):
        assert re.search(rf"^\| `{name}(?:/\w*|\.py)?` \|", page, re.MULTILINE), name
    picture = next(block.text for block in blocks_of(page) if block.language == "text")
    ends = {True: "/", False: ".py"}
    positions = [[picture.index(name + ends[(package / name).is_dir()]) for name in layer] for layer in public]
    assert all(max(above) < min(below) for above, below in itertools.pairwise(positions))


# ------------------------------------------------------------------------------------------------- words and links
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_have_a_target(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page.read_text("utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert linked.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors_of(linked), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_mentioned_in_text_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    lines = [line for block in blocks_of(text) if block.language == "sh" for line in block.text.splitlines()]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for line in [*lines, *re.findall(r"`((?:make|apex) [^`\n]*)`", prose_of(text, keep_code_spans=True))]:
        words = line.partition(" -- ")[0].split()  # what follows is another program's
        if words[0] == "make":
            assert all(word in targets for word in words[1:] if re.fullmatch(r"[a-z-]+", word)), line
        elif words[0] == "apex":
            path = next(path for length in (3, 2, 1) if (path := tuple(words[:length])) in COMMANDS)
            named = {word.strip("[]") for word in words[len(path) :] if word.strip("[]").startswith("-")}
            assert named - {"--help"} <= options_of(path), line
            assert len(path) > 1 or len(words) == 1 or named or words[1] in ("…", "--help"), line


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_do_not_use_simply_just_or_obviously(page: Path) -> None:
    assert re.findall(r"\b(?:simply|just|obviously)\b", prose_of(page.read_text("utf-8")), re.IGNORECASE) == []


# ------------------------------------------------------------------------------------------------- examples run
@dataclass(frozen=True, slots=True)
class Command:
    """A command after a prompt, with its here-document, and the output that the page shows."""

    line: str
    expected: str


def commands_in(block: Block) -> Iterator[Command]:
    lines = iter(block.text.splitlines())
    line = next(lines, None)
    while line is not None:
        assert line.startswith("$ "), f"line {block.line}: a console block begins with a prompt, not {line!r}"
        typed = [line[2:]]
        while typed[-1].endswith("\\"):
            typed.append(next(lines))
        if "<<'EOF'" in line:
            while typed[-1] != "EOF":
                typed.append(next(lines))
        output = []
        while (line := next(lines, None)) is not None and not line.startswith("$ "):
            output.append(line)
        yield Command("\n".join(typed), "\n".join(output))


class Terminal:
    """Runs the commands of one page in order: `apex` in this process, `curl` with httpx, others in a shell."""

    def __init__(self, environment: pytest.MonkeyPatch, server: Callable[[], str]) -> None:
        self._environment = environment
        self._server = server
        self._values: dict[str, str] = {}
        self.code = 0
        Path("data").mkdir()  # a data directory in the current folder, as `make run` creates it
        Path("data/apex.sqlite3").touch()

    def run(self, line: str) -> str:
        if line == "echo $?":
            return str(self.code)
        for name, value in self._values.items():
            line = line.replace(f"${name}", value)
        if match := re.fullmatch(r"(\w+)=\$\((.+)\)", line, re.DOTALL):
            self._values[match[1]] = self.run(match[2]).strip()
            return ""
        if match := re.fullmatch(r"export (\w+)=(\S+)", line):
            self._environment.setenv(match[1], match[2])
            self.code = 0
            return ""
        before, pipe, after = line.partition(" | apex ")
        if pipe:
            _, typed = run_shell(before)
            self.code, output = run_apex(f"apex {after}", typed)
            return output
        program = line.split()[0]
        self.code, output = {"apex": apex_piped, "curl": self._curl}.get(program, run_shell)(line)
        return output

    def _curl(self, line: str) -> tuple[int, str]:
        request, *pipe = [stage.strip() for stage in line.replace("\\\n", " ").split(" | ")]
        address = self._server()
        output = piped(curl(request.replace("http://127.0.0.1:8420", address)), pipe)
        return 0, output.replace(address, "http://127.0.0.1:8420")


def apex_piped(line: str) -> tuple[int, str]:
    command, *pipe = [stage.strip() for stage in line.split(" | jq ")]
    code, output = run_apex(command)
    return code, piped(output, [f"jq {stage}" for stage in pipe])


def piped(output: str, pipe: list[str]) -> str:
    for stage in pipe:
        program, *words = shlex.split(stage)
        assert program == "jq", stage
        query = [word for word in words if word != "-r"]
        output = jq(output, query[0] if query else ".")
        output = str(json.loads(output)) if "-r" in words else output
    return output


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


class Messages(io.StringIO):
    """Writes to a screen, and is not a terminal: no progress bars, no questions."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def write(self, text: str) -> int:
        return self._screen.write(text)


def run_apex(line: str, typed: str = "") -> tuple[int, str]:
    """Run a command on a wide terminal, as the pages show it."""
    printed = Screen()
    code: Any = 0
    root = logging.getLogger()
    level = root.level
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(Messages(printed)),
    ):
        patch.setenv("COLUMNS", "2000")
        patch.setattr(sys, "argv", shlex.split(line))
        patch.setattr(sys, "stdin", io.StringIO(typed))
        patch.setattr(root, "handlers", [])  # the command installs its own handlers, as in a new process
        try:
            apex()
        except SystemExit as error:
            code = error.code or 0
    root.setLevel(level)
    return int(code), printed.getvalue()


def run_shell(line: str) -> tuple[int, str]:
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def curl(line: str) -> str:
    """Emulate the options of curl that the pages use."""
    words = iter(shlex.split(line)[1:])
    method, url, headers, content = "", "", {}, None
    fields: dict[str, str] = {}
    files: dict[str, tuple[str, bytes]] = {}
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-H":
            key, _, value = next(words).partition(": ")
            headers[key] = value
        elif word in ("-d", "--data-binary"):
            body = next(words)
            content = Path(body[1:]).read_bytes() if body.startswith("@") else body.encode()
        elif word == "-F":
            key, _, value = next(words).partition("=")
            if value.startswith("@"):
                files[key] = (value[1:], Path(value[1:]).read_bytes())
            else:
                fields[key] = value
        elif word not in ("-s", "-sS"):
            assert not word.startswith("-"), word
            assert not url, line
            url = word
    method = method or ("POST" if content is not None or files or fields else "GET")
    # curl waits without a limit, and a busy machine loads the models slowly. No proxy is used for loopback.
    with httpx.Client(trust_env=False, timeout=SERVER_SECONDS) as client:
        answer = client.request(method, url, headers=headers, content=content, data=fields or None, files=files or None)
    return answer.text


def jq(text: str, query: str) -> str:
    value = json.loads(text)
    for key, index in re.findall(r"\.?(\w+)|\[(\d+)\]", query):
        value = value[key] if key else value[int(index)]
    return json.dumps(value, ensure_ascii=False, indent=2)


def matches(expected: str, printed: str) -> bool:
    """Whether the output matches the page: `…` matches any text, and line breaks do not matter."""
    pattern = re.escape(plain(expected)).replace("…", ".*")
    return re.fullmatch(pattern, plain(printed)) is not None


def plain(text: str) -> str:
    """Replace values that differ between runs or terminals."""
    text = re.sub(r"\x1b\[[\d;]*m", "", text)
    text = re.sub(r"\b[0-9a-f]{64}\b", "HASH", text)
    text = re.sub(r"\b[0-9a-f]{32}\b", "ID", text)
    text = re.sub(r"\b\d{4}-\d\d-\d\dT[\d:.]+Z", "MOMENT", text)
    text = re.sub(r"\b\d{4}-\d\d-\d\d\b", "DATE", text)
    text = re.sub(r"\b1\d{12}\b", "MILLISECONDS", text)
    text = re.sub(r"\b\d+ ms\b|(?<=\"duration\":)\d+|(?<=\"duration\": )\d+", "DURATION", text)
    text = re.sub(r"(?<=\"peakMemory\":)\d+|(?<=\"peakMemory\": )\d+", "SIZE", text)
    text = re.sub(r"\b\d+ bytes\b", "SIZE", text)
    return " ".join(text.split())


@pytest.fixture
def server() -> Iterator[Callable[[], str]]:
    """Return a function that starts a server on its first call and returns its address."""
    running: list[tuple[subprocess.Popen[str], str]] = []

    def start() -> str:
        if not running:
            command = [str(Path(sys.executable).with_name("apex")), "serve", "--port", "0"]
            process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            assert process.stderr
            guard = threading.Timer(SERVER_SECONDS, process.kill)
            guard.start()
            greeting = process.stderr.readline()
            guard.cancel()
            match = re.search(r"http://[\d.:]+", greeting)
            running.append((process, match[0] if match else ""))
            assert match, greeting
        return running[0][1]

    yield start
    for process, _ in running:
        process.terminate()
        process.communicate(timeout=SERVER_SECONDS)


@pytest.mark.slow
@pytest.mark.requirement("H2")
@pytest.mark.parametrize("page", [page for page in PAGES if "```console" in page.read_text("utf-8")], ids=name_of)
def test_console_examples_print_what_the_page_shows(
    page: Path, server: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(monkeypatch, server)
    for block in blocks_of(page.read_text("utf-8")):
        if block.language != "console":
            continue
        commands = list(commands_in(block))
        for command, after in zip(commands, [*commands[1:], None], strict=True):
            printed = terminal.run(command.line)
            checks_code = after is not None and after.line == "echo $?"
            assert terminal.code == 0 or checks_code or command.line == "echo $?", f"{command.line}\n{printed}"
            assert matches(command.expected, printed), f"{command.line}\n{printed}"


@pytest.mark.requirement("H2")
@pytest.mark.parametrize(
    ("page", "number"),
    [
        pytest.param(page, number, id=f"{name_of(page)}-{number}")
        for page in PAGES
        for number, block in enumerate(blocks_of(page.read_text("utf-8")))
        if block.language == "python" and page.name not in NEED_A_SERVER
    ],
)
def test_python_examples_run_and_print_what_the_page_shows(page: Path, number: int) -> None:
    blocks = list(blocks_of(page.read_text("utf-8")))
    printed = io.StringIO()
    code = compile(blocks[number].text, f"{page.name}:{blocks[number].line}", "exec", dont_inherit=True)
    with contextlib.redirect_stdout(printed):
        exec(code, {"__name__": "__main__"})
    after = blocks[number + 1] if number + 1 < len(blocks) else None
    shows_output = after is not None and after.language == "text" and not after.follows
    if after is not None and shows_output:
        assert matches(after.text, printed.getvalue()), printed.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_other_block_is_valid_in_its_language(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in blocks_of(page.read_text("utf-8")):
        assert block.language in LANGUAGES, f"line {block.line}"
        if block.language == "json":
            json.loads(block.text)
        elif block.language == "toml":
            tomllib.loads(block.text)
            Path(SETTINGS_FILE).write_text(block.text, "utf-8")
            load_settings()
