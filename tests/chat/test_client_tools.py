"""Calls of a client's own tools are returned to the client, with and without calls of our tools."""

import json
from typing import Any

import pytest

from tests.chat.live import Live
from tests.chat.upstream import Step, Upstream, call

pytestmark = pytest.mark.requirement("G5")
Json = dict[str, Any]
WRITTEN = '{"city":"上海",   "unit" : "C", "days": 1.0}'


def tool(name: str, **more: Any) -> Json:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": schema, **more}}


def results(calls: list[Json]) -> list[Json]:
    return [{"role": "tool", "tool_call_id": one["id"], "content": f"sunny {one['id']}"} for one in calls]


def message_of(answer: Json) -> Json:
    return {"role": "assistant", "content": answer["content"] or None, "tool_calls": answer["tool_calls"]}


USER = {"role": "user", "content": "How is the weather?"}


def test_a_call_of_a_client_tool_is_returned_with_its_id_and_unchanged_arguments(
    bridge_server: Live, upstream: Upstream, is_stream: bool
) -> None:
    made = [call("get_weather", WRITTEN, "call_w"), call("get_weather", WRITTEN, "call_v")]
    model = upstream.play(Step(text="Looking.", calls=made), Step(text="Sunny."))
    answer = bridge_server.answer(is_stream, model, [USER], tools=[tool("get_weather", strict=True)])
    assert (answer["content"], answer["finish_reason"], answer["tool_calls"]) == ("Looking.", "tool_calls", made)
    assert answer["x_bridge"]["stopCause"] == "client_tools"
    assert tool("get_weather", strict=True) == upstream.bodies(model)[0]["tools"][-1]
    again = [USER, message_of(answer), *results(made)]
    assert bridge_server.answer(is_stream, model, again, tools=[tool("get_weather")])["content"] == "Sunny."
    assert upstream.bodies(model)[1]["messages"][1:] == again


def test_a_turn_with_our_calls_and_the_clients_is_restored_when_the_client_sends_its_results(
    bridge_server: Live, upstream: Upstream, is_stream: bool
) -> None:
    sum_, weather, time_ = call("calculate", {"expression": "6*7"}), call("get_weather", WRITTEN), call("datetime")
    model = upstream.play(
        Step(calls=[sum_, weather, time_]),
        lambda body: Step(text=" / ".join(one["content"] for one in body["messages"][-3:])),
    )
    first = bridge_server.answer(is_stream, model, [USER], tools=[tool("get_weather")])
    assert (first["finish_reason"], first["tool_calls"], first["x_bridge"]["calls"]) == ("tool_calls", [weather], 2)
    again = [USER, message_of(first), *results([weather])]
    second = bridge_server.answer(is_stream, model, again, tools=[tool("get_weather")])
    assert second["content"].startswith("42 / ")
    assert second["content"].endswith(f"sunny {weather['id']}")
    sent = upstream.bodies(model)[1]["messages"]
    assert sent[2]["tool_calls"] == [sum_, weather, time_]
    third = [*again, {"role": "assistant", "content": second["content"]}, USER]
    bridge_server.answer(is_stream, model, third, tools=[tool("get_weather")])
    assert upstream.bodies(model)[2]["messages"][2:6] == sent[2:6]


def test_our_tools_can_be_called_before_and_after_those_of_the_client(
    bridge_server: Live, upstream: Upstream, is_stream: bool
) -> None:
    weather = call("get_weather", WRITTEN)
    sum_ = Step(calls=[call("calculate", {"expression": "1+1"})])
    model = upstream.play(sum_, Step(calls=[weather]), sum_, Step(text="Done."))
    first = bridge_server.answer(is_stream, model, [USER], tools=[tool("get_weather")])
    assert (first["tool_calls"], first["x_bridge"]["turns"]) == ([weather], 2)
    again = [USER, message_of(first), *results([weather])]
    assert bridge_server.answer(is_stream, model, again, tools=[tool("get_weather")])["content"] == "Done."


def test_two_clients_with_the_same_call_ids_are_separated(bridge_server: Live, upstream: Upstream) -> None:
    """Some model servers number calls from 0 in every conversation."""

    def ask(secret: str, *, mixed: bool) -> tuple[str, Json]:
        ours = [call("calculate", {"expression": secret}, "call_0")] if mixed else []
        theirs = call("get_weather", WRITTEN, "call_1")
        model = upstream.play(Step(calls=[*ours, theirs]), Step(text="Done."))
        return model, bridge_server.answer(False, model, [USER], tools=[tool("get_weather")])

    _, _ = ask("123456789", mixed=True)
    model, answer = ask("2", mixed=False)
    again = [USER, message_of(answer), *results(answer["tool_calls"])]
    bridge_server.answer(False, model, again, tools=[tool("get_weather")])
    assert "123456789" not in json.dumps(upstream.bodies(model))


