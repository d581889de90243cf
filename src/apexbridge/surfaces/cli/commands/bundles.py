"""`apex packages …`: bundles of Python packages that every run can import."""

import asyncio
from typing import Annotated, Any
from urllib.parse import quote

import typer

from apexbridge.surfaces.cli.client import Api
from apexbridge.surfaces.cli.completion import bundle_names
from apexbridge.surfaces.cli.console import Console, plural
from apexbridge.surfaces.cli.session import Session, command

POLL_SECONDS = 1.0
"""How often the progress of an install is asked for."""
MB = 1024 * 1024
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
BundleNames = Annotated[
    list[str], typer.Argument(metavar="BUNDLE…", help="documents, data, web, images.", autocompletion=bundle_names)
]


@command(app, "install")
def install(session: Session, bundles: BundleNames) -> None:
    """Install bundles of Python packages, which every run can import."""

    async def work(api: Api) -> list[Any]:
        return [await _install(api, session.console, name) for name in bundles]

    installed = session.call(work)
    if session.show_json(installed):
        return
    for view in installed:
        session.console.say(
            f"{view['name']} is installed: {plural(len(view['packages']), 'package')}, "
            f"{-(-view['sizeBytes'] // MB)} MB. Every run can import them."
        )


@command(app, "list", "ls")
def list_bundles(session: Session) -> None:
    """List the bundles and what is installed of them."""
    views = session.ask("GET", "/api/packages")
    rows = [
        (
            view["name"],
            view["state"],
            "" if view["sizeBytes"] is None else f"{-(-view['sizeBytes'] // MB)} MB",
            _contents(view),
        )
        for view in views
    ]
    session.table(views, ("BUNDLE", "STATE", "SIZE", "PACKAGES"), rows, empty="")


@command(app, "remove", "rm")
def remove(session: Session, bundles: BundleNames) -> None:
    """Remove bundles; active runs that use them lose their packages."""

    async def work(api: Api) -> list[Any]:
        return [await api.ask("DELETE", f"/api/packages/{quote(name, safe='')}") for name in bundles]

    removed = session.call(work, creates=False)
    session.report(removed, f"removed: {', '.join(view['name'] for view in removed)}")


async def _install(api: Api, console: Console, name: str) -> Any:
    """Install a bundle, and meanwhile print what the installer reports."""
    installing = asyncio.ensure_future(api.ask("POST", f"/api/packages/{quote(name, safe='')}/install"))
    shown = None
    try:
        while not (await asyncio.wait([installing], timeout=POLL_SECONDS))[0]:
            views = await api.ask("GET", "/api/packages")
            line = next((view["progress"] for view in views if view["name"] == name), None)
            if line and line != shown:
                console.say(f"{name}: {line}")
                shown = line
    finally:
        installing.cancel()
        await asyncio.wait([installing])
    return installing.result()


def _contents(view: dict[str, Any]) -> str:
    """The listed packages, with their versions if they are installed."""
    versions = {package["name"].lower().replace("_", "-"): package["version"] for package in view["packages"]}
    return ", ".join(f"{name} {versions.get(name, '')}".strip() for name in view["requirements"])
