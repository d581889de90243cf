"""`apex serve`."""

import logging
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apexbridge.surfaces.cli import interrupts
from apexbridge.surfaces.cli.options import DataDir, Json, show

if TYPE_CHECKING:
    from apexbridge.bridge import Bridge
    from apexbridge.settings import Settings


def serve(
    host: Annotated[
        str | None,
        typer.Option(help="Address to bind; others than loopback need an API key.", show_default="127.0.0.1"),
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind; 0 takes a free one.", show_default="8420")] = None,
    data_dir: DataDir = None,
    examples: Annotated[Path | None, typer.Option(help="Install the skills of this folder on the first start.")] = None,
    json: Json = False,
) -> None:
    """Start the HTTP API."""
    import asyncio

    import uvloop

    from apexbridge.bridge import DATABASE_FILE
    from apexbridge.settings import load_settings
    from apexbridge.surfaces.http.serve import check_host

    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("apexbridge.agent").setLevel(logging.INFO)  # the steps of chat requests
    _log_no_more_than_is_printed()
    settings = load_settings(host=host, port=port, data_dir=data_dir)
    may_have_keys = (settings.data_dir / DATABASE_FILE).exists()
    check_host(settings.host, required=settings.api_keys_required, has_keys=may_have_keys)
    interrupts.leave_to_python()  # the runner, and then the server, handle SIGINT
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, examples, json))


def _log_no_more_than_is_printed() -> None:
    """Skip the lookup of thread, process and source location for each record: the log format does not use them."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None


async def _serve(settings: "Settings", examples: Path | None, json: bool) -> None:
    from contextlib import AsyncExitStack

    import anyio

    from apexbridge.bridge import DATABASE_FILE, Bridge
    from apexbridge.surfaces.cli.progress import progress_bar
    from apexbridge.surfaces.http.serve import bind, check_host, serve

    is_first_start = not (settings.data_dir / DATABASE_FILE).exists()
    async with AsyncExitStack() as stack:
        with progress_bar("reading skills") as progress:
            bridge = await stack.enter_async_context(
                Bridge.open(
                    settings,
                    indexing="background",
                    progress=progress,
                    index_progress=stack.enter_context(progress_bar("indexing skills")),
                )
            )
        check_host(settings.host, required=settings.api_keys_required, has_keys=bridge.keys.has_usable)
        if examples and is_first_start:
            await _install_examples(bridge, examples)
        listener = stack.enter_context(bind(settings.host, settings.port))
        total = (await bridge.skills.list_skills(limit=1)).total
        broken = len(await bridge.skills.problems())

        def announce(url: str) -> None:
            data = {"url": url, "pid": os.getpid(), "skills": total, "problems": broken}
            show(data, json=json, people=lambda: _greet(url, settings, total, broken))
            sys.stdout.flush()

        async with anyio.create_task_group() as background:
            background.start_soon(bridge.prepare_sandbox)
            await serve(bridge, listener, announce)
            background.cancel_scope.cancel()


async def _install_examples(bridge: "Bridge", folder: Path) -> None:
    from apexbridge.errors import ApexBridgeError
    from apexbridge.skills.store.roots import SkillRoot, discover
    from apexbridge.surfaces.cli.console import say

    for found in discover(SkillRoot(id="examples", path=folder), [folder]):
        try:
            receipt = await bridge.skills.install_skill(found.path)
            say(f"installed the example {receipt.name}")
        except ApexBridgeError as error:
            say(f"the example {found.folder} was not installed: {error.message}", style="yellow")


def _this_command() -> str:
    """How to call this program: `apex` if the PATH leads to it, else its path."""
    own = Path(sys.argv[0])
    found = shutil.which("apex")
    if found and Path(found).resolve() == own.resolve():
        return "apex"
    return str(own.relative_to(Path.cwd()) if own.is_relative_to(Path.cwd()) else own)


def _greet(url: str, settings: "Settings", total: int, broken: int) -> None:
    from apexbridge.surfaces.cli.console import say
    from apexbridge.surfaces.http.middleware.auth import needs_keys

    say(f"apexbridge serves {total} skill{'' if total == 1 else 's'} at {url}", style="bold")
    if broken:
        say(f"{broken} folder{'' if broken == 1 else 's'} could not be served: apex skills problems", style="yellow")
    if needs_keys(settings.api_keys_required, settings.host):
        say("Clients need an API key: apex keys create", style="yellow")
    say(f"  API and its documentation   {url}/docs")
    say(f"  list the skills             curl {url}/api/skills")
    elsewhere = "" if settings.data_dir == Path("data").absolute() else f" --data-dir {settings.data_dir}"
    say(f"  or in another terminal      {_this_command()} skills list{elsewhere}")
    say(f'  find one for a task         {_this_command()} skills search "what you want done"{elsewhere}')
    say("Stop with Ctrl-C.")
