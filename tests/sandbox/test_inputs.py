"""The input of a script: variables, stdin, arguments, files, and nothing else."""

import base64
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from apexbridge.errors import InvalidInputError
from apexbridge.sandbox import run_input
from apexbridge.sandbox.models import InputFile
from apexbridge.sandbox.run_input import MAX_INPUT_BYTES, MAX_INPUT_FILES, check_file_count, check_file_sizes
from tests.sandbox.bench import Bench

pytestmark = pytest.mark.anyio
DOCUMENTED = {"PATH", "HOME", "TMPDIR", "SKILL_NAME", "SKILL_PATH", "INPUT_JSON", "TIMEOUT"}
OPTIONAL = {"PWD", "LC_CTYPE"}
"""A shell sets PWD, and Python LC_CTYPE."""
SHOWS_VARIABLES = {
    "py": "import json, os; print(json.dumps(dict(os.environ)))",
    "js": "console.log(JSON.stringify(process.env))",
    "sh": "exec python3 -I -c 'import json, os; print(json.dumps(dict(os.environ)))'",
}
ECHOES_VARIABLE = {
    "py": "import os, sys; sys.stdout.buffer.write(os.environb[b'INPUT_JSON'])",
    "js": "process.stdout.write(process.env.INPUT_JSON)",
    "sh": 'printf %s "$INPUT_JSON"',
}
ECHOES_STDIN = {
    "py": "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())",
    "js": "process.stdin.pipe(process.stdout)",
    "sh": "cat",
}
SHOWS_ARGUMENTS = {
    "py": "import json, sys; print(json.dumps(sys.argv[1:]))",
    "js": "console.log(JSON.stringify(process.argv.slice(2)))",
    "sh": "exec python3 -I -c 'import json, sys; print(json.dumps(sys.argv[1:]))' \"$@\"",
}
HOSTILE: dict[str, Any] = {
    "quotes": "'; touch pwned; $(touch pwned) `touch pwned` \" \\ \\\\",
    "lines": "one\ntwo\r\nthree\ttab\u2028\u2029\x00\x1b[31m\x7f",
    "letters": "日本語 emoji 🐛👩‍👩‍👧 ẞ \ufeff \u202e",
    "options": "--help -rf --",
    "__proto__": {"polluted": True},
    "numbers": [0, -1, 1.5, 2**53, -(2**63), 1e300],
    "nothing": [None, True, False, "", [], {}],
    "${PATH}": "%s %n {0} {}",
}
suffixes = pytest.mark.parametrize("suffix", list(ECHOES_STDIN))


