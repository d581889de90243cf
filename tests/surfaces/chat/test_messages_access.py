"""Keys and owners at the Messages API."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.surfaces.keyed_server import KeyedServer, start_keyed_server

PATHS = ["/v1/messages", "/v1/messages/count_tokens"]
BODY: dict[str, Any] = {
    "model": "apex-offline",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "What is 6*7?"}],
}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedServer]:
    with start_keyed_server(tmp_path_factory.mktemp("keyed")) as server:
        yield server


@pytest.mark.parametrize("path", PATHS)
def test_a_key_with_the_scope_chat_is_required(keyed: KeyedServer, path: str) -> None:
    for key, status, kind in ((None, 401, "authentication_error"), ("read", 403, "permission_error")):
        response = keyed.request("POST", path, key, json=BODY)
        assert (response.status_code, response.json()["error"]["type"]) == (status, kind)
    assert keyed.request("POST", path, "chat", json=BODY).status_code == 200
    assert keyed.request("POST", path, json=BODY, headers={"x-api-key": keyed.keys["chat"]}).status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_a_foreign_site_is_refused(keyed: KeyedServer, path: str) -> None:
    response = keyed.request("POST", path, "chat", json=BODY, headers={"origin": "https://evil.example"})
    assert (response.status_code, response.json()["error"]["type"]) == (403, "permission_error")


def test_the_container_of_another_key_is_refused(keyed: KeyedServer) -> None:
    document = {"type": "base64", "media_type": "text/plain", "data": "cGx1bQ=="}
    content = [{"type": "document", "title": "a.txt", "source": document}, {"type": "text", "text": "What is 6*7?"}]
    body = {**BODY, "messages": [{"role": "user", "content": content}]}
    container = keyed.request("POST", PATHS[0], "chat", json=body).raise_for_status().json()["container"]["id"]
    same = keyed.request("POST", PATHS[0], "chat", json={**BODY, "container": container})
    assert same.status_code == 200
    other = keyed.create_key("chat")["key"]
    response = keyed.request("POST", PATHS[0], json={**BODY, "container": container}, headers={"x-api-key": other})
    assert (response.status_code, response.json()["error"]["type"]) == (403, "permission_error")
