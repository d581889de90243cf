"""Logs: only a record starts a line, and no control characters reach the terminal."""

import asyncio
import io
import json
import logging
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from apexbridge._request_id import REQUEST_ID
from apexbridge._tasks import start_shared
from apexbridge.surfaces.cli.terminal_text import LOG_FORMAT, JsonFormatter, SafeFormatter, set_up_logging
from apexbridge.surfaces.http.transport.requests import request_id
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
            r"GET /api/skills 200 \d+ ms key=my laptop request=my-request",
            line,
        )
        missing = client.get("/api/x%0AFORGED", params={"api_key": key})
        line = next(lines)
        assert "GET /api/x\\nFORGED 401 " in line
        assert missing.headers["x-request-id"] in line
        assert "key=-" in line
        assert key not in line
        client.get(f"/api/{key}", headers={"x-request-id": key})
        line = next(lines)
        assert key not in line
        assert line.count(f"{key[:13]}_***") == 2


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


@pytest.mark.parametrize("format", ["text", "json"])
def test_every_line_of_a_request_has_its_id(data_dir: Path, format: str) -> None:
    with serving(data_dir, "--log-format", format, until="Ctrl-C" if format == "text" else "serving at") as (
        address,
        lines,
    ):
        body = {"model": "apex-offline", "messages": [{"role": "user", "content": "what is 2 + 3"}]}
        headers = {"x-request-id": "r-1"}
        httpx.post(f"{address}/v1/chat/completions", json=body, headers=headers, trust_env=False).raise_for_status()
        logged = [next(lines)]
        while "apexbridge.access" not in logged[-1]:
            logged.append(next(lines))
    assert len(logged) == 4  # two turns of the model, a call, and the request
    if format == "text":
        assert all(line.endswith(" request=r-1\n") for line in logged)
    else:
        assert {json.loads(line)["requestId"] for line in logged} == {"r-1"}


def test_an_id_with_a_space_is_not_one() -> None:
    scope = {"headers": [(b"x-request-id", b"a key=admin")]}
    assert request_id(scope).startswith("req_")


def test_commands_log_no_id_of_a_request(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = log
    token = REQUEST_ID.set("r-1")
    try:
        logger.error("it failed")
    finally:
        REQUEST_ID.reset(token)
    assert lines_of(stream) == ["ERROR here: it failed"]


@pytest.mark.anyio
async def test_shared_work_does_not_have_the_id_of_the_request_that_starts_it() -> None:
    async def id_of_request() -> str | None:
        return REQUEST_ID.get()

    token = REQUEST_ID.set("r-1")
    try:
        assert await asyncio.create_task(id_of_request()) == "r-1"
        assert await start_shared(id_of_request()) is None
    finally:
        REQUEST_ID.reset(token)


@pytest.mark.parametrize("by", ["flag", "environment"])
def test_the_level_is_a_setting(data_dir: Path, by: str) -> None:
    arguments = ("--log-level", "warning") if by == "flag" else ()
    env = {} if by == "flag" else {"APEX_LOG_LEVEL": "WARNING"}
    with serving(data_dir, *arguments, until="Ctrl-C", **env) as (address, lines):
        httpx.get(f"{address}/api/skills", trust_env=False).raise_for_status()
        (data_dir / "skills" / "broken").mkdir()
        httpx.post(f"{address}/api/skills/reindex", trust_env=False).raise_for_status()
        assert "Z WARNING apexbridge.skills" in next(lines)


def test_the_access_log_can_be_disabled(data_dir: Path) -> None:
    with serving(data_dir, until="Ctrl-C", APEX_ACCESS_LOG="false") as (address, lines):
        body = {"model": "apex-offline", "messages": [{"role": "user", "content": "hello"}]}
        httpx.get(f"{address}/api/skills", trust_env=False).raise_for_status()
        httpx.post(f"{address}/v1/chat/completions", json=body, trust_env=False).raise_for_status()
        assert "apexbridge.agent" in next(lines)


def test_a_failed_start_is_a_line_of_a_json_log(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [*APEX, "serve", "--port", port, "--data-dir", str(data_dir), "--log-format", "json"]
        result = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert json.loads(line)["code"] == "ADDRESS_IN_USE"
    command = [*APEX, "serve", "--host", "0.0.0.0", "--data-dir", str(data_dir / "new"), "--log-format", "json"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert json.loads(result.stderr)["code"] == "FORBIDDEN"


def test_warnings_and_uncaught_errors_are_lines_of_the_log() -> None:
    program = """
import gc, logging, threading, warnings
from apexbridge.surfaces.http.transport.requests import request_id
from apexbridge.surfaces.cli.terminal_text import log_as_server, python_messages_in_log, set_up_logging

class Resource:
    def __del__(self):
        raise ValueError("in a callback")

def fail():
    raise ValueError("in a thread")

set_up_logging()
log_as_server("text")
with python_messages_in_log():
    warnings.warn("odd", stacklevel=1)
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    Resource()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    records = [line for line in done.stderr.splitlines() if not line.startswith("    ")]
    assert len(records) == 4
    assert all(re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z (?:WARNING|ERROR) [\w.]+: ", line) for line in records)


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
