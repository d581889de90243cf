"""Tools of other MCP servers, used by clients of this server: found by `search_skills`, called by `run_skill`."""

from collections.abc import Iterator

import pytest
from mcp.shared.exceptions import MCPError

from apexbridge.retrieval.embedders.embedder import Embedder
from tests.chat.live import Live, live
from tests.mcp_client.serving import READ_ONLY, fake, listed
from tests.surfaces.mcp.conftest import ERAS, connect, new_key, text_of

pytestmark = pytest.mark.anyio
WORD = {"type": "object", "properties": {"word": {"type": "string"}}}
OPTIONS = {
    "tools": [
        listed("echo", "Says a word back.", inputSchema=WORD, **READ_ONLY),
        listed("fail", **READ_ONLY),
        listed("delete-town", "Deletes a town."),
    ]
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder) -> Iterator[Live]:
    config = fake("maps", options=OPTIONS)
    with live(tmp_path_factory.mktemp("foreign") / "data", None, embedder, mcp=(config,)) as server:
        server.do(server.bridge.mcp.views(wait_seconds=60))
        server.do(server.bridge.mcp.index.sync())
        yield server


@pytest.mark.parametrize("era", ERAS)
async def test_a_tool_is_found_read_and_called_and_results_fit_the_schemas(served: Live, era: str) -> None:
    async with connect(served, era) as client:
        await client.list_tools()  # from here on the client checks results against the output schemas
        found = await client.call_tool("search_skills", {"query": "say a word back"})
        hit = found.structured_content["results"][0]
        assert (hit["kind"], hit["name"]) == ("tool", "maps_echo")
        read = await client.call_tool("load_skill", {"name": "maps_echo"})
        assert "Says a word back." in text_of(read)
        assert '"word": {"type": "string"}' in text_of(read)
        assert read.structured_content["name"] == "maps_echo"
        ran = await client.call_tool("run_skill", {"name": "maps_echo", "input": {"word": "hi"}})
        assert not ran.is_error
        assert text_of(ran) == '{"word": "hi"}'
        assert ran.structured_content == {"success": True, "content": '{"word": "hi"}'}
        misused = await client.call_tool("run_skill", {"name": "maps_echo", "args": ["hi"]})
        assert misused.is_error
        assert "it takes `input` alone" in text_of(misused)
        failed = await client.call_tool("run_skill", {"name": "maps_fail"})
        assert (failed.is_error, text_of(failed)) == (True, "it did not work")


@pytest.mark.parametrize("era", ERAS)
async def test_a_tool_needs_the_scope_and_the_approval_of_a_skill(served: Live, era: str) -> None:
    async with connect(served, era) as client:
        refused = await client.call_tool("run_skill", {"name": "maps_delete-town"})
        assert "apex approvals approve" in text_of(refused)
    async with connect(served, era, new_key(served, "read")) as client:
        with pytest.raises(MCPError, match="needs the scope run"):
            await client.call_tool("run_skill", {"name": "maps_echo"})
