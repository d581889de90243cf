"""`apex config …`."""

import re
from typing import Any

import typer

from apexbridge.surfaces.cli.options import DataDir, Json, Url, show

_PASSWORD = re.compile(r"//[^/@\s]+@")
app = typer.Typer(help="What is set, and where it was set.", no_args_is_help=True, rich_markup_mode=None)


@app.command("show")
def show_config(json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Show every setting, its value and where it came from."""
    from apexbridge.settings import Settings, load_settings, origins

    flags = {"data_dir": data_dir, "url": url}
    settings, places = load_settings(**flags), origins(**flags)
    values = {name: _masked(value) for name, value in settings.model_dump(mode="json").items()}
    data = {
        name: {"value": values[name], "from": places[name], "environment": f"APEX_{name.upper()}"}
        for name in Settings.model_fields
    }

    def people() -> None:
        from apexbridge.surfaces.cli.console import table

        rows = [
            (f"APEX_{name.upper()}", values[name], places[name], field.description)
            for name, field in Settings.model_fields.items()
        ]
        table(("SETTING", "VALUE", "FROM", "MEANING"), rows, empty="")

    show(data, json=json, people=people)


def _masked(value: Any) -> Any:
    """Mask user name and password in a URL. Keys are masked already."""
    return _PASSWORD.sub("//**********@", value) if isinstance(value, str) else value
