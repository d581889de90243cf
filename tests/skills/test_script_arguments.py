"""Arguments derived from the source of a script, and argv that real scripts can parse."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from apexbridge.skills.package.script_arguments import MAX_SOURCE_BYTES, Argument, ScriptArguments, derive
from apexbridge.tools.schema import SchemaParameters

PRINT_ARGUMENTS = "\nimport json\nprint(json.dumps(vars(parser.parse_args()), default=str))\n"

PLAIN = '''
"""Resize pictures."""
import argparse
from pathlib import Path

FORMATS = ["png", "jpeg"]
DEFAULT_WIDTH: int = 640
SIZES = {"small": 1, "large": 2}

parser = argparse.ArgumentParser(description="Resize a picture, " f"{DEFAULT_WIDTH} wide")
parser.add_argument("source", help="what to read")
parser.add_argument("more", nargs="*", type=Path)
group = parser.add_argument_group("output")
group.add_argument("-o", "--out-file", required=True, help="where to write")
group.add_argument("--width", type=int, default=DEFAULT_WIDTH, help="in pixels (%(default)s), 100%% exact")
parser.add_argument("--ratio", type=float, default=-1.5)
parser.add_argument("--format", choices=FORMATS, default="png", dest="fmt")
parser.add_argument("--size", choices=list(SIZES.keys()))
parser.add_argument("--level", type=int, choices=range(1, 4))
parser.add_argument("--crop", nargs=2, type=int)
parser.add_argument("--tags", nargs="+", default=["a", "b"])
parser.add_argument("--tag", action="append")
parser.add_argument("--verbose", "-v", action="store_true")
parser.add_argument("--no-colour", action="store_false", dest="colour")
parser.add_argument("--cache", action=argparse.BooleanOptionalAction, default=True)
parser.add_argument("-q", type=int)
parser.add_argument("--strict", type=bool, default=True)
parser.add_argument("--log", nargs="?", const="all")
parser.add_argument("--secret", help=argparse.SUPPRESS)
parser.add_argument("--version", action="version", version="1")
'''

COMMANDS = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--verbose", action="store_true")
parser.add_argument("--root")
common = argparse.ArgumentParser(add_help=False)
common.add_argument("--json", action="store_true")
commands = parser.add_subparsers(dest="action", required=True, help="what to do")
add = commands.add_parser("add", parents=[common])
add.add_argument("title", help="of the note")
add.add_argument("--due", required=True, help="a date")
find = commands.add_parser("find", parents=[common])
find.add_argument("title")
find.add_argument("--limit", type=int, default=20)
commands.add_parser("clear").add_argument("--really", action="store_true")
"""


def derived(name: str, source: str) -> ScriptArguments:
    found = derive(name, source.encode())
    assert found is not None
    SchemaParameters(found.schema())
    assert ScriptArguments.from_json(json.loads(json.dumps(found.to_json()))) == found
    return found


def by_name(arguments: ScriptArguments) -> dict[str, Argument]:
    return {argument.name: argument for argument in (*arguments.options, *arguments.positionals)}


