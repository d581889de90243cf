"""`apex doctor`."""

import typer

from apexbridge.surfaces.cli import interrupts
from apexbridge.surfaces.cli.options import DataDir, Json, show


def doctor(data_dir: DataDir = None, json: Json = False) -> None:
    """Prove what this host enforces for scripts, and say what is missing and how to get it."""
    from apexbridge.sandbox.diagnosis import Diagnosis, diagnose
    from apexbridge.settings import load_settings

    settings = load_settings(data_dir=data_dir).sandbox
    diagnosis: Diagnosis = interrupts.run(diagnose(settings))

    def people() -> None:
        from apexbridge.surfaces.cli.console import line, say, table

        for tried in diagnosis.backends:
            if not tried.usable:
                say(f"{tried.backend} cannot be used: {tried.reason}", style="yellow")
                say(f"  {tried.remedy}")
        line(f"sandbox: {diagnosis.backend or 'none'} (running as {diagnosis.user})\n")
        table(
            ["guarantee", "holds", "required", "by", "proof"],
            [
                (found.guarantee, found.held, found.required, found.mechanism or "nothing", found.proof)
                for found in diagnosis.guarantees
            ],
            empty="",
        )
        line("")
        table(
            ["runtime", "works", "version"],
            [(found.runtime, found.works, found.version) for found in diagnosis.runtimes],
            empty="",
        )
        for broken in diagnosis.guarantees:
            if not broken.held:
                say(f"{broken.guarantee}: {broken.remedy}", style="red" if broken.required else "yellow")
        for absent in diagnosis.runtimes:
            if not absent.works:
                say(f"{absent.runtime}: {absent.remedy}", style="yellow")
        say(
            {
                "healthy": "Scripts run, and the sandbox enforces every guarantee.",
                "degraded": "Scripts run; what is required holds, not everything does.",
                "unavailable": "Scripts do not run: what is required does not hold.",
            }[diagnosis.status],
            style="bold",
        )

    show(diagnosis.model_dump(mode="json"), json=json, people=people)
    if not diagnosis.ok:
        raise typer.Exit(1)