def test_a_client_tool_replaces_ours_of_the_same_name(bridge_server: Live, upstream: Upstream, is_stream: bool) -> None:
    made = call("calculate", {"city": "x"})
    model = upstream.play(Step(calls=[made]))
    answer = bridge_server.answer(is_stream, model, [USER], tools=[tool("calculate")])
    assert (answer["tool_calls"], answer["x_bridge"]["calls"]) == ([made], 0)
    names = [one["function"]["name"] for one in upstream.bodies(model)[0]["tools"]]
    assert names.count("calculate") == 1
    assert "search_skills" in names


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
def test_the_tool_choice_of_the_client_reaches_the_model(bridge_server: Live, upstream: Upstream, choice: Any) -> None:
    model = upstream.play(Step(calls=[call("get_weather", WRITTEN)]))
    bridge_server.ask(model, [USER], tools=[tool("get_weather")], tool_choice=choice)
    assert upstream.bodies(model)[0]["tool_choice"] == choice


def test_our_tools_are_not_offered_if_the_tool_choice_is_none(
    bridge_server: Live, upstream: Upstream, is_stream: bool
) -> None:
    model = upstream.play(Step(text="Hi."))
    bridge_server.http.post("/v1/chat/completions", json={"model": model, "messages": [USER], "stream": is_stream})
    body = {"model": model, "messages": [USER], "tool_choice": "none", "tools": [tool("f")], "stream": is_stream}
    bridge_server.http.post("/v1/chat/completions", json=body).raise_for_status()
    assert [one["function"]["name"] for one in upstream.bodies(model)[1]["tools"]] == ["f"]
    assert upstream.bodies(model)[1]["tool_choice"] == "none"


@pytest.mark.parametrize("kind", ["schema", "text"])
def test_a_client_gets_tool_calls_from_a_model_without_native_tool_calls(
    bridge_server: Live, upstream: Upstream, is_stream: bool, kind: str
) -> None:
    name = "action" if kind == "schema" else "name"
    model = upstream.play(
        Step(text=json.dumps({name: "get_weather", "arguments": {"city": "上海"}})),
        Step(text=json.dumps({"action": "answer", "text": "Sunny."}) if kind == "schema" else "Sunny."),
        kind=kind,
    )
    answer = bridge_server.answer(is_stream, model, [USER], tools=[tool("get_weather")])
    assert (answer["content"], answer["finish_reason"]) == ("", "tool_calls")
    [made] = answer["tool_calls"]
    assert (made["function"]["name"], json.loads(made["function"]["arguments"])) == ("get_weather", {"city": "上海"})
    again = [USER, message_of(answer), *results([made])]
    assert bridge_server.answer(is_stream, model, again, tools=[tool("get_weather")])["content"] == "Sunny."


def test_more_tools_than_upstreams_accept_are_refused(bridge_server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="Hi."))
    for count in (121, 10_000):
        refused = bridge_server.post(model, tools=[tool(f"f{number}") for number in range(count)])
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")
    assert upstream.seen(model) == []
    bridge_server.ask(model, tools=[tool(f"f{number}") for number in range(100)])


@pytest.mark.requirement("G5")
def test_turns_with_our_calls_before_a_client_call_are_restored(
    bridge_server: Live, upstream: Upstream, is_stream: bool
) -> None:
    tool = {"type": "function", "function": {"name": "zeta", "parameters": {"type": "object"}}}
    model = upstream.play(
        Step(calls=[call("calculate", {"expression": "6*7"}, "own-1")]),
        Step(calls=[call("zeta", {}, "theirs-1")]),
        Step(text="Done."),
    )
    user = {"role": "user", "content": "go"}
    first = bridge_server.answer(is_stream, model, [user], tools=[tool])
    assert [one["function"]["name"] for one in first["tool_calls"]] == ["zeta"]
    message = {"role": "assistant", "content": None, "tool_calls": first["tool_calls"]}
    result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "zeta says hi"}
    bridge_server.answer(is_stream, model, [user, message, result], tools=[tool])
    before, after = (body["messages"] for body in upstream.bodies(model)[1:])
    assert after[: len(before)] == before
    assert [one["role"] for one in after[len(before) :]] == ["assistant", "tool"]


def test_the_reasoning_of_a_turn_goes_back_to_the_model_with_its_calls(
    bridge_server: Live, upstream: Upstream, is_stream: bool
) -> None:
    sum_, weather = call("calculate", {"expression": "6*7"}), call("get_weather", WRITTEN)
    model = upstream.play(
        Step(calls=[sum_], fields={"reasoning_content": "First a sum."}),
        Step(calls=[weather, call("datetime")], fields={"reasoning_content": "Now the weather."}),
        Step(text="Sunny."),
    )
    first = bridge_server.answer(is_stream, model, [USER], tools=[tool("get_weather")])
    again = [USER, message_of(first), *results([weather])]
    assert bridge_server.answer(is_stream, model, again, tools=[tool("get_weather")])["content"] == "Sunny."
    _, second, third = ([m for m in body["messages"] if m["role"] == "assistant"] for body in upstream.bodies(model))
    assert [message["reasoning_content"] for message in second] == ["First a sum."]
    assert [message["reasoning_content"] for message in third] == ["First a sum.", "Now the weather."]
