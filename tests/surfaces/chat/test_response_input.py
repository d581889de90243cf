"""Items of `/v1/responses` become messages that strict upstreams accept."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from apexbridge.agent.request import BadRequestError, read_request
from apexbridge.surfaces.http.chat.response_input import IMAGES, NO_RESULT, messages_of, read_input
from apexbridge.surfaces.http.chat.response_tools import ClientTools, read_choice, read_tools
from apexbridge.surfaces.http.chat.responses import Context, read_body
from tests.chat.strictness import problem_of
from tests.growth import MOST_GROWTH, growth

Json = dict[str, Any]
USER = {"role": "user", "content": "hi"}


def messages(*items: Json, tools: ClientTools | None = None, instructions: str | None = None) -> list[Json]:
    """The messages of a request with these items, which a strict upstream must accept."""
    found = messages_of(read_input(list(items)), tools or ClientTools(), instructions=instructions)
    assert problem_of({"model": "m", "messages": found}) is None
    return found


def made(id: str, name: str = "f", arguments: str = "{}") -> Json:
    return {"type": "function_call", "call_id": id, "name": name, "arguments": arguments}


def result(id: str, output: Any = "done") -> Json:
    return {"type": "function_call_output", "call_id": id, "output": output}


def said(text: str) -> Json:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def chat_body(**fields: Any) -> Json:
    asked = read_body({"model": "m", "input": "hi", **fields})
    body = asked.chat_body(Context(items=asked.input, used=[]))
    read_request(body)
    return body


# ------------------------------------------------------------------------------------------------------- messages
def test_a_text_is_a_message_of_the_user() -> None:
    assert messages_of(read_input("hi"), ClientTools()) == [USER]


def test_instructions_and_developer_messages_are_one_system_message() -> None:
    found = messages(
        {"role": "developer", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"role": "system", "content": "c"},
        USER,
        {"role": "developer", "content": "later"},
        instructions="Be brief.",
    )
    assert found == [
        {"role": "system", "content": "Be brief.\n\na\n\nb\n\nc"},
        USER,
        {"role": "system", "content": "later"},
    ]


def test_content_parts_become_chat_parts() -> None:
    parts = [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
        {"type": "input_image", "file_id": "file-1", "detail": "auto"},
        {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,AA=="},
        {"type": "input_file", "file_id": "file-2"},
        {"type": "input_hologram", "x": 1},
    ]
    (message,) = messages({"role": "user", "content": parts})
    assert message["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "file", "file": {"file_data": "data:text/plain;base64,AA==", "filename": "a.txt"}},
        {"type": "file", "file": {"file_id": "file-2"}},
    ]


def test_an_answer_in_several_items_is_one_message() -> None:
    call = {"type": "mcp_call", "id": "mcp_1", "name": "calculate", "arguments": "{}", "output": "4"}
    found = messages(USER, said("Let me see."), call, said("\n\nIt is 4."), said("Really."), USER)
    assert found[1] == {"role": "assistant", "content": "Let me see.\n\nIt is 4.\n\nReally."}


def test_a_refusal_of_the_model_is_text() -> None:
    refused = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert messages(USER, refused)[1]["content"] == "No."


def test_parallel_calls_are_one_message_and_successive_calls_are_two() -> None:
    parallel = messages(USER, made("a"), made("b"), result("b", "2"), result("a", "1"))
    assert [message["role"] for message in parallel] == ["user", "assistant", "tool", "tool"]
    assert [message["content"] for message in parallel[2:]] == ["1", "2"]
    successive = messages(USER, made("a"), result("a"), made("b"), result("b"), said("ok"))
    assert [message["role"] for message in successive] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]


def test_results_are_found_wherever_they_are() -> None:
    found = messages(USER, made("a"), USER, result("a", "late"), USER)
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "user", "user"]
    assert found[2]["content"] == "late"


def test_a_reused_call_id_has_its_results_in_order() -> None:
    found = messages(USER, made("a"), result("a", "1"), USER, made("a"), result("a", "2"))
    assert [message["content"] for message in found if message["role"] == "tool"] == ["1", "2"]


def test_a_call_without_a_result_gets_a_note() -> None:
    assert messages(USER, made("a"), USER)[2]["content"] == NO_RESULT


def test_a_result_can_have_parts() -> None:
    parts = [{"type": "input_text", "text": "one"}, {"type": "input_image", "image_url": "http://x/y.png"}]
    found = messages(USER, made("a"), made("b"), result("a", parts), result("b", {"n": 1}), USER)
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "tool", "user", "user"]
    assert (found[2]["content"], found[3]["content"]) == ("one", '{"n": 1}')
    image = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
    assert found[4]["content"] == [{"type": "text", "text": IMAGES}, image]


def test_an_unknown_item_is_skipped() -> None:
    unknown = [{"type": kind, "id": "x"} for kind in ("web_search_call", "mcp_list_tools", "compaction", "hologram")]
    assert messages(USER, *unknown, said("ok")) == [USER, {"role": "assistant", "content": "ok"}]


def test_reasoning_of_other_servers_is_left_out() -> None:
    foreign = {"type": "reasoning", "id": "rs_68", "summary": [{"type": "summary_text", "text": "secret"}]}
    assert messages(USER, {**foreign, "encrypted_content": "gAAAA"}, said("ok"))[1] == {
        "role": "assistant",
        "content": "ok",
    }
    ours = {**foreign, "id": "rs_" + "0" * 32}
    assert messages(USER, ours, said("ok"))[1]["reasoning_content"] == "secret"
    assert messages(USER, {**foreign, "encrypted_content": "reasoning"}, made("a"))[1]["reasoning"] == "secret"
    assert messages(USER, {**ours, "summary": "no list", "content": [5]}, said("ok"))[1].keys() == {"role", "content"}


def test_an_approval_without_an_answer_is_left_out() -> None:
    asked = {"type": "mcp_approval_request", "id": "mcpr_1", "name": "f", "arguments": "{}", "server_label": "x"}
    assert messages(USER, asked, USER) == [USER, USER]
    answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    assert json.loads(messages(USER, asked, answer)[2]["content"]) == {"approve": True}


def test_too_many_items_are_refused() -> None:
    with pytest.raises(BadRequestError, match="10,001 items"):
        read_input([USER] * 10_001)


# ---------------------------------------------------------------------------------------------------------- tools
def test_custom_tools_are_functions_with_one_text() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: WORD"}
    tools = read_tools([{"type": "custom", "name": "patch", "description": "Patch.", "format": grammar}])
    function = tools.functions[0]["function"]
    assert function["name"] == "patch"
    assert "start: WORD" in function["description"]
    assert function["parameters"]["required"] == ["input"]
    call = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "word"}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"}
    sent = messages(USER, call, output, tools=tools)
    assert json.loads(sent[1]["tool_calls"][0]["function"]["arguments"]) == {"input": "word"}
    assert sent[2]["content"] == "ok"


def test_tools_of_a_namespace_get_names_of_their_own() -> None:
    def namespace(name: str, *tools: str) -> Json:
        return {"type": "namespace", "name": name, "tools": [{"type": "function", "name": tool} for tool in tools]}

    tools = read_tools([namespace("mcp__a", "x"), namespace("mcp__b__", "x", "y z"), namespace("n" * 70, "x")])
    names = [tool["function"]["name"] for tool in tools.functions]
    assert names[:3] == ["mcp__a__x", "mcp__b__x", "mcp__b__y_z"]
    assert len(names[3]) == 64
    assert (tools.tool("mcp__a__x").name, tools.tool("mcp__a__x").namespace) == ("x", "mcp__a")
    call = {**made("c", "x"), "namespace": "mcp__b__"}
    assert messages(USER, call, tools=tools)[1]["tool_calls"][0]["function"]["name"] == "mcp__b__x"
    twice = read_tools([namespace("a", "b c", "b.c", "b/c")])
    assert [tool["function"]["name"] for tool in twice.functions] == ["a__b_c", "a__b_c_2", "a__b_c_3"]
    assert twice.function_name("b/c", "a") == "a__b_c_3"


def test_unknown_tools_are_skipped_and_deferred_ones_stay_deferred() -> None:
    tools = read_tools(
        [
            {"type": "web_search", "external_web_access": True},
            {"type": "mcp", "server_label": "x", "server_url": "http://169.254.169.254/"},
            {"type": "function", "name": "f", "strict": True, "parameters": {"type": "object"}, "defer_loading": True},
        ]
    )
    assert tools.functions == [
        {
            "type": "function",
            "function": {"name": "f", "parameters": {"type": "object"}, "strict": True},
            "defer_loading": True,
        }
    ]


def test_every_form_of_tool_choice_is_understood() -> None:
    tools = read_tools([{"type": "function", "name": "f"}, {"type": "custom", "name": "c"}])
    named = {"type": "function", "function": {"name": "f"}}
    for choice in ("auto", "none", "required", None):
        assert read_choice(choice, tools).choice == choice
    assert read_choice({"type": "function", "name": "f"}, tools).choice == named
    assert read_choice({"type": "custom", "name": "c"}, tools).choice["function"]["name"] == "c"
    assert read_choice({"type": "web_search"}, tools).choice == "auto"
    ours = {"type": "mcp", "server_label": "apexbridge", "name": "calculate"}
    assert read_choice(ours, tools).choice["function"]["name"] == "calculate"


def test_allowed_tools_are_a_hard_limit() -> None:
    tools = [{"type": "function", "name": "f"}, {"type": "function", "name": "g"}]
    allowed: Json = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
    body = chat_body(tools=tools, tool_choice=allowed)
    assert [tool["function"]["name"] for tool in body["tools"]] == ["g"]
    assert (body["tool_choice"], body["x_bridge"]) == ("required", {"tools": False})
    allowed["tools"].append({"type": "mcp", "server_label": "apexbridge"})
    assert "x_bridge" not in chat_body(tools=tools, tool_choice=allowed)


# --------------------------------------------------------------------------------------------------------- fields
def test_the_format_of_the_text_is_a_response_format() -> None:
    schema = {"type": "object", "properties": {}}
    form = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    assert chat_body(text={"format": form})["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": schema, "strict": True},
    }
    assert chat_body(text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}
    assert "response_format" not in chat_body(text={"format": {"type": "text"}, "verbosity": "low"})


def test_the_other_fields_have_the_names_of_chat() -> None:
    body = chat_body(
        max_output_tokens=9, reasoning={"effort": "low", "summary": "auto"}, top_p=0.1, user="u", seed=None
    )
    assert (body["max_tokens"], body["reasoning_effort"], body["top_p"], body["user"]) == (9, "low", 0.1, "u")
    assert "reasoning" not in body


def test_a_request_of_codex_is_understood() -> None:
    body = chat_body(
        instructions="You are a coding agent.",
        input=[
            {
                "type": "message",
                "role": "developer",
                "id": "msg_x",
                "content": [{"type": "input_text", "text": "Rules"}],
            },
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment>"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List the files."}]},
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
            {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "call_1"},
            {"type": "function_call_output", "call_id": "call_1", "output": '{"output":"a.txt"}'},
        ],
        tools=[
            {
                "type": "function",
                "name": "shell",
                "description": "Run.",
                "strict": False,
                "parameters": {"type": "object"},
            },
            {
                "type": "namespace",
                "name": "mcp__apex__",
                "description": "Tools of apex",
                "tools": [{"type": "function", "name": "run_skill", "parameters": {"type": "object"}}],
            },
            {"type": "web_search", "external_web_access": False},
            {"type": "custom", "name": "apply_patch", "description": "Patch.", "format": {"type": "text"}},
        ],
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"summary": "auto"},
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="0199",
        client_metadata={"x": "y"},
        text={"verbosity": "low"},
    )
    assert problem_of(body) is None
    assert [tool["function"]["name"] for tool in body["tools"]] == ["shell", "mcp__apex__run_skill", "apply_patch"]
    assert body["messages"][0] == {"role": "system", "content": "You are a coding agent.\n\nRules"}
    assert body["stream"] is True
    assert not {"prompt_cache_key", "client_metadata", "include", "store", "reasoning"} & set(body)


# ----------------------------------------------------------------------------------------------------------- cost
def read_items(text: str) -> None:
    """An answer of many texts, and calls and results with the same id."""
    count = len(text) // 40
    said = [{"role": "assistant", "content": "x"}] * count
    items = read_input([*said, *[made("c")] * count, *[result("c")] * count])
    messages_of(items, ClientTools())


def read_names(text: str) -> None:
    tools = [{"type": "function", "name": letter} for letter in text[: len(text) // 40]]
    read_tools([{"type": "namespace", "name": "n", "tools": tools}])


@pytest.mark.slow
@pytest.mark.parametrize("work", [read_items, read_names])
def test_the_cost_of_reading_is_linear(work: Callable[[str], None]) -> None:
    assert growth(work, lambda size: "." * size) <= MOST_GROWTH
