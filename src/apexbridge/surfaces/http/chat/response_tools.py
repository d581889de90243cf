"""The client's tools in a request to `/v1/responses`, as functions of a chat request."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from apexbridge.agent.request import DEFER_MARK, MAX_CLIENT_TOOLS, BadRequestError

Json = dict[str, Any]
SERVER_LABEL = "apexbridge"
"""Names this server in `mcp_call` items."""
MAX_NAME_CHARACTERS = 64
"""Of a function, for strict upstreams."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_CUSTOM_INPUT: Json = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The tool's input, as plain text."}},
    "required": ["input"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTool:
    """A tool as the client knows it."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTools:
    """The tools of a request that the client runs."""

    functions: Sequence[Json] = ()
    """For the chat request."""
    by_function: Mapping[str, ClientTool] = field(default_factory=dict)
    in_namespaces: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """The functions of tools in namespaces, by namespace and name."""

    def function_name(self, name: str, namespace: str | None) -> str:
        """The name of the function for a tool. A tool of an earlier request may be missing now."""
        if namespace is None:
            return name
        return self.in_namespaces.get((namespace, name)) or _flat_name(namespace, name)

    def tool(self, function: str) -> ClientTool:
        return self.by_function.get(function) or ClientTool(kind="function", name=function)


def read_tools(tools: Any) -> ClientTools:
    """Read `tools`. Types that this server does not know are skipped: clients send many. Raises BadRequestError."""
    if tools is None:
        return ClientTools()
    if not isinstance(tools, list):
        raise BadRequestError("'tools' must be an array.", param="tools")
    functions: list[Json] = []
    by_function: dict[str, ClientTool] = {}
    in_namespaces: dict[tuple[str, str], str] = {}
    numbers: dict[str, int] = {}
    for where, namespace, tool in _flattened(tools):
        kind = tool.get("type")
        if kind not in ("function", "custom"):
            continue
        name = tool.get("name")
        if not isinstance(name, str) or not name:
            raise BadRequestError(f"'{where}.name' is missing.", param=where)
        if len(functions) == MAX_CLIENT_TOOLS:
            raise BadRequestError(f"'tools' has more than {MAX_CLIENT_TOOLS:,} functions.", param="tools")
        wire = name
        if namespace is not None:
            wire = in_namespaces[namespace, name] = _unused(_flat_name(namespace, name), by_function, numbers)
        by_function[wire] = ClientTool(kind=kind, name=name, namespace=namespace)
        functions.append(_function(wire, tool))
    return ClientTools(functions=functions, by_function=by_function, in_namespaces=in_namespaces)


def echoed_tools(tools: Any) -> list[Json]:
    """The tools for the response object, whose functions have all fields."""
    return [
        {"description": None, "parameters": None, "strict": None, **tool} if tool.get("type") == "function" else tool
        for tool in tools or ()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """`tool_choice` for the chat request."""

    choice: Any = None
    allowed: frozenset[str] | None = None
    """Functions that may be called; None for all."""
    allows_server_tools: bool = True


def read_choice(choice: Any, tools: ClientTools) -> ToolChoice:
    """Read `tool_choice`. Choices of tools that this server does not know count as `auto`. Raises BadRequestError."""
    if choice is None or choice in ("auto", "none", "required"):
        return ToolChoice(choice=choice)
    if not isinstance(choice, dict):
        raise BadRequestError(
            "'tool_choice' is auto, none, required, or an object that names a tool.", param="tool_choice"
        )
    kind = choice.get("type")
    if kind in ("function", "custom"):
        return ToolChoice(choice=_named(_choice_name(choice, tools)))
    if kind == "mcp" and choice.get("server_label") == SERVER_LABEL and isinstance(choice.get("name"), str):
        return ToolChoice(choice=_named(choice["name"]))
    if kind != "allowed_tools":
        return ToolChoice(choice="auto")
    entries = choice.get("tools")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise BadRequestError("'tool_choice.tools' must be an array of tools.", param="tool_choice.tools")
    if choice.get("mode", "auto") not in ("auto", "required"):
        raise BadRequestError("'tool_choice.mode' is auto or required.", param="tool_choice.mode")
    names = [_choice_name(entry, tools) for entry in entries if entry.get("type") in ("function", "custom")]
    is_ours = any(entry.get("type") == "mcp" and entry.get("server_label") == SERVER_LABEL for entry in entries)
    return ToolChoice(choice=choice.get("mode", "auto"), allowed=frozenset(names), allows_server_tools=is_ours)


def _choice_name(choice: Json, tools: ClientTools) -> str:
    name, namespace = choice.get("name"), choice.get("namespace")
    if not isinstance(name, str):
        raise BadRequestError("'tool_choice' names no tool.", param="tool_choice")
    return tools.function_name(name, namespace if isinstance(namespace, str) else None)


def _named(name: str) -> Json:
    return {"type": "function", "function": {"name": name}}


def _flattened(tools: Sequence[Any]) -> list[tuple[str, str | None, Json]]:
    """Each tool with where it is in the request, and its namespace."""
    found: list[tuple[str, str | None, Json]] = []
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise BadRequestError(f"'{where}' must be an object.", param=where)
        if tool.get("type") != "namespace":
            found.append((where, None, tool))
            continue
        name, members = tool.get("name"), tool.get("tools")
        if not isinstance(name, str) or not isinstance(members, list):
            raise BadRequestError(f"'{where}' needs a name and tools.", param=where)
        for number, member in enumerate(members):
            inner = f"{where}.tools[{number}]"
            if not isinstance(member, dict):
                raise BadRequestError(f"'{inner}' must be an object.", param=inner)
            found.append((inner, name, member))
    return found


def _flat_name(namespace: str, name: str) -> str:
    """One name for a tool of a namespace. Long ones end in a hash."""
    flat = f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"
    clean = _NOT_IN_NAMES.sub("_", flat)
    if len(clean) <= MAX_NAME_CHARACTERS:
        return clean
    digest = hashlib.sha256(flat.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{clean[: MAX_NAME_CHARACTERS - 9]}_{digest}"


def _unused(name: str, known: Mapping[str, ClientTool], numbers: dict[str, int]) -> str:
    """The name, with a number if it is taken. `numbers` are the last ones by name, so that none is tried twice."""
    free = name
    while free in known:
        number = numbers[name] = numbers.get(name, 1) + 1
        suffix = f"_{number}"
        free = name[: MAX_NAME_CHARACTERS - len(suffix)] + suffix
    return free


def _function(wire: str, tool: Json) -> Json:
    function: Json = {"name": wire}
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    if tool["type"] == "custom":
        function |= {"description": _custom_description(tool), "parameters": _CUSTOM_INPUT}
    else:
        if isinstance(tool.get("parameters"), dict):
            function["parameters"] = tool["parameters"]
        if isinstance(tool.get("strict"), bool):
            function["strict"] = tool["strict"]
    return {"type": "function", "function": function} | ({DEFER_MARK: True} if tool.get(DEFER_MARK) is True else {})


def _custom_description(tool: Json) -> str:
    """The description with the grammar of the input, which upstreams cannot enforce."""
    described = tool.get("description")
    parts = [described] if isinstance(described, str) and described else []
    form = tool.get("format")
    if isinstance(form, dict) and form.get("type") == "grammar" and isinstance(form.get("definition"), str):
        parts.append(f"The input follows this {form.get('syntax') or 'formal'} grammar:\n{form['definition']}")
    return "\n\n".join(parts)
