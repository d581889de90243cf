"""`apex mcp config`: print the configuration of an MCP client, or write it into the client's file."""

import asyncio
import json
import os
import re
import shutil
import stat
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from apexbridge._fs import PRIVATE_FILE, replace_file
from apexbridge.errors import InvalidInputError, ServerError
from apexbridge.storage.directory import SERVER_FILE, is_owned
from apexbridge.surfaces.cli import interrupts
from apexbridge.surfaces.cli.connection import Connection, find_connection
from apexbridge.surfaces.cli.mcp_clients import (
    KEY_VARIABLE,
    TITLES,
    Client,
    Scope,
    Server,
    changes,
    config_file,
    entry_of,
    snippet,
    with_server,
)
from apexbridge.surfaces.cli.session import Session, command

MAX_FILE_BYTES = 16 * 1024 * 1024
DEFAULT_ADDRESS = "http://127.0.0.1:8420"
PROBE_SECONDS = 3
PUBLIC_FILE, PUBLIC_FOLDER, PRIVATE_FOLDER = 0o644, 0o755, 0o700
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_RESTARTS = {
    Client.CLAUDE_CODE: "Start Claude Code again; /mcp shows the server.",
    Client.CLAUDE_DESKTOP: "Quit Claude Desktop and start it again.",
    Client.CURSOR: "Cursor shows the server under Settings, MCP.",
    Client.VSCODE: "VS Code shows the server with the command: MCP: List Servers",
    Client.CODEX: "Start Codex again; /mcp shows the server.",
}

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@command(app, "config")
def configure(
    session: Session,
    client: Annotated[Client, typer.Argument(metavar="CLIENT", help=f"One of {', '.join(Client)}.")],
    write: Annotated[bool, typer.Option("--write", help="Write it into the client's file.")] = False,
    http: Annotated[
        bool, typer.Option("--http/--stdio", help="Connect to a URL, or start `apex mcp` as a program.")
    ] = False,
    name: Annotated[str, typer.Option("--name", help="The server's name in the client.")] = "apexbridge",
    scope: Annotated[Scope, typer.Option("--scope", help="For you, or for the project in this folder.")] = Scope.USER,
    key: Annotated[
        bool | None,
        typer.Option("--key/--no-key", help="Whether to send an API key.", show_default="if the server requires one"),
    ] = None,
) -> None:
    """Print the configuration that connects an MCP client to this server, or write it into the client's file."""
    if not _NAME.fullmatch(name):
        raise InvalidInputError("--name has 1 to 64 letters, digits, hyphens and underscores.")
    connection = find_connection(data_dir=session.data_dir, url=session.url)
    if not _is_text(str(connection.data_dir)):
        raise InvalidInputError("The path of the data directory is not valid UTF-8, which these files cannot hold.")
    server = _server(connection, http=http, key=key)
    path = config_file(client, scope, home=_home(), folder=Path.cwd(), environment=os.environ)
    result: dict[str, Any] = {
        "client": client.value,
        "scope": scope.value,
        "file": str(path),
        "name": name,
        "transport": server.transport,
        "entry": entry_of(client, name, server),
        "needsKey": server.needs_key,
    }
    if not write:
        if not session.show_json(result):
            sys.stdout.write(snippet(client, name, server))
            session.console.say(f"For {path}. To write it there, add --write.")
            session.console.warn(_warnings(client, server, connection))
        return
    target = _target(path, scope)
    before, after = _edited(target, client, name, server)
    backup = _write(target, before, after, scope)
    if not session.show_json(result | {"changed": before != after, "backup": backup and str(backup)}):
        _report(session, client, path, before or "", after, backup)
        session.console.warn(_warnings(client, server, connection))


# --------------------------------------------------------------------------------------------------------- the server
def _server(connection: Connection, *, http: bool, key: bool | None) -> Server:
    address = None if connection.url is None else _checked(connection.url)
    if http:
        url = address or _announced(connection.data_dir) or DEFAULT_ADDRESS
        return Server(url=url if url.endswith("/mcp") else f"{url}/mcp", needs_key=_needs_key(connection, url, key))
    if address is None:  # a server on the same data directory needs no key: `apex mcp` reads it from server.json
        return Server(command=[*_program(), "mcp", "--data-dir", str(connection.data_dir)], needs_key=bool(key))
    return Server(command=[*_program(), "mcp", "--url", address], needs_key=_needs_key(connection, address, key))


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8
        return False
    return True


def _checked(address: str) -> str:
    try:
        url = urlsplit(address)
        is_valid = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:
        is_valid = False
    if not is_valid or not address.isprintable():
        raise InvalidInputError(f"{address} is not the address of a server. Check --url and APEX_URL.")
    if url.username or url.password or url.query or url.fragment:
        raise InvalidInputError(f"The address must have no user, password or query. Set the key in {KEY_VARIABLE}.")
    return address.rstrip("/").removesuffix("/mcp")


