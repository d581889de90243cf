"""Rejects the requests that OpenAI's servers reject."""

import re
from typing import Any

Json = dict[str, Any]
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_ROLES = {"system", "developer", "user", "assistant", "tool"}


def problem_of(body: Json) -> tuple[str, str] | None:
    """Return the field and the reason of the rejection, or None if the request is valid."""
    return _of_fields(body) or _of_messages(body.get("messages")) or _of_tools(body)


def _of_fields(body: Json) -> tuple[str, str] | None:
    if "x_bridge" in body:
        return "x_bridge", "Unrecognized request argument supplied: x_bridge"
    if not body.get("model"):
        return "model", "you must provide a model parameter"
    if body.get("stream_options") is not None and not body.get("stream"):
        return "stream_options", "The 'stream_options' parameter is only allowed when 'stream' is enabled."
    return None


def _of_messages(messages: Any) -> tuple[str, str] | None:
    if not isinstance(messages, list) or not messages:
        return "messages", "[] is too short - 'messages'"
    open_calls: list[str] = []
    for index, message in enumerate(messages):
        where, role = f"messages[{index}]", message.get("role")
        if role not in _ROLES:
            return where, f"Invalid value: '{role}'"
        if role == "tool":
            if message.get("tool_call_id") not in open_calls:
                return where, "messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
            if not isinstance(message.get("content"), str | list):
                return where, "Invalid type for content of a tool message"
            open_calls.remove(message["tool_call_id"])
        elif open_calls:
            return where, f"An assistant message with 'tool_calls' must be followed by tool messages: {open_calls}"
        if role == "assistant":
            calls = message.get("tool_calls")
            if calls == [] or (calls is None and message.get("content") is None):
                return where, "An assistant message needs content or calls"
            open_calls = [one.get("id") for one in calls or ()]
            if len({*open_calls, None, ""}) != len(open_calls) + 2:
                return where, "Calls need ids of their own"
            if not all(_is_call(one) for one in calls or ()):
                return where, "A call needs a type, a name and arguments as a string"
    return ("messages", f"No tool messages for {open_calls}") if open_calls else None


def _is_call(call: Json) -> bool:
    function = call.get("function")
    if call.get("type") != "function" or not isinstance(function, dict) or "index" in call:
        return False
    return isinstance(function.get("arguments"), str) and bool(_NAME.match(str(function.get("name"))))


def _of_tools(body: Json) -> tuple[str, str] | None:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools is None:
        return ("tool_choice", "'tool_choice' is only allowed when 'tools' are specified.") if choice else None
    if not tools or len(tools) > 128:
        return "tools", f"{len(tools)} is no possible number of tools"
    names = [tool.get("function", {}).get("name", "") for tool in tools]
    for name, tool in zip(names, tools, strict=True):
        if not _NAME.match(name):
            return "tools", f"Invalid 'tools.function.name': '{name}' does not match the pattern ^[a-zA-Z0-9_-]+$"
        parameters = tool["function"].get("parameters")
        if parameters is not None and parameters.get("type") != "object":
            return "tools", f"Invalid schema for function '{name}': schema must be of type object"
    if len(set(names)) != len(names):
        return "tools", "Tool names must be unique"
    if isinstance(choice, dict) and choice.get("function", {}).get("name") not in names:
        return "tool_choice", "Tool choice names a function that is not in 'tools'"
    return None
