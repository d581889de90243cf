"""Stdio servers in the sandbox: no network and no files of the host, except for what the operator granted."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from apexbridge._tasks import in_thread
from apexbridge.errors import ApexBridgeError
from apexbridge.mcp_client.config import McpServerConfig
from apexbridge.mcp_client.processes import ServerProcess, StartError, StartProcess, connected_pipes, own_process
from apexbridge.sandbox.models import Grants, LaunchError
from apexbridge.sandbox.sandbox import Sandbox
from apexbridge.skills.package.permissions import parse
from apexbridge.skills.runs.grants import SkillGrants

_VERDICTS = {"memory": "it used too much memory", "lost": "the sandbox was stopped"}


def process_starter(sandbox: Sandbox, grants: SkillGrants) -> StartProcess:
    """Starts servers in the sandbox if their configuration says so, else as the operator's own processes."""

    @asynccontextmanager
    async def sandboxed(config: McpServerConfig, variables: Mapping[str, str]) -> AsyncIterator[ServerProcess]:
        assert config.command is not None  # noqa: S101  # the caller chose stdio
        try:
            session = await sandbox.ready()
            granted = await in_thread(_granted, config, grants)
        except ApexBridgeError as error:
            raise StartError(error.message) from None
        try:
            async with session.open_process([config.command, *config.args], variables, granted) as cell:

                async def ended() -> str:
                    try:
                        ending = await asyncio.shield(cell.exited)
                    except LaunchError as error:
                        return str(error)
                    return _VERDICTS.get(ending.verdict or "", f"it ended with exit code {ending.code}")

                pipes = [cell.pipes.ours.pop(name) for name in ("stdin", "stdout", "stderr")]
                async with connected_pipes(*pipes) as (stdin, stdout, stderr):
                    yield ServerProcess(stdin=stdin, stdout=stdout, stderr=stderr, ended=ended)
        except LaunchError as error:
            raise StartError(str(error)) from None

    def start(config: McpServerConfig, variables: Mapping[str, str]) -> AbstractAsyncContextManager[ServerProcess]:
        return (sandboxed if config.sandbox else own_process)(config, variables)

    return start


def _granted(config: McpServerConfig, grants: SkillGrants) -> Grants:
    """The permissions of the configuration, checked as those of skills are. Raises InvalidInputError."""
    requested = [parse(text) for text in config.permissions]
    identities = {item.text: grants.check(item) for item in requested}
    return Grants(
        hosts=tuple((item.name, item.port) for item in requested if item.kind == "net"),
        paths={item.path: identity for item in requested if (identity := identities[item.text]) is not None},
    )
