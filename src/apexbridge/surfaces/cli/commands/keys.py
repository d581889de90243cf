"""`apex keys …` and `apex audit …`: API keys and the audit log."""

import json
import re
import sqlite3
import sys
from typing import Annotated, Any
from urllib.parse import quote

import typer

from apexbridge.surfaces.cli.connection import find_connection
from apexbridge.surfaces.cli.session import DataDir, Session, command

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
audit = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_SECONDS = {"m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}
_DURATION = re.compile(r"([1-9]\d{0,5})([mhdw])", re.ASCII)


@command(app, "create")
def create_key(
    session: Session,
    name: Annotated[str, typer.Option("--name", help="Who or what uses it.")],
    scope: Annotated[str, typer.Option("--scope", help="Its scopes: chat, read, run, admin, with commas.")] = "chat",
    expires: Annotated[str | None, typer.Option("--expires", help="How long it is valid: 30m, 12h, 90d, 52w.")] = None,
) -> None:
    """Create a key; it is printed once and can never be shown again."""
    scopes = [word.strip() for word in scope.split(",") if word.strip()]
    body = {"name": name, "scopes": scopes, "expiresIn": _seconds(expires)}
    key = session.ask("POST", "/api/keys", json=body)
    if session.show_json(key):
        return
    session.console.line(key["key"])
    until = f", until {key['expiresAt']}" if key["expiresAt"] else ""
    session.console.say(f"{key['id']} may: {', '.join(key['scopes'])}{until}. Save the key now; it is not shown again.")


@command(app, "list", "ls")
def list_keys(session: Session) -> None:
    """List the keys, without their secrets."""
    keys = session.ask("GET", "/api/keys")
    rows = [
        (key["id"], ",".join(key["scopes"]), key["createdAt"], _end(key), key["lastUsedAt"] or "never", key["name"])
        for key in keys
    ]
    empty = "There is no key. Create one with: apex keys create --name NAME"
    session.table(keys, ("ID", "SCOPES", "CREATED", "ENDS", "LAST USED", "NAME"), rows, empty=empty)


@command(app, "revoke")
def revoke_key(session: Session, id: Annotated[str, typer.Argument(metavar="ID", help="The key's id.")]) -> None:
    """Revoke a key, permanently and immediately."""
    key = session.ask("DELETE", f"/api/keys/{quote(id, safe='')}")
    session.report(key, f"{key['id']} ({key['name']}) is revoked")


@command(audit, "verify")
def verify_audit(session: Session) -> None:
    """Verify the log of administrative acts and name the first row that was changed."""
    verdict = session.ask("GET", "/api/audit/verify")
    if verdict["intact"]:
        restored = verdict["restoredAt"]
        note = f" The data directory was restored from a backup at {restored}." if restored else ""
        session.report(verdict, f"The audit log is intact; rows: {verdict['count']}.{note}")
    else:
        session.report(verdict, f"The audit log is broken: {verdict['problem']}. Compare it with a backup.")
        raise typer.Exit(1)


@audit.command("export")
def export_audit(data_dir: DataDir = None) -> None:
    """Print the log of administrative acts, one JSON object a line, the oldest first."""
    from apexbridge.storage.audit import AUDIT_FILE, exported  # not needed beside a server

    path = find_connection(data_dir=data_dir).data_dir / AUDIT_FILE
    try:
        for row in exported(path):
            sys.stdout.write(f"{json.dumps(row)}\n")
    except BrokenPipeError:
        raise
    except (OSError, sqlite3.Error) as error:
        Session().console.say(f"{path} cannot be read: {error}")
        raise typer.Exit(1) from error


def _seconds(duration: str | None) -> int | None:
    if duration is None:
        return None
    found = _DURATION.fullmatch(duration.strip().lower())
    if found is None:
        raise typer.BadParameter("a number with m, h, d or w, such as 90d", param_hint="--expires")
    return int(found[1]) * _SECONDS[found[2]]


def _end(key: dict[str, Any]) -> str:
    return f"revoked {key['revokedAt']}" if key["revokedAt"] else key["expiresAt"] or "never"
