"""Which scope a request needs: reading, chatting and running are named, whatever is not is administration."""

import re

from apexbridge.storage.keys import KeyScope

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""For whoever watches the server; they tell nothing else."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_READING = frozenset({"/api/skills/search"})
"""Questions that are too long for an address."""
UPLOAD_PATHS = frozenset({"/api/skills", "/api/skills/install", "/api/skills/validate", "/api/uploads"})
"""Routes whose bodies go to disk and have limits of their own."""
_RUNNING = re.compile(
    r"/api/(?:skills/[^/]+/execute|tools/[^/]+/execute|executions/[^/]+/cancel|uploads"
    r"|skills/remember|skills/validate)"
)
"""Whatever makes the server work for the caller and changes nothing for others."""
_FORGETTING = re.compile(r"/api/executions/[^/]+")
"""What callers may take away: their own runs, no others."""
_ADMINISTRATION = ("/api/keys", "/api/audit", "/api/approvals", "/api/chats", "/api/secrets")
"""Even to look at: who else is here, what they did, what they want to do, and what they asked."""


def required_scope(method: str, path: str) -> KeyScope | None:
    """What a key must allow; None for what is open to everybody."""
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


def is_act(method: str, needed: KeyScope) -> bool:
    """Whether a request leaves a line in the audit log: administration that changes something, and removing runs."""
    return (needed == "admin" and method not in SAFE_METHODS) or (needed, method) == ("run", "DELETE")
