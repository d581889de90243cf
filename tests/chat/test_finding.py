"""Deferred tools, found skills as functions, and search results learned from successful runs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from apexbridge.agent.tool_offer import DeferredTools
from apexbridge.retrieval.embedders.embedder import Embedder
from tests.chat.live import Live, live
from tests.chat.upstream import Step, Upstream, call
from tests.waiting import wait_until

Json = dict[str, Any]
ECHO = "import json, sys\nprint('echo', json.dumps(json.load(sys.stdin), sort_keys=True))\n"
SEARCH = call("search_skills", {"query": "what is the weather like tomorrow"})


def tool(name: str, description: str, **fields: Any) -> Json:
    parameters = {"type": "object", "properties": {"place": {"type": "string"}}}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    } | fields


WEATHER = tool("get_weather", "The weather of a place for the next days.")
ROOMS = tool("book_room", "Books a room for a meeting. 预订会议室")
DEFERRED = [WEATHER | {"defer_loading": True}, ROOMS | {"defer_loading": True}]


@pytest.fixture(scope="module")
def server(upstream: Upstream, embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("served") / "data", upstream, embedder) as opened:
        opened.install("git-commit", {"scripts/execute.py": ECHO}, description="Commits work to git.")
        opened.install("tides", {"scripts/execute.py": ECHO}, description="Tells the tides and the weather at sea.")
        opened.install("boom", {"scripts/execute.py": "raise SystemExit('no')\n"}, description="Blows things up.")
        yield opened


def names(body: Json) -> list[str]:
    return [one["function"]["name"] for one in body.get("tools", ())]


# ------------------------------------------------------------------------------------------------------ deferred tools
@pytest.mark.requirement("G5")
def test_deferred_tools_are_sent_once_they_are_found(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(
        Step(calls=[SEARCH]), Step(calls=[call("get_weather", {"place": "Bern"}, "w1")]), Step(text="Sunny.")
    )
    answer = server.answer(is_stream, model, tools=DEFERRED)
    assert [one["function"]["name"] for one in answer["tool_calls"]] == ["get_weather"]
    first, second = upstream.bodies(model)
    assert not {"get_weather", "book_room"} & set(names(first))
    assert second["tools"] == [*first["tools"], WEATHER]  # the order is unchanged, and defer_loading is removed
    assert "get_weather" in second["messages"][-1]["content"]


@pytest.mark.requirement("G5")
def test_a_deferred_tool_that_was_called_or_chosen_is_sent(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(Step(text="Sunny."))
    made = call("get_weather", {"place": "Bern"}, "w2")
    messages = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "w2", "content": "sun"},
    ]
    server.answer(is_stream, model, messages, tools=DEFERRED)
    assert names(upstream.bodies(model)[0])[-1] == "get_weather"
    server.answer(is_stream, model, tools=DEFERRED, tool_choice={"type": "function", "function": {"name": "book_room"}})
    assert names(upstream.bodies(model)[1])[-1] == "book_room"


def test_all_deferred_tools_are_sent_if_the_model_cannot_search_for_them(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="Hi."))
    own = tool("search_skills", "The client's own search.")
    server.ask(model, tools=[own, *DEFERRED])
    assert names(upstream.bodies(model)[0])[-3:] == ["search_skills", "get_weather", "book_room"]
    server.ask(model, tools=DEFERRED, x_bridge={"tools": False})
    assert upstream.bodies(model)[1]["tools"] == DEFERRED  # unchanged, since our tools are off


def test_the_number_of_deferred_tools_is_limited(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(calls=[SEARCH]), Step(text="Hi."))
    many = [tool(f"t{number}", f"Weather of kind {number}.") | {"defer_loading": True} for number in range(900)]
    server.ask(model, tools=many)
    assert len(upstream.bodies(model)[1]["tools"]) == len(upstream.bodies(model)[0]["tools"]) + 5
    for tools in (many + many, [{"type": "custom", "defer_loading": True}], [tool("t", "x") for _ in range(129)]):
        response = server.post(model, tools=tools)
        assert (response.status_code, response.json()["error"]["param"].split("[")[0]) == (400, "tools")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("weather tomorrow", ["get_weather"]),
        ("weathers", ["get_weather"]),
        ("a meeting room", ["book_room"]),
        ("会议", ["book_room"]),
        ("预订", ["book_room"]),
        ("天气", ["get_weather"]),
        ("something else altogether", []),
        ("", []),
        ("place", ["book_room", "get_weather"]),
    ],
)
def test_deferred_tools_are_found_by_words_in_english_and_chinese(query: str, found: list[str]) -> None:
    assert sorted(DeferredTools(DEFERRED).find(query)) == found


def test_tools_with_unusual_definitions_can_be_searched() -> None:
    parameters: list[Any] = [None, [], {}]
    for one in [{"type": "function", "function": {"name": "x", "parameters": own}} for own in parameters]:
        assert DeferredTools([one | {"defer_loading": True}]).find("x") in (["x"], [])
    marked = {"type": "function", "function": {"name": "x", "defer_loading": True}}
    assert DeferredTools([marked]).take("x") == {"type": "function", "function": {"name": "x"}}


# -------------------------------------------------------------------------------------------------- skills as functions
@pytest.mark.requirement("G5")
def test_found_skills_become_functions_on_request(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(
        Step(calls=[call("search_skills", {"query": "tell me the tides"})]),
        Step(calls=[call("skill__tides", {"place": "Brest"})]),
        Step(calls=[call("search_skills", {"query": "tell me the tides"})]),
        Step(text="High."),
    )
    answer = server.answer(is_stream, model, x_bridge={"functions": True, "debug": True})
    assert [step.get("tool") for step in answer["x_bridge"]["trajectory"] if step["kind"] != "model"] == [
        "vector-search",
        "skill:tides",
        "vector-search",
    ]
    first, second, third, fourth = (json.dumps(body["tools"]) for body in upstream.bodies(model))
    assert "skill__tides" not in first
    assert "skill__tides" in second
    assert second.startswith(first[:-1])
    assert second == third == fourth


def test_an_invalid_functions_flag_is_refused(server: Live, upstream: Upstream) -> None:
    response = server.post(upstream.play(Step(text="Hi.")), x_bridge={"functions": "yes"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "x_bridge.functions")


# -------------------------------------------------------------------------------------------------------------- lessons
def found_by_past_use(server: Live, query: str) -> list[str]:
    """The skills that a query finds because of past use."""
    found = server.do(server.bridge.retrieval.find_relevant_skills(query, limit=5))
    return [hit.name for hit in found if hit.why.past_use > 0]


@pytest.mark.requirement("E11")
def test_a_skill_that_ran_successfully_is_found_by_the_same_words_next_time(
    server: Live, upstream: Upstream, is_stream: bool
) -> None:
    words = "刷一下那个玩意儿" if is_stream else "frobnicate my quux"
    model = upstream.play(
        Step(calls=[call("search_skills", {"query": words})]),
        Step(calls=[call("run_skill", {"name": "git-commit", "input": {"message": "x"}})]),
        Step(text="Done."),
    )
    server.answer(is_stream, model, words)
    wait_until(lambda: "git-commit" in found_by_past_use(server, words))


@pytest.mark.requirement("E11")
def test_a_failed_run_does_not_affect_the_search(server: Live, upstream: Upstream) -> None:
    words = "defenestrate the gizmo"
    model = upstream.play(
        Step(calls=[call("run_skill", {"name": "boom"})]),
        Step(calls=[call("load_skill", {"name": "tides"})]),
        Step(text="It did not work."),
    )
    server.ask(model, words)
    server.do(server.bridge.chat._deps.feedback.close())
    assert found_by_past_use(server, words) == []
