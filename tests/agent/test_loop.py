"""The chat loop, used from Python, event by event."""

import itertools
from contextlib import aclosing
from typing import Any

import pytest

from apexbridge.agent.chat_events import (
    ChatFinished,
    ChatStarted,
    Event,
    PassedThrough,
    TextDelta,
    ToolActivity,
    ToolStarted,
)
from apexbridge.agent.request import BadRequestError, read_request
from apexbridge.agent.tool_offer import ServerTools, ToolOffer
from apexbridge.bridge import Bridge
from apexbridge.llm.upstream_errors import UpstreamError
from apexbridge.tools.tool import Tool, ToolContext, ToolResult
from tests.chat.upstream import Step, Upstream, call, refusal
from tests.making import skill_zip

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("G2")]
Json = dict[str, Any]
USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


async def events_of(bridge: Bridge, body: Json) -> list[Event]:
    async with aclosing(bridge.chat.run(read_request(body))) as events:
        return [event async for event in events]


async def test_a_chat_can_be_executed_from_python(chatting: Bridge, upstream: Upstream) -> None:
    model = upstream.play(Step(text="Hm.", calls=[call("calculate", {"expression": "6*7"})]), Step(text="42"))
    answer = await chatting.chat.execute([USER], model=model, temperature=0)
    assert (answer.content, answer.finish_reason, answer.tool_calls) == ("Hm.\n\n42", "stop", ())
    assert (answer.usage or {})["total_tokens"] == 30
    assert answer.x_bridge["calls"] == 1
    assert upstream.bodies(model)[0]["temperature"] == 0


async def test_calls_of_client_tools_are_returned_to_python(chatting: Bridge, upstream: Upstream) -> None:
    made = call("get_weather", {"city": "上海"})
    model = upstream.play(Step(calls=[made]))
    answer = await chatting.chat.execute([USER], model=model, tools=[TOOL])
    assert (answer.finish_reason, answer.tool_calls) == ("tool_calls", (made,))
    passed = await chatting.chat.execute([USER], model=model, tools=[TOOL], x_bridge={"tools": False})
    assert (passed.finish_reason, passed.tool_calls) == ("tool_calls", (made,))


async def test_a_request_without_a_model_uses_the_configured_one(chatting: Bridge, upstream: Upstream) -> None:
    with pytest.raises(UpstreamError) as caught:
        await chatting.chat.execute([USER])
    assert caught.value.error["code"] == "model_not_found"
    assert upstream.bodies("the-set-one")[0]["messages"][-1] == USER
    assert "the-set-one" in [model["id"] for model in await chatting.chat.models()]


async def test_events_are_in_chronological_order(chatting: Bridge, upstream: Upstream) -> None:
    model = upstream.play(Step(text="Hm.", calls=[call("datetime")]), Step(text="Now."))
    events = await events_of(chatting, {"model": model, "messages": [USER], "stream": True})
    kinds = [type(event) for event in events if not (isinstance(event, TextDelta) and not event.text)]
    assert [kind for kind, _ in itertools.groupby(kinds)] == [
        ChatStarted,
        TextDelta,
        ToolStarted,
        ToolActivity,
        TextDelta,
        ChatFinished,
    ]


async def test_a_response_that_is_passed_through_is_one_event(chatting: Bridge, upstream: Upstream) -> None:
    model = upstream.play(Step(text="Hi."))
    body = {"model": model, "messages": [USER], "x_bridge": {"tools": False}}
    assert [type(event) for event in await events_of(chatting, body)] == [PassedThrough]


async def test_errors_of_the_upstream_and_of_the_request_are_raised(chatting: Bridge, upstream: Upstream) -> None:
    with pytest.raises(UpstreamError) as caught:
        await chatting.chat.execute([USER], model=upstream.play(refusal(403, "no")))
    assert caught.value.status == 403
    with pytest.raises(BadRequestError):
        await chatting.chat.execute([], model="any")


async def test_tools_registered_by_the_operator_are_offered(chatting: Bridge, upstream: Upstream) -> None:
    async def greet(input: Any, context: ToolContext) -> ToolResult:
        return ToolResult(output=f"Good day, {input['who']}.")

    schema = {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]}
    chatting.tools.register(Tool.define("my.greeting", description="Greets.", parameters=schema, execute=greet))
    model = upstream.play(Step(calls=[call("my_greeting", {"who": "you"})]), Step(text="Done."))
    await chatting.chat.execute([USER], model=model)
    assert upstream.bodies(model)[1]["messages"][-1]["content"] == "Good day, you."


async def test_a_failed_tool_is_reported_to_the_model_as_an_error(chatting: Bridge, upstream: Upstream) -> None:
    async def fail(input: Any, context: ToolContext) -> ToolResult:
        raise RuntimeError("no luck")

    chatting.tools.register(Tool.define("fails", description="Fails.", parameters={"type": "object"}, execute=fail))
    model = upstream.play(Step(calls=[call("fails")]), Step(text="Done."))
    await chatting.chat.execute([USER], model=model)
    content = upstream.bodies(model)[1]["messages"][-1]["content"]
    assert content.startswith("Error (TOOL_EXECUTION_ERROR)")
    assert "no luck" in content


async def test_a_disabled_tool_is_neither_offered_nor_called(chatting: Bridge, upstream: Upstream) -> None:
    chatting.tools.disable("calculate")
    model = upstream.play(Step(calls=[call("calculate", {"expression": "1"})]), Step(text="Done."))
    await chatting.chat.execute([USER], model=model)
    first, second = upstream.bodies(model)
    assert "calculate" not in [tool["function"]["name"] for tool in first["tools"]]
    assert "TOOL_NOT_FOUND" in second["messages"][-1]["content"]


async def test_only_offered_tool_names_are_known(chatting: Bridge) -> None:
    offer = ToolOffer(read_request({"messages": [USER], "tools": [TOOL]}), ServerTools(chatting.tools))
    assert offer.id_of("search_skills") == "vector-search"
    assert offer.id_of("skill__nothing") is None
    assert offer.is_client("get_weather")
    assert offer.is_known("get_weather")
    assert not offer.is_known("launch")
    off = ToolOffer(read_request({"messages": [USER], "x_bridge": {"tools": False}}), ServerTools(chatting.tools))
    assert (off.tools, off.has_ours, off.is_known("calculate")) == ([], False, False)


async def test_skills_cannot_be_called_if_a_request_disables_our_tools(
    chatting: Bridge,
) -> None:
    await chatting.skills.install_skill(skill_zip("say-hello", description="Say hello."))
    off = ToolOffer(read_request({"messages": [USER], "x_bridge": {"tools": False}}), ServerTools(chatting.tools))
    assert [off.id_of(name) for name in ("skill__say-hello", "say-hello")] == [None, None]
