"""The loop without any door: from Python, event by event."""

import itertools
from contextlib import aclosing
from typing import Any

import pytest

from apexbridge.agent.chat_events import ChatFinished, ChatStarted, Event, PassedThrough, TextDelta, ToolActivity
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


async def test_a_conversation_is_answered_from_python(chatting: Bridge, upstream: Upstream) -> None:
    model = upstream.play(Step(text="Hm.", calls=[call("calculate", {"expression": "6*7"})]), Step(text="42"))
    answer = await chatting.chat.execute([USER], model=model, temperature=0)
    assert (answer.content, answer.finish_reason, answer.tool_calls) == ("Hm.\n\n42", "stop", ())
    assert (answer.usage or {})["total_tokens"] == 30
    assert answer.x_bridge["calls"] == 1
    assert upstream.bodies(model)[0]["temperature"] == 0


async def test_calls_for_the_caller_come_back_to_python(chatting: Bridge, upstream: Upstream) -> None:
    made = call("get_weather", {"city": "上海"})
    model = upstream.play(Step(calls=[made]))
    answer = await chatting.chat.execute([USER], model=model, tools=[TOOL])
    assert (answer.finish_reason, answer.tool_calls) == ("tool_calls", (made,))
    passed = await chatting.chat.execute([USER], model=model, tools=[TOOL], x_bridge={"tools": False})
    assert (passed.finish_reason, passed.tool_calls) == ("tool_calls", (made,))


async def test_a_request_without_a_model_gets_the_one_that_is_set(chatting: Bridge, upstream: Upstream) -> None:
    with pytest.raises(UpstreamError) as caught:
        await chatting.chat.execute([USER])
    assert caught.value.error["code"] == "model_not_found"
    assert upstream.bodies("the-set-one")[0]["messages"][-1] == USER
    assert "the-set-one" in [model["id"] for model in await chatting.chat.models()]


async def test_events_come_in_the_order_in_which_things_happen(chatting: Bridge, upstream: Upstream) -> None:
    model = upstream.play(Step(text="Hm.", calls=[call("datetime")]), Step(text="Now."))
    events = await events_of(chatting, {"model": model, "messages": [USER], "stream": True})
    kinds = [type(event) for event in events if not (isinstance(event, TextDelta) and not event.text)]
    assert [kind for kind, _ in itertools.groupby(kinds)] == [
        ChatStarted,
        TextDelta,
        ToolActivity,
        TextDelta,
        ChatFinished,
    ]


async def test_what_passes_untouched_is_one_event_a_piece(chatting: Bridge, upstream: Upstream) -> None:
    model = upstream.play(Step(text="Hi."))
    body = {"model": model, "messages": [USER], "x_bridge": {"tools": False}}
    assert [type(event) for event in await events_of(chatting, body)] == [PassedThrough]


async def test_a_refusal_is_raised(chatting: Bridge, upstream: Upstream) -> None:
    with pytest.raises(UpstreamError) as caught:
        await chatting.chat.execute([USER], model=upstream.play(refusal(403, "no")))
    assert caught.value.status == 403
    with pytest.raises(BadRequestError):
        await chatting.chat.execute([], model="any")


async def test_tools_of_the_operator_are_offered_as_well(chatting: Bridge, upstream: Upstream) -> None:
    async def greet(input: Any, context: ToolContext) -> ToolResult:
        return ToolResult(output=f"Good day, {input['who']}.")

    schema = {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]}
    chatting.tools.register(Tool.define("my.greeting", description="Greets.", parameters=schema, execute=greet))
    model = upstream.play(Step(calls=[call("my_greeting", {"who": "you"})]), Step(text="Done."))
    await chatting.chat.execute([USER], model=model)
    assert upstream.bodies(model)[1]["messages"][-1]["content"] == "Good day, you."


async def test_a_tool_that_fails_is_told_as_a_failure(chatting: Bridge, upstream: Upstream) -> None:
    async def fail(input: Any, context: ToolContext) -> ToolResult:
        raise RuntimeError("no luck")

    chatting.tools.register(Tool.define("fails", description="Fails.", parameters={"type": "object"}, execute=fail))
    model = upstream.play(Step(calls=[call("fails")]), Step(text="Done."))
    await chatting.chat.execute([USER], model=model)
    told = upstream.bodies(model)[1]["messages"][-1]["content"]
    assert told.startswith("Error (TOOL_EXECUTION_ERROR)")
    assert "no luck" in told


async def test_a_tool_that_is_switched_off_is_neither_offered_nor_called(chatting: Bridge, upstream: Upstream) -> None:
    chatting.tools.disable("calculate")
    model = upstream.play(Step(calls=[call("calculate", {"expression": "1"})]), Step(text="Done."))
    await chatting.chat.execute([USER], model=model)
    first, second = upstream.bodies(model)
    assert "calculate" not in [tool["function"]["name"] for tool in first["tools"]]
    assert "TOOL_NOT_FOUND" in second["messages"][-1]["content"]


async def test_names_are_known_by_what_was_offered(chatting: Bridge) -> None:
    disclosure = ToolOffer(read_request({"messages": [USER], "tools": [TOOL]}), ServerTools(chatting.tools))
    assert disclosure.id_of("search_skills") == "vector-search"
    assert disclosure.id_of("skill__nothing") is None
    assert disclosure.is_client("get_weather")
    assert disclosure.is_known("get_weather")
    assert not disclosure.is_known("launch")
    off = ToolOffer(read_request({"messages": [USER], "x_bridge": {"tools": False}}), ServerTools(chatting.tools))
    assert (off.tools, off.has_ours, off.is_known("calculate")) == ([], False, False)


async def test_skills_are_not_run_where_the_client_wants_none_of_our_tools(
    chatting: Bridge,
) -> None:
    await chatting.skills.install_skill(skill_zip("say-hello", description="Say hello."))
    off = ToolOffer(read_request({"messages": [USER], "x_bridge": {"tools": False}}), ServerTools(chatting.tools))
    assert [off.id_of(name) for name in ("skill__say-hello", "say-hello")] == [None, None]
