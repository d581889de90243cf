"""`apex serve`."""

import asyncio
import logging
import os
import shutil
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from apexbridge.bridge import DATABASE_FILE, Bridge
from apexbridge.errors import ApexBridgeError
from apexbridge.settings import Settings, load_settings
from apexbridge.skills.store.roots import SkillRoot, discover
from apexbridge.surfaces.cli import interrupts
from apexbridge.surfaces.cli.console import Console, plural
from apexbridge.surfaces.cli.session import DataDir, Json, Session
from apexbridge.surfaces.http.middleware.auth import needs_keys
from apexbridge.surfaces.http.serve import bind, check_host
from apexbridge.surfaces.http.serve import serve as serve_http

app = typer.Typer(rich_markup_mode=None)


@app.command("serve")
def serve(
    host: Annotated[
        str | None,
        typer.Option(help="Address to bind; other than loopback needs an API key.", show_default="127.0.0.1"),
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind; 0 takes a free one.", show_default="8420")] = None,
    data_dir: DataDir = None,
    examples: Annotated[Path | None, typer.Option(help="Install the skills of this folder on the first start.")] = None,
    json: Json = False,
) -> None:
    """Start the HTTP API."""
    _configure_logging()
    settings = load_settings(host=host, port=port, data_dir=data_dir)
    may_have_keys = (settings.data_dir / DATABASE_FILE).exists()
    check_host(settings.host, required=settings.api_keys_required, has_keys=may_have_keys)
    interrupts.leave_to_python()  # the runner, and then the server, handle SIGINT
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(Session(json=json), settings, examples))


def _configure_logging() -> None:
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("apexbridge.agent").setLevel(logging.INFO)  # the steps of chat requests
    # Skip the lookup of thread, process and source location for each record: the log format does not use them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None


async def _serve(session: Session, settings: Settings, examples: Path | None) -> None:
    console = session.console
    is_first_start = not (settings.data_dir / DATABASE_FILE).exists()
    async with AsyncExitStack() as stack:
        index_progress = stack.enter_context(console.progress_bar("indexing skills"))
        with console.progress_bar("reading skills") as progress:
            bridge = await stack.enter_async_context(
                Bridge.open(settings, indexing="background", progress=progress, index_progress=index_progress)
            )
        check_host(settings.host, required=settings.api_keys_required, has_keys=bridge.keys.has_usable)
        if examples and is_first_start:
            await _install_examples(bridge, console, examples)
        listener = stack.enter_context(bind(settings.host, settings.port))
        total = (await bridge.skills.list_skills(limit=1)).total
        broken = len(await bridge.skills.problems())

        def announce(url: str) -> None:
            if not session.show_json({"url": url, "pid": os.getpid(), "skills": total, "problems": broken}):
                _greet(console, url, settings, total, broken)
            sys.stdout.flush()

        async with asyncio.TaskGroup() as background:
            preparing = background.create_task(bridge.prepare_sandbox())
            await serve_http(bridge, listener, announce)
            preparing.cancel()


async def _install_examples(bridge: Bridge, console: Console, folder: Path) -> None:
    for found in discover(SkillRoot(id="examples", path=folder), [folder]):
        try:
            receipt = await bridge.skills.install_skill(found.path)
            console.say(f"installed the example {receipt.name}")
        except ApexBridgeError as error:
            console.say(f"the example {found.folder} was not installed: {error.message}", style="yellow")


def _this_command() -> str:
    """How to call this program: `apex` if the PATH leads to it, else its path."""
    own = Path(sys.argv[0])
    found = shutil.which("apex")
    if found and Path(found).resolve() == own.resolve():
        return "apex"
    return str(own.relative_to(Path.cwd()) if own.is_relative_to(Path.cwd()) else own)


def _greet(console: Console, url: str, settings: Settings, total: int, broken: int) -> None:
    console.say(f"apexbridge serves {plural(total, 'skill')} at {url}", style="bold")
    if broken:
        console.say(f"{plural(broken, 'folder')} could not be served: apex skills problems", style="yellow")
    if needs_keys(settings.api_keys_required, settings.host):
        console.say("Clients need an API key: apex keys create", style="yellow")
    data_dir = "" if settings.data_dir == Path("data").absolute() else f" --data-dir {settings.data_dir}"
    console.say(f"  API and its documentation   {url}/docs")
    console.say(f"  list the skills             curl {url}/api/skills")
    console.say(f"  or in another terminal      {_this_command()} skills list{data_dir}")
    console.say(f'  find one for a task         {_this_command()} skills search "what you want done"{data_dir}')
    console.say("Stop with Ctrl-C.")
