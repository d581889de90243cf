"""JSON is compressed where the client accepts it, and not sent again if the client has it."""

import gzip
import json

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from apexbridge.surfaces.http.middleware.compression import INLINE_BYTES, MAX_BYTES, MIN_BYTES, CompressedAnswers
from apexbridge.surfaces.http.transport.content_coding import MAX_ELEMENTS, accepts_gzip, is_known
from apexbridge.surfaces.http.transport.response_pacing import (
    CHUNK_BYTES,
    MAX_HELD_BYTES,
    PacedAnswers,
    UnreadAnswers,
)
from tests.making import skill_zip

pytestmark = pytest.mark.anyio
ZIP = {"content-type": "application/zip"}
JSON = "application/json"
PLAIN = {"accept-encoding": "identity"}


@pytest.fixture
async def filled(client: httpx.AsyncClient) -> httpx.AsyncClient:
    for number in range(3):
        description = f"Writes commit messages of kind {number}. " + "Use it for every change of the code. " * 20
        archive = skill_zip(name=f"commit-{number}", description=description)
        (await client.post("/api/skills", content=archive, headers=ZIP)).raise_for_status()
    return client


async def test_a_large_list_is_compressed_if_the_client_accepts_it(filled: httpx.AsyncClient) -> None:
    compressed = await filled.get("/api/skills", headers={"accept-encoding": "gzip"})
    plain = await filled.get("/api/skills", headers=PLAIN)
    assert compressed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert compressed.json() == plain.json()
    assert int(compressed.headers["content-length"]) < int(plain.headers["content-length"]) / 2
    assert {compressed.headers["vary"], plain.headers["vary"]} == {"Accept-Encoding"}
    assert compressed.headers["etag"] == plain.headers["etag"]


async def test_a_list_is_sent_again_only_after_a_change(filled: httpx.AsyncClient) -> None:
    first = await filled.get("/api/skills")
    assert first.headers["etag"].startswith('W/"')
    assert first.headers["cache-control"] == "private, no-cache"
    known = {"if-none-match": first.headers["etag"]}
    same = await filled.get("/api/skills", headers=known)
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", first.headers["etag"])
    (await filled.delete("/api/skills/commit-1")).raise_for_status()
    changed = await filled.get("/api/skills", headers=known)
    assert (changed.status_code, changed.headers["etag"] == first.headers["etag"]) == (200, False)


