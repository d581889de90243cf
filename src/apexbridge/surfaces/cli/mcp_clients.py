"""What the programs that speak MCP need in their configuration to reach this server.

Keys are never written: each client reads the key from an environment variable or asks for it. Claude Desktop can do
neither, and only starts programs.
"""

import difflib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import Any

from apexbridge.errors import InvalidInputError
from apexbridge.surfaces.cli import jsonc, toml_tables

KEY_VARIABLE = "APEX_API_KEY"
_STDIO_KEYS = frozenset({"command", "args", "env", "envFile", "env_vars", "cwd"})
_HTTP_KEYS = frozenset({"url", "headers", "bearer_token_env_var", "http_headers", "env_http_headers"})


class Client(StrEnum):
    CLAUDE_CODE = "claude-code"
    CLAUDE_DESKTOP = "claude-desktop"
    CURSOR = "cursor"
    VSCODE = "vscode"
    CODEX = "codex"


class Scope(StrEnum):
    USER = "user"
    PROJECT = "project"


TITLES: Mapping[Client, str] = {
    Client.CLAUDE_CODE: "Claude Code",
    Client.CLAUDE_DESKTOP: "Claude Desktop",
    Client.CURSOR: "Cursor",
    Client.VSCODE: "VS Code",
    Client.CODEX: "Codex",
}
_PROJECT_FILES: Mapping[Client, str] = {
    Client.CLAUDE_CODE: ".mcp.json",
    Client.CURSOR: ".cursor/mcp.json",
    Client.VSCODE: ".vscode/mcp.json",
    Client.CODEX: ".codex/config.toml",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How a client reaches this server: by starting a program, or at a URL."""

    command: Sequence[str] = ()
    url: str | None = None
    needs_key: bool = False

    @property
    def transport(self) -> str:
        return "stdio" if self.url is None else "http"


def config_file(client: Client, scope: Scope, *, home: Path, folder: Path, environment: Mapping[str, str]) -> Path:
    """The file that a client reads: of the user, or of the project in a folder. Raises INVALID_INPUT."""
    if scope is Scope.PROJECT:
        if client not in _PROJECT_FILES:
            raise InvalidInputError(f"{TITLES[client]} has no configuration of a project. Use --scope user.")
        return folder / _PROJECT_FILES[client]
    match client:
        case Client.CLAUDE_CODE:
            return Path(environment.get("CLAUDE_CONFIG_DIR") or home) / ".claude.json"
        case Client.CURSOR:
            return home / ".cursor/mcp.json"
        case Client.CODEX:
            return Path(environment.get("CODEX_HOME") or home / ".codex") / "config.toml"
    programs = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    if sys.platform == "darwin":
        programs = home / "Library/Application Support"
    return programs / ("Claude/claude_desktop_config.json" if client is Client.CLAUDE_DESKTOP else "Code/User/mcp.json")


def with_server(text: str, client: Client, name: str, server: Server) -> str:
    """The text of the client's file with this server in it. Options of the user stay.

    Raises ValueError if the text cannot be read or changed.
    """
    entry = entry_of(client, name, server)
    obsolete = (_STDIO_KEYS if server.url is not None else _HTTP_KEYS) | ({"type"} - entry.keys())
    if client is Client.CODEX:
        path = ("mcp_servers", name)
        old = toml_tables.table(text, path) or {}
        return toml_tables.with_table(text, path, _joined(old, entry), without=obsolete)
    path = (_section(client), name)
    found = jsonc.value_at(text, path)
    previous = found if isinstance(found, dict) else {}
    if previous.keys() & obsolete or not previous:
        options = {key: value for key, value in previous.items() if key not in obsolete}
        edited = jsonc.with_value(text, path, options | _joined(previous, entry))
    else:
        edited = text
        for key, value in _joined(previous, entry).items():  # one by one, so that comments in the entry stay
            edited = jsonc.with_value(edited, (*path, key), value)
    if client is Client.VSCODE and server.needs_key:
        edited = jsonc.with_item(edited, ("inputs",), _key_input(name), key="id")
    return edited


def entry_of(client: Client, name: str, server: Server) -> dict[str, Any]:
    """The entry of this server in the client's file. Raises INVALID_INPUT."""
    variable = {
        Client.CLAUDE_CODE: f"${{{KEY_VARIABLE}}}",
        Client.CURSOR: f"${{env:{KEY_VARIABLE}}}",
        Client.VSCODE: f"${{input:{_key_input(name)['id']}}}",
    }.get(client)
    if server.url is None:
        program, *arguments = server.command
        entry: dict[str, Any] = {} if client in (Client.CLAUDE_DESKTOP, Client.CODEX) else {"type": "stdio"}
        entry |= {"command": program, "args": arguments}
        if server.needs_key and client is Client.CODEX:
            entry["env_vars"] = [KEY_VARIABLE]
        elif server.needs_key and variable:
            entry["env"] = {KEY_VARIABLE: variable}
        return entry
    match client:
        case Client.CLAUDE_DESKTOP:
            raise InvalidInputError(
                "Claude Desktop reads no URL from its file, it starts programs. Use --stdio; with --url that program "
                "connects to a running server."
            )
        case Client.CODEX:
            return {"url": server.url} | ({"bearer_token_env_var": KEY_VARIABLE} if server.needs_key else {})
        case Client.CURSOR:
            entry = {"url": server.url}
        case _:
            entry = {"type": "http", "url": server.url}
    return entry | ({"headers": {"Authorization": f"Bearer {variable}"}} if server.needs_key else {})


def snippet(client: Client, name: str, server: Server) -> str:
    """The configuration as a file that contains nothing else."""
    return with_server("", client, name, server)


def changes(before: str, after: str) -> list[str]:
    """The lines that an edit removes and adds. Unchanged lines are not shown: they may contain keys."""
    old, new = before.splitlines(), after.splitlines()
    same = _same_at_start(old, new)
    same_at_end = _same_at_start(old[same:][::-1], new[same:][::-1])
    ends = [len(lines) - same_at_end for lines in (old, new)]
    lines = difflib.unified_diff(old[same : ends[0]], new[same : ends[1]], lineterm="", n=0)
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def _same_at_start(one: Sequence[str], other: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _section(client: Client) -> str:
    return "servers" if client is Client.VSCODE else "mcpServers"


def _key_input(name: str) -> dict[str, Any]:
    return {"type": "promptString", "id": f"{name}-key", "description": f"API key of {name}", "password": True}


def _joined(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The new entry with the variables and headers that the user added to the old one."""
    joined = dict(new)
    for key in ("env", "headers"):
        if isinstance(old.get(key), dict) and key in new:
            joined[key] = old[key] | new[key]
    variables = old.get("env_vars")
    if isinstance(variables, list) and "env_vars" in new:
        joined["env_vars"] = [*variables, *(name for name in new["env_vars"] if name not in variables)]
    return joined
