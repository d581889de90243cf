"""`apex doctor` and `apex config`: this host and its settings."""

import asyncio
from typing import Any

import typer

import apexbridge
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
    """Test what this host enforces for scripts, and everything else that the server needs."""
    from apexbridge.monitoring.host_checks import check_host  # `apex config` does not need these
    from apexbridge.sandbox.diagnosis import diagnose

    session = Session(json=json)
    settings = load_settings(data_dir=data_dir)

    async def check_all() -> tuple[Any, Any]:
        return await asyncio.gather(diagnose(settings.sandbox), check_host(settings, version=apexbridge.__version__))

    diagnosis, checks = interrupts.run(check_all())
    if not session.show_json({**diagnosis.model_dump(mode="json"), "checks": [one.model_dump() for one in checks]}):
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
        console.line("")
        rows = [(one.section, one.name, one.state, one.detail) for one in checks]
        console.table(["section", "check", "state", "detail"], rows)
        for broken in diagnosis.guarantees:
            if not broken.held:
                console.say(f"{broken.guarantee}: {broken.remedy}", style="red" if broken.required else "yellow")
        for absent in diagnosis.runtimes:
            if not absent.works:
                console.say(f"{absent.runtime}: {absent.remedy}", style="yellow")
        for one in checks:
            if one.state != "ok":
                style = "red" if one.state == "failed" else "yellow"
                console.say(f"{one.section}, {one.name}: {one.remedy}", style=style)
        console.say(_SUMMARIES[diagnosis.status], style="bold")
        if any(one.state == "failed" for one in checks):
            console.say("The server cannot work properly: see what failed above.", style="red")
    if not diagnosis.ok or any(one.state == "failed" for one in checks):
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
