"""The console's files over HTTP: who gets them, with which headers, and what is shown if they were not built."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.types import Message, Scope

from apexbridge.bridge import Bridge
from apexbridge.surfaces.console.built_files import MANIFEST, PROBLEM, ConsoleFiles
from apexbridge.surfaces.http.app import create_app
from apexbridge.surfaces.http.middleware.auth import Access
from apexbridge.surfaces.http.transport.response_pacing import UnreadAnswers
from tests.waiting import until

pytestmark = pytest.mark.anyio
PAGE = b'<!doctype html><script type="module" src="./assets/index-0a1b.js"></script>' + b" " * 2000
SCRIPT = b"console.log('hello')\n" * 100
ICON = b'<svg xmlns="http://www.w3.org/2000/svg"/>'
PLAIN = {"accept-encoding": "identity"}


def write_console(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    (folder / MANIFEST).write_text(json.dumps({"source": "", "files": digests}))


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    folder = tmp_path / "dist"
    write_console(folder, {"index.html": PAGE, "assets/index-0a1b.js": SCRIPT, "icon.svg": ICON})
    return folder


def client_of(bridge: Bridge, folder: Path, *, keys_required: bool = False) -> httpx.AsyncClient:
    app = create_app(bridge, Access(bound="127.0.0.1", keys_required=keys_required), console=ConsoleFiles(folder))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


@pytest.fixture
async def client(bridge: Bridge, dist: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(bridge, dist, keys_required=True) as opened:
        yield opened


async def test_the_page_needs_no_key_and_has_a_strict_policy(client: httpx.AsyncClient) -> None:
    response = await client.get("/")
    assert (response.status_code, response.content) == (200, PAGE)
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers.get_list("content-security-policy") == [
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
        "img-src 'self' blob:; require-trusted-types-for 'script'; trusted-types svelte-trusted-html"
    ]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["x-frame-options"] == "DENY"
    assert response.headers["cross-origin-opener-policy"] == "same-origin"


async def test_assets_are_immutable_and_have_the_type_of_their_name(client: httpx.AsyncClient) -> None:
    script = await client.get("/assets/index-0a1b.js")
    assert (script.content, script.headers["content-type"]) == (SCRIPT, "text/javascript; charset=utf-8")
    assert script.headers["cache-control"] == "public, max-age=31536000, immutable"
    icon = await client.get("/icon.svg")
    assert (icon.content, icon.headers["content-type"]) == (ICON, "image/svg+xml")
    assert icon.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["/", "/assets/index-0a1b.js"])
async def test_files_are_compressed_if_the_client_accepts_it(client: httpx.AsyncClient, path: str) -> None:
    compressed = await client.get(path, headers={"accept-encoding": "br, gzip;q=0.5"})
    plain = await client.get(path, headers=PLAIN)
    assert compressed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert int(compressed.headers["content-length"]) < int(plain.headers["content-length"])
    assert compressed.content == plain.content
    assert compressed.headers["etag"] != plain.headers["etag"]
    assert {compressed.headers["vary"], plain.headers["vary"]} == {"Accept-Encoding"}


@pytest.mark.parametrize("path", ["/", "/assets/index-0a1b.js", "/icon.svg"])
async def test_a_file_that_the_client_has_is_not_sent_again(client: httpx.AsyncClient, path: str) -> None:
    etag = (await client.get(path)).headers["etag"]
    for sent in (etag, f'"other", W/{etag}', "*"):
        again = await client.get(path, headers={"if-none-match": sent})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert (await client.get(path, headers={"if-none-match": '"other"'})).status_code == 200


async def test_head_answers_with_the_same_headers(client: httpx.AsyncClient) -> None:
    for path in ("/", "/assets/index-0a1b.js", "/icon.svg"):
        head, get = await client.head(path), await client.get(path)
        assert head.status_code == 200
        for name in ("etag", "content-length", "content-type", "cache-control", "content-security-policy"):
            assert head.headers[name] == get.headers[name]


@pytest.mark.parametrize(
    "path",
    [
        "/assets/none.js",
        "/assets/index-0a1b.js.gz",
        "/assets/..%2findex.html",
        "/assets/%2e%2e/manifest.json",
        "/assets/" + "a" * 5000,
        "/assets/%00",
    ],
)
async def test_only_files_of_the_manifest_exist(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(path)
    assert (response.status_code, response.json()["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize("path", ["/index.html", "/manifest.json", "/assets", "/skills", "/favicon.ico"])
async def test_other_paths_stay_json_errors(bridge: Bridge, dist: Path, path: str) -> None:
    async with client_of(bridge, dist) as client:
        response = await client.get(path)
        assert (response.status_code, response.json()["code"]) == (404, "NOT_FOUND")
    async with client_of(bridge, dist, keys_required=True) as client:
        assert (await client.get(path)).status_code == 401


async def test_clients_that_do_not_read_files_use_no_memory_of_others(bridge: Bridge, tmp_path: Path) -> None:
    write_console(tmp_path / "large", {"index.html": PAGE, "assets/large-1.js": SCRIPT * 200})
    app = create_app(bridge, console=ConsoleFiles(tmp_path / "large"))
    reading = asyncio.Event()
    sent = b""

    async def send(message: Message) -> None:
        nonlocal sent
        if message.get("body"):
            await reading.wait()
            sent += message["body"]

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope: Scope = {"type": "http", "method": "GET", "path": "/assets/large-1.js", "query_string": b"", "state": {}}
    scope["headers"] = [(b"host", b"localhost")]
    task = asyncio.create_task(app(scope, receive, send))
    await until(lambda: "apexbridge.unread" in scope.get("extensions", {}))
    await asyncio.sleep(0)
    unread: UnreadAnswers = scope["extensions"]["apexbridge.unread"]
    assert unread.bytes_of("") == 0
    reading.set()
    await task
    assert sent == SCRIPT * 200


async def test_other_methods_are_refused(bridge: Bridge, dist: Path) -> None:
    async with client_of(bridge, dist) as client:
        for path in ("/", "/icon.svg", "/assets/index-0a1b.js"):
            response = await client.post(path, json={})
            assert (response.status_code, response.json()["code"]) == (405, "METHOD_NOT_ALLOWED")


async def test_a_page_that_was_not_built_says_how_to_build_it(bridge: Bridge, tmp_path: Path) -> None:
    folder = tmp_path / "none"
    async with client_of(bridge, folder, keys_required=True) as client:
        response = await client.get("/")
        assert response.status_code == 503
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        assert response.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert "make console" in response.text
        assert "<script" not in response.text
        assert (await client.get("/icon.svg")).status_code == 404

        folder.mkdir()
        (folder / PROBLEM).write_text("npm: <script>alert(1)</script> {reason} not found")
        text = (await client.get("/")).text
        assert "<script" not in text
        assert "npm: &lt;script&gt;alert(1)&lt;/script&gt; {reason} not found" in text


async def test_another_build_is_served_without_a_restart(bridge: Bridge, tmp_path: Path) -> None:
    folder = tmp_path / "later"
    async with client_of(bridge, folder) as client:
        assert (await client.get("/")).status_code == 503
        write_console(folder, {"index.html": b"first"})
        first = await client.get("/")
        write_console(folder, {"index.html": b"second", "assets/new-1.js": SCRIPT})
        assert (await client.get("/assets/new-1.js")).content == SCRIPT
        second = await client.get("/", headers={"if-none-match": first.headers["etag"]})
        assert (first.content, second.content) == (b"first", b"second")


@pytest.mark.parametrize("manifest", ["", "[]", "{}", '{"files": ["index.html"]}', '{"files": {"icon.svg": 1}}', "\0"])
async def test_a_damaged_build_is_not_served(bridge: Bridge, dist: Path, manifest: str) -> None:
    (dist / MANIFEST).write_text(manifest)
    async with client_of(bridge, dist) as client:
        response = await client.get("/")
        assert response.status_code == 503
        assert "The built files cannot be read" in response.text


async def test_a_build_with_a_missing_file_is_not_served(bridge: Bridge, dist: Path) -> None:
    (dist / "assets/index-0a1b.js").unlink()
    async with client_of(bridge, dist) as client:
        assert (await client.get("/")).status_code == 503
