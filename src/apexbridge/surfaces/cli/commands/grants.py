"""`apex skills grant|revoke|grants|deps` and `apex secrets …`: permissions, dependencies and secrets of skills."""

import sys
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from apexbridge.surfaces.cli import interrupts
from apexbridge.surfaces.cli.session import Session, SkillName, command

if TYPE_CHECKING:
    from apexbridge.surfaces.cli.client import Api
    from apexbridge.surfaces.cli.console import Console

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
    packages: Annotated[
        list[str] | None,
        typer.Argument(metavar="PACKAGE…", help="For --add and --remove: pypdf, 'pypdf>=4', npm:docx@^9."),
    ] = None,
    detect: Annotated[bool, typer.Option("--detect", help="Read which packages and programs its code uses.")] = False,
    add: Annotated[bool, typer.Option("--add", help="Add packages to the skill; an overwrite keeps them.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove added packages from the skill.")] = False,
    install: Annotated[
        bool, typer.Option("--install", help="Install what is declared and added, from the package indexes.")
    ] = False,
) -> None:
    """Show, detect, add, remove and install a skill's packages; a run never installs any."""
    if add and remove:
        raise typer.BadParameter("use either --add or --remove")
    if (add or remove) != bool(packages):
        raise typer.BadParameter("--add and --remove take one package or more, and nothing else does")

    async def work(api: "Api") -> Any:
        if install and not session.json:
            session.console.say("installing; this can take a while")
        if packages:
            change: dict[str, Any] = {"add" if add else "remove": packages}
            change |= {"install": True} if install else {}
            view = await api.ask_skill("PUT", name, "dependencies", json=change)
        elif install:
            view = await api.ask_skill("POST", name, "dependencies")
        if detect or not (packages or install):
            view = await api.ask_skill("GET", name, "dependencies", params={"detect": "true"} if detect else None)
        return view

    view = session.call(work, creates=False)
    if session.show_json(view):
        return
    console = session.console
    console.warn(view["problems"])
    console.facts({key: view[key] for key in ("python", "node", "added", "sources")})
    if detect:
        _print_detected(console, name, view)
    if not view["python"] and not view["node"]:
        console.say(f"{name} declares no dependencies.")
    elif view["installed"]:
        console.say("Everything is installed.")
    else:
        console.say(f"Not installed. Install with: apex skills deps {name} --install", style="yellow")


def _print_detected(console: "Console", name: str, view: dict[str, Any]) -> None:
    rows = [
        (
            found["package"] if found["kind"] != "program" and found["package"] else found["name"],
            found["kind"],
            f"in bundle {found['bundle']}" if found["status"] == "bundle" else found["status"],
            f"{found['file']}:{found['line']}",
        )
        for found in view["detected"]
    ]
    console.table(("PACKAGE", "KIND", "STATUS", "FOUND IN"), rows, empty="Its code uses no packages and no programs.")
    for line in view["commands"]:
        console.line(f"To add what is missing: {line}")
    if unknown := [
        found["name"] for found in view["detected"] if (found["status"], found["kind"]) == ("unknown", "python")
    ]:
        console.say(
            f"No known package provides {', '.join(unknown)}. If you know one: apex skills deps {name} --add PACKAGE"
        )


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
