"""A server that asks for keys, with keys of every kind."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from apexbridge.storage.audit import AUDIT_FILE, exported
from tests.surfaces.conftest import Server, servers

PATIENCE = 60
ZIP = {"content-type": "application/zip"}


@dataclass
class Gate:
    """A server that asks for keys, and keys of every kind."""

    server: Server
    keys: dict[str, str]

    @property
    def log(self) -> list[dict[str, Any]]:
        return list(exported(self.server.data_dir / AUDIT_FILE))

    def client(self, key: str | None = None, **headers: str) -> httpx.Client:
        given = {"authorization": f"Bearer {self.keys[key]}"} if key else {}
        return httpx.Client(base_url=self.server.url, timeout=PATIENCE, trust_env=False, headers={**given, **headers})

    def ask(self, method: str, path: str, key: str | None = None, **options: Any) -> httpx.Response:
        with self.client(key) as client:
            return client.request(method, path, **options)

    def make(self, *scopes: str, **more: Any) -> dict[str, Any]:
        made = self.ask("POST", "/api/keys", "admin", json={"name": "made", "scopes": scopes, **more})
        answer: dict[str, Any] = made.raise_for_status().json()
        return answer


@contextmanager
def gates(data_dir: Path) -> Iterator[Gate]:
    """Start it; it ends with the block."""
    with servers(data_dir) as start:
        server = start(APEX_API_KEYS_REQUIRED="true", APEX_RATE_LIMIT="100000", APEX_ALLOWED_HOSTS="apex.example.org")
        owner = json.loads((server.data_dir / "server.json").read_text())["key"]
        headers = {"authorization": f"Bearer {owner}"}
        with httpx.Client(base_url=server.url, timeout=PATIENCE, trust_env=False, headers=headers) as client:
            keys = {
                scope: client.post("/api/keys", json={"name": scope, "scopes": [scope]})
                .raise_for_status()
                .json()["key"]
                for scope in ("chat", "read", "run", "admin")
            }
        yield Gate(server, {**keys, "owner": owner})


def shape(response: httpx.Response) -> tuple[int, str, str]:
    answer = response.json()
    return response.status_code, answer["name"], answer["code"]
