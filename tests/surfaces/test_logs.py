"""Logs: only a record starts a line, and no control characters reach the terminal."""

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from apexbridge.surfaces.cli.terminal_text import LOG_FORMAT, JsonFormatter, SafeFormatter, set_up_logging
from tests.surfaces.conftest import APEX, Apex, environment

HOSTILE = "name\nERROR apexbridge.storage.audit: FORGED\r\x1b[31m\x7f\x9b2J\u2028\u2029\u202e\u2066\t"


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(SafeFormatter(LOG_FORMAT))
    logger = logging.getLogger("here")
    logger.addHandler(handler)
    logger.propagate = False
    yield logger, stream
    logger.removeHandler(handler)


def lines_of(stream: io.StringIO) -> list[str]:
    text = stream.getvalue()
    assert text.endswith("\n")
    lines = text[:-1].split("\n")
    assert all(line.isprintable() for line in lines), lines
    return lines


def test_a_message_with_control_characters_is_one_line(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = log
    logger.error("model %s failed", HOSTILE)
    logger.error(HOSTILE)
    (first, second) = lines_of(stream)
    assert first.startswith(r"ERROR here: model name\nERROR apexbridge.storage.audit: FORGED\r\x1b[31m\x7f\x9b2J\u2028")
    assert second.startswith("ERROR here: name")


def test_printable_text_is_unchanged(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = log
    logger.warning("合并 naïve “quoted” \\n 👍")
    assert lines_of(stream) == ["WARNING here: 合并 naïve “quoted” \\n 👍"]


def test_a_traceback_is_indented_to_differ_from_records(
    log: tuple[logging.Logger, io.StringIO],
) -> None:
    logger, stream = log
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logger.exception("it failed", stack_info=True)
    first, *others = lines_of(stream)
    assert first == "ERROR here: it failed"
    assert any("ERROR apexbridge.storage.audit: FORGED" in line for line in others)
    assert others
    assert all(line.startswith("    ") for line in others)
    assert "    Traceback (most recent call last):" in others


def test_the_command_line_uses_the_safe_format(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    set_up_logging()
    logging.getLogger("uvicorn.error").error("a\nb")
    assert stream.getvalue() == "ERROR uvicorn.error: a\\nb\n"


def test_a_lone_surrogate_is_escaped() -> None:
    record = logging.makeLogRecord({"name": "here", "levelname": "ERROR", "msg": "a \udc80 b"})
    assert SafeFormatter(LOG_FORMAT).format(record) == r"ERROR here: a \udc80 b"


# ------------------------------------------------------------------------------------------------------- server
@contextmanager
def serving(data_dir: Path, *arguments: str, until: str, **env: str) -> Iterator[tuple[str, Iterator[str]]]:
    """Start a server and yield its address and the lines it logs from then on."""
    command = [*APEX, "serve", "--port", "0", "--data-dir", str(data_dir), *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(**env)) as process:
        assert process.stderr is not None
        lines = iter(process.stderr)
        address = ""
        for line in lines:
            address = address or next(iter(re.findall(r"http://[\d.]+:\d+", line)), "")
            if until in line:
                break
        try:
            yield address, lines
        finally:
            process.terminate()
            process.communicate(timeout=60)


def test_requests_are_logged_with_time_level_and_key_and_without_secrets(apex: Apex, data_dir: Path) -> None:
    key = apex("keys", "create", "--name", "my laptop", "--scope", "read", "--json").json["key"]
    with (
        serving(data_dir, until="Ctrl-C") as (address, lines),
        httpx.Client(base_url=address, trust_env=False) as client,
    ):
        client.get("/healthz")  # not logged
        headers = {"authorization": f"Bearer {key}", "x-request-id": "my-request"}
        answered = client.get("/api/skills", params={"name": "secret-word"}, headers=headers)
        assert answered.headers["x-request-id"] == "my-request"
        line = next(lines).rstrip("\n")
        assert re.fullmatch(
            r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO apexbridge\.access: "
            r"GET /api/skills 200 \d+ ms request=my-request key=my laptop",
            line,
        )
        missing = client.get("/api/x%0AFORGED", params={"api_key": key})
        line = next(lines)
        assert "GET /api/x\\nFORGED 401 " in line
        assert missing.headers["x-request-id"] in line
        assert "key=-" in line
        assert key not in line


@pytest.mark.parametrize("by", ["flag", "environment"])
def test_the_log_of_a_server_can_be_json(data_dir: Path, by: str) -> None:
    arguments = ("--log-format", "json") if by == "flag" else ()
    env = {} if by == "flag" else {"APEX_LOG_FORMAT": "json"}
    with serving(data_dir, *arguments, until="serving at", **env) as (address, lines):
        httpx.get(f"{address}/api/nothing", headers={"x-request-id": "r-1"}, trust_env=False)
        line = json.loads(next(lines))
    assert line.pop("time").endswith("Z")
    assert line.pop("durationMs") >= 0
    assert line.pop("message").startswith("GET /api/nothing 404 ")
    assert line == {
        "level": "INFO",
        "logger": "apexbridge.access",
        "method": "GET",
        "path": "/api/nothing",
        "status": 404,
        "requestId": "r-1",
        "key": None,
    }


def test_an_unknown_log_format_is_refused(apex: Apex, monkeypatch: pytest.MonkeyPatch) -> None:
    assert apex("serve", "--log-format", "xml").code == 2
    monkeypatch.setenv("APEX_LOG_FORMAT", "xml")
    assert "APEX_LOG_FORMAT" in apex("serve", "--port", "0").err


def test_a_json_line_contains_the_traceback_and_no_control_characters() -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        record = logging.getLogger("x").makeRecord("x", 40, "", 0, HOSTILE, (), sys.exc_info())
    line = JsonFormatter().format(record)
    assert line.isprintable()
    assert line.isascii()
    read = json.loads(line)
    assert (read["level"], read["message"]) == ("ERROR", HOSTILE)
    assert "ValueError" in read["traceback"]