async def test_security_headers_are_the_same_for_304(filled: httpx.AsyncClient) -> None:
    etag = (await filled.get("/api/skills")).headers["etag"]
    response = await filled.get("/api/skills", headers={"if-none-match": etag})
    assert response.headers["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
    assert "x-request-id" in response.headers


async def test_small_answers_and_errors_are_not_compressed(client: httpx.AsyncClient) -> None:
    small = await client.get("/api/keys")
    assert "content-encoding" not in small.headers
    assert "etag" in small.headers
    error = await client.get("/api/skills/none")
    assert error.status_code == 404
    assert "etag" not in error.headers


async def test_the_api_document_is_compressed_and_apis_of_others_have_no_tag(client: httpx.AsyncClient) -> None:
    assert (await client.get("/openapi.json")).headers["content-encoding"] == "gzip"
    assert "etag" not in (await client.get("/v1/models")).headers


async def test_answers_to_other_methods_and_downloads_pass_unchanged(filled: httpx.AsyncClient) -> None:
    search = await filled.post("/api/skills/search", json={"query": "commit messages"})
    assert len(search.content) > MIN_BYTES
    file = await filled.get("/api/skills/commit-1/files/SKILL.md")
    for response in (search, file):
        assert "content-encoding" not in response.headers
        assert "etag" not in response.headers


async def answer(
    *messages: Message, method: str = "GET", path: str = "/api/x", **headers: str
) -> tuple[dict[bytes, bytes], list[Message]]:
    """What the middleware sends for these messages of an application."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": pairs}
    await CompressedAnswers(app)(scope, receive, send)
    return dict(sent[0]["headers"]), sent


def start(size: int | None, kind: str = JSON, *others: tuple[bytes, bytes], status: int = 200) -> Message:
    pairs = [(b"content-type", kind.encode()), *others]
    if size is not None:
        pairs.append((b"content-length", str(size).encode()))
    return {"type": "http.response.start", "status": status, "headers": pairs}


def body(content: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}


@pytest.mark.parametrize("size", [MIN_BYTES + 1, INLINE_BYTES, INLINE_BYTES + 1, 300_000])
async def test_answers_of_every_size_arrive_whole(size: int) -> None:
    content = json.dumps("x" * (size - 2)).encode()
    headers, sent = await answer(start(size), body(content), accept_encoding="gzip")
    assert headers[b"content-encoding"] == b"gzip"
    assert headers[b"content-length"] == str(len(sent[1]["body"])).encode()
    assert gzip.decompress(sent[1]["body"]) == content


@pytest.mark.parametrize(
    "messages",
    [
        (start(None, "text/event-stream"), body(b"data: x\n\n" * 500, more=True), body(b"")),
        (start(4000, "text/event-stream"), body(b"data: xx" * 500)),
        (start(None), body(b"[" + b" " * 4000, more=True), body(b"]")),
        (start(4000), body(b" " * 2000, more=True), body(b" " * 2000)),
        (start(4000, status=206), body(b" " * 4000)),
        (start(4000, status=404), body(b" " * 4000)),
        (start(4000, JSON, (b"content-encoding", b"br")), body(b" " * 4000)),
        (start(4000, JSON, (b"content-disposition", b"attachment")), body(b" " * 4000)),
        (start(4000, "image/png"), body(b" " * 4000)),
    ],
)
async def test_streams_ranges_errors_and_files_pass_unchanged(messages: tuple[Message, ...]) -> None:
    _, sent = await answer(*messages, accept_encoding="gzip", if_none_match="*")
    assert sent == list(messages)


async def test_the_head_of_a_stream_is_sent_at_once() -> None:
    messages = (start(None, "text/event-stream"),)
    _, sent = await answer(*messages, accept_encoding="gzip")
    assert sent == list(messages)


async def test_a_huge_answer_passes_unchanged() -> None:
    content = bytes(MAX_BYTES + 1)
    headers, sent = await answer(start(len(content)), body(content), accept_encoding="gzip")
    assert b"content-encoding" not in headers
    assert b"etag" not in headers
    assert sent[1]["body"] is content


async def test_a_strong_tag_becomes_weak_if_the_answer_is_compressed() -> None:
    tagged = start(4000, JSON, (b"etag", b'"a"'), (b"vary", b"Accept"))
    headers, _ = await answer(tagged, body(b" " * 4000), accept_encoding="gzip")
    assert headers[b"etag"] == b'W/"a"'
    assert headers[b"vary"] == b"Accept, Accept-Encoding"
    headers, _ = await answer(tagged, body(b" " * 4000))
    assert headers[b"etag"] == b'"a"'


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        (None, False),
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("deflate, gzip;q=1.0, *;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("*", True),
        ("*;q=0", False),
        ("gzip;q=0, *", False),
        ("identity;q=1, *;q=0", False),
        ("br, deflate", False),
        ("gzip;q=oops", True),
        (",;=,;q,", False),
        ("x," * MAX_ELEMENTS + "gzip", False),
    ],
)
async def test_the_header_accept_encoding_is_read_as_the_standard_says(header: str | None, accepted: bool) -> None:
    assert accepts_gzip(header) is accepted


@pytest.mark.parametrize(
    ("header", "known"),
    [(None, False), ("", False), ('"a"', True), ('W/"a"', True), ('"b", "a"', True), ("*", True), ('"b"', False)],
)
async def test_a_tag_is_compared_weakly(header: str | None, known: bool) -> None:
    assert is_known('W/"a"', header) is known
    assert is_known('"a"', header) is known


async def test_the_original_of_an_unread_answer_counts_as_memory_of_its_caller() -> None:
    unread = UnreadAnswers()
    content = b" " * (CHUNK_BYTES * 4)
    held: list[int] = []
    statuses: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start(len(content)))
        await send(body(content))

    async def send(message: Message) -> None:
        held.append(unread.bytes_of("key"))
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    headers = [(b"accept-encoding", b"gzip")]
    scope = {"type": "http", "method": "GET", "path": "/api/x", "headers": headers, "state": {"caller": "key"}}
    paced = PacedAnswers(CompressedAnswers(app), unread=unread)
    await paced(dict(scope), receive, send)
    assert min(held) > len(content) * 0.99
    assert unread.bytes_of("key") == 0
    with unread.claim("key", MAX_HELD_BYTES):
        await paced(dict(scope), receive, send)
    assert statuses == [200, 429]
