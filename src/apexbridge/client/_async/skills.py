"""Skills: find, show, install, run and uninstall them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apexbridge._tasks import in_thread
from apexbridge.client.protocol import FileSource, file_path, read_package, skill_path, without_none
from apexbridge.errors import InvalidInputError
from apexbridge.retrieval.matches import SearchAnswer
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.skills import Mode, Profile
from apexbridge.skills.models import (
    DirectSkillResult,
    InstallReceipt,
    RemovalReceipt,
    SkillDetail,
    SkillHealth,
    SkillPage,
    SkillSort,
    TagList,
)

if TYPE_CHECKING:
    from apexbridge.client._async.client import Client


class Skills:
    """`client.skills`"""

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def list(
        self,
        *,
        name: str | None = None,
        query: str | None = None,
        tags: Sequence[str] = (),
        mode: Mode | None = None,
        enabled: bool | None = None,
        source: str | None = None,
        plugin: str | None = None,
        health: SkillHealth | None = None,
        sort: SkillSort = "name",
        page: int = 1,
        limit: int = 50,
    ) -> SkillPage:
        """A page of the installed skills. `name` is a part of the name, each word of `query` one of the name or the
        description, and one of the `tags` is enough.
        """
        params = without_none(
            name=name,
            query=query,
            tags=",".join(tags) or None,
            mode=mode,
            enabled=None if enabled is None else str(enabled).lower(),
            source=source,
            plugin=plugin,
            health=health,
            sort=sort,
            page=page,
            limit=limit,
        )
        return await self._client.read(SkillPage, "GET", "/api/skills", params=params)

    async def tags(self, prefix: str = "", *, limit: int = 12) -> TagList:
        """The most frequent tags that begin with a prefix."""
        return await self._client.read(TagList, "GET", "/api/skills/tags", params={"prefix": prefix, "limit": limit})

    async def search(
        self, query: str, *, limit: int | None = None, threshold: float | None = None, tags: Sequence[str] = ()
    ) -> SearchAnswer:
        """Find skills by what they do."""
        body = without_none(query=query, limit=limit, threshold=threshold, tags=[*tags])
        return await self._client.read(SearchAnswer, "POST", "/api/skills/search", json=body)

    async def show(self, name: str) -> SkillDetail:
        """Everything about one skill, with its instructions."""
        return await self._client.read(SkillDetail, "GET", skill_path(name))

    async def read_file(self, name: str, path: str) -> bytes:
        """One of the skill's files."""
        return await self._client.fetch("GET", file_path(skill_path(name), path))

    async def export(self, name: str) -> bytes:
        """The skill as a ZIP."""
        return await self._client.fetch("GET", skill_path(name, "export"))

    async def install(
        self,
        source: FileSource,
        *,
        overwrite: bool = False,
        profile: Profile | None = None,
        strict: bool = False,
        skills: Sequence[str] = (),
    ) -> InstallReceipt:
        """Install a skill or a plugin: a folder, an archive or a SKILL.md of this machine, or a source that the server
        fetches, such as `owner/repo`. `skills` chooses from a server that publishes skills.
        """
        package = await in_thread(read_package, source)
        if package is None:
            body = without_none(source=str(source), overwrite=overwrite, profile=profile, strict=strict)
            body |= {"skills": [*skills]} if skills else {}
            return await self._client.read(InstallReceipt, "POST", "/api/skills/install", json=body)
        if skills:
            raise InvalidInputError("`skills` chooses from a server that publishes skills, not from a package")
        data, filename = package
        if profile is None and isinstance(source, Path | str):
            profile = "lenient"  # as on the command line: a person chose the path
        params = without_none(
            filename=filename,
            profile=profile,
            overwrite="true" if overwrite else None,
            strict="true" if strict else None,
        )
        headers = {"content-type": "application/zip"}
        return await self._client.read(
            InstallReceipt, "POST", "/api/skills/install", content=data, params=params, headers=headers
        )

    async def uninstall(self, name: str) -> RemovalReceipt:
        """Remove a skill. It can be restored for some days."""
        return await self._client.read(RemovalReceipt, "DELETE", skill_path(name))

    async def run(
        self,
        name: str,
        input: Mapping[str, Any] | None = None,
        *,
        script: str | None = None,
        args: Sequence[str] = (),
        files: Sequence[str | Path] = (),
        mode: Mode | None = None,
        timeout: int | None = None,
        workspace: str | None = None,
        approval: str | None = None,
    ) -> ExecutionResult | DirectSkillResult:
        """Run a skill and wait for the result, or get a direct skill's instructions.

        The server cancels the run if the connection is closed, as by a cancelled task or an ended process. `timeout`
        is in milliseconds. A `Path` of `files` is uploaded first; a text is the id of an upload or a path on the
        server. A dangerous skill raises CONFIRMATION_REQUIRED with `details["approvalId"]`: after
        `client.approvals.approve(id)`, call it again with `approval=id`.
        """
        answer = await self._call(name, input, script, args, files, mode, timeout, workspace, approval, wait=True)
        return (DirectSkillResult if answer.get("mode") == "direct" else ExecutionResult).model_validate(answer)

    async def start(
        self,
        name: str,
        input: Mapping[str, Any] | None = None,
        *,
        script: str | None = None,
        args: Sequence[str] = (),
        files: Sequence[str | Path] = (),
        timeout: int | None = None,
        workspace: str | None = None,
        approval: str | None = None,
    ) -> str:
        """Start a run that continues without the client; returns its id, for `client.runs`."""
        answer = await self._call(name, input, script, args, files, "sandbox", timeout, workspace, approval, wait=False)
        return str(answer["id"])

    async def _call(
        self,
        name: str,
        input: Mapping[str, Any] | None,
        script: str | None,
        args: Sequence[str],
        files: Sequence[str | Path],
        mode: Mode | None,
        timeout: int | None,
        workspace: str | None,
        approval: str | None,
        *,
        wait: bool,
    ) -> Any:
        ids = [(await self._client.uploads.create(file)).id if isinstance(file, Path) else file for file in files]
        body = without_none(
            input=dict(input or {}),
            script=script,
            args=[*args],
            files=ids,
            mode=mode,
            timeout=timeout,
            workspace=workspace,
            approval=approval,
            wait=wait,
        )
        return await self._client.ask("POST", skill_path(name, "execute"), json=body)
