"""The answers to the first request of a client, known before anything is loaded.

`apex mcp` sends them while it finds or opens its server, which takes longer than some clients wait. They are the same
as the server's own.
"""

from collections.abc import Mapping
from typing import Any

import apexbridge
from apexbridge.surfaces.mcp.identity import INSTRUCTIONS, NAME, TITLE, TTL_MS

MODERN_VERSION = "2026-07-28"
HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
_CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
_SERVER_KEY = "io.modelcontextprotocol/serverInfo"
_SKILLS_EXTENSION = "io.modelcontextprotocol/skills"


def opening_result(method: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
    """The result of `initialize` or `server/discover`; None if the server has to answer, such as for a mistake."""
    if method == "initialize":
        return _initialize_result(params)
    if method == "server/discover":
        return _discover_result(params)
    return None


def _initialize_result(params: Mapping[str, Any]) -> dict[str, Any] | None:
    version, client = params.get("protocolVersion"), params.get("clientInfo")
    if not isinstance(version, str) or not isinstance(params.get("capabilities"), dict):
        return None
    if not isinstance(client, dict) or not all(isinstance(client.get(key), str) for key in ("name", "version")):
        return None
    negotiated = version if version in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]
    return {
        "protocolVersion": negotiated,
        "capabilities": _capabilities(tools_change=False),
        "serverInfo": _server_info(),
        "instructions": INSTRUCTIONS,
    }


def _discover_result(params: Mapping[str, Any]) -> dict[str, Any] | None:
    meta = params.get("_meta")
    if not isinstance(meta, dict) or meta.get(VERSION_KEY) != MODERN_VERSION:
        return None
    if not isinstance(meta.get(_CAPABILITIES_KEY), dict):
        return None
    return {
        "resultType": "complete",
        "supportedVersions": [MODERN_VERSION],
        "capabilities": {
            **_capabilities(tools_change=True),
            "extensions": {_SKILLS_EXTENSION: {"directoryRead": True}},
        },
        "instructions": INSTRUCTIONS,
        "ttlMs": TTL_MS,
        "cacheScope": "private",
        "_meta": {_SERVER_KEY: _server_info()},
    }


def _capabilities(*, tools_change: bool) -> dict[str, Any]:
    return {
        "prompts": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "tools": {"listChanged": tools_change},
        "completions": {},
    }


def _server_info() -> dict[str, Any]:
    return {"name": NAME, "title": TITLE, "version": apexbridge.__version__}
