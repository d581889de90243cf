"""The event stream over real HTTP, with several keys."""

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from apexbridge.monitoring.event_feed import MAX_KEY_STREAMS
from tests.making import skill_zip
from tests.surfaces.conftest import StartServer
from tests.surfaces.keyed_server import ZIP, KeyedServer, error_of, start_keyed_server
from tests.waiting import PATIENCE_SECONDS, wait_until

Json = dict[str, Any]
ECHO = "print('done')\n"


class Stream:
    """Reads events of an open response."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()

    def next(self) -> tuple[str, str, Json]:
        """Id, kind and data of the next event."""
        fields: dict[str, str] = {}
        for line in self._lines:
            assert not line.startswith(":"), "a heartbeat came instead of an event"
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif "data" in fields:
                return fields["id"], fields["event"], json.loads(fields["data"])
        raise EOFError

    def until(self, kind: str, **expected: Any) -> Json:
        """The data of the next event of this kind with these fields."""
        while True:
            _, found, data = self.next()
            if found == kind and expected.items() <= data.items():
                return data


@contextmanager
def stream(server: KeyedServer, key: str, **headers: str) -> Iterator[Stream]:
    with server.client(key, **headers) as client, client.stream("GET", "/api/events") as response:
        assert response.status_code == 200
        yield Stream(response)


@pytest.fixture(scope="module")
def keyed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedServer]:
    with start_keyed_server(tmp_path_factory.mktemp("events") / "data") as opened:
        for archive in (
            skill_zip("says", {"scripts/execute.py": ECHO}),
            skill_zip("wipe", {"scripts/execute.py": ECHO}, dangerous=True),
        ):
            opened.request("POST", "/api/skills", "admin", content=archive, headers=ZIP).raise_for_status()
        yield opened


def test_the_stream_needs_the_scope_read_and_is_never_cached(keyed_server: KeyedServer) -> None:
    assert error_of(keyed_server.request("GET", "/api/events")) == (401, "RequestError", "UNAUTHORIZED")
    assert error_of(keyed_server.request("GET", "/api/events", "run")) == (403, "RequestError", "FORBIDDEN")
    with stream(keyed_server, "read") as events:
        assert events.response.headers["content-type"].startswith("text/event-stream")
        assert events.response.headers["cache-control"] == "no-store"
        _, kind, data = events.next()
        assert (kind, data["approvals"]) == ("hello", None)
        assert data["instance"] == json.loads((keyed_server.server.data_dir / "server.json").read_text())["instance"]


def test_a_key_sees_its_own_run_and_the_admin_sees_all(keyed_server: KeyedServer) -> None:
    own = keyed_server.create_key("read", "run")
    keyed_server.keys["own"] = own["key"]
    with stream(keyed_server, "admin") as admin, stream(keyed_server, "own") as reader:
        admin.next()
        reader.next()
        for key in ("run", "own"):
            keyed_server.request("POST", "/api/skills/says/execute", key, json={}).raise_for_status()
        seen = [admin.until("run", state="completed")["caller"] for _ in range(2)]
        assert seen[1] == own["id"] != seen[0]
        for state in ("pending", "running", "completed"):
            assert reader.until("run")["state"] == state
        refused = keyed_server.request("POST", "/api/skills/wipe/execute", "own", json={})
        identity = refused.json()["details"]["approvalId"]
        assert reader.until("approval")["id"] == identity
        assert admin.until("approval", id=identity)["state"] == "waiting"
        assert admin.until("counts")["approvals"] == 1
        keyed_server.request("POST", f"/api/approvals/{identity}", "admin", json={"approve": False})
        assert admin.until("approval", id=identity)["state"] == "denied"
        assert admin.until("counts")["approvals"] == 0


def test_a_broken_stream_resumes_without_a_gap(keyed_server: KeyedServer) -> None:
    with stream(keyed_server, "admin") as events:
        last, _, _ = events.next()
    changes: list[str] = []
    for change in ("disable", "enable"):
        changes.append(f"{change}d")
        keyed_server.request("POST", f"/api/tools/skill:says/{change}", "admin").raise_for_status()
        with stream(keyed_server, "admin", **{"last-event-id": last}) as events:
            assert events.next()[:2] == (last, "hello")
            assert [events.until("skills")["change"] for _ in changes] == changes


def test_the_stream_of_a_revoked_key_ends(keyed_server: KeyedServer) -> None:
    made = keyed_server.create_key("read")
    keyed_server.keys["revoked"] = made["key"]
    with stream(keyed_server, "revoked") as events:
        events.next()
        keyed_server.request("DELETE", f"/api/keys/{made['id']}", "admin").raise_for_status()
        with pytest.raises(EOFError):
            events.next()


def test_a_key_has_a_limited_number_of_streams_and_vanished_clients_free_theirs(keyed_server: KeyedServer) -> None:
    keyed_server.keys["many"] = keyed_server.create_key("read")["key"]
    with ExitStack() as stack:
        opened = [stack.enter_context(stream(keyed_server, "many")) for _ in range(MAX_KEY_STREAMS)]
        assert {events.next()[1] for events in opened} == {"hello"}
        with keyed_server.client("many") as client, client.stream("GET", "/api/events") as refused:
            assert refused.status_code == 429
            refused.read()
            assert error_of(refused) == (429, "RequestError", "RATE_LIMITED")
            assert refused.headers["retry-after"]
    wait_until(lambda: _status(keyed_server, "many") == 200)


def _status(server: KeyedServer, key: str) -> int:
    with server.client(key) as client, client.stream("GET", "/api/events") as response:
        return response.status_code


def test_a_client_that_does_not_read_holds_up_nothing(keyed_server: KeyedServer) -> None:
    address = urlsplit(keyed_server.server.url)
    head = f"GET /api/events HTTP/1.1\r\nHost: {address.netloc}\r\nX-Api-Key: {keyed_server.keys['admin']}\r\n\r\n"
    with socket.create_connection((address.hostname, address.port), PATIENCE_SECONDS) as stuck:
        stuck.sendall(head.encode())
        with stream(keyed_server, "admin") as events:
            events.next()
            keyed_server.request("POST", "/api/skills/says/execute", "run", json={}).raise_for_status()
            assert events.until("run", state="completed")["skill"] == "says"


@pytest.mark.slow
def test_open_streams_end_at_once_when_the_server_stops(start_server: StartServer, data_dir: Path) -> None:
    server = start_server()
    with httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS, trust_env=False) as client, ExitStack() as stack:
        opened = [Stream(stack.enter_context(client.stream("GET", "/api/events"))) for _ in range(3)]
        first = [events.next() for events in opened]
        server.process.send_signal(signal.SIGTERM)
        for events in opened:
            with pytest.raises(EOFError):
                events.next()
        assert server.process.wait(PATIENCE_SECONDS) == 0
    again = start_server(folder=data_dir)
    headers = {"last-event-id": first[0][0]}
    with httpx.stream("GET", f"{again.url}/api/events", headers=headers, timeout=PATIENCE_SECONDS) as response:
        events = Stream(response)
        assert events.next()[2]["instance"] != first[0][2]["instance"]
        assert events.next()[1] == "reset"
