"""The scope that a request needs: read, chat and run are listed here; everything else is admin."""

import re

from apexbridge.storage.key_store import KeyScope
from apexbridge.surfaces.http.transport.error_responses import MCP_PATHS

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Health checks. They need no key and reveal nothing else."""
PUBLISHED = "/.well-known/agent-skills/"
"""Skills for everyone, if the operator publishes them; else there is nothing at these paths."""
SESSION_PATH = "/api/session"
"""Reports to everyone whether a key is needed. A key that is sent is checked, and any scope is enough."""
_CONSOLE_PATHS = frozenset({"/", "/icon.svg"})
_CONSOLE_ASSETS = "/assets/"
"""The console's files, which are the same for everyone. What it shows needs a key."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_READING = re.compile(r"/api/skills/search|/api/skills/[^/]+/description/preview")
"""Reads that use POST because the query may be too long for a URL."""
_UPLOAD_PATHS = frozenset({"/api/skills", "/api/skills/install", "/api/skills/validate", "/api/uploads", "/v1/files"})
"""Routes whose bodies go to disk and have their own limits."""
_SKILL_UPLOAD = re.compile(r"/v1/skills(?:/[^/]+/versions)?")
"""The same, of the skills APIs."""
_SKILLS_API = re.compile(r"/v1/skills(?:/.*)?", re.DOTALL)
"""The skills APIs of OpenAI and Anthropic: read with `read` or `chat`, changed with `admin`, as below `/api/skills`."""
_RUNNING = re.compile(
    r"/api/(?:skills/[^/]+/execute|tools/[^/]+/execute|executions/[^/]+/cancel|uploads"
    r"|skills/remember|skills/validate)"
)
"""Requests that do work for the caller and change nothing for other callers."""
_FORGETTING = re.compile(r"/api/executions/[^/]+|/api/workspaces/.+")
"""What callers may delete: only their own runs and workspaces."""
_OWN_FILES = re.compile(r"/api/workspaces(?:/.*)?|/api/uploads")
"""Files of the caller's conversations. `/v1/files` stores the same."""
_ADMINISTRATION = (
    "/api/keys",
    "/api/audit",
    "/api/approvals",
    "/api/chats",
    "/api/secrets",
    "/api/mcp",
    "/api/backup",
    "/api/doctor",
    "/api/status",
    "/api/embedding-models",
    "/api/settings",
    "/api/insights/searches",
    "/api/insights/tokens",
)
"""Admin even for reads: keys, the audit log, pending approvals, chats and secrets of all callers, MCP servers, the
state, models and settings of the server, what was searched for, tokens."""


def required_scope(method: str, path: str) -> KeyScope | None:
    """The scope that a key must have; None if no key is needed."""
    if path in OPEN_PATHS or (method in SAFE_METHODS and _is_open_to_read(path)):
        return None
    if path in MCP_PATHS:  # tools that run or write something need `run` in addition
        return "read"
    if _SKILLS_API.fullmatch(path):
        return "read" if method in SAFE_METHODS else "admin"
    if path.startswith("/v1/"):
        return "chat"
    if method in SAFE_METHODS:
        return "admin" if path.startswith(_ADMINISTRATION) else "read"
    if method == "POST":
        if _READING.fullmatch(path):
            return "read"
        if _RUNNING.fullmatch(path):
            return "run"
    if method == "DELETE" and _FORGETTING.fullmatch(path):
        return "run"
    return "admin"


def _is_open_to_read(path: str) -> bool:
    return path == SESSION_PATH or path in _CONSOLE_PATHS or path.startswith((_CONSOLE_ASSETS, PUBLISHED))


def is_enough_to_chat(method: str, path: str) -> bool:
    """Whether the scope chat is enough: for files of the caller's conversations, and to read skills below `/v1`."""
    if method in SAFE_METHODS and _SKILLS_API.fullmatch(path):
        return True
    return _OWN_FILES.fullmatch(path) is not None


def is_upload(method: str, path: str) -> bool:
    """Whether the body goes to disk and has its own limits."""
    return method == "POST" and (path in _UPLOAD_PATHS or _SKILL_UPLOAD.fullmatch(path) is not None)


def is_act(method: str, needed: KeyScope) -> bool:
    """Whether a request is recorded in the audit log: changes that need admin, and deletion of runs."""
    return (needed == "admin" and method not in SAFE_METHODS) or (needed, method) == ("run", "DELETE")
