"""The input of a run: variables, arguments, JSON."""

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexbridge.errors import InvalidInputError
from apexbridge.sandbox.models import Grants, InputFile, Job
from apexbridge.sandbox.run_input import (
    MAX_ARGUMENT_BYTES,
    MAX_VARIABLE_BYTES,
    arguments,
    base_environment,
    encode_job,
    encode_shell_job,
    environment,
    input_json,
)
from tests.sandbox.properties import unhurried

readable = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | readable,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(readable, inner, max_size=3),
    max_leaves=10,
)


def job(**fields: Any) -> Job:
    return Job(**{"skill": "tried", "folder": Path("skill"), "script": "run.py", "timeout_ms": 1500, **fields})


def variables_of(made: Job) -> dict[str, str]:
    base = base_environment("/w", "/bin")
    return environment(made, base, skill_path="/s", skills_path="/skills", input_text=input_json(made))


def options_of(payload: dict[str, Any]) -> list[str]:
    return arguments(job(is_entry=False, input=payload))


# ----------------------------------------------------------------------------------------------------- variables
@pytest.mark.requirement("B8")
def test_a_run_has_these_variables_and_no_others() -> None:
    assert variables_of(job(input={"text": "日本"})) == {
        "PATH": "/bin",
        "HOME": "/w",
        "TMPDIR": "/w/tmp",
        "SKILL_NAME": "tried",
        "SKILL_PATH": "/s",
        "TIMEOUT": "1500",
        "INPUT_JSON": '{"text":"日本"}',
    }


def test_code_that_belongs_to_no_skill_has_no_variables_of_one() -> None:
    assert variables_of(Job(script=".code.py", code="1", timeout_ms=1500)) == {
        "PATH": "/bin",
        "HOME": "/w",
        "TMPDIR": "/w/tmp",
        "TIMEOUT": "1500",
        "LC_CTYPE": "C.UTF-8",
    }


@pytest.mark.requirement("B20")
def test_granted_variables_are_added_and_do_not_replace_ours() -> None:
    grants = Grants(variables={"LANG": "C", "SKILL_PATH": "/elsewhere", "TIMEOUT": "1"}, secrets={"TOKEN": "t"})
    found = variables_of(job(grants=grants))
    assert (found["LANG"], found["TOKEN"], found["SKILL_PATH"], found["TIMEOUT"]) == ("C", "t", "/s", "1500")


@pytest.mark.requirement("B8")
@given(st.dictionaries(readable, json_values, max_size=4))
@unhurried
def test_input_can_be_read_back_unchanged(payload: dict[str, Any]) -> None:
    assert json.loads(variables_of(job(input=payload))["INPUT_JSON"]) == payload


@pytest.mark.requirement("B8")
@pytest.mark.parametrize("letter", ["x", "é", "日", "🐛"])
def test_input_too_large_for_a_variable_is_on_stdin_only(letter: str) -> None:
    around = len(json.dumps({"a": ""}, separators=(",", ":"))) + len("INPUT_JSON=")
    fits = (MAX_VARIABLE_BYTES - around) // len(letter.encode())
    assert "INPUT_JSON" in variables_of(job(input={"a": letter * fits}))
    assert "INPUT_JSON" not in variables_of(job(input={"a": letter * (fits + 1)}))


@pytest.mark.requirement("B19")
def test_input_files_are_named_in_the_input() -> None:
    files = tuple(InputFile(name=name, file=io.BytesIO()) for name in ("a.txt", "b c.txt"))
    report = json.loads(input_json(job(input={"files": "mine", "x": 1}, files=files)))
    assert report == {"files": ["input/a.txt", "input/b c.txt"], "x": 1}


# ----------------------------------------------------------------------------------------------------- arguments
@pytest.mark.requirement("B18")
def test_a_list_of_strings_is_the_argv() -> None:
    words = ("", "-x", "--", "a b", "日本", "$(id)", "'\"\\")
    assert arguments(job(args=words)) == list(words)
    assert arguments(job(args=words, is_entry=False, input={"a": 1})) == list(words)


