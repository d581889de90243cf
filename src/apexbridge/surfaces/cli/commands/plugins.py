"""`apex plugins …`."""

from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from apexbridge.surfaces.cli.options import DataDir, Json, Url, call, show

if TYPE_CHECKING:
    from apexbridge.surfaces.cli.client import Api

app = typer.Typer(help="Skills that came together.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
@app.command("ls", hidden=True)
def list_plugins(json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """List the installed plugins with their skills."""
    plugins = call(lambda api: api.ask("GET", "/api/plugins"), data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import table

        rows = [(plugin["name"], plugin["version"], plugin["skills"]) for plugin in plugins]
        table(("NAME", "VERSION", "SKILLS"), rows, empty="No plugin is installed.")

    show(plugins, json=json, people=people)


@app.command("uninstall")
@app.command("remove", hidden=True)
@app.command("rm", hidden=True)
def uninstall_plugin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The plugin's name.")],
    json: Json = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Remove a plugin with all its skills."""

    async def work(api: "Api") -> object:
        return await api.ask("DELETE", f"/api/plugins/{quote(name, safe='')}")

    receipt = call(work, data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import say

        say(f"{receipt['message']}: {name}")

    show(receipt, json=json, people=people)
