"""`apex skills grant|revoke|grants|deps` and `apex secrets …`: permissions, dependencies and secrets of skills."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apexbridge.surfaces.cli import interrupts
from apexbridge.surfaces.cli.options import DataDir, Json, SkillName, Url, call, show

if TYPE_CHECKING:
    from apexbridge.surfaces.cli.client import Api

Permission = Annotated[
    str, typer.Argument(metavar="PERMISSION", help="net:HOST:PORT, env:NAME, secret:NAME, fs:ro:PATH.")
]
SecretName = Annotated[str, typer.Argument(metavar="NAME", help="The secret's name.")]
secrets = typer.Typer(help="Values that skills can be granted by name.", no_args_is_help=True, rich_markup_mode=None)


def add_commands(app: typer.Typer) -> None:
    """Add these commands to `apex skills`."""
    for command in (grant, revoke, grants, deps):
        app.command()(command)


def grant(
    name: SkillName, permission: Permission, json: Json = False, data_dir: DataDir = None, url: Url = None
) -> None:
    """Allow a skill something that it asks for; a change of its content takes it back."""
    view = _ask("POST", name, "grants", data_dir=data_dir, url=url, json={"permission": permission})
    show(view, json=json, people=lambda: _say(f"{name} may now: {permission}"))


def revoke(
    name: SkillName, permission: Permission, json: Json = False, data_dir: DataDir = None, url: Url = None
) -> None:
    """Take a permission back."""
    receipt = _ask("DELETE", name, "grants", data_dir=data_dir, url=url, params={"permission": permission})
    show(receipt, json=json, people=lambda: _say(f"{name} may no longer: {permission}"))


def grants(name: SkillName, json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Show what a skill asks for and what it was given."""
    views = _ask("GET", name, "grants", data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import table

        rows = [(view["permission"], view["state"], view["grantedAt"]) for view in views]
        table(("PERMISSION", "STATE", "SINCE"), rows, empty=f"{name} asks for nothing.")

    show(views, json=json, people=people)


def deps(
    name: SkillName,
    install: Annotated[
        bool, typer.Option("--install", help="Install what is missing, from the package indexes.")
    ] = False,
    json: Json = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Show what a skill declares to need, and install it; a run never does."""
    if install and not json:
        _say("installing; this can take a while")
    view = _ask("POST" if install else "GET", name, "dependencies", data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import facts, say, warn

        warn(view["problems"])
        facts({key: view[key] for key in ("python", "node", "sources")})
        if not view["python"] and not view["node"]:
            say(f"{name} declares nothing.")
        elif view["installed"]:
            say("Everything is installed.")
        else:
            say(f"Not installed. Install with: apex skills deps {name} --install", style="yellow")

    show(view, json=json, people=people)


@secrets.command("set")
def set_secret(name: SecretName, json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Keep a secret; its value is asked for, or read from stdin."""
    value = _asked(name) if sys.stdin.isatty() else sys.stdin.read().rstrip("\n")
    receipt = _secret("PUT", name, data_dir=data_dir, url=url, json={"value": value})
    show(
        receipt, json=json, people=lambda: _say(f"{name} is kept; grant it with: apex skills grant SKILL secret:{name}")
    )


@secrets.command("list")
@secrets.command("ls", hidden=True)
def list_secrets(json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """List the names of the secrets; values are never shown."""
    found = call(lambda api: api.ask("GET", "/api/secrets"), data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import table

        table(("NAME",), [(name,) for name in found["names"]], empty="No secret is kept.")

    show(found, json=json, people=people)


@secrets.command("remove")
@secrets.command("rm", hidden=True)
def remove_secret(name: SecretName, json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Forget a secret."""
    receipt = _secret("DELETE", name, data_dir=data_dir, url=url)
    show(receipt, json=json, people=lambda: _say(f"{name} is forgotten"))


def _asked(name: str) -> str:
    while not (line := interrupts.ask(f"Value of {name}: ", echo=False)).rstrip("\n"):
        if not line:
            raise typer.Abort  # end of input
    return line.rstrip("\n")


def _ask(method: str, name: str, *rest: str, data_dir: str | None, url: str | None, **options: Any) -> Any:
    async def work(api: "Api") -> Any:
        from apexbridge.surfaces.cli.client import skill_path

        return await api.ask(method, skill_path(name, *rest), **options)

    return call(work, data_dir=data_dir, url=url)


def _secret(method: str, name: str, *, data_dir: str | None, url: str | None, **options: Any) -> Any:
    from urllib.parse import quote

    path = f"/api/secrets/{quote(name, safe='')}"
    return call(lambda api: api.ask(method, path, **options), data_dir=data_dir, url=url)


def _say(message: str) -> None:
    from apexbridge.surfaces.cli.console import say

    say(message)
