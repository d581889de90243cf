"""A server that requires API keys, with one key for each scope."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from apexbridge.storage.audit import AUDIT_FILE, exported
from tests.surfaces.conftest import Server, servers

TIMEOUT_SECONDS = 60
ZIP = {"content-type": "application/zip"}


@dataclass
class KeyedServer:
    """A server that requires API keys, with one key for each scope and the owner's key."""

    server: Server
    keys: dict[str, str]

    @property
    def log(self) -> list[dict[str, Any]]:
        return list(exported(self.server.data_dir / AUDIT_FILE))

    def client(self, key: str | None = None, **headers: str) -> httpx.Client:
        authorization = {"authorization": f"Bearer {self.keys[key]}"} if key else {}
        return httpx.Client(
            base_url=self.server.url, timeout=TIMEOUT_SECONDS, trust_env=False, headers={**authorization, **headers}
        )

    def request(self, method: str, path: str, key: str | None = None, **options: Any) -> httpx.Response:
        with self.client(key) as client:
            return client.request(method, path, **options)

    def create_key(self, *scopes: str, **fields: Any) -> dict[str, Any]:
        created = self.request("POST", "/api/keys", "admin", json={"name": "made", "scopes": scopes, **fields})
        body: dict[str, Any] = created.raise_for_status().json()
        return body


@contextmanager
def start_keyed_server(data_dir: Path) -> Iterator[KeyedServer]:
    """Start the server. It is stopped at the end of the block."""
    with servers(data_dir) as start:
        server = start(APEX_API_KEYS_REQUIRED="true", APEX_RATE_LIMIT="100000", APEX_ALLOWED_HOSTS="apex.example.org")
        owner = json.loads((server.data_dir / "server.json").read_text())["key"]
        headers = {"authorization": f"Bearer {owner}"}
        with httpx.Client(base_url=server.url, timeout=TIMEOUT_SECONDS, trust_env=False, headers=headers) as client:
            keys = {
                scope: client.post("/api/keys", json={"name": scope, "scopes": [scope]})
                .raise_for_status()
                .json()["key"]
                for scope in ("chat", "read", "run", "admin")
            }
        yield KeyedServer(server, {**keys, "owner": owner})


def error_of(response: httpx.Response) -> tuple[int, str, str]:
    """Status, error class and error code."""
    body = response.json()
    return response.status_code, body["name"], body["code"]
