"""Pages of lists. A cursor is opaque for clients; it contains the last name of the page before."""

import base64
import binascii
from urllib.parse import quote, unquote

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

PAGE_ENTRIES = 100
MAX_CURSOR_CHARACTERS = 1024


def cursor_after(name: str) -> str:
    return base64.urlsafe_b64encode(quote(name).encode()).decode()


def name_before(params: types.PaginatedRequestParams | None) -> str:
    """The name after which the page begins; empty for the first page."""
    cursor = params.cursor if params is not None else None
    if not cursor:
        return ""
    try:
        if len(cursor) > MAX_CURSOR_CHARACTERS:
            raise ValueError
        return unquote(base64.b64decode(cursor, altchars=b"-_", validate=True).decode("ascii"), errors="strict")
    except (ValueError, binascii.Error):
        raise MCPError(INVALID_PARAMS, "The cursor is not one of this server; begin without one.") from None
