"""A chat request, validated, with the extension `x_bridge` taken out of it."""

import itertools
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from apexbridge.errors import RequestError
from apexbridge.workspaces.workspaces import is_workspace_id

Json = dict[str, Any]
ApprovalMode = Literal["deny", "tool", "wait"]
MAX_MESSAGES = 10_000
"""Every step of a chat walks all messages on the event loop."""
MAX_TOOLS = 128
"""What strict upstreams accept, this server's tools included."""
MAX_CLIENT_TOOLS = 1_000
"""Including deferred ones, which are sent only when they are found."""
MAX_TOOL_NAME_CHARACTERS = 256
MAX_MODEL_CHARACTERS = 512
"""Tool modes are remembered by model name."""
DEFER_MARK = "defer_loading"
QUOTED_CHARACTERS = 64
"""Of the client's text in an error message."""
_PROCESS, _NUMBERS = uuid.uuid4().hex, itertools.count()
_ROLES = {"system", "developer", "user", "assistant", "tool", "function"}
_FIELDS: Mapping[str, tuple[type, str]] = {
    "model": (str, "a string"),
    "stream": (bool, "true or false"),
    "stream_options": (dict, "an object"),
}
_OPTIONS: Mapping[str, type] = {
    "skills": list,
    "tools": bool,
    "activity": bool,
    "debug": bool,
    "approvals": str,
    "functions": bool,
    "workspace": str,
}


class BadRequestError(RequestError):
    """A chat request that cannot be answered. Clients get it in OpenAI's shape, with OpenAI's status and code."""

    default_code = "INVALID_INPUT"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        openai_code: str | None = None,
        code: str | None = None,
        status: int = 400,
    ) -> None:
        super().__init__(message, code=code, param=param)
        self.param = param
        self.openai_code = openai_code
        self._status = status

    @property
    def status(self) -> int:
        return self._status


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The client's `x_bridge`."""

    skills: tuple[str, ...] = ()
    tools: bool = True
    activity: bool = False
    debug: bool = False
    approvals: ApprovalMode = "deny"
    functions: bool = False
    """Whether skills found by a search become functions in the following turns."""
    workspace: str | None = None
    """The id of the workspace with the conversation's files; None finds it by the messages, or creates one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    body: Json
    """As the client sent it, without what only we understand."""
    options: Options
    caller: str = ""
    request_id: str = ""
    client_names: frozenset[str] = field(default_factory=frozenset)
    """Names of the client's own tools."""
    may_pass_through: bool = True
    """Whether the upstream's chunks can be forwarded unchanged. False if the client expects another wire format."""
    link: str = field(default_factory=lambda: f"{_PROCESS}-{next(_NUMBERS)}")
    """Connects the record of the request with the usage it recorded for the search. `request_id` may repeat."""

    @property
    def model(self) -> str:
        """The model's name, as the client sent it."""
        return str(self.body.get("model") or "")

    @property
    def messages(self) -> list[Json]:
        messages: list[Json] = self.body["messages"]
        return messages

    @property
    def client_tools(self) -> list[Json]:
        """The client's own tools, as it sent them."""
        return list(self.body.get("tools") or ())

    @property
    def is_stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def wants_usage(self) -> bool:
        """Whether the last chunk shall contain the usage."""
        options = self.body.get("stream_options")
        return isinstance(options, dict) and bool(options.get("include_usage"))

    @property
    def shows_steps(self) -> bool:
        """Whether the stream reports each state of a tool call. Other wire formats have items for calls."""
        return self.options.activity and self.is_stream and self.may_pass_through

    @property
    def uses_our_tools(self) -> bool:
        """Whether the model may use this server's tools."""
        return self.options.tools and self.body.get("tool_choice") != "none"


def read_request(body: Any, *, caller: str = "", request_id: str = "", may_pass_through: bool = True) -> ChatRequest:
    """Validate a request. Raises BadRequestError."""
    if not isinstance(body, dict):
        raise BadRequestError("The body must be a JSON object.")
    options = read_options(body.get("x_bridge"))
    _check_messages(body.get("messages"))
    names = _check_tools(body.get("tools"))
    for name, (kind, expected) in _FIELDS.items():
        if not isinstance(body.get(name), kind | None):
            raise BadRequestError(f"'{name}' must be {expected}.", param=name)
    if len(body.get("model") or "") > MAX_MODEL_CHARACTERS:
        raise BadRequestError(
            f"The model '{body['model'][:QUOTED_CHARACTERS]}…' does not exist",
            param="model",
            openai_code="model_not_found",
            code="NOT_FOUND",
            status=404,
        )
    if body.get("stream_options") is not None and not body.get("stream"):
        raise BadRequestError("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    request = ChatRequest(
        body={key: value for key, value in body.items() if key != "x_bridge"},
        options=options,
        caller=caller,
        request_id=request_id,
        client_names=frozenset(names),
        may_pass_through=may_pass_through,
    )
    count = body.get("n")
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        raise BadRequestError("'n' must be a whole number from 1.", param="n")
    if count is not None and count > 1 and request.uses_our_tools:
        raise BadRequestError(
            "'n' above 1 is not possible while tools of this server are used; send x_bridge.tools: false.", param="n"
        )
    return request


