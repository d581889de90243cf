"""`apex keys …` and `apex audit …`: API keys and the audit log."""

import re
import sys
from typing import Annotated
from urllib.parse import quote

import typer

from apexbridge.surfaces.cli.options import DataDir, Json, Url, call, show

app = typer.Typer(help="API keys.", no_args_is_help=True, rich_markup_mode=None)
audit = typer.Typer(help="The log of administrative acts.", no_args_is_help=True, rich_markup_mode=None)
_SECONDS = {"m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}
_SPAN = re.compile(r"([1-9]\d{0,5})([mhdw])", re.ASCII)


@app.command("create")
def create_key(
    name: Annotated[str, typer.Option("--name", help="Who or what it is for.")],
    scope: Annotated[str, typer.Option("--scope", help="What it may: chat, read, run, admin, with commas.")] = "chat",
    expires: Annotated[str | None, typer.Option("--expires", help="How long it lasts: 30m, 12h, 90d, 52w.")] = None,
    json: Json = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Make a key; it is printed once and can never be shown again."""
    scopes = [word.strip() for word in scope.split(",") if word.strip()]
    body = {"name": name, "scopes": scopes, "expiresIn": _seconds(expires)}
    made = call(lambda api: api.ask("POST", "/api/keys", json=body), data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import line, say

        line(made["key"])
        until = f", until {made['expiresAt']}" if made["expiresAt"] else ""
        say(f"{made['id']} may: {', '.join(made['scopes'])}{until}. Keep the key now; it is not shown again.")

    show(made, json=json, people=people)


@app.command("list")
@app.command("ls", hidden=True)
def list_keys(json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """List the keys, without their secrets."""
    found = call(lambda api: api.ask("GET", "/api/keys"), data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import table

        rows = [
            (key["id"], ",".join(key["scopes"]), key["createdAt"], _end(key), key["lastUsedAt"] or "never", key["name"])
            for key in found
        ]
        empty = "There is no key. Make one with: apex keys create --name NAME"
        table(("ID", "SCOPES", "CREATED", "ENDS", "LAST USED", "NAME"), rows, empty=empty)

    show(found, json=json, people=people)


@app.command("revoke")
def revoke_key(
    id: Annotated[str, typer.Argument(metavar="ID", help="The key's id.")],
    json: Json = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Take a key back, for good and at once."""
    path = f"/api/keys/{quote(id, safe='')}"
    revoked = call(lambda api: api.ask("DELETE", path), data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import say

        say(f"{revoked['id']} ({revoked['name']}) no longer lets anybody in")

    show(revoked, json=json, people=people)


@audit.command("verify")
def verify_audit(json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Verify the log of administrative acts and name the first row that is not as it was written."""
    verdict = call(lambda api: api.ask("GET", "/api/audit/verify"), data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import say

        if verdict["intact"]:
            say(f"The audit log is intact; rows: {verdict['count']}.")
        else:
            say(f"The audit log is broken: {verdict['problem']}. Compare it with a backup.")

    show(verdict, json=json, people=people)
    if not verdict["intact"]:
        raise typer.Exit(1)


@audit.command("export")
def export_audit(data_dir: DataDir = None) -> None:
    """Print the log of administrative acts, one JSON object a line, the oldest first."""
    import sqlite3
    from json import dumps

    from apexbridge.settings import load_settings
    from apexbridge.storage.audit import AUDIT_FILE, exported
    from apexbridge.surfaces.cli.console import say

    path = load_settings(data_dir=data_dir).data_dir / AUDIT_FILE
    try:
        for row in exported(path):
            sys.stdout.write(f"{dumps(row)}\n")
    except BrokenPipeError:
        raise
    except (OSError, sqlite3.Error) as error:
        say(f"{path} cannot be read: {error}")
        raise typer.Exit(1) from error


def _seconds(span: str | None) -> int | None:
    if span is None:
        return None
    found = _SPAN.fullmatch(span.strip().lower())
    if found is None:
        raise typer.BadParameter("a number with m, h, d or w, such as 90d", param_hint="--expires")
    return int(found[1]) * _SECONDS[found[2]]


def _end(key: dict[str, str | None]) -> str:
    return f"revoked {key['revokedAt']}" if key["revokedAt"] else key["expiresAt"] or "never"
