"""`apex skills grant|revoke|grants|deps` and `apex secrets …`: permissions, dependencies and secrets of skills."""

import sys
from typing import Annotated, Any
from urllib.parse import quote

import typer

from apexbridge.surfaces.cli import interrupts
from apexbridge.surfaces.cli.session import Session, SkillName, command

Permission = Annotated[
    str, typer.Argument(metavar="PERMISSION", help="net:HOST:PORT, env:NAME, secret:NAME, fs:ro:PATH.")
]
SecretName = Annotated[str, typer.Argument(metavar="NAME", help="The secret's name.")]
app = typer.Typer(rich_markup_mode=None)
secrets = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@command(app, "grant")
def grant(session: Session, name: SkillName, permission: Permission) -> None:
    """Grant a skill a permission that it requests; a change of its content revokes it."""
    view = session.ask_skill("POST", name, "grants", json={"permission": permission})
    session.report(view, f"{name} may now: {permission}")


@command(app, "revoke")
def revoke(session: Session, name: SkillName, permission: Permission) -> None:
    """Revoke a permission."""
    receipt = session.ask_skill("DELETE", name, "grants", params={"permission": permission})
    session.report(receipt, f"{name} may no longer: {permission}")


@command(app, "grants")
def grants(session: Session, name: SkillName) -> None:
    """Show the permissions that a skill requests and those that are granted."""
    views = session.ask_skill("GET", name, "grants")
    rows = [(view["permission"], view["state"], view["grantedAt"]) for view in views]
    session.table(views, ("PERMISSION", "STATE", "SINCE"), rows, empty=f"{name} requests no permissions.")


@command(app, "deps")
def deps(
    session: Session,
    name: SkillName,
    install: Annotated[
        bool, typer.Option("--install", help="Install what is missing, from the package indexes.")
    ] = False,
) -> None:
    """Show a skill's declared dependencies, and install them; a run never does."""
    if install and not session.json:
        session.console.say("installing; this can take a while")
    view = session.ask_skill("POST" if install else "GET", name, "dependencies")
    if session.show_json(view):
        return
    console = session.console
    console.warn(view["problems"])
    console.facts({key: view[key] for key in ("python", "node", "sources")})
    if not view["python"] and not view["node"]:
        console.say(f"{name} declares no dependencies.")
    elif view["installed"]:
        console.say("Everything is installed.")
    else:
        console.say(f"Not installed. Install with: apex skills deps {name} --install", style="yellow")


@command(secrets, "set")
def set_secret(session: Session, name: SecretName) -> None:
    """Save a secret; its value is asked for, or read from stdin."""
    value = _ask_value(name) if sys.stdin.isatty() else sys.stdin.read().rstrip("\n")
    receipt = _ask_secret(session, "PUT", name, json={"value": value})
    session.report(receipt, f"{name} is saved; grant it with: apex skills grant SKILL secret:{name}")


@command(secrets, "list", "ls")
def list_secrets(session: Session) -> None:
    """List the names of the secrets; values are never shown."""
    found = session.ask("GET", "/api/secrets")
    session.table(found, ("NAME",), [(name,) for name in found["names"]], empty="There are no secrets.")


@command(secrets, "remove", "rm")
def remove_secret(session: Session, name: SecretName) -> None:
    """Delete a secret."""
    session.report(_ask_secret(session, "DELETE", name), f"{name} is deleted")


def _ask_value(name: str) -> str:
    while not (line := interrupts.ask(f"Value of {name}: ", echo=False)).rstrip("\n"):
        if not line:
            raise typer.Abort  # end of input
    return line.rstrip("\n")


def _ask_secret(session: Session, method: str, name: str, **options: Any) -> Any:
    return session.ask(method, f"/api/secrets/{quote(name, safe='')}", **options)
