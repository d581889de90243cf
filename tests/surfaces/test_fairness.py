"""One key floods a resource, over real HTTP; a request of another key still succeeds, and what was held is freed."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from apexbridge.bridge import Bridge
from apexbridge.monitoring import event_feed
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.skills.runs import input_files
from apexbridge.surfaces.http.app import create_app
from apexbridge.surfaces.http.middleware import limits
from apexbridge.surfaces.http.middleware.auth import Access
from apexbridge.surfaces.mcp import changes
from apexbridge.tools import approvals
from tests.chat.live import TIMEOUT_SECONDS, Live, environment_of_servers, live, request_of
from tests.chat.upstream import Step, Upstream, upstreams
from tests.making import skill_zip
from tests.waiting import wait_until

SLEEP = "import time\nprint('begun', flush=True)\ntime.sleep(300)\n"
QUEUE = 5
"""With the only active run, six places: three for one key."""
ZIP = {"content-type": "application/zip"}
MCP = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


@pytest.fixture(scope="module", autouse=True)
def _no_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with environment_of_servers(tmp_path_factory.mktemp("cwd")):
        yield


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with upstreams() as opened:
        yield opened


@pytest.fixture(scope="module")
def served(
    upstream: Upstream, embedder: Embedder, tmp_path_factory: pytest.TempPathFactory, _no_settings: None
) -> Iterator[Live]:
    def app(bridge: Bridge) -> Any:
        return create_app(bridge, Access(bound="127.0.0.1", keys_required=True, owner="owner"))

    folder = tmp_path_factory.mktemp("served") / "data"
    with live(
        folder, upstream, embedder, app=app, sandbox_max_concurrency=1, sandbox_queue=QUEUE, rate_limit=0
    ) as opened:
        opened.install("sleeper", {"scripts/execute.py": SLEEP}, description="Waits for a long time.")
        opened.install("shouter", {"scripts/execute.py": "print('LOUD')\n"}, description="Says things loudly.")
        opened.install("eraser", {"scripts/execute.py": "print('ERASED')\n"}, description="Deletes.", dangerous=True)
        yield opened


class Client:
    """A key and its HTTP client."""

    def __init__(self, served: Live, *scopes: str, **limits: Any) -> None:
        self.key, self.text = served.do(served.bridge.keys.create("made", scopes, limits=limits))  # type: ignore[arg-type]
        self.served = served
        self.headers = {"authorization": f"Bearer {self.text}"}
        self.http = httpx.Client(base_url=served.url, timeout=TIMEOUT_SECONDS, trust_env=False, headers=self.headers)

    @property
    def usage(self) -> dict[str, dict[str, Any]]:
        shown = self.http.get("/api/session?usage=true").raise_for_status().json()
        return {row["resource"]: row for row in shown["usage"]}

    def used(self, resource: str) -> int:
        return int(self.usage[resource]["used"])

    def run(self, skill: str, **fields: Any) -> httpx.Response:
        return self.http.post(f"/api/skills/{skill}/execute", json=fields)

    @contextmanager
    def connection(self, head: str, body: bytes = b"") -> Iterator[socket.socket]:
        """A connection with a request that may be incomplete."""
        address = urlsplit(self.served.url)
        with socket.create_connection((address.hostname or "", address.port or 0), TIMEOUT_SECONDS) as opened:
            opened.sendall(f"{head}\r\nhost: localhost\r\nx-api-key: {self.text}\r\n\r\n".encode() + body)
            yield opened


@contextmanager
def client(served: Live, *scopes: str, **limits: Any) -> Iterator[Client]:
    opened = Client(served, *scopes, **limits)
    with opened.http:
        yield opened


def refused(response: httpx.Response, code: str) -> None:
    assert (response.status_code, response.json()["code"]) == (429, code), response.text
    assert int(response.headers["retry-after"]) > 0


def test_runs_of_one_key_do_not_keep_out_another(served: Live) -> None:
    with client(served, "run", "read") as loud, client(served, "run", "read") as quiet:
        runs = [loud.run("sleeper", wait=False).raise_for_status().json()["id"] for _ in range((1 + QUEUE) // 2)]
        refused(loud.run("sleeper", wait=False), "QUEUE_FULL")
        queue = loud.usage["active-and-waiting-runs"]
        assert (queue["used"], queue["limit"], queue["share"]) == (3, 3, 1.0)
        assert quiet.used("active-and-waiting-runs") == 0
        waiting = quiet.run("shouter", wait=False).raise_for_status().json()["id"]
        loud.http.post(f"/api/executions/{runs[0]}/cancel").raise_for_status()
        # The first place that is free goes to the other key, not to the runs that waited before.
        wait_until(lambda: quiet.http.get(f"/api/executions/{waiting}").json()["state"] == "completed")
        assert loud.http.get(f"/api/executions/{runs[2]}").json()["state"] == "pending"
        for run in runs[1:]:
            loud.http.post(f"/api/executions/{run}/cancel").raise_for_status()
        wait_until(lambda: loud.used("active-and-waiting-runs") == 0)


def test_a_full_queue_has_a_place_for_a_key_without_a_run(served: Live) -> None:
    with ExitStack() as stack:
        loud = [stack.enter_context(client(served, "run", "read")) for _ in range(2)]
        runs = [(one, one.run("sleeper", wait=False).raise_for_status().json()["id"]) for one in loud for _ in range(3)]
        quiet = stack.enter_context(client(served, "run", "read"))
        runs.append((quiet, quiet.run("sleeper", wait=False).raise_for_status().json()["id"]))
        refused(quiet.run("sleeper", wait=False), "QUEUE_FULL")
        for one, run in reversed(runs):
            one.http.post(f"/api/executions/{run}/cancel").raise_for_status()
        wait_until(lambda: all(one.used("active-and-waiting-runs") == 0 for one in (*loud, quiet)))


def test_two_requests_cannot_both_take_the_last_place(served: Live) -> None:
    with client(served, "run", "read") as loud:
        answers: list[httpx.Response] = []

        def start() -> None:
            answers.append(loud.run("sleeper", wait=False))

        threads = [threading.Thread(target=start) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        accepted = [answer.json()["id"] for answer in answers if answer.status_code == 202]
        assert len(accepted) == 3
        for run in accepted:
            loud.http.delete(f"/api/executions/{run}").raise_for_status()
        assert loud.used("active-and-waiting-runs") == 0


def test_a_key_can_have_fewer_requests_a_minute(served: Live) -> None:
    with client(served, "run", rate_limit=2) as limited, client(served, "run", "read") as other:
        call = {"input": {"expression": "1"}}
        wait_until(lambda: limited.http.post("/api/tools/calculate/execute", json=call).status_code == 429)
        assert other.usage["requests-this-minute"]["limit"] is None
        changed = served.http.patch(
            f"/api/keys/{limited.key.id}", json={"rateLimit": 600}, headers={"authorization": "Bearer owner"}
        )
        assert changed.raise_for_status().json()["rateLimit"] == 600
        wait_until(lambda: limited.http.get("/api/session").status_code == 200)


def test_chats_of_one_key_do_not_keep_out_another(served: Live, upstream: Upstream) -> None:
    hanging, quick = upstream.play(*[Step(hang_after=-1)] * 20), upstream.play(Step(text="done"))
    with client(served, "chat") as loud, client(served, "chat") as quiet, ExitStack() as stack:
        body = json.dumps(request_of(hanging)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        for _ in range(20):
            stack.enter_context(loud.connection(head, body))
        wait_until(lambda: loud.used("requests") == 21)  # with the request that asks
        answer = quiet.http.post("/v1/chat/completions", json=request_of(quick))
        assert answer.json()["choices"][0]["message"]["content"] == "done"
        stack.close()
        wait_until(lambda: loud.used("requests") == 1)


def test_uploads_of_one_key_do_not_keep_out_another(served: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "MAX_UPLOADS", 4 * 3)
    with client(served, "chat") as loud, client(served, "chat") as quiet:
        files = {"file": ("a.txt", b"text")}

        def store(one: Client) -> httpx.Response:
            return one.http.post("/v1/files", files=files, data={"purpose": "user_data"})

        stored = [store(loud).raise_for_status().json()["id"] for _ in range(3)]
        answer = store(loud)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "QUEUE_FULL".lower())
        assert int(answer.headers["retry-after"]) > 0
        store(quiet).raise_for_status()
        assert (loud.used("uploads"), loud.usage["uploads"]["limit"], quiet.used("uploads")) == (3, 3, 1)
        loud.http.delete(f"/v1/files/{stored[0]}").raise_for_status()
        store(loud).raise_for_status()


@pytest.mark.parametrize(
    ("path", "scope", "status"), [("/api/skills/validate", "run", 200), ("/api/skills?overwrite=true", "admin", 201)]
)
def test_slow_uploads_and_installs_of_one_key_do_not_keep_out_another(
    served: Live, path: str, scope: str, status: int
) -> None:
    archive = skill_zip("some")
    head = f"POST {path} HTTP/1.1\r\ncontent-type: application/zip\r\ncontent-length: {len(archive)}"
    with client(served, scope) as loud, client(served, scope) as quiet, ExitStack() as stack:
        for _ in range(limits.MAX_KEY_UPLOADS):
            stack.enter_context(loud.connection(head, archive[:10]))
        wait_until(lambda: loud.used("uploads-in-progress") == limits.MAX_KEY_UPLOADS)
        refused(loud.http.post(path, content=archive, headers=ZIP), "RATE_LIMITED")
        assert quiet.http.post(path, content=archive, headers=ZIP).status_code == status
        stack.close()
        wait_until(lambda: loud.used("uploads-in-progress") == 0)
        assert loud.http.post(path, content=archive, headers=ZIP).status_code in (200, 201)


def test_bodies_of_one_key_do_not_keep_out_another(served: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BYTES", 2_000)
    path, call = "/api/tools/calculate/execute", {"input": {"expression": "1+1"}}
    head = f"POST {path} HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 3000"
    with client(served, "run") as loud, client(served, "run") as quiet, ExitStack() as stack:
        stack.enter_context(loud.connection(head, b" " * 2_500))
        wait_until(lambda: loud.used("request-bytes") == 2_500)
        refused(loud.http.post(path, json=call), "RATE_LIMITED")
        assert quiet.http.post(path, json=call).status_code == 200
        stack.close()
        wait_until(lambda: loud.used("request-bytes") == 0)
        assert loud.http.post(path, json=call).status_code == 200


def test_searches_of_one_key_do_not_keep_out_another(served: Live) -> None:
    turns = served.bridge.retrieval._turns
    with client(served, "read") as loud, client(served, "read") as quiet:
        stack_of_server = AsyncExitStack()

        async def take(caller: str) -> None:
            await stack_of_server.enter_async_context(turns.turn(caller))

        for _ in range(turns.limit):  # as if all threads compared vectors for this key
            served.do(take(loud.key.id))
        statuses: list[tuple[str, int]] = []

        def search(one: Client, name: str) -> None:
            statuses.append((name, one.http.post("/api/skills/search", json={"query": f"say {name}"}).status_code))

        threads = [threading.Thread(target=search, args=(loud, "loud")) for _ in range(20)]
        for thread in threads:
            thread.start()
        wait_until(lambda: turns.waiting_of(loud.key.id) == 20)
        last = threading.Thread(target=search, args=(quiet, "quiet"))
        last.start()
        wait_until(lambda: turns.waiting_of(quiet.key.id) == 1)
        assert turns._next() == quiet.key.id, "the next turn is of the other key"
        served.do(stack_of_server.aclose())
        for thread in (*threads, last):
            thread.join()
        assert dict(statuses) == {"loud": 200, "quiet": 200}
        assert len(statuses) == 21


def test_event_streams_of_one_key_do_not_keep_out_another(served: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "MAX_KEY_STREAMS", 2)
    with client(served, "read") as loud, client(served, "read") as quiet, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(loud.http.stream("GET", "/api/events"))
        refused(loud.http.get("/api/events"), "RATE_LIMITED")
        with quiet.http.stream("GET", "/api/events") as stream:
            assert stream.status_code == 200
        stack.close()
        wait_until(lambda: loud.used("event-streams") == 0)
        with loud.http.stream("GET", "/api/events") as stream:
            assert stream.status_code == 200


def test_approvals_of_one_key_do_not_push_out_those_of_another(served: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "MAX_WAITING_OF_CALLER", 5)
    monkeypatch.setattr(approvals, "MAX_WAITING", 6)
    with client(served, "run") as loud, client(served, "run") as quiet, client(served, "run") as third:
        first = quiet.run("eraser", input={"text": "quiet"}).json()["details"]["approvalId"]
        for number in range(20):
            assert loud.run("eraser", input={"text": str(number)}).status_code == 409
            assert third.run("eraser", input={"text": str(number)}).status_code == 409
        rows = loud.usage["approvals"]
        assert (rows["limit"], rows["total"], rows["totalLimit"]) == (5, 6, 6)
        assert loud.used("approvals") + third.used("approvals") == 5
        owner = {"authorization": "Bearer owner"}
        served.http.post(f"/api/approvals/{first}", json={"approve": True}, headers=owner).raise_for_status()
        assert quiet.run("eraser", input={"text": "quiet"}, approval=first).json()["stdout"] == "ERASED\n"


def test_mcp_sessions_that_are_being_opened_count(served: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MAX_KEY_SESSIONS", 2)
    body = json.dumps(INITIALIZE).encode()
    head = "POST /mcp HTTP/1.1\r\naccept: application/json, text/event-stream\r\ncontent-type: application/json"
    with client(served, "read") as loud, client(served, "read") as quiet, ExitStack() as stack:
        assert quiet.http.post("/mcp", json=INITIALIZE, headers=MCP).status_code == 200
        for _ in range(2):
            stack.enter_context(loud.connection(f"{head}\r\ncontent-length: {len(body)}", body[:10]))
        wait_until(lambda: loud.used("mcp-sessions") == 2)
        assert loud.http.post("/mcp", json=INITIALIZE, headers=MCP).status_code == 429
        assert quiet.http.post("/mcp", json=INITIALIZE, headers=MCP).status_code == 200
        stack.close()
        wait_until(lambda: loud.used("mcp-sessions") == 0)
        assert [loud.http.post("/mcp", json=INITIALIZE, headers=MCP).status_code for _ in "123"] == [200, 200, 429]
        assert loud.used("mcp-sessions") == 2


def test_a_slow_reader_does_not_keep_out_another_key(served: Live) -> None:
    with client(served, "read") as loud, client(served, "read") as quiet, ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(loud.connection("GET /openapi.json HTTP/1.1"))
        wait_until(lambda: loud.used("requests") > 0)
        assert quiet.http.get("/openapi.json").status_code == 200


def test_a_revoked_key_frees_what_waits_for_it(served: Live) -> None:
    owner = {"authorization": "Bearer owner"}
    with client(served, "run", "read") as revoked, ExitStack() as stack:
        stack.enter_context(revoked.http.stream("GET", "/api/events"))
        revoked.run("eraser", input={"text": "x"})
        assert (revoked.used("approvals"), revoked.used("event-streams")) == (1, 1)
        served.http.delete(f"/api/keys/{revoked.key.id}", headers=owner).raise_for_status()

        def held() -> dict[str, int]:
            shown = served.http.get(f"/api/keys/{revoked.key.id}", headers=owner).raise_for_status().json()
            return {row["resource"]: row["used"] for row in shown["usage"] if row["used"]}

        assert "approvals" not in held()
        wait_until(lambda: "event-streams" not in held())
