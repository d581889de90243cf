"""The items of a request to `/v1/responses`, as the messages of a chat request."""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apexbridge.agent.model_turn import TURN_SEPARATOR
from apexbridge.agent.request import QUOTED_CHARACTERS, BadRequestError
from apexbridge.llm.turn import REASONING_PARTS, REASONING_TEXTS
from apexbridge.surfaces.http.chat.response_ids import question_of, response_of
from apexbridge.surfaces.http.chat.response_tools import ClientTools

Json = dict[str, Any]
MAX_ITEMS = 10_000
NO_RESULT = "[The client sent no result for this call.]"
IMAGES = "[Images of the tool results above]"
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
"""Roles of messages. Many models know no developer."""
_CALLS = {"function_call", "custom_tool_call"}
_RESULTS = {"function_call_output": "output", "custom_tool_call_output": "output", "mcp_approval_response": "approve"}
"""The types of results, and the field that each needs."""


def read_input(value: Any) -> list[Json]:
    """The items of `input`; a text is one message of the user. Raises BadRequestError."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": value}]}]
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRequestError("'input' must be text or an array of items.", param="input")
    if len(value) > MAX_ITEMS:
        raise BadRequestError(f"'input' has {len(value):,} items; at most {MAX_ITEMS:,} are possible.", param="input")
    return [_item(item, f"input[{index}]") for index, item in enumerate(value)]


def _item(item: Any, where: str) -> Json:
    """The item with a type, which messages and references may leave out."""
    if isinstance(item, dict) and item.get("type") is None:
        is_reference = isinstance(item.get("id"), str) and "role" not in item
        item = {**item, "type": "item_reference" if is_reference else "message"}
    if not isinstance(item, dict) or not isinstance(item["type"], str):
        raise BadRequestError(f"'{where}' must be an item with a type.", param=where)
    return item


def messages_of(items: Sequence[Json], tools: ClientTools, *, instructions: str | None = None) -> list[Json]:
    """The conversation of a chat request.

    An answer of this server comes back in several items. They become one message, as in chat completions: its text,
    the calls of the client's tools, and the last reasoning. Calls of this server's tools and unknown items are left
    out.

    Raises:
        BadRequestError: an item cannot be read, or a result answers no call.
    """
    conversation = _Conversation(tools, _Results(items))
    if instructions:
        conversation.messages.append({"role": "system", "content": instructions})
    for index, item in enumerate(items):
        conversation.add(item, f"input[{index}]")
    conversation.end()
    return _with_one_system_message(conversation.messages)


class _Results:
    """Results of calls, by the id of the call. A repeated id has its results in order."""

    def __init__(self, items: Sequence[Json]) -> None:
        self._by_call: dict[str, deque[tuple[int, Json]]] = {}
        for index, item in enumerate(items):
            if (needed := _RESULTS.get(item["type"])) is None:
                continue
            is_answer = item["type"] == "mcp_approval_response"
            call = item.get("approval_request_id" if is_answer else "call_id")
            if not isinstance(call, str) or needed not in item:
                raise BadRequestError(
                    f"'input[{index}]' needs the id of its call, and '{needed}'.", param=f"input[{index}]"
                )
            self._by_call.setdefault(question_of(call) if is_answer else call, deque()).append((index, item))

    def has(self, call: str) -> bool:
        return bool(self._by_call.get(call))

    def take(self, call: str) -> Json | None:
        found = self._by_call.get(call)
        return found.popleft()[1] if found else None

    def check_all_taken(self) -> None:
        for call, left in self._by_call.items():
            if left:
                index, item = left[0]
                raise BadRequestError(
                    f"No tool call found for {item['type'].replace('_', ' ')} with call_id {call[:QUOTED_CHARACTERS]}.",
                    param=f"input[{index}]",
                )


@dataclass(slots=True)
class _Answer:
    """An answer of the model, while its items are read."""

    texts: list[str] = field(default_factory=list)
    reasoning: Json = field(default_factory=dict)
    calls: list[Json] = field(default_factory=list)
    has_results: bool = False


class _Conversation:
    def __init__(self, tools: ClientTools, results: _Results) -> None:
        self.messages: list[Json] = []
        self._tools = tools
        self._results = results
        self._answer = _Answer()

    def add(self, item: Json, where: str) -> None:
        kind = item["type"]
        if kind == "message":
            self._add_message(item, where)
        elif kind == "reasoning":
            if reasoning := _reasoning(item):
                self._open_answer().reasoning = reasoning
        elif kind in _CALLS:
            self._open_answer().calls.append(self._call(item, where))
        elif kind == "mcp_approval_request":
            call = _question(item)
            if call is not None and self._results.has(call["id"]):  # without an answer, the call was never made
                self._open_answer().calls.append(call)
        elif kind in _RESULTS:
            self._answer.has_results = True
        elif kind == "item_reference":
            raise BadRequestError(f"'{where}' refers to an item that does not exist.", param=where)

    def end(self) -> None:
        self._close_answer()
        self._results.check_all_taken()

    def _add_message(self, item: Json, where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            shown = repr(role)[:QUOTED_CHARACTERS]
            raise BadRequestError(f"'{where}.role' is {shown}; it is one of {', '.join(_ROLES)}.", param=where)
        content = _content(item.get("content"), f"{where}.content")
        if role == "assistant":
            if text := _text(content, separator=""):
                self._open_answer().texts.append(text)
            return
        self._close_answer()
        if content:
            is_text = all(part["type"] == "text" for part in content)
            self.messages.append(
                {"role": _ROLES[role], "content": _text(content, separator="\n\n") if is_text else content}
            )

    def _call(self, item: Json, where: str) -> Json:
        id, name, namespace = item.get("call_id"), item.get("name"), item.get("namespace")
        is_custom = item["type"] == "custom_tool_call"
        written = item.get("input" if is_custom else "arguments")
        if not isinstance(id, str) or not isinstance(name, str) or not isinstance(written, str):
            needed = "input" if is_custom else "arguments"
            raise BadRequestError(f"'{where}' needs 'call_id', 'name' and '{needed}' as texts.", param=where)
        arguments = json.dumps({"input": written}, ensure_ascii=False) if is_custom else written
        function = self._tools.function_name(name, namespace if isinstance(namespace, str) else None)
        return {"id": id, "type": "function", "function": {"name": function, "arguments": arguments}}

    def _open_answer(self) -> _Answer:
        """The answer that an item belongs to: a new one if results of its calls came already."""
        if self._answer.has_results:
            self._close_answer()
        return self._answer

    def _close_answer(self) -> None:
        answer, self._answer = self._answer, _Answer()
        if not answer.texts and not answer.calls:
            return
        message: Json = {"role": "assistant", "content": _joined(answer.texts) or (None if answer.calls else "")}
        message |= answer.reasoning
        if answer.calls:
            message["tool_calls"] = answer.calls
        self.messages.append(message)
        images: list[Json] = []
        for call in answer.calls:
            text, more = _result(self._results.take(call["id"]))
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
            images += more
        if images:  # messages with results can only have text
            self.messages.append({"role": "user", "content": [{"type": "text", "text": IMAGES}, *images]})


def _joined(texts: Sequence[str]) -> str:
    """The text of an answer. The texts of an answer of this server contain their separators, unless removed."""
    later = (text if text.startswith(TURN_SEPARATOR) else TURN_SEPARATOR + text for text in texts[1:])
    return "".join([*texts[:1], *later])


def _reasoning(item: Json) -> Json:
    """The reasoning in the field of the upstream that wrote it. Reasoning of other servers is left out.

    So is the text of a list of parts, whose other fields the upstream needs: suspended turns have them.
    """
    name = item.get("encrypted_content")
    is_ours = isinstance(id := item.get("id"), str) and response_of(id) is not None
    if name not in REASONING_TEXTS:
        if not is_ours or name == REASONING_PARTS:
            return {}
        name = REASONING_TEXTS[0]
    parts = [part for key in ("summary", "content") for part in _objects(item.get(key))]
    text = "\n\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))
    return {name: text} if text else {}


def _question(item: Json) -> Json | None:
    id, name, arguments = item.get("id"), item.get("name"), item.get("arguments")
    if not isinstance(id, str) or not isinstance(name, str) or not isinstance(arguments, str):
        return None
    return {"id": question_of(id), "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(item: Json | None) -> tuple[str, list[Json]]:
    """The text of a result, and its images and files."""
    if item is None:
        return NO_RESULT, []
    if item["type"] == "mcp_approval_response":
        return json.dumps({"approve": item.get("approve") is True}), []
    output = item["output"]
    if not isinstance(output, list):
        return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False), []
    parts = _content(output, "input")
    return _text(parts, separator="\n"), [part for part in parts if part["type"] != "text"]


def _content(content: Any, where: str) -> list[Json]:
    """The content of a message as parts of a chat message. Unknown parts are left out."""
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list):
        raise BadRequestError(f"'{where}' must be text or an array of parts.", param=where)
    return [part for index, one in enumerate(content) if (part := _part(one, f"{where}[{index}]")) is not None]


def _part(part: Any, where: str) -> Json | None:
    if not isinstance(part, dict):
        raise BadRequestError(f"'{where}' must be an object.", param=where)
    match part.get("type"):
        case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
            return {"type": "text", "text": _string(part, "text", where)}
        case "refusal":
            return {"type": "text", "text": _string(part, "refusal", where)}
        case "input_image":
            return _image(part, where)
        case "input_file":
            return _file(part, where)
        case "input_audio" if isinstance(part.get("input_audio"), dict):
            return {"type": "input_audio", "input_audio": part["input_audio"]}
    return None


def _image(part: Json, where: str) -> Json:
    if isinstance(part.get("file_id"), str):
        return {"type": "file", "file": {"file_id": part["file_id"]}}
    image: Json = {"url": _string(part, "image_url", where)}
    if isinstance(part.get("detail"), str):
        image["detail"] = part["detail"]
    return {"type": "image_url", "image_url": image}


def _file(part: Json, where: str) -> Json:
    fields = {key: part[key] for key in ("file_id", "file_data", "filename") if isinstance(part.get(key), str)}
    if "file_id" not in fields and "file_data" not in fields:
        raise BadRequestError(
            f"'{where}' needs 'file_id', or 'file_data' and 'filename'. This server fetches no 'file_url'.", param=where
        )
    return {"type": "file", "file": fields}


def _string(part: Json, name: str, where: str) -> str:
    value = part.get(name)
    if not isinstance(value, str):
        raise BadRequestError(f"'{where}.{name}' must be a string.", param=f"{where}.{name}")
    return value


def _text(parts: Sequence[Json], *, separator: str) -> str:
    return separator.join(part["text"] for part in parts if part["type"] == "text")


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


def _with_one_system_message(messages: list[Json]) -> list[Json]:
    """The system messages at the beginning as one: many models accept only one."""
    count = next((index for index, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if count < 2 or not all(isinstance(message["content"], str) for message in messages[:count]):
        return messages
    first = {"role": "system", "content": "\n\n".join(message["content"] for message in messages[:count])}
    return [first, *messages[count:]]
