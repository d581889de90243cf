"""`apex serve`."""

import asyncio
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
import uvloop

import apexbridge
from apexbridge.bridge import DATABASE_FILE, Bridge
from apexbridge.errors import ApexBridgeError
from apexbridge.monitoring.tracing import tracing
from apexbridge.settings import Settings, load_settings
from apexbridge.skills.store.roots import SkillRoot, discover
from apexbridge.surfaces.cli import interrupts
from apexbridge.surfaces.cli.connection import find_connection
from apexbridge.surfaces.cli.console import Console, plural
from apexbridge.surfaces.cli.session import DataDir, Json, Session
from apexbridge.surfaces.cli.terminal_text import log_as_server, python_messages_in_log
from apexbridge.surfaces.http.middleware.auth import needs_keys
from apexbridge.surfaces.http.serve import bind, check_host
from apexbridge.surfaces.http.serve import serve as serve_http

app = typer.Typer(rich_markup_mode=None)
logger = logging.getLogger("apexbridge.server")


class LogFormatChoice(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevelChoice(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@app.command("serve")
def serve(
    host: Annotated[
        str | None,
        typer.Option(help="Address to bind; other than loopback needs an API key.", show_default="127.0.0.1"),
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind; 0 takes a free one.", show_default="8420")] = None,
    data_dir: DataDir = None,
    examples: Annotated[Path | None, typer.Option(help="Install the skills of this folder on the first start.")] = None,
    log_format: Annotated[
        LogFormatChoice | None, typer.Option("--log-format", help="How to log on stderr.", show_default="text")
    ] = None,
    log_level: Annotated[
        LogLevelChoice | None, typer.Option("--log-level", help="The least level to log.", show_default="info")
    ] = None,
    json: Json = False,
) -> None:
    """Start the HTTP API."""
    settings = load_settings(
        host=host,
        port=port,
        data_dir=data_dir,
        log_format=log_format.value if log_format else None,
        log_level=log_level.value if log_level else None,
    )
    log_as_server(settings.log_format, settings.log_level, has_access_log=settings.access_log)
    with ExitStack() as stack:
        stack.enter_context(_logged_error(settings, json=json))
        may_have_keys = (settings.data_dir / DATABASE_FILE).exists()
        check_host(settings.host, required=settings.api_keys_required, has_keys=may_have_keys)
        interrupts.leave_to_python()  # the runner, and then the server, handle SIGINT
        stack.enter_context(python_messages_in_log())
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        runner.run(_serve(Session(json=json), settings, examples))


@contextmanager
def _logged_error(settings: Settings, *, json: bool) -> Iterator[None]:
    """Log why the server could not start or go on, if the log is JSON. A plain line could not be parsed."""
    try:
        yield
    except ApexBridgeError as error:
        if settings.log_format != "json" or json:
            raise
        logger.error("%s", error.message, extra={"fields": {"code": error.code}})
        raise typer.Exit(1) from error


async def _serve(session: Session, settings: Settings, examples: Path | None) -> None:
    console = session.console
    is_first_start = not (settings.data_dir / DATABASE_FILE).exists()
    async with AsyncExitStack() as stack:
        tracer = await stack.enter_async_context(tracing(settings.otlp_endpoint, os.environ, apexbridge.__version__))
        index_progress = stack.enter_context(console.progress_bar("indexing skills"))
        with console.progress_bar("reading skills") as progress:
            bridge = await stack.enter_async_context(
                Bridge.open(
                    settings,
                    indexing="background",
                    progress=progress,
                    index_progress=index_progress,
                    tracer=tracer,
                )
            )
        check_host(settings.host, required=settings.api_keys_required, has_keys=bridge.keys.has_usable)
        if examples and is_first_start:
            await _install_examples(bridge, logger.info if settings.log_format == "json" else console.say, examples)
        listener = stack.enter_context(bind(settings.host, settings.port))
        total = (await bridge.skills.list_skills(limit=1)).total
        broken = len(await bridge.skills.problems())

        def announce(url: str, owner: str) -> None:
            facts = {"url": url, "pid": os.getpid(), "skills": total, "problems": broken}
            if settings.log_format == "json":
                logger.info("serving at %s", url, extra={"fields": facts})
            if not session.show_json(facts) and settings.log_format == "text":
                _greet(console, url, settings, total, broken)
            sys.stdout.flush()

        async with asyncio.TaskGroup() as background:
            preparing = background.create_task(bridge.prepare_sandbox())
            await serve_http(bridge, listener, announce)
            preparing.cancel()


async def _install_examples(bridge: Bridge, say: Callable[[str], None], folder: Path) -> None:
    for found in discover(SkillRoot(id="examples", path=folder), [folder]):
        try:
            receipt = await bridge.skills.install_skill(found.path)
            say(f"installed the example {receipt.name}")
        except ApexBridgeError as error:
            say(f"the example {found.folder} was not installed: {error.message}")


def _this_command() -> str:
    """How to call this program: `apex` if the PATH leads to it, else its path."""
    own = Path(sys.argv[0])
    found = shutil.which("apex")
    if own.name != "apex" or (found and Path(found).resolve() == own.resolve()):
        return "apex"
    return str(own.relative_to(Path.cwd()) if own.is_relative_to(Path.cwd()) else own)


def _greet(console: Console, url: str, settings: Settings, total: int, broken: int) -> None:
    is_default = settings.data_dir == find_connection().data_dir
    data_dir = "" if is_default else f" --data-dir {shlex.quote(str(settings.data_dir))}"
    apex = _this_command()
    console.say(f"apexbridge serves {plural(total, 'skill')} at {url}", style="bold")
    if broken:
        console.say(f"{plural(broken, 'folder')} could not be served: {apex} skills problems{data_dir}", style="yellow")
    if needs_keys(settings.api_keys_required, settings.host):
        console.say(f"Clients need an API key: {apex} keys create --name NAME{data_dir}", style="yellow")
    console.say(f"  the console, in a browser   {url}/")
    console.say(f"  API and its documentation   {url}/docs")
    console.say(f"  list the skills             curl {url}/api/skills")
    console.say(f"  or in another terminal      {apex} skills list{data_dir}")
    console.say(f'  find one for a task         {apex} skills search "what you want done"{data_dir}')
    console.say("Stop with Ctrl-C.")
