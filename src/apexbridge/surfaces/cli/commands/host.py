"""`apex doctor` and `apex config`: this host and its settings."""

from typing import Any

import typer

from apexbridge.settings import Settings, load_settings, masked_address, origins
from apexbridge.surfaces.cli import interrupts
from apexbridge.surfaces.cli.session import DataDir, Json, Session, command

app = typer.Typer(rich_markup_mode=None)
config = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_SUMMARIES = {
    "healthy": "Scripts run, and the sandbox enforces every guarantee.",
    "degraded": "Scripts run; every required guarantee holds, but not all of them.",
    "unavailable": "Scripts do not run: a required guarantee does not hold.",
}


@app.command("doctor")
def doctor(data_dir: DataDir = None, json: Json = False) -> None:
    """Test what this host enforces for scripts, and show how to get what is missing."""
    from apexbridge.sandbox.diagnosis import diagnose  # `apex config` does not need it

    session = Session(json=json)
    diagnosis = interrupts.run(diagnose(load_settings(data_dir=data_dir).sandbox))
    if not session.show_json(diagnosis.model_dump(mode="json")):
        console = session.console
        for backend in diagnosis.backends:
            if not backend.usable:
                console.say(f"{backend.backend} cannot be used: {backend.reason}", style="yellow")
                console.say(f"  {backend.remedy}")
        console.line(f"sandbox: {diagnosis.backend or 'none'} (running as {diagnosis.user})\n")
        guarantees = [
            (found.guarantee, found.held, found.required, found.mechanism or "nothing", found.proof)
            for found in diagnosis.guarantees
        ]
        console.table(["guarantee", "holds", "required", "by", "proof"], guarantees)
        console.line("")
        runtimes = [(found.runtime, found.works, found.version) for found in diagnosis.runtimes]
        console.table(["runtime", "works", "version"], runtimes)
        console.line("")
        programs = [(found.program, found.found, found.remedy) for found in diagnosis.programs]
        console.table(["program", "found", "install with"], programs)
        for broken in diagnosis.guarantees:
            if not broken.held:
                console.say(f"{broken.guarantee}: {broken.remedy}", style="red" if broken.required else "yellow")
        for absent in diagnosis.runtimes:
            if not absent.works:
                console.say(f"{absent.runtime}: {absent.remedy}", style="yellow")
        console.say(_SUMMARIES[diagnosis.status], style="bold")
    if not diagnosis.ok:
        raise typer.Exit(1)


@command(config, "show")
def show_config(session: Session) -> None:
    """Show every setting, its value and its source."""
    flags = {"data_dir": session.data_dir, "url": session.url}
    sources = origins(**flags)
    values = {name: _masked(value) for name, value in load_settings(**flags).model_dump(mode="json").items()}
    data = {
        name: {"value": values[name], "from": sources[name], "environment": f"APEX_{name.upper()}"}
        for name in Settings.model_fields
    }
    if session.show_json(data):
        return
    rows = [
        (f"APEX_{name.upper()}", values[name], sources[name], field.description)
        for name, field in Settings.model_fields.items()
    ]
    session.console.table(("SETTING", "VALUE", "FROM", "MEANING"), rows)


def _masked(value: Any) -> Any:
    """Mask secrets in a URL. Keys are masked already."""
    return masked_address(value) if isinstance(value, str) else value
