"""Only a server's own words decide whether a refusal is about tools, not quotations of the request."""

import json
from typing import Any

import pytest

from apexbridge.agent.tool_refusals import MAX_COMPARED, MAX_NODES, is_about_tools
from apexbridge.llm.upstream_errors import UpstreamError, openai_error
from tests.chat.upstream import refusal

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def error_of(message: str, *, status: int = 400, **fields: Any) -> UpstreamError:
    body = openai_error(message, kind="invalid_request_error", code=None)
    body["error"] |= fields
    return UpstreamError(status, json.dumps(body).encode())


def body_of(model: str = "gemma", content: Any = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": content}], "tools": [TOOL], **fields}


@pytest.mark.parametrize(
    "message",
    [
        "registry.ollama.ai/library/gemma does not support tools",
        "tools param requires --jinja flag",
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        "Unrecognized request argument supplied: tools",
        "response_format is not supported here",
        "function calling is not enabled for this model",
    ],
)
def test_a_server_without_tool_support_is_recognised(message: str) -> None:
    words = "I was told that a function is an unknown tool; please support me"
    for request in (
        body_of(),
        body_of(content=words),
        body_of(tool_choice="auto", response_format={"type": "json_schema"}),
    ):
        assert is_about_tools(error_of(message), request)


@pytest.mark.parametrize(
    ("message", "request_"),
    [
        ("The model `{0}` does not exist", body_of("tool unknown")),
        ("The model `{0}` does not exist", body_of("x-tool\nERROR: support \x1b[31m")),
        ("The model '{0}' does not support images", body_of("best-tool")),
        ("Unrecognized request argument supplied: {0}", body_of(tool_mode_of_mine=1)),
        ("Invalid role: '{0}', expected one of user, assistant", body_of(content="function not allowed")),
        ("The content is too bad: '{0}", body_of(content="every tool is unknown here " * 300)),
        ("This schema is bad: {0}", body_of(deep={"deeper": [{"deepest": "a grammar that is not permitted"}]})),
    ],
)
def test_quotations_of_the_request_do_not_count(message: str, request_: dict[str, Any]) -> None:
    def texts(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [text for pair in value.items() for one in pair for text in texts(one)]
        return [text for one in value for text in texts(one)] if isinstance(value, list) else [str(value)]

    for quoted in texts({key: value for key, value in request_.items() if key != "tools"}):
        if quoted not in ("tool", "function"):
            assert not is_about_tools(error_of(message.format(quoted[:500])), request_), quoted


def test_an_error_about_the_model_is_not_about_tools() -> None:
    message = "this model does not support tools"
    assert not is_about_tools(error_of(message, code="model_not_found"), body_of())
    assert not is_about_tools(error_of(message, param="model"), body_of())
    assert not is_about_tools(error_of(message, status=500), body_of())
    assert refusal(400, message) is not None


def test_a_request_that_is_too_large_to_search_is_not_about_tools() -> None:
    message = error_of("this model does not support tools")
    assert is_about_tools(message, body_of(content=["x"] * (MAX_NODES - 100)))
    assert not is_about_tools(message, body_of(content=["x"] * (MAX_NODES + 1)))
    assert not is_about_tools(
        message, body_of(content=[f"tool {number:>100}" for number in range(MAX_COMPARED // 100)])
    )


def test_a_request_of_any_depth_can_be_searched() -> None:
    deep: Any = "tool"
    for _ in range(5000):
        deep = [deep]
    assert is_about_tools(error_of("this model does not support tools"), body_of(content=deep))


def test_an_error_about_one_of_the_tools_is_not_about_tools() -> None:
    message = "Invalid schema for function 'skill__x': in context=('properties',), 'oneOf' is not permitted."
    assert is_about_tools(error_of(message), body_of())
    assert not is_about_tools(error_of(message), body_of(), ["calculate", "skill__x"])
