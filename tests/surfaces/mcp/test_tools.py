"""The tools that MCP clients see, in both eras."""

from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from tests.chat.live import Live
from tests.surfaces.mcp.conftest import ERAS, connect, new_key, text_of

pytestmark = pytest.mark.anyio
NAMES = [
    "search_skills",
    "load_skill",
    "read_skill_resource",
    "list_skills",
    "run_skill",
    "run_code",
    "file_read",
    "file_write",
    "list_files",
]


@pytest.mark.parametrize("era", [*ERAS, "auto"])
async def test_the_list_of_tools_does_not_depend_on_the_installed_skills(served: Live, era: str) -> None:
    async with connect(served, era) as client:
        before = (await client.list_tools()).tools
        served.install("one-more", description="Another skill.")
        after = (await client.list_tools()).tools
        served.do(served.bridge.skills.uninstall_skill("one-more"))
    assert [tool.name for tool in before] == NAMES
    assert before == after
    for tool in before:
        assert tool.description
        assert tool.output_schema
        assert tool.annotations is not None
        is_writing = tool.name in ("run_skill", "run_code", "file_write")
        assert (tool.annotations.read_only_hint, tool.annotations.destructive_hint) == (not is_writing, is_writing)


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_finds_loads_and_runs_a_skill(served: Live, era: str) -> None:
    async with connect(served, era) as client:
        found = await client.call_tool("search_skills", {"query": "say something loudly"})
        assert found.structured_content["results"][0]["name"] == "shouter"
        loaded = await client.call_tool("load_skill", {"name": "shouter"})
        assert "scripts/execute.py" in text_of(loaded)
        assert "read_skill_resource(name, path)" in text_of(loaded)
        ran = await client.call_tool("run_skill", {"name": "shouter"})
        assert (ran.structured_content["stdout"], ran.is_error) == ("LOUD\n", False)
        assert text_of(ran) == "LOUD"
        run = served.http.get(f"/api/executions/{ran.structured_content['id']}").json()
        assert run["origin"] == {"kind": "mcp", "id": None}
        more = await client.call_tool("read_skill_resource", {"name": "guide", "path": "references/more.md"})
        assert more.structured_content["content"] == "# More\n"
        instructions = await client.call_tool("load_skill", {"name": "guide"})
        assert "references/more.md" in instructions.structured_content["files"]
        direct = await client.call_tool("run_skill", {"name": "guide", "input": {"name": "Ada"}})
        assert "Greet Ada kindly." in direct.structured_content["content"]


async def test_skills_are_listed_page_by_page(served: Live) -> None:
    async with connect(served) as client:
        names: list[str] = []
        arguments: dict[str, Any] = {"limit": 2}
        while True:
            page = (await client.call_tool("list_skills", arguments)).structured_content
            names += [skill["name"] for skill in page["skills"]]
            if "next" not in page:
                break
            arguments["after"] = page["next"]
    assert names == ["eraser", "guide", "hidden", "shouter", "sleeper", "writer"]


@pytest.mark.parametrize("era", ERAS)
async def test_calls_with_the_same_workspace_share_files_and_link_them(served: Live, era: str) -> None:
    workspace = f"shared-{era}"
    async with connect(served, era) as client:
        code = "open('a b.txt', 'w').write('made here')"
        made = await client.call_tool("run_code", {"language": "python", "code": code, "workspace": workspace})
        (link,) = [block for block in made.content if isinstance(block, types.ResourceLink)]
        assert link.uri == f"workspace://{workspace}/a%20b.txt"
        (contents,) = (await client.read_resource(link.uri)).contents
        assert isinstance(contents, types.TextResourceContents)
        assert contents.text == "made here"
    async with connect(served, era) as other:  # another connection: the workspace is not bound to one
        read = await other.call_tool("file_read", {"path": "a b.txt", "workspace": workspace})
        assert read.structured_content["content"] == "made here"
        listed = await other.call_tool("list_files", {"workspace": workspace})
        assert [file["path"] for file in listed.structured_content["files"]] == ["a b.txt"]
        written = await other.call_tool("file_write", {"path": "b.txt", "content": "x", "workspace": workspace})
        assert written.structured_content["bytes"] == 1


