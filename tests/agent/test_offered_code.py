"""Which callers are offered the tool that runs code."""

import pytest

from apexbridge.agent.tool_offer import ServerTools
from apexbridge.bridge import Bridge

pytestmark = pytest.mark.anyio


async def test_only_callers_that_may_run_code_are_offered_it(bridge: Bridge) -> None:
    tools = ServerTools(bridge.tools, lambda caller: caller != "chat-only")
    assert "run_code" in tools.offered((), "")
    assert "run_code" not in tools.offered((), "chat-only")
    assert set(tools.offered((), "")) - set(tools.offered((), "chat-only")) == {"run_code"}
