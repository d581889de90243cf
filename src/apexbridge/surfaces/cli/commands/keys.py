"""`apex keys …` and `apex audit …`: API keys and the audit log."""

import json
import re
import sqlite3
import sys
from typing import Annotated, Any
from urllib.parse import quote

import typer

from apexbridge.errors import InvalidInputError
from apexbridge.surfaces.cli.client import Api
from apexbridge.surfaces.cli.connection import find_connection
from apexbridge.surfaces.cli.session import DataDir, Session, command

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
audit = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
MB = 1024 * 1024
_SECONDS = {"m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}
_DURATION = re.compile(r"([1-9]\d{0,5})([mhdw])", re.ASCII)

_LIMITS = {"--quota-mb": "quotaMb", "--max-runs": "maxRuns", "--rate-limit": "rateLimit"}
_DEFAULT = "default"
QuotaMb = Annotated[
    str | None, typer.Option("--quota-mb", help="Its disk quota; 0 for none, `default` for that of all keys.")
]
MaxRuns = Annotated[str | None, typer.Option("--max-runs", help="How many of its runs may be active at a time.")]
RateLimit = Annotated[str | None, typer.Option("--rate-limit", help="Its requests a minute; 0 for any number.")]


@command(app, "create")
def create_key(
    session: Session,
    name: Annotated[str, typer.Option("--name", help="Who or what uses it.")],
    scope: Annotated[str, typer.Option("--scope", help="Its scopes: chat, read, run, admin, with commas.")] = "chat",
    expires: Annotated[str | None, typer.Option("--expires", help="How long it is valid: 30m, 12h, 90d, 52w.")] = None,
    quota_mb: QuotaMb = None,
    max_runs: MaxRuns = None,
    rate_limit: RateLimit = None,
) -> None:
    """Create a key; it is printed once and can never be shown again."""
    scopes = [word.strip() for word in scope.split(",") if word.strip()]
    body = {"name": name, "scopes": scopes, "expiresIn": _seconds(expires)}
    body |= _limits(quota_mb, max_runs, rate_limit)
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


@command(app, "show")
def show_key(
    session: Session,
    key: Annotated[str, typer.Argument(metavar="NAME|ID", help="The key's id, or its name if only one has it.")],
) -> None:
    """Show a key, and what it holds of every limited resource."""
    found = _ask_key(session, "GET", key)
    if session.show_json(found):
        return
    console = session.console
    console.say(f"{found['id']} ({found['name']}) may: {', '.join(found['scopes'])}")
    end = _end(found) if found["revokedAt"] else f"expires {_end(found)}"
    console.say(f"created {found['createdAt']}, last used {found['lastUsedAt'] or 'never'}, {end}")
    rows = [
        (
            row["resource"],
            _amount(row["used"], row["unit"]),
            _amount(row["limit"], row["unit"]),
            "" if row["share"] is None else f"{row['share']:.0%}",
            _amount(row["total"], row["unit"]),
            _amount(row["totalLimit"], row["unit"]),
        )
        for row in found["usage"]
    ]
    session.table(found, ("RESOURCE", "USED", "LIMIT", "SHARE", "ALL KEYS", "LIMIT OF ALL"), rows, empty="")


@command(app, "change")
def change_key(
    session: Session,
    key: Annotated[str, typer.Argument(metavar="NAME|ID", help="The key's id, or its name if only one has it.")],
    quota_mb: QuotaMb = None,
    max_runs: MaxRuns = None,
    rate_limit: RateLimit = None,
) -> None:
    """Change the limits of a key. `default` takes its own limit away."""
    body = _limits(quota_mb, max_runs, rate_limit)
    if not body:
        raise typer.BadParameter("name a limit: --quota-mb, --max-runs or --rate-limit")
    changed = _ask_key(session, "PATCH", key, json=body)
    own = [f"{name} {changed[field]}" for name, field in _LIMITS.items() if changed[field] is not None]
    session.report(changed, f"{changed['id']} ({changed['name']}) has its own limits: {', '.join(own) or 'none'}")


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


def _limits(*values: str | None) -> dict[str, int | None]:
    """The fields of the limits that were given."""
    found: dict[str, int | None] = {}
    for (option, field), value in zip(_LIMITS.items(), values, strict=True):
        if value is None:
            continue
        if value != _DEFAULT and not (value.isascii() and value.isdigit()):
            raise typer.BadParameter(f"a number, or {_DEFAULT}", param_hint=option)
        found[field] = None if value == _DEFAULT else int(value)
    return found


def _ask_key(session: Session, method: str, key: str, **options: Any) -> Any:
    """Send a request about a key that is named by its id or its name."""

    async def work(api: Api) -> Any:
        keys = await api.ask("GET", "/api/keys")
        ids = [known["id"] for known in keys if known["name"] == key]
        if key in (known["id"] for known in keys) or not ids:
            ids = [key]
        if len(ids) > 1:
            raise InvalidInputError(f"{len(ids)} keys are named {key}; name one by its id: {', '.join(ids)}")
        return await api.ask(method, f"/api/keys/{quote(ids[0], safe='')}", **options)

    return session.call(work, creates=False)


def _amount(value: int | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:,}" if unit == "count" else f"{value / MB:,.1f} MB"


def _end(key: dict[str, Any]) -> str:
    return f"revoked {key['revokedAt']}" if key["revokedAt"] else key["expiresAt"] or "never"
