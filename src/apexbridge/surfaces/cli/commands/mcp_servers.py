"""`apex mcp …`: MCP servers whose tools are served."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import typer

from apexbridge.errors import RequestError
from apexbridge.surfaces.cli.session import Session, command

WAIT_SECONDS = 15
"""How long `add` and `status` wait for a server."""
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
ServerName = Annotated[str, typer.Argument(metavar="NAME", help="The server's name.")]


@command(app, "add")
def add_server(
    session: Session,
    name: ServerName,
    target: Annotated[
        list[str],
        typer.Argument(metavar="URL|COMMAND…", help="An address, or a command; options of a command follow `--`."),
    ],
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME:VALUE", help="Sent to an address; ${secret:NAME} is a secret."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="A variable for a command; ${secret:NAME} is a secret."),
    ] = None,
    cwd: Annotated[Path | None, typer.Option("--cwd", help="The folder in which a command starts.")] = None,
    approval: Annotated[
        Literal["auto", "always", "never"],
        typer.Option("--approval", help="Which calls need approval: auto by the server's annotations."),
    ] = "auto",
    timeout: Annotated[int, typer.Option("--timeout", min=1, max=3600, help="Seconds that a call may take.")] = 60,
    sandbox: Annotated[bool, typer.Option("--sandbox", help="Run the command in the sandbox.")] = False,
    permission: Annotated[
        list[str] | None,
        typer.Option("--permission", help="What it may use beyond the sandbox: net:HOST:PORT, fs:ro:PATH."),
    ] = None,
) -> None:
    """Add an MCP server and serve its tools."""
    body: dict[str, Any] = {"name": name, "approval": approval, "timeoutSeconds": timeout}
    if target[0].lower().startswith(("http://", "https://")):
        if len(target) > 1:
            raise typer.BadParameter("an address has no arguments")
        body["url"] = target[0]
    else:
        body |= {"command": target[0], "args": target[1:]}
    body |= {"headers": _pairs(header, ":", "--header")} if header else {}
    body |= {"env": _pairs(env, "=", "--env")} if env else {}
    body |= {"cwd": str(cwd.expanduser().absolute())} if cwd is not None else {}
    body |= {"sandbox": True} if sandbox else {}
    body |= {"permissions": permission} if permission else {}
    server = session.ask("POST", "/api/mcp/servers", params={"wait": WAIT_SECONDS}, json=body)
    if session.show_json(server):
        return
    if server["state"] == "connected":
        session.console.say(f"{name} is connected; tools: {server['tools']}. List them: apex tools list --tag {name}")
    else:
        session.console.say(
            f"{name} is added, but not connected: {server['lastError'] or 'it does not answer yet'}. "
            f"See: apex mcp status {name}",
            style="yellow",
        )


@command(app, "remove", "rm")
def remove_server(session: Session, name: ServerName) -> None:
    """Remove an added MCP server and its tools."""
    server = session.ask("DELETE", _path(name))
    session.report(server, f"{name} is removed; tools: {server['tools']}")


@command(app, "list", "ls")
def list_servers(session: Session) -> None:
    """List the MCP servers; secrets are never shown."""
    servers = session.ask("GET", "/api/mcp/servers")
    rows = [
        (server["name"], server["transport"], server["origin"], server["approval"], server["tools"], _target(server))
        for server in servers
    ]
    empty = "There is no MCP server. Add one with: apex mcp add NAME URL"
    session.table(servers, ("NAME", "TRANSPORT", "ORIGIN", "APPROVAL", "TOOLS", "TARGET"), rows, empty=empty)


@command(app, "status")
def show_status(
    session: Session,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One server, with everything about it.")] = None,
) -> None:
    """Connect to the MCP servers if necessary, and show their state."""
    if name is not None:
        server = session.ask("POST", _path(name, "reconnect"), creates=False, params={"wait": WAIT_SECONDS})
        if not session.show_json(server):
            session.console.facts(server)
        return
    servers = session.ask("GET", "/api/mcp/servers", params={"wait": WAIT_SECONDS})
    rows = [
        (
            server["name"],
            server["state"],
            server["since"][:16].replace("T", " "),
            server["protocolVersion"],
            server["tools"],
            "; ".join([*([server["lastError"]] if server["lastError"] else []), *server["problems"]]),
        )
        for server in servers
    ]
    empty = "There is no MCP server. Add one with: apex mcp add NAME URL"
    session.table(servers, ("NAME", "STATE", "SINCE", "PROTOCOL", "TOOLS", "LAST ERROR"), rows, empty=empty)


def _target(server: Mapping[str, Any]) -> str:
    return server["url"] or shlex.join([server["command"], *server["args"]])


def _pairs(texts: Sequence[str], separator: str, option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, found, value = text.partition(separator)
        if not found:
            raise typer.BadParameter(f"write NAME{separator}VALUE", param_hint=option)
        pairs[name.strip()] = value.strip()
    return pairs


def _path(name: str, *segments: str) -> str:
    if name in ("", ".", ".."):  # these would lead to another route
        raise RequestError(f"No MCP server named {name}", code="MCP_SERVER_NOT_FOUND")
    return "/".join(["/api/mcp/servers", quote(name, safe=""), *segments])
