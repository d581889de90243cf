"""Every route with every scope, without a key, and with keys that are no longer valid, over real HTTP.

What is expected comes from the OpenAPI document of the server, so a new route is covered without a change here.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripts.access_table import COLUMNS, PAGE, admitted, page
from scripts.console_types import document

from tests.surfaces.conftest import servers
from tests.surfaces.keyed_server import TIMEOUT_SECONDS, KeyedServer, start_keyed_server
from tests.waiting import wait_until

Routes = dict[tuple[str, str], set[str]]
"""Who is admitted, by method and path: columns of the table."""
UNDOCUMENTED: Routes = {
    ("GET", "/openapi.json"): {"read", "admin"},
    ("GET", "/docs"): {"read", "admin"},
    ("GET", "/docs/static/x"): {"read", "admin"},
    ("GET", "/nowhere"): {"read", "admin"},
    ("POST", "/nowhere"): {"admin"},
    ("POST", "/v1/nowhere"): {"chat", "admin"},
    ("GET", "/"): set(COLUMNS),
    ("GET", "/icon.svg"): set(COLUMNS),
    ("GET", "/assets/x"): set(COLUMNS),
}
CHECKS_KEYS = "/api/session"
"""Needs no key, but checks one that is sent."""


@dataclass
class Keyed:
    opened: KeyedServer
    routes: Routes
    invalid: dict[str, str]
    """Keys that are no longer valid, by the reason."""


def routes_of(described: dict[str, Any]) -> Routes:
    found = {
        (method.upper(), re.sub(r"{\w+}", "x", path)): admitted(operation)
        for path, operations in described["paths"].items()
        for method, operation in operations.items()
    }
    assert len(found) > 100
    return found | UNDOCUMENTED


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    with start_keyed_server(tmp_path_factory.mktemp("keyed") / "data") as opened:
        expired, revoked = opened.create_key("admin", expiresIn=1), opened.create_key("admin")
        opened.request("DELETE", f"/api/keys/{revoked['id']}", "owner").raise_for_status()
        headers = {"authorization": f"Bearer {expired['key']}"}
        wait_until(lambda: opened.request("GET", CHECKS_KEYS, headers=headers).status_code == 401)
        described = opened.request("GET", "/openapi.json", "owner").raise_for_status().json()
        invalid = {"expired": expired["key"], "revoked": revoked["key"], "unknown": "apex_00000000_" + "a" * 43}
        yield Keyed(opened, routes_of(described), invalid)


def admitting(url: str, routes: Routes, key: str | None) -> set[tuple[str, str]]:
    """The routes that admit a key: those that answer neither 401 nor 403. The bodies of answers are not read."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    found = set()
    with httpx.Client(base_url=url, timeout=TIMEOUT_SECONDS, trust_env=False, headers=headers) as client:
        for method, path in routes:
            with client.stream(method, path) as response:
                if response.status_code not in (401, 403):
                    found.add((method, path))
    return found


def expected(routes: Routes, column: str) -> set[tuple[str, str]]:
    return {route for route, columns in routes.items() if column in columns}


@pytest.mark.parametrize("column", COLUMNS)
def test_a_key_with_one_scope_may_call_exactly_the_routes_of_the_table(keyed: Keyed, column: str) -> None:
    key = keyed.opened.keys.get(column)
    assert (key is None) == (column == "no key")
    assert admitting(keyed.opened.server.url, keyed.routes, key) == expected(keyed.routes, column)


def test_the_owner_may_call_every_route(keyed: Keyed) -> None:
    assert admitting(keyed.opened.server.url, keyed.routes, keyed.opened.keys["owner"]) == set(keyed.routes)


@pytest.mark.parametrize("reason", ["expired", "revoked", "unknown"])
def test_a_key_that_is_not_valid_may_call_only_what_checks_no_key(keyed: Keyed, reason: str) -> None:
    found = admitting(keyed.opened.server.url, keyed.routes, keyed.invalid[reason])
    assert found == expected(keyed.routes, "no key") - {("GET", CHECKS_KEYS)}


@pytest.fixture(scope="module")
def open_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on loopback with the default settings, which requires no key."""
    with servers(tmp_path_factory.mktemp("open") / "data") as start:
        yield start().url


def created(url: str, *scopes: str) -> dict[str, Any]:
    response = httpx.post(
        f"{url}/api/keys", json={"name": "made", "scopes": scopes}, timeout=TIMEOUT_SECONDS, trust_env=False
    )
    body: dict[str, Any] = response.raise_for_status().json()
    return body


@pytest.mark.parametrize("key", [None, "sk-of-another-service"])
def test_a_server_without_keys_admits_everyone_to_every_route(keyed: Keyed, open_url: str, key: str | None) -> None:
    assert admitting(open_url, keyed.routes, key) == set(keyed.routes)


def test_a_server_without_keys_still_checks_a_key_that_is_sent(keyed: Keyed, open_url: str) -> None:
    key = created(open_url, "run")
    assert admitting(open_url, keyed.routes, key["key"]) == expected(keyed.routes, "run")
    httpx.delete(f"{open_url}/api/keys/{key['id']}", timeout=TIMEOUT_SECONDS, trust_env=False).raise_for_status()
    free = expected(keyed.routes, "no key") - {("GET", CHECKS_KEYS)}
    assert admitting(open_url, keyed.routes, key["key"]) == free


@pytest.mark.anyio
async def test_the_table_in_the_documentation_is_current(tmp_path: Path) -> None:
    current = page(json.loads(await document(tmp_path, keys_required=True)))
    assert PAGE.read_text("utf-8") == current, "run: python -m scripts.access_table"