def _announced(data_dir: Path) -> str | None:
    """The address of the server that runs on the data directory; None if none does."""
    if not is_owned(data_dir):
        return None
    try:
        return str(json.loads((data_dir / SERVER_FILE).read_bytes())["url"]).rstrip("/")
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _needs_key(connection: Connection, address: str, key: bool | None) -> bool:
    if key is not None or connection.api_key:
        return key is not False
    return interrupts.run(_refuses_requests_without_key(address.removesuffix("/mcp")))


async def _refuses_requests_without_key(address: str) -> bool:
    from apexbridge.surfaces.cli.transport import HttpTransport, Request, TransportError

    try:
        async with asyncio.timeout(PROBE_SECONDS):
            async with HttpTransport(address, trust_env=True).send(
                Request(method="GET", target="/v1/models")
            ) as answer:
                return answer.status in (401, 403)
    except (TransportError, TimeoutError, ValueError):
        return False


def _program() -> list[str]:
    """The absolute command of `apex`: the client's folder and PATH are not those of this command."""
    called = Path(sys.argv[0])
    candidates = [called.absolute()] if called.name == "apex" and len(called.parts) > 1 else []
    candidates.append(Path(sysconfig.get_path("scripts")) / "apex")
    for candidate in candidates:
        if os.access(candidate, os.X_OK) and candidate.is_file():
            return [str(candidate)]
    if found := shutil.which("apex"):
        return [str(Path(found).absolute())]
    return [sys.executable, "-c", "from apexbridge.surfaces.cli.app import main; main()"]


def _warnings(client: Client, server: Server, connection: Connection) -> list[str]:
    warnings = []
    if server.needs_key and client is Client.CLAUDE_DESKTOP:
        warnings.append(
            f'Claude Desktop reads no variables. Add the key yourself: "env": {{"{KEY_VARIABLE}": "…"}} beside "args".'
        )
    elif server.needs_key and client is not Client.VSCODE and not os.environ.get(KEY_VARIABLE):
        warnings.append(
            f"Set {KEY_VARIABLE} where {TITLES[client]} starts. Create a key with: "
            "apex keys create --name NAME --scope read,run"
        )
    if server.command and connection.url is None and not connection.data_dir.is_dir():
        warnings.append(
            f"There are no skills yet: {connection.data_dir} does not exist. If yours are elsewhere, name their data "
            "directory with --data-dir."
        )
    if find_spec("mcp") is None:
        warnings.append("The server needs one more package for MCP: pip install 'apexbridge[mcp]'")
    return warnings


# ----------------------------------------------------------------------------------------------------------- the file
def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise InvalidInputError("This user has no home folder. Set HOME, or use --scope project.") from error


def _target(path: Path, scope: Scope) -> Path:
    """The file itself: links of users, such as into a repository of settings, are followed.

    A project may come from someone else, so its links must stay in it.
    """
    try:
        target = path.resolve()
    except (OSError, RuntimeError) as error:
        raise InvalidInputError(f"{path} cannot be resolved: {error}") from error
    if scope is Scope.PROJECT and not target.is_relative_to(Path.cwd().resolve()):
        raise InvalidInputError(f"{path} leads out of the project, to {target}. Nothing was written.")
    return target


def _edited(path: Path, client: Client, name: str, server: Server) -> tuple[str | None, str]:
    """The text of the file, None if it is missing, and its text with the server."""
    text = _read(path)
    try:
        return text, with_server(text or "", client, name, server)
    except ValueError as error:
        raise InvalidInputError(
            f"{path} cannot be changed: {error}. Nothing was written. Correct the file, or add by hand what this "
            "command prints without --write."
        ) from error


def _read(path: Path) -> str | None:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInputError(f"{path} is not a file.")
        if status.st_size > MAX_FILE_BYTES:
            raise InvalidInputError(f"{path} has more than {MAX_FILE_BYTES // 1024**2} MB.")
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{path} cannot be read: {error}") from error


def _write(path: Path, before: str | None, after: str, scope: Scope) -> Path | None:
    """Write the file atomically if it changes. Returns the copy of the previous one, if there was one."""
    if before == after:
        return None
    is_private = scope is Scope.USER
    try:
        path.parent.mkdir(PRIVATE_FOLDER if is_private else PUBLIC_FOLDER, parents=True, exist_ok=True)
        backup = None
        mode = PRIVATE_FILE if is_private else PUBLIC_FILE
        if before is not None:
            mode = stat.S_IMODE(path.stat().st_mode)
            backup = path.with_name(f"{path.name}.bak")
            replace_file(backup, before.encode(), beside=path.parent, mode=mode)
        if _read(path) != before:
            raise ServerError(f"{path} was changed by another program at the same time. Try again.", code="BUSY")
        replace_file(path, after.encode(), beside=path.parent, mode=mode, durable=True)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be written: {error.strerror}") from error
    return backup


def _report(session: Session, client: Client, path: Path, before: str, after: str, backup: Path | None) -> None:
    if before == after:
        session.console.say(f"{path} has this configuration already.")
        return
    for line in changes(before, after):
        session.console.line(line)
    session.console.say(f"Written to {path}." + ("" if backup is None else f" The previous file is {backup}."))
    session.console.say(_RESTARTS[client])