async def test_files_of_a_run_without_a_workspace_are_linked(served: Live) -> None:
    async with connect(served) as client:
        ran = await client.call_tool("run_skill", {"name": "writer"})
        (link,) = [block for block in ran.content if isinstance(block, types.ResourceLink)]
        assert link.uri == f"run://{ran.structured_content['id']}/made.txt"
        (contents,) = (await client.read_resource(link.uri)).contents
        assert isinstance(contents, types.TextResourceContents)
        assert contents.text == "made"


@pytest.mark.parametrize("era", ERAS)
async def test_a_failed_run_and_wrong_arguments_are_results_that_say_what_to_do(served: Live, era: str) -> None:
    async with connect(served, era) as client:
        failed = await client.call_tool("run_code", {"language": "shell", "code": "exit 3"})
        assert (failed.is_error, failed.structured_content["exitCode"]) == (True, 3)
        missing = await client.call_tool("run_skill", {"name": "shoutr"})
        assert missing.is_error
        assert "shouter" in text_of(missing)
        for arguments in ({}, {"name": 7}, {"name": "guide", "workspace": 1}, {"name": "guide", "workspace": "../x"}):
            assert (await client.call_tool("load_skill", arguments)).is_error, arguments
        with pytest.raises(MCPError) as unknown:
            await client.call_tool("no_such_tool", {})
        assert unknown.value.error.code == types.INVALID_PARAMS


async def test_long_output_is_cut_and_says_where_the_whole_is(served: Live) -> None:
    async with connect(served) as client:
        ran = await client.call_tool("run_code", {"language": "python", "code": "print('x' * 1_000_000)"})
        stdout = ran.structured_content["stdout"]
        assert len(stdout) < 40_000
        path = f"runs/{ran.structured_content['id']}/stdout"
        assert path in stdout
        assert (await client.call_tool("file_read", {"path": path})).structured_content["truncated"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_key_sees_only_the_tools_that_its_scopes_allow(served: Live, era: str) -> None:
    async with connect(served, era, new_key(served, "read")) as client:
        shown = [tool.name for tool in (await client.list_tools()).tools]
        assert shown == [name for name in NAMES if name not in ("run_skill", "run_code", "file_write")]
        assert not (await client.call_tool("load_skill", {"name": "shouter"})).is_error
        with pytest.raises(MCPError, match="needs the scope run"):
            await client.call_tool("run_skill", {"name": "shouter"})
    async with connect(served, era, new_key(served, "read", "run")) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == NAMES
        assert not (await client.call_tool("run_skill", {"name": "shouter"})).is_error


@pytest.mark.parametrize("era", ERAS)
async def test_a_key_never_reaches_files_of_another_key(served: Live, era: str) -> None:
    workspace = f"private-{era}"
    async with connect(served, era, new_key(served, "read", "run")) as owner:
        code = "open('secret.txt', 'w').write('secret')"
        made = await owner.call_tool("run_code", {"language": "python", "code": code, "workspace": workspace})
        alone = await owner.call_tool("run_skill", {"name": "writer"})
    async with connect(served, era, new_key(served, "read", "run")) as other:
        for tool, arguments in (
            ("file_read", {"path": "secret.txt"}),
            ("list_files", {}),
            ("run_code", {"language": "shell", "code": "cat secret.txt"}),
        ):
            refused = await other.call_tool(tool, {**arguments, "workspace": workspace})
            assert refused.is_error
            assert "another API key" in text_of(refused)
        for result in (made, alone):
            (link,) = [block for block in result.content if isinstance(block, types.ResourceLink)]
            with pytest.raises(MCPError) as missing:
                await other.read_resource(link.uri)
            assert missing.value.error.code == types.INVALID_PARAMS
        run = await other.call_tool("file_read", {"path": f"runs/{alone.structured_content['id']}/made.txt"})
        assert run.is_error


async def test_a_disabled_tool_is_not_listed(served: Live) -> None:
    served.bridge.tools.disable("run-code")
    try:
        async with connect(served) as client:
            assert "run_code" not in [tool.name for tool in (await client.list_tools()).tools]
    finally:
        served.bridge.tools.enable("run-code")