# --------------------------------------------------------------------------------------------------------- variables
@pytest.mark.requirement("B8")
@suffixes
async def test_a_script_sees_the_documented_variables_and_none_of_the_servers(
    bench: Bench, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of the server")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    found = await bench.run_json(SHOWS_VARIABLES[suffix], suffix, input={"a": 1}, timeout_ms=15_000)
    assert found.keys() - OPTIONAL == DOCUMENTED
    assert (found["SKILL_NAME"], found["INPUT_JSON"], found["TIMEOUT"]) == ("tried", '{"a":1}', "15000")
    assert found["PATH"] == os.defpath
    assert found["HOME"].rpartition("/")[2].startswith("skill-workspace-")
    assert found["TMPDIR"] == f"{found['HOME']}/tmp"
    assert found.get("PWD", found["HOME"]) == found["HOME"]


@pytest.mark.requirement("B8")
@pytest.mark.parametrize("process", ["self", "1"])
async def test_proc_environ_shows_only_documented_variables(bench: Bench, process: str) -> None:
    text = f"import json; print(json.dumps(open('/proc/{process}/environ').read()))"
    report = await bench.run_json(text)
    names = {entry.partition("=")[0] for entry in report.split("\0") if entry}
    assert names <= DOCUMENTED | OPTIONAL


@pytest.mark.requirement("B8")
@suffixes
async def test_hostile_input_arrives_unchanged_by_variable_and_by_stdin(bench: Bench, suffix: str) -> None:
    for text in (ECHOES_VARIABLE[suffix], ECHOES_STDIN[suffix]):
        result = await bench.run(text, suffix, input=HOSTILE)
        assert json.loads(result.stdout) == HOSTILE
        assert result.files == []


@pytest.mark.requirement("B8")
@suffixes
async def test_large_input_arrives_on_stdin_only(bench: Bench, suffix: str) -> None:
    payload = {"text": "é" * 700_000}
    result = await bench.run(ECHOES_STDIN[suffix], suffix, input=payload)
    assert json.loads(result.stdout) == payload
    assert "INPUT_JSON" not in await bench.run_json(SHOWS_VARIABLES[suffix], suffix, input=payload)


@pytest.mark.requirement("B8")
@suffixes
async def test_the_largest_input_that_fits_a_variable_reaches_children_as_well(bench: Bench, suffix: str) -> None:
    payload = {"text": "x" * (128 * 1024 - len('INPUT_JSON={"text":""}') - 1)}
    child = {
        "py": "import subprocess; subprocess.run(['sh', '-c', 'printf %s \"$INPUT_JSON\"'], check=True)",
        "js": "process.stdout.write(require('child_process').execFileSync('sh', ['-c', 'printf %s \"$INPUT_JSON\"']))",
        "sh": "sh -c 'printf %s \"$INPUT_JSON\"'",
    }[suffix]
    assert json.loads((await bench.run(child, suffix, input=payload)).stdout) == payload


@suffixes
async def test_a_script_that_does_not_read_its_input_is_not_blocked(bench: Bench, suffix: str) -> None:
    text = {"py": "print('done')", "js": "console.log('done')", "sh": "echo done"}[suffix]
    result = await bench.run(text, suffix, input={"text": "x" * 2_000_000})
    assert (result.success, result.stdout) == (True, "done\n")


@suffixes
async def test_stdin_ends_after_the_input(bench: Bench, suffix: str) -> None:
    assert (await bench.run(ECHOES_STDIN[suffix], suffix)).stdout == "{}"


@suffixes
async def test_no_file_of_the_server_is_open_in_a_run(each_backend: Bench, suffix: str) -> None:
    """Besides the standard files there may be pipes that can only be read."""
    text = """
import fcntl, json, os, stat
found = []
for number in range(3, 64):
    try: mode = os.fstat(number).st_mode
    except OSError: continue
    is_read_only = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    if not stat.S_ISFIFO(mode) or not is_read_only: found.append(number)
print(json.dumps(found))
"""
    child = f"execFileSync('python3', ['-I', '-c', {json.dumps(text)}])"
    starts = {
        "py": text,
        "sh": f"exec python3 -I -c '{text}'",
        "js": f"process.stdout.write(require('child_process').{child})",
    }
    assert await each_backend.run_json(starts[suffix], suffix) == []


# --------------------------------------------------------------------------------------------------------- arguments
@pytest.mark.requirement("B18")
@suffixes
async def test_arguments_arrive_unchanged(bench: Bench, suffix: str) -> None:
    words = ["", "-x", "--", "--version", "a b", "日本🐛", "$(id)", "'\"\\\n\t", "*", "x" * 100_000]
    assert await bench.run_json(SHOWS_ARGUMENTS[suffix], suffix, args=tuple(words)) == words


@pytest.mark.requirement("B18")
@suffixes
async def test_a_helper_gets_its_input_as_options_on_stdin_and_in_a_variable(bench: Bench, suffix: str) -> None:
    payload = {"message": "feat: x", "all": True, "quiet": False, "each": ["a", "-b"], "level": -2}
    words = ["--message", "feat: x", "--all", "--each", "a", "--each=-b", "--level=-2"]
    assert await bench.run_json(SHOWS_ARGUMENTS[suffix], suffix, input=payload, is_entry=False) == words
    assert await bench.run_json(ECHOES_STDIN[suffix], suffix, input=payload, is_entry=False) == payload
    assert await bench.run_json(ECHOES_VARIABLE[suffix], suffix, input=payload, is_entry=False) == payload


@pytest.mark.requirement("B18")
async def test_arguments_that_cannot_be_passed_are_refused(cold: Bench) -> None:
    with pytest.raises(InvalidInputError) as caught:
        await cold.sandbox.check(cold.job("", args=("a\0b",)))
    assert caught.value.code == "INVALID_INPUT"


# -------------------------------------------------------------------------------------------------------------- files
def file(name: str, data: bytes) -> InputFile:
    return InputFile(name=name, file=io.BytesIO(data))


READS_FILES = """
import base64, json, os
report = json.loads(os.environ["INPUT_JSON"])
print(json.dumps({path: base64.b64encode(open(path, "rb").read()).decode() for path in report["files"]}))
"""


@pytest.mark.requirement("B19")
async def test_input_files_are_provided_and_listed(each_backend: Bench) -> None:
    payload = {"a.txt": b"text", "b.bin": bytes(range(256)), "日 本.txt": b"", "large": b"x" * 3_000_000}
    report = await each_backend.run_json(
        READS_FILES, files=tuple(file(name, data) for name, data in payload.items()), input={"k": 1}
    )
    assert {path: base64.b64decode(data) for path, data in report.items()} == {
        f"input/{name}": data for name, data in payload.items()
    }


@pytest.mark.requirement("B19")
async def test_input_files_are_read_only_and_use_no_space_of_the_workspace(bench: Bench, tmp_path: Path) -> None:
    text = """
import json, os
done = []
def attempt(name, action):
    try: action(); done.append(name)
    except OSError: pass
attempt("write", lambda: open("input/a", "w"))
attempt("append", lambda: open("input/a", "a"))
attempt("create", lambda: open("input/new", "w"))
attempt("remove", lambda: os.unlink("input/a"))
attempt("rename", lambda: os.rename("input/a", "b"))
attempt("rename folder", lambda: os.rename("input", "other"))
attempt("chmod", lambda: os.chmod("input/a", 0o777))
attempt("chmod folder", lambda: os.chmod("input", 0o777))
attempt("link", lambda: os.link("input/a", "linked"))
with open("mine", "wb") as mine: mine.write(bytes(60 << 20))
print(json.dumps([done, open("input/a").read()]))
"""
    files = (file("a", b"as it was"), file("filler", bytes(20 << 20)))
    assert await bench.run_json(text, files=files, artifacts=tmp_path / "artifacts") == [[], "as it was"]


@pytest.mark.requirement("B19")
@pytest.mark.parametrize("sizes", [[MAX_INPUT_BYTES + 1], [MAX_INPUT_BYTES, 1]])
def test_input_files_that_are_too_large_are_refused(sizes: list[int]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_file_sizes(sizes)
    assert caught.value.code == "INVALID_INPUT"
    check_file_sizes([MAX_INPUT_BYTES, *[0] * (MAX_INPUT_FILES - 1)])


@pytest.mark.requirement("B19")
def test_too_many_input_files_are_refused() -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_file_count(MAX_INPUT_FILES + 1)
    assert caught.value.code == "INVALID_INPUT"
    check_file_count(MAX_INPUT_FILES)


@pytest.mark.requirement("B19")
async def test_input_files_that_grow_while_they_are_copied_are_refused(
    cold: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_input, "MAX_INPUT_BYTES", 1000)
    with pytest.raises(InvalidInputError) as caught:
        await cold.run("", files=(file("a", b"x" * 600), file("b", b"x" * 401)))
    assert caught.value.code == "INVALID_INPUT"
    assert (await cold.run("", files=(file("a", b"x" * 600), file("b", b"x" * 400)))).success