@pytest.mark.requirement("B18")
def test_an_entry_script_gets_no_options_from_its_input() -> None:
    assert arguments(job(input={"a": 1})) == []


@pytest.mark.requirement("B18")
@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"name": "value"}, ["--name", "value"]),
        ({"name": ""}, ["--name", ""]),
        ({"count": 3, "ratio": 0.5}, ["--count", "3", "--ratio", "0.5"]),
        ({"yes": True, "no": False, "nothing": None}, ["--yes"]),
        ({"each": ["a", "b"]}, ["--each", "a", "--each", "b"]),
        ({"each": [1, True, None, "-x"]}, ["--each", "1", "--each", "--each=-x"]),
        ({"each": []}, []),
        ({"below": -1, "like": "--name", "dash": "-"}, ["--below=-1", "--like=--name", "--dash=-"]),
        ({"deep": {"a": "日"}}, ["--deep", '{"a": "日"}']),
        ({"nested": [["a"], {"b": 1}]}, ["--nested", '[["a"], {"b": 1}]']),
        ({"first": 1, "second": 2}, ["--first", "1", "--second", "2"]),
    ],
)
def test_an_object_becomes_options_for_a_helper(payload: dict[str, Any], words: list[str]) -> None:
    assert options_of(payload) == words


@pytest.mark.requirement("B18")
@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), readable.filter(lambda text: "\0" not in text)))
@unhurried
def test_no_value_is_mistaken_for_an_option(payload: dict[str, str]) -> None:
    words = options_of(payload)
    names = [word.partition("=")[0] for word in words if word.startswith("-")]
    assert names == [f"--{key}" for key in payload]


@pytest.mark.parametrize("fields", [{"args": ("a\0b",)}, {"is_entry": False, "input": {"a": "b\0"}}])
def test_an_argument_cannot_hold_a_nul(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        arguments(job(**fields))
    assert caught.value.code == "INVALID_INPUT"


@pytest.mark.parametrize("args", [("x" * (MAX_VARIABLE_BYTES + 1),), ("x" * 100_000,) * 11])
def test_arguments_that_the_kernel_would_refuse_are_refused_in_advance(args: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        arguments(job(args=args))
    assert caught.value.code == "INVALID_INPUT"
    assert arguments(job(args=("x" * MAX_VARIABLE_BYTES,) * (MAX_ARGUMENT_BYTES // MAX_VARIABLE_BYTES)))


# --------------------------------------------------------------------------------------------- a job for a loader
line = readable.filter(lambda text: "\0" not in text)


@given(line, st.lists(line, max_size=4), st.dictionaries(line, line, max_size=4))
@unhurried
def test_an_encoded_job_can_be_decoded(script: str, words: list[str], variables: dict[str, str]) -> None:
    fields = [field.decode() for field in encode_job(script, words, variables, root="/s", module="m").split(b"\0")]
    assert fields.pop() == ""
    count = int(fields[4])
    assert (fields[:4], fields[5 : 5 + count]) == ([script, "m", "/s", ""], words)
    tail = fields[5 + count :]
    assert dict(zip(tail[::2], tail[1::2], strict=True)) == variables


def test_a_waiting_shell_starts_the_script_with_its_variables_but_without_them_in_a_command_line() -> None:
    variables = {"INPUT_JSON": """it's $HOME `id` \\ "é"\n""", "EMPTY": ""}
    listing = ["/usr/bin/env", "-0"]
    job = encode_shell_job(listing, variables, folder="/")
    *_, last = job.decode().splitlines()
    assert last == "exec 3<&- /usr/bin/env -0"
    shell = subprocess.run(["/bin/sh"], input=job, env={"OLDPWD": "/tmp"}, capture_output=True, check=True)
    found = dict(word.split("=", 1) for word in shell.stdout.decode().split("\0") if word)
    assert {name: value for name, value in found.items() if name not in {"_", "SHLVL", "PWD"}} == variables
