"""The extra `mcp`, which the server works without."""

from importlib.util import find_spec

from apexbridge.errors import ServerError

INSTALL = "pip install 'apexbridge[mcp]'"


def is_installed() -> bool:
    return find_spec("mcp") is not None and find_spec("mcp_types") is not None


def not_installed() -> ServerError:
    return ServerError(
        f"MCP needs the package mcp, which is not installed. Install it with: {INSTALL}", code="MCP_NOT_INSTALLED"
    )
