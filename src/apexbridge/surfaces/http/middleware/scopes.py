"""The scope that a request needs: read, chat and run are listed here; everything else is admin."""

import re

from apexbridge.storage.key_store import KeyScope

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Health checks. They need no key and reveal nothing else."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_READING = frozenset({"/api/skills/search"})
"""Reads that use POST because the query may be too long for a URL."""
UPLOAD_PATHS = frozenset({"/api/skills", "/api/skills/install", "/api/skills/validate", "/api/uploads", "/v1/files"})
"""Routes whose bodies go to disk and have their own limits."""
_RUNNING = re.compile(
    r"/api/(?:skills/[^/]+/execute|tools/[^/]+/execute|executions/[^/]+/cancel|uploads"
    r"|skills/remember|skills/validate)"
)
"""Requests that do work for the caller and change nothing for other callers."""
_FORGETTING = re.compile(r"/api/executions/[^/]+|/api/workspaces/.+")
"""What callers may delete: only their own runs and workspaces."""
_OWN_FILES = re.compile(r"/api/workspaces(?:/.*)?|/api/uploads")
"""Files of the caller's conversations. `/v1/files` stores the same."""
_ADMINISTRATION = ("/api/keys", "/api/audit", "/api/approvals", "/api/chats", "/api/secrets")
"""Admin even for reads: keys, the audit log, pending approvals, chats and secrets of all callers."""


def required_scope(method: str, path: str) -> KeyScope | None:
    """The scope that a key must have; None if no key is needed."""
    if path in OPEN_PATHS:
        return None
    if path.startswith("/v1/"):
        return "chat"
    if method in SAFE_METHODS:
        return "admin" if path.startswith(_ADMINISTRATION) else "read"
    if method == "POST":
        if path in _READING:
            return "read"
        if _RUNNING.fullmatch(path):
            return "run"
    if method == "DELETE" and _FORGETTING.fullmatch(path):
        return "run"
    return "admin"


def is_own_file(path: str) -> bool:
    """Whether a request concerns only files of the caller's conversations, for which the scope chat is enough."""
    return _OWN_FILES.fullmatch(path) is not None


def is_act(method: str, needed: KeyScope) -> bool:
    """Whether a request is recorded in the audit log: changes that need admin, and deletion of runs."""
    return (needed == "admin" and method not in SAFE_METHODS) or (needed, method) == ("run", "DELETE")
