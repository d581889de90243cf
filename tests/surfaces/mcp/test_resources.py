"""Resources, the extension for skills, and prompts."""

import base64
import hashlib
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from apexbridge.surfaces.mcp import paging, skills_extension
from tests.chat.live import Live
from tests.making import skill_markdown, zip_of
from tests.surfaces.mcp.conftest import ERAS, connect

pytestmark = pytest.mark.anyio


class AnyResult(types.Result, extra="allow"):
    pass


async def ask(client: Client, method: str, **params: Any) -> dict[str, Any]:
    """Send a request of the extension, which the client has no method for."""
    request = types.Request[dict[str, Any], str](method=method, params=params)
    result = await client.session.send_request(request, AnyResult)
    answer: dict[str, Any] = result.model_dump(by_alias=True)
    return answer


@pytest.mark.parametrize("era", ERAS)
async def test_each_skill_is_a_resource_and_lists_have_pages(
    served: Live, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apexbridge.surfaces.mcp.resources.PAGE_ENTRIES", 2)
    async with connect(served, era) as client:
        uris, cursor = [], None
        while True:
            page = await client.list_resources(cursor=cursor)
            assert len(page.resources) <= 2
            uris += [resource.uri for resource in page.resources]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert uris == [
            f"skill://{name}/SKILL.md" for name in ("eraser", "guide", "hidden", "shouter", "sleeper", "writer")
        ]
        templates = (await client.list_resource_templates()).resource_templates
        assert {template.uri_template.partition(":")[0] for template in templates} == {"skill", "run", "workspace"}
        with pytest.raises(MCPError, match="cursor"):
            await client.list_resources(cursor="nonsense!")


@pytest.mark.parametrize("era", ERAS)
async def test_files_are_served_byte_for_byte(served: Live, era: str) -> None:
    binary = bytes(range(256))
    text = "\ufeffumlaut ü\r\nno newline at the end"
    markdown = skill_markdown("bytes-of")
    files: dict[str, str | bytes] = {"SKILL.md": markdown, "a/b c.txt": text, "blob.bin": binary}
    archive = zip_of({f"bytes-of/{path}": data for path, data in files.items()})
    served.do(served.bridge.skills.install_skill(archive, overwrite=True))
    async with connect(served, era) as client:
        (read,) = (await client.read_resource("skill://bytes-of/a/b%20c.txt")).contents
        assert isinstance(read, types.TextResourceContents)
        assert (read.text, read.mime_type) == (text, "text/plain")
        (blob,) = (await client.read_resource("skill://bytes-of/blob.bin")).contents
        assert isinstance(blob, types.BlobResourceContents)
        assert base64.b64decode(blob.blob) == binary
        (main,) = (await client.read_resource("skill://bytes-of/SKILL.md")).contents
        assert (main.mime_type, getattr(main, "text", "")) == ("text/markdown", markdown)
        for uri in (
            "skill://bytes-of",
            "skill://bytes-of/",
            "skill://bytes-of/a",
            "skill://bytes-of/../guide/SKILL.md",
            "skill://bytes-of/%2e%2e/guide/SKILL.md",
            "skill://bytes-of/a//b c.txt",
            "skill://bytes-of/.vectorized",
            "skill://bytes-of/skill.md",
            "skill://none/SKILL.md",
            "skill://..%2f..%2fetc/passwd",
            "run://abc/made.txt",
            "workspace://none/a.txt",
            "file:///etc/passwd",
            "nonsense",
        ):
            with pytest.raises(MCPError) as missing:
                await client.read_resource(uri)
            assert missing.value.error.code == types.INVALID_PARAMS, uri
    served.do(served.bridge.skills.uninstall_skill("bytes-of"))


async def test_a_disabled_skill_is_not_served(served: Live) -> None:
    served.do(served.bridge.skills.set_enabled("writer", False))
    try:
        async with connect(served) as client:
            assert "skill://writer/SKILL.md" not in [one.uri for one in (await client.list_resources()).resources]
            with pytest.raises(MCPError):
                await client.read_resource("skill://writer/SKILL.md")
    finally:
        served.do(served.bridge.skills.set_enabled("writer", True))


async def test_a_file_above_the_limit_is_refused(served: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexbridge.surfaces.mcp.resources.MAX_RESOURCE_BYTES", 10)
    async with connect(served) as client:
        with pytest.raises(MCPError, match="larger than"):
            await client.read_resource("skill://guide/SKILL.md")


async def test_names_of_skills_are_completed(served: Live) -> None:
    async with connect(served) as client:
        ref = types.ResourceTemplateReference(uri="skill://{name}/{+path}")
        completed = await client.complete(ref, {"name": "name", "value": "s"})
        assert completed.completion.values == ["shouter", "sleeper"]


# ---------------------------------------------------------------------------------------------------- skills extension
async def test_the_extension_lists_every_file_with_its_size_and_digest(served: Live) -> None:
    async with connect(served) as client:
        answer = await ask(client, "skills/list")
        assert (answer["cacheScope"], answer["ttlMs"] >= 0) == ("private", True)
        skills = {skill["frontmatter"]["name"]: skill for skill in answer["skills"]}
        assert sorted(skills) == ["eraser", "guide", "hidden", "shouter", "sleeper", "writer"]
        guide = skills["guide"]
        assert guide["frontmatter"]["parameters"]["required"] == ["name"]
        for file in guide["resources"]:
            (read,) = (await client.read_resource(file["uri"])).contents
            data = read.text.encode() if isinstance(read, types.TextResourceContents) else b""
            assert file["size"] == len(data)
            assert file["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert (await ask(client, "skills/get", uri=guide["uri"]))["skill"] == guide


async def test_digests_follow_a_change_of_the_folder(served: Live) -> None:
    async with connect(served) as client:

        async def digest() -> str:
            skill = (await ask(client, "skills/get", uri="skill://changing/SKILL.md"))["skill"]
            return str(skill["resources"][0]["digest"])

        served.install("changing", description="First.")
        before = await digest()
        served.install("changing", description="Second.")
        assert await digest() != before
    served.do(served.bridge.skills.uninstall_skill("changing"))


async def test_a_skill_beyond_the_limits_is_left_out_of_the_extension_but_served(
    served: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skills_extension, "MAX_FILES", 2)
    served.install("crowded", {"a.txt": "a", "b.txt": "b"})
    async with connect(served) as client:
        listed = await ask(client, "skills/list")
        assert "crowded" not in [skill["frontmatter"]["name"] for skill in listed["skills"]]
        with pytest.raises(MCPError):
            await ask(client, "skills/get", uri="skill://crowded/SKILL.md")
        assert (await client.read_resource("skill://crowded/a.txt")).contents
    served.do(served.bridge.skills.uninstall_skill("crowded"))


async def test_a_skill_that_clients_would_reject_is_left_out_of_the_extension_but_served(served: Live) -> None:
    served.install("wordy", description="long " * 250)
    async with connect(served) as client:
        listed = await ask(client, "skills/list")
        assert "wordy" not in [skill["frontmatter"]["name"] for skill in listed["skills"]]
        assert (await client.read_resource("skill://wordy/SKILL.md")).contents
    served.do(served.bridge.skills.uninstall_skill("wordy"))


async def test_directories_of_skills_are_read_level_by_level(served: Live) -> None:
    async with connect(served) as client:
        top = await ask(client, "resources/directory/read", uri="skill://guide")
        kinds = {one["name"]: one.get("mimeType") for one in top["resources"]}
        assert kinds["references"] == kinds["assets"] == "inode/directory"
        assert kinds["SKILL.md"] == "text/markdown"
        inner = await ask(client, "resources/directory/read", uri="skill://guide/references")
        assert [one["uri"] for one in inner["resources"]] == ["skill://guide/references/more.md"]
        for uri in ("skill://guide/SKILL.md", "skill://none", "skill://guide/missing", "workspace://x", "skill://"):
            with pytest.raises(MCPError) as refused:
                await ask(client, "resources/directory/read", uri=uri)
            assert refused.value.error.code == types.INVALID_PARAMS


# ------------------------------------------------------------------------------------------------------------- prompts
@pytest.mark.parametrize("era", ERAS)
async def test_skills_that_people_may_start_are_prompts(served: Live, era: str) -> None:
    async with connect(served, era) as client:
        prompts = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}
        assert "hidden" not in prompts
        (argument,) = prompts["guide"].arguments or []
        assert (argument.name, argument.required) == ("name", True)
        filled = await client.get_prompt("guide", {"name": "Ada"})
        content = filled.messages[0].content
        assert isinstance(content, types.TextContent)
        assert "Greet Ada kindly." in content.text
        for name in ("hidden", "none", "guide"):
            with pytest.raises(MCPError) as refused:
                await client.get_prompt(name, {})
            assert refused.value.error.code == types.INVALID_PARAMS


def test_cursors_survive_any_name() -> None:
    for name in ("a", "plugin:skill", "ünïcode"):
        params = types.PaginatedRequestParams(cursor=paging.cursor_after(name))
        assert paging.name_before(params) == name
    for bad in ("%", "a" * 5000, "YQ", "w6Q="):
        with pytest.raises(MCPError):
            paging.name_before(types.PaginatedRequestParams(cursor=bad))