def run_python(source: str, argv: list[str], folder: Path) -> Any:
    script = folder / "script.py"
    script.write_text(source + PRINT_ARGUMENTS)
    done = subprocess.run([sys.executable, str(script), *argv], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# ----------------------------------------------------------------------------------------------------- Python
def test_argparse_declarations_become_a_schema() -> None:
    found = derived("scripts/resize.py", PLAIN)
    assert found.description == "Resize a picture, 640 wide"
    assert found.schema() == {
        "type": "object",
        "properties": {
            "source": {"type": "string", "description": "what to read"},
            "more": {"type": "array", "items": {"type": "string"}},
            "out-file": {"type": "string", "description": "where to write"},
            "width": {"type": "integer", "description": "in pixels (640), 100% exact", "default": 640},
            "ratio": {"type": "number", "default": -1.5},
            "format": {"type": "string", "enum": ["png", "jpeg"], "default": "png"},
            "size": {"type": "string", "enum": ["small", "large"]},
            "level": {"type": "integer"},
            "crop": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
            "tags": {"type": "array", "items": {"type": "string"}, "default": ["a", "b"]},
            "tag": {"type": "array", "items": {"type": "string"}},
            "verbose": {"type": "boolean"},
            "no-colour": {"type": "boolean"},
            "cache": {"type": "boolean"},
            "q": {"type": "integer"},
            "strict": {"type": "boolean", "default": True},
            "log": {"type": "string"},
        },
        "required": ["source", "out-file"],
    }


@pytest.mark.requirement("B18")
def test_a_python_script_parses_the_input_from_argv(tmp_path: Path) -> None:
    parsed = run_python(
        PLAIN,
        derived("resize.py", PLAIN).argv(
            {
                "source": "-in.png",
                "more": ["b.png", "c.png"],
                "out-file": "-out.png",
                "width": 320,
                "ratio": -0.5,
                "format": "jpeg",
                "size": "large",
                "level": 2,
                "crop": [3, 4],
                "tags": ["x", "y z"],
                "tag": ["one", "-two"],
                "verbose": True,
                "no-colour": True,
                "cache": False,
                "q": -7,
                "strict": False,
                "log": "some",
            }
        ),
        tmp_path,
    )
    assert parsed == {
        "source": "-in.png",
        "more": ["b.png", "c.png"],
        "out_file": "-out.png",
        "width": 320,
        "ratio": -0.5,
        "fmt": "jpeg",
        "size": "large",
        "level": 2,
        "crop": [3, 4],
        "tags": ["x", "y z"],
        "tag": ["one", "-two"],
        "verbose": True,
        "colour": False,
        "cache": False,
        "q": -7,
        "strict": False,
        "log": "some",
        "secret": None,
    }


@pytest.mark.requirement("B18")
def test_arguments_missing_from_the_input_keep_their_defaults(tmp_path: Path) -> None:
    found = derived("resize.py", PLAIN)
    argv = found.argv(
        {"source": "a", "out-file": "b", "verbose": False, "tag": None, "tags": [], "log": True, "strict": True}
    )
    parsed = run_python(PLAIN, argv, tmp_path)
    assert (parsed["width"], parsed["tags"], parsed["tag"], parsed["verbose"]) == (640, ["a", "b"], None, False)
    assert (parsed["source"], parsed["log"], parsed["strict"]) == ("a", "all", True)


@pytest.mark.requirement("B18")
def test_a_subcommand_is_between_the_scripts_options_and_its_own(tmp_path: Path) -> None:
    found = derived("notes.py", COMMANDS)
    argv = found.argv(
        {"title": "Milk", "due": "2030-01-01", "json": True, "verbose": True, "root": "/", "action": "add"}
    )
    parsed = run_python(COMMANDS, argv, tmp_path)
    assert parsed == {
        "verbose": True,
        "root": "/",
        "action": "add",
        "json": True,
        "title": "Milk",
        "due": "2030-01-01",
    }
    assert run_python(COMMANDS, found.argv({"action": "find", "title": "-x", "limit": 3}), tmp_path)["title"] == "-x"


def test_the_schema_includes_the_options_of_all_subcommands_and_requires_none() -> None:
    schema = derived("notes.py", COMMANDS).schema()
    assert schema["required"] == ["action"]
    assert schema["properties"] == {
        "action": {"type": "string", "enum": ["add", "find", "clear"], "description": "what to do"},
        "verbose": {"type": "boolean"},
        "root": {"type": "string"},
        "json": {"type": "boolean", "description": "For add, find"},
        "title": {"type": "string", "description": "For add, find: of the note"},
        "due": {"type": "string", "description": "For add: a date"},
        "limit": {"type": "integer", "default": 20, "description": "For find"},
        "really": {"type": "boolean", "description": "For clear"},
    }


def test_nested_subcommands_are_supported(tmp_path: Path) -> None:
    source = (
        "import argparse\nparser = argparse.ArgumentParser()\nfirst = parser.add_subparsers(dest='command')\n"
        "remote = first.add_parser('remote')\nsecond = remote.add_subparsers(dest='what')\n"
        "second.add_parser('add').add_argument('--url')\nsecond.add_parser('remove')\n"
    )
    argv = derived("git.py", source).argv({"url": "x", "what": "add", "command": "remote"})
    assert run_python(source, argv, tmp_path) == {"command": "remote", "what": "add", "url": "x"}


def test_parsers_in_parameters_attributes_and_helpers_are_followed() -> None:
    source = (
        "import argparse\n"
        "def add_common(p):\n    p.add_argument('--common', help='for ' + 'all')\n"
        "class Tool:\n"
        "    def __init__(self):\n        self.parser = argparse.ArgumentParser()\n"
        "        self.parser.add_argument('--own')\n"
        "def build():\n    parser = make_parser()\n    parser.add_argument('--built')\n    return parser\n"
    )
    found = by_name(derived("tool.py", source))
    assert set(found) == {"common", "own", "built"}
    assert found["common"].description == "for all"


def test_browser_options_are_not_script_options() -> None:
    source = (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('url')\n"
        "options = ChromeOptions()\noptions.add_argument('--headless')\n"
    )
    assert set(by_name(derived("shot.py", source))) == {"url"}


def test_computed_values_are_left_out() -> None:
    source = (
        "import argparse, os\nA = A + A\nparser = argparse.ArgumentParser(description=A)\n"
        "parser.add_argument('--home', default=os.getcwd(), help=f'where {os.name} lives')\n"
        "parser.add_argument('--mode', choices=[m.value for m in Mode], type=positive_int)\n"
        "for name in 'ab':\n    parser.add_argument(f'--{name}')\n"
    )
    found = by_name(derived("open.py", source))
    assert set(found) == {"home", "mode"}
    assert found["home"].default is None
    assert found["home"].description == "where … lives"
    assert (found["mode"].choices, found["mode"].type) == ((), "integer")


def test_a_positional_with_the_name_of_an_option_has_its_own_key() -> None:
    source = (
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--name')\nparser.add_argument('name')\n"
    )
    found = derived("two.py", source)
    assert found.argv({"name": "option", "name-argument": "place"}) == ["--name", "option", "place"]


def test_a_missing_positional_is_filled_with_its_default() -> None:
    source = (
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('first', nargs='?', default='one')\nparser.add_argument('second', nargs='?')\n"
    )
    assert derived("places.py", source).argv({"second": "two"}) == ["one", "two"]


@pytest.mark.requirement("B18")
def test_an_unknown_key_becomes_an_option() -> None:
    source = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('file')\n"
    argv = derived("some.py", source).argv(
        {"file": "a", "depth": 3, "on": True, "off": False, "nothing": None, "many": ["b", 4], "map": {"é": 1}}
    )
    assert argv == ["--depth", "3", "--on", "--many", "b", "--many", "4", "--map", '{"é": 1}', "--", "a"]


def test_the_number_of_options_and_the_size_of_their_texts_are_limited() -> None:
    lines = "".join(f"parser.add_argument('--o{number}', help='{'word ' * 100}')\n" for number in range(80))
    source = f"import argparse\nparser = argparse.ArgumentParser()\n{lines}"
    found = derived("many.py", source)
    assert len(found.options) == 50
    assert all(len(option.description) <= 200 for option in found.options)
    odd = derived(
        "odd.py",
        "import argparse\nparser = argparse.ArgumentParser(description='\\ud800')\n"
        "parser.add_argument('--a', type=float, default=1e999)\n"
        "parser.add_argument('--b', default='\\ud800', choices=['\\ud800'])\n"
        f"parser.add_argument('--c', default='{'x' * 500}')\n"
        f"parser.add_argument('--{'d' * 100}')\nparser.add_argument('--e f')\nparser.add_argument('--g\\ud800')\n",
    )
    assert set(by_name(odd)) == {"a", "b", "c"}
    assert all(option.default is None and option.choices == () for option in odd.options)
    json.dumps(odd.to_json(), ensure_ascii=False).encode()


def test_invalid_escapes_in_a_script_cause_no_warning() -> None:
    source = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--re', default='\\d+')\n"
    assert by_name(derived("re.py", source))["re"].default == "\\d+"


# ------------------------------------------------------------------------------------------------------ shell
LOOP = """#!/bin/sh
# Usage: backup.sh [options]
#   -o, --out FILE   Where to write
#   --name=NAME      What to call it
while [ $# -gt 0 ]; do
  case "$1" in
    -o|--out) OUT="$2"; shift 2 ;;
    --level)
      shift
      LEVEL="$1"
      case "$LEVEL" in
        -1) ;;
      esac
      shift
      ;;
    --name=*) NAME="${1#*=}"; shift ;;
    -v | --verbose) VERBOSE=1; shift ;;
    -h|--help) exit 0 ;;
    --) shift; break ;;
    -*) exit 2 ;;
  esac
done
case "$1" in --not-an-option) ;; esac
printf '%s|' "$OUT" "$LEVEL" "$NAME" "$VERBOSE"
"""


@pytest.mark.requirement("B18")
def test_a_shell_script_parses_the_input_from_argv(tmp_path: Path) -> None:
    found = derived("backup.sh", LOOP)
    assert found.schema() == {
        "type": "object",
        "properties": {
            "out": {"type": "string", "description": "Where to write"},
            "level": {"type": "string"},
            "name": {"type": "string", "description": "What to call it"},
            "verbose": {"type": "boolean"},
        },
    }
    script = tmp_path / "backup.sh"
    script.write_text(LOOP)
    argv = found.argv({"out": "-x", "level": "3", "name": "a b", "verbose": True})
    done = subprocess.run(["sh", str(script), *argv], capture_output=True, text=True, timeout=30)
    assert done.stdout == "-x|3|a b|1|"


def test_a_shell_option_that_was_shifted_takes_the_next_argument() -> None:
    source = (
        'while [ $# -gt 0 ]; do\nopt="$1"\nshift\ncase "$opt" in\n-q) Q=1 ;;\n--to) TO="$1"; shift ;;\nesac\ndone\n'
    )
    assert derived("x.sh", source).argv({"q": True, "to": "b"}) == ["-q", "--to", "b"]


def test_a_case_outside_of_a_loop_is_ignored() -> None:
    assert derive("x.sh", b'for x in 1 2; do\n echo $x\ndone\ncase "$1" in\n--all) ;;\nesac\n') is None


def test_a_loop_on_one_line_is_read() -> None:
    source = 'for a in "$@"; do case "$a" in --fast) F=1;; --to=*) T="${a#*=}";; esac; done\n'
    assert derived("x.sh", source).argv({"fast": True, "to": "b"}) == ["--fast", "--to=b"]


# ------------------------------------------------------------------------------------------- untrusted source
HEAD = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--x')\nx = "
MANY = 60_000
HOSTILE = {
    "parentheses": "(" * 10_000 + "1" + ")" * 10_000,
    "brackets": "[" * 10_000 + "]" * 10_000,
    "braces that stay open": "{'a':" * 10_000,
    "minuses": "-" * MANY + "1",
    "nots": "not " * 15_000 + "1",
    "attributes": "a" + ".b" * MANY,
    "calls": "a" + "()" * MANY,
    "subscripts": "a" + "[0]" * 30_000,
    "a dotted import": "1\nimport a" + ".b" * MANY,
    "a dotted import over lines": "1\nimport a" + ".\\\nb" * 30_000,
    "nested calls": "f(**{'a':" * 90 + "1" + "})" * 90,
    "nested calls with an error": "f(x for x in " * 190 + "1" + ", 1)" * 190,
    "a constant in a circle": "1\nA = A + A\n" + "parser.add_argument('--x', help=A)\n" * 2_000,
    "one long help text, often": "1\nA = 'a'" + "+'a'" * 900 + "\n" + "parser.add_argument('--x', help=A)\n" * 3_000,
    "sums": "1" + "+1" * MANY,
    "sums over lines": "(1" + "+\n1" * 30_000 + ")",
    "powers": "1" + "**1" * 30_000,
    "conditions": "1 if 1 else " * 10_000 + "1",
    "lambdas": "lambda a, b: " * 9_000 + "1",
    "elifs": "1\nif 1:\n pass\n" + "elif 1:\n pass\n" * 8_000,
    "f-string": 'f"{1' + "+1" * MANY + '}"',
    "f-string of sets": 'f"{ ' + "{1}+" * 30_000 + '1}"',
    "f-string in newer words": 'f"{"" + ' + "-" * MANY + '1}"',
    "f-string that hides": 'f"{\'}\' "" + ' + "-" * MANY + '1}"',
    "comparisons": "1" + "<1" * MANY,
    "quotes": "'\\'" * 30_000,
    "triple quotes": "'''" + "a\n" * MANY,
    "NUL": "'\0'",
    "blocks": "1\n" + "".join(" " * depth + "if 1:\n" for depth in range(500)),
    "digits": "9" * 120_000,
}


READ_ALL = """
import json, sys, threading
from apexbridge.skills.package.script_arguments import derive
def read_all():
    for kind, source in json.load(sys.stdin).items():
        print(json.dumps([kind, getattr(derive("x.py", source.encode()), "schema", lambda: None)()]), flush=True)
threading.stack_size(1024 * 1024)
thread = threading.Thread(target=read_all)
thread.start()
thread.join()
"""


def test_hostile_python_does_not_crash_the_interpreter() -> None:
    """In its own process, in a thread with the smallest stack that a supported platform uses."""
    sources = {kind: HEAD + source for kind, source in HOSTILE.items()}
    assert all(len(source) <= MAX_SOURCE_BYTES for source in sources.values())
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL], input=json.dumps(sources), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    results = dict(json.loads(line) for line in done.stdout.splitlines())
    assert list(results) == list(sources)
    assert all(schema is None or set(schema["properties"]) == {"x"} for schema in results.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        'while :; do case "$1" in ' + "--a) shift; " * 10_000,
        'while :; do case "$1" in ' + "--a)\nshift\n" * 10_000,
        'while :; do case "$1" in\n' * 5_000,
        "while case " * 11_000,
        "case " + "$" * 120_000,
        "-" * 130_000,
        "--a  b\n" * 18_000,
    ],
    ids=range(7),
)
def test_hostile_shell_is_read_to_its_end(source: str) -> None:
    assert len(source) <= MAX_SOURCE_BYTES
    found = derive("x.sh", source.encode())
    assert found is None or len(found.options) <= 50


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("x.py", b"import argparse\nparser = argparse.ArgumentParser(\n"),
        ("x.py", b"\xff\xfe ArgumentParser"),
        ("x.py", b"print('no ArgumentParser here')"),
        ("x.py", HEAD.encode() + b"1\n" + b"#" * MAX_SOURCE_BYTES),
        ("x.js", b"const { program } = require('commander'); program.option('--x');"),
        ("x.sh", b"while getopts 'ab:' opt; do :; done"),
        ("x.rb", HEAD.encode() + b"1"),
        ("x", b""),
        ("x.sh", b"echo hello"),
    ],
)
def test_an_invalid_or_unsupported_script_has_no_derived_arguments(name: str, source: bytes) -> None:
    assert derive(name, source) is None


def test_deriving_arguments_does_not_run_the_script(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    source = f"open({str(witness)!r}, 'w')\n{HEAD}1\n"
    assert set(by_name(derived("x.py", source))) == {"x"}
    assert not witness.exists()