def read_options(options: Any) -> Options:
    """Validate `x_bridge`. Raises BadRequestError."""
    if options is None:
        return Options()
    if not isinstance(options, dict):
        raise BadRequestError("'x_bridge' must be an object.", param="x_bridge")
    for key, value in options.items():
        if key not in _OPTIONS:
            key = key[:QUOTED_CHARACTERS]
            raise BadRequestError(f"'x_bridge' has no {key}; it has {', '.join(_OPTIONS)}.", param=f"x_bridge.{key}")
        if not isinstance(value, _OPTIONS[key]):
            raise BadRequestError(f"'x_bridge.{key}' does not fit.", param=f"x_bridge.{key}")
    if options.get("approvals", "deny") not in ("deny", "tool", "wait"):
        raise BadRequestError("'x_bridge.approvals' is deny, tool or wait.", param="x_bridge.approvals")
    if "workspace" in options and not is_workspace_id(options["workspace"]):
        raise BadRequestError(
            "'x_bridge.workspace' has at most 64 letters, digits, and . _ - after the first.",
            param="x_bridge.workspace",
        )
    if not all(isinstance(name, str) for name in options.get("skills", [])):
        raise BadRequestError("'x_bridge.skills' is a list of names.", param="x_bridge.skills")
    return Options(**{**options, "skills": tuple(options.get("skills", ()))})


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("'messages' must be a non-empty array.", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise BadRequestError(
            f"'messages' has {len(messages):,} entries; at most {MAX_MESSAGES:,} are possible.", param="messages"
        )
    waiting: Counter[str] = Counter()
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise BadRequestError(f"'{where}' must be an object.", param=where)
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            shown = repr(role)[:QUOTED_CHARACTERS]
            raise BadRequestError(f"'{where}.role' is {shown}; it is one of {', '.join(sorted(_ROLES))}.", param=where)
        if not isinstance(message.get("content"), str | list | None):
            raise BadRequestError(f"'{where}.content' must be text or parts.", param=f"{where}.content")
        if role == "tool":
            id = message.get("tool_call_id")
            if not isinstance(id, str) or not waiting[id]:
                raise BadRequestError(
                    f"'{where}' answers no call: a tool message follows the message with its 'tool_call_id'.",
                    param=where,
                )
            waiting[id] -= 1
        else:
            waiting = Counter()
        calls = _call_ids(message.get("tool_calls"), where)
        if role == "assistant":
            waiting = Counter(calls)


def _call_ids(calls: Any, where: str) -> list[str]:
    if calls is None:
        return []
    if not isinstance(calls, list) or not all(
        isinstance(call, dict) and isinstance(call.get("id"), str) and _is_function(call) for call in calls
    ):
        raise BadRequestError(
            f"'{where}.tool_calls' must be a list of calls, each with its id and its function's name and arguments.",
            param=f"{where}.tool_calls",
        )
    return [call["id"] for call in calls]


def _is_function(call: Json) -> bool:
    if call.get("type", "function") != "function" and "function" not in call:
        return True
    function = call.get("function")
    return isinstance(function, dict) and all(isinstance(function.get(key), str) for key in ("name", "arguments"))


def is_deferred(tool: Mapping[str, Any]) -> bool:
    """Whether the tool or its function has `defer_loading: true`. It is sent to the model once it is found."""
    function = tool.get("function")
    return tool.get(DEFER_MARK) is True or (isinstance(function, dict) and function.get(DEFER_MARK) is True)


def _check_tools(tools: Any) -> list[str]:
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise BadRequestError("'tools' must be an array.", param="tools")
    deferred = sum(isinstance(tool, dict) and is_deferred(tool) for tool in tools)
    if len(tools) - deferred > MAX_TOOLS or len(tools) > MAX_CLIENT_TOOLS:
        raise BadRequestError(
            f"'tools' has {len(tools)} entries; at most {MAX_TOOLS} are possible, and {MAX_CLIENT_TOOLS:,} together "
            "with those that are looked for (defer_loading: true).",
            param="tools",
        )
    names = []
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise BadRequestError(f"'{where}' must be an object.", param=where)
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if (tool.get("type", "function") == "function" or "function" in tool) and not (isinstance(name, str) and name):
            raise BadRequestError(f"'{where}.function.name' is missing.", param=where)
        if isinstance(name, str) and len(name) > MAX_TOOL_NAME_CHARACTERS:
            raise BadRequestError(
                f"'{where}.function.name' is longer than {MAX_TOOL_NAME_CHARACTERS} characters.", param=where
            )
        if isinstance(name, str):
            names.append(name)
        elif is_deferred(tool):
            raise BadRequestError(f"'{where}' cannot be searched: only functions can.", param=f"{where}.defer_loading")
    return names
