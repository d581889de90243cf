"""Reads a request of Anthropic's Messages API as a chat request.

Unknown fields, tools that Anthropic runs and unknown content blocks are ignored: clients send new ones all the time.
"""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from apexbridge._json import loads_or, loads_untrusted
from apexbridge.agent.request import MAX_MESSAGES, QUOTED_CHARACTERS, BadRequestError
from apexbridge.llm.turn import REASONING_TEXTS
from apexbridge.tools.naming import shortened

Json = dict[str, Any]
SERVER_NAME = "apexbridge"
"""`server_name` of the calls of this server's tools."""
_SERVER_RESULTS = ("mcp_tool_result", "bash_code_execution_tool_result")
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
LOW_BUDGET, MEDIUM_BUDGET = 4_096, 16_384
"""Tokens for thinking up to which `reasoning_effort` is low, and medium."""
MAX_SKILLS = 64
"""In `container`: each becomes a tool."""
_CODE_EXECUTION = "code_execution_"
"""How the types of tools begin with which a client expects that code is run on the server."""
_SAME_FIELDS = ("model", "max_tokens", "temperature", "top_p", "stream")
"""Fields that chat completions have too."""
_FILE_TYPES = {"application/pdf": "document.pdf", "text/plain": "document.txt"}
_FIRST_NOTE = "The images and files of these results follow."


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesRequest:
    """A chat request, and what its answer needs to be one of the Messages API."""

    body: Json
    """Of the chat request."""
    tool_names: Mapping[str, str]
    """The client's names of its tools whose names had to be shortened."""
    stop_sequences: tuple[str, ...]
    runs_code: bool
    """Whether the client has a code execution tool: runs are shown as its results."""
    shows_activity: bool
    """Whether calls of this server's tools are shown."""
    skills: tuple[Json, ...]
    """The skills of `container`: `skill_id`, and perhaps `type` and `version`."""


def read_messages_request(body: Any, *, needs_limit: bool = True) -> MessagesRequest:
    """Convert a request. `needs_limit`: it must have `max_tokens`. Raises BadRequestError."""
    if not isinstance(body, dict):
        raise BadRequestError("The body must be a JSON object.")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _invalid("messages", "at least one message is required")
    if len(messages) > MAX_MESSAGES:
        raise _invalid("messages", f"at most {MAX_MESSAGES:,} messages are possible")
    limit = body.get("max_tokens")
    if (needs_limit or limit is not None) and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise _invalid("max_tokens", "a whole number from 1 is required")
    tools = _Tools(body.get("tools"))
    conversation = _Conversation(tools.names, model=body.get("model"))
    conversation.add_prompt(body.get("system"))
    for index, message in enumerate(messages):
        conversation.add(message, f"messages.{index}")
    chat: Json = {"messages": conversation.finished()}
    chat |= {name: body[name] for name in _SAME_FIELDS if body.get(name) is not None}
    stops = _stop_sequences(body.get("stop_sequences"))
    if stops:
        chat["stop"] = list(stops)
    if functions := tools.functions(conversation.referenced):
        chat["tools"] = functions
    chat |= _tool_choice(body.get("tool_choice"), tools)
    chat |= _output(body)
    options, skills = _options(body)
    if options is not None:
        chat["x_bridge"] = options
    return MessagesRequest(
        body=chat,
        tool_names=tools.originals,
        stop_sequences=stops,
        runs_code=tools.runs_code,
        shows_activity=not (isinstance(options, dict) and options.get("activity") is False),
        skills=skills,
    )


def signature_of(reasoning_field: str, model: str) -> str:
    """The signature of a thinking block: where its text came from, so that it can go back there."""
    return base64.urlsafe_b64encode(json.dumps([SERVER_NAME, reasoning_field, model]).encode()).decode()


class _Tools:
    """The client's own tools as functions."""

    def __init__(self, tools: Any) -> None:
        if not isinstance(tools, list | None):
            raise _invalid("tools", "must be an array")
        self._own: list[Json] = []
        self.names: dict[str, str] = {}
        """The name of each tool at the upstream, by the client's name."""
        self.runs_code = False
        for index, tool in enumerate(tools or ()):
            where = f"tools.{index}"
            if not isinstance(tool, dict):
                raise _invalid(where, "must be an object")
            kind = tool.get("type", "custom")
            if kind not in ("custom", None):  # a tool that Anthropic runs
                self.runs_code |= isinstance(kind, str) and kind.startswith(_CODE_EXECUTION)
                continue
            name = tool.get("name")
            if not isinstance(name, str) or not name:
                raise _invalid(f"{where}.name", "is required")
            self.names[name] = shortened(name)
            self._own.append(tool)

    @property
    def originals(self) -> dict[str, str]:
        return {short: name for name, short in self.names.items() if short != name}

    def functions(self, referenced: set[str]) -> list[Json]:
        """The tools for the upstream. Deferred ones that a result refers to are loaded."""
        return [self._function(tool, referenced) for tool in self._own]

    def _function(self, tool: Json, referenced: set[str]) -> Json:
        schema = tool.get("input_schema")
        function: Json = {
            "name": self.names[tool["name"]],
            "parameters": {"type": "object", **schema} if isinstance(schema, dict) else {"type": "object"},
        }
        if isinstance(tool.get("description"), str):
            function["description"] = tool["description"]
        if isinstance(tool.get("strict"), bool):
            function["strict"] = tool["strict"]
        converted: Json = {"type": "function", "function": function}
        if tool.get("defer_loading") is True and tool["name"] not in referenced:
            converted["defer_loading"] = True
        return converted


@dataclass(slots=True)
class _Conversation:
    """The messages of the chat request so far."""

    names: Mapping[str, str]
    model: Any
    messages: list[Json] = field(default_factory=list)
    """The content of a user's message is a list of parts."""
    referenced: set[str] = field(default_factory=set)
    """Names of tools that results refer to: the client has searched for them."""
    _prompt: list[str] = field(default_factory=list)
    _waiting: dict[str, str] = field(default_factory=dict)
    """Names of the tools whose results have to come next, by the ids of the calls."""
    _held: list[str] = field(default_factory=list)
    """Text of system messages that came where only results may come."""

    def add_prompt(self, system: Any) -> None:
        if not isinstance(system, str | list | None):
            raise _invalid("system", "must be text or text blocks")
        blocks = [block for block in _blocks(system or [], "system") if not _is_billing(block)]
        if text := _text_of(blocks):
            self._prompt.append(text)

    def add(self, message: Any, where: str) -> None:
        if not isinstance(message, dict):
            raise _invalid(where, "must be an object")
        role, content = message.get("role"), message.get("content")
        if not isinstance(content, str | list):
            raise _invalid(f"{where}.content", "must be text or content blocks")
        blocks = list(_blocks(content, f"{where}.content"))
        if role == "user":
            self._add_user(blocks, where)
        elif role == "assistant":
            self._add_assistant(blocks, where)
        elif role in ("system", "developer"):
            self._add_system(_text_of(blocks))
        else:
            shown = repr(role)[:QUOTED_CHARACTERS]
            raise _invalid(f"{where}.role", f"is {shown}; it is user, assistant or system")

    def finished(self) -> list[Json]:
        """All messages, the system prompt first."""
        self._refuse_unanswered("messages")
        if not self.messages:
            raise _invalid("messages", "a message of the user is required")
        prompt = [{"role": "system", "content": "\n\n".join(self._prompt)}] if self._prompt else []
        return [*prompt, *map(_plain, self.messages)]

    # ---------------------------------------------------------------------------------------------------- roles
    def _add_system(self, text: str) -> None:
        """Put a system message into the user's turn: many models accept a system message only at the beginning."""
        if not text:
            return
        if self._waiting:
            self._held.append(text)
        elif not self.messages:
            self._prompt.append(text)
        else:
            self._say([_system_part(text)])

    def _add_user(self, blocks: list[Json], where: str) -> None:
        parts: list[Json] = []
        shown: list[Json] = []
        for index, block in enumerate(blocks):
            if block.get("type") == "tool_result":
                shown += self._add_result(block, f"{where}.content.{index}")
            else:
                parts += _parts(block, f"{where}.content.{index}")
        self._refuse_unanswered(where)
        if shown:
            parts = [_text_part(_FIRST_NOTE), *shown, *parts]
        parts += [_system_part(text) for text in self._held]
        self._held = []
        self._say(parts)

    def _say(self, parts: list[Json]) -> None:
        """Add parts to the user's turn. Turns of the same role are joined: some models require that they alternate."""
        if not parts:
            return
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages[-1]["content"] += parts
        else:
            self.messages.append({"role": "user", "content": parts})

    def _add_result(self, block: Json, where: str) -> list[Json]:
        """Add the result of a client's tool; returns its images and files, which a tool message cannot contain."""
        id = block.get("tool_use_id")
        if not isinstance(id, str) or id not in self._waiting:
            shown = str(id)[:QUOTED_CHARACTERS]
            raise _invalid(where, f"the tool_result of {shown} has no tool_use in the message before")
        content = block.get("content")
        if not isinstance(content, str | list | None):
            raise _invalid(f"{where}.content", "must be text or content blocks")
        texts: list[str] = []
        others: list[Json] = []
        for index, item in enumerate(_blocks(content or [], f"{where}.content")):
            if item.get("type") == "tool_reference" and isinstance(item.get("tool_name"), str):
                self.referenced.add(item["tool_name"])
                texts.append(f"The tool {item['tool_name']} is available now.")
                continue
            parts = _parts(item, f"{where}.content.{index}")
            texts += [part["text"] for part in parts if part["type"] == "text"]
            others += [part for part in parts if part["type"] != "text"]
        text = "\n".join(texts)
        if block.get("is_error") is True:
            text = f"Error: {text}"
        self.messages.append({"role": "tool", "tool_call_id": id, "name": self._waiting.pop(id), "content": text})
        return others

    def _add_assistant(self, blocks: list[Json], where: str) -> None:
        """Add an answer without the calls of this server's tools, as clients of chat completions send it back.

        The reasoning goes back with the calls that it led to.
        """
        self._refuse_unanswered(where)
        texts: list[str] = []
        calls: list[Json] = []
        thoughts: dict[str, list[str]] = {}
        for index, block in enumerate(blocks):
            kind = block.get("type")
            if kind == "text":
                texts.append(_string(block, "text", f"{where}.content.{index}"))
            elif kind == "tool_use":
                calls.append(self._call(block, f"{where}.content.{index}"))
            elif kind == "thinking":
                if (source := self._source(block)) is not None:
                    thoughts.setdefault(source, []).append(str(block.get("thinking", "")))
            elif kind in _SERVER_RESULTS:
                thoughts = {}  # an earlier turn of the model
        message: Json = {"role": "assistant", "content": "".join(texts) or (None if calls else "")}
        if calls:
            message |= {source: "".join(thought) for source, thought in thoughts.items()}
            message["tool_calls"] = calls
        self.messages.append(message)

    def _call(self, block: Json, where: str) -> Json:
        id, name, arguments = _string(block, "id", where), _string(block, "name", where), block.get("input")
        if not id or id in self._waiting:
            raise _invalid(f"{where}.id", "each tool_use needs an id of its own")
        short = self.names.get(name) or shortened(name)
        self._waiting[id] = short
        return _function_call(id, short, arguments)

    def _source(self, block: Json) -> str | None:
        """The field of the upstream's message that a thinking block came from; None for foreign blocks."""
        try:
            signature = loads_untrusted(base64.urlsafe_b64decode(str(block.get("signature") or "")).decode())
        except (ValueError, binascii.Error):
            return None
        if not isinstance(signature, list) or not signature:
            return None
        for name in REASONING_TEXTS:
            if signature == [SERVER_NAME, name, self.model or signature[-1]]:
                return name
        return None

    def _refuse_unanswered(self, where: str) -> None:
        if self._waiting:
            ids = ", ".join(list(self._waiting)[:3])[:QUOTED_CHARACTERS]
            raise _invalid(where, f"a tool_result is missing for the tool_use {ids}: it comes in the next message")


# ------------------------------------------------------------------------------------------------------------- blocks
def _blocks(content: str | list[Any], where: str) -> Iterator[Json]:
    if isinstance(content, str):
        yield {"type": "text", "text": content}
        return
    for index, block in enumerate(content):
        if not isinstance(block, dict):
            raise _invalid(f"{where}.{index}", "must be an object")
        yield block


def _is_billing(block: Json) -> bool:
    """Whether this is Claude Code's note for Anthropic's accounting, which would keep prompt caches from working."""
    return str(block.get("text", "")).startswith("x-anthropic-billing-header:")


def _text_of(blocks: Any) -> str:
    return "\n".join(block["text"] for block in blocks if isinstance(block.get("text"), str) and block["text"])


def _parts(block: Json, where: str) -> list[Json]:
    """Parts of an OpenAI message for a block. Unknown blocks have none."""
    kind = block.get("type")
    if kind == "text":
        text = _string(block, "text", where)
        return [_text_part(text)] if text else []
    if kind == "image":
        return [_image(block.get("source"), where)]
    if kind == "document":
        return _document(block, where)
    if kind == "container_upload":
        return [_file_part(file_id=_string(block, "file_id", where))]
    if kind == "search_result":
        content = _text_of(_blocks(block.get("content") or [], where)) if isinstance(block.get("content"), list) else ""
        return [_text_part("\n".join(str(block.get(name) or "") for name in ("title", "source")) + f"\n{content}")]
    return []


def _image(source: Any, where: str) -> Json:
    kind = source.get("type") if isinstance(source, dict) else None
    if kind == "base64":
        url = f"data:{_string(source, 'media_type', where)};base64,{_string(source, 'data', where)}"
    elif kind == "url":
        url = _string(source, "url", where)
    elif kind == "file":
        return _file_part(file_id=_string(source, "file_id", where))
    else:
        raise _invalid(f"{where}.source", "must be base64, url or file")
    return {"type": "image_url", "image_url": {"url": url}}


def _document(block: Json, where: str) -> list[Json]:
    title = block.get("title")
    source: Json = block["source"] if isinstance(block.get("source"), dict) else {}
    kind = source.get("type")
    if kind == "base64":
        media_type = _string(source, "media_type", where)
        name = title if isinstance(title, str) and title else _FILE_TYPES.get(media_type, "document")
        data = f"data:{media_type};base64,{_string(source, 'data', where)}"
        return [_file_part(filename=name, file_data=data)]
    if kind == "file":
        return [_file_part(file_id=_string(source, "file_id", where))]
    heading = [_text_part(title)] if isinstance(title, str) and title else []
    if kind == "text":
        return [*heading, _text_part(_string(source, "data", where))]
    if kind == "content" and isinstance(source.get("content"), str | list):
        inner = _blocks(source["content"], f"{where}.source.content")
        return [
            *heading,
            *(part for one in inner if one.get("type") in ("text", "image") for part in _parts(one, where)),
        ]
    if kind == "url":
        raise _invalid(f"{where}.source", "documents are not fetched; send base64, or upload the file to /v1/files")
    raise _invalid(f"{where}.source", "must be base64, text, content or file")


def _file_part(**file: str) -> Json:
    return {"type": "file", "file": file}


def _text_part(text: str) -> Json:
    return {"type": "text", "text": text}


def _system_part(text: str) -> Json:
    return _text_part(f"<system>\n{text}\n</system>")


def _plain(message: Json) -> Json:
    """A message of the user with nothing but text, with its content as a string: all servers accept that."""
    content = message["content"]
    if message["role"] != "user" or not all(part["type"] == "text" for part in content):
        return message
    return {"role": "user", "content": "\n".join(part["text"] for part in content)}


def _function_call(id: str, name: str, arguments: Any) -> Json:
    written = json.dumps(arguments if isinstance(arguments, dict) else {}, ensure_ascii=False)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": written}}


# ------------------------------------------------------------------------------------------------------------- fields
def _tool_choice(choice: Any, tools: _Tools) -> Json:
    if choice is None:
        return {}
    if not isinstance(choice, dict):
        raise _invalid("tool_choice", "must be an object")
    fields: Json = {}
    kind, name = choice.get("type"), choice.get("name")
    if kind == "none":
        fields["tool_choice"] = "none"
    elif kind == "any" and tools.names:
        fields["tool_choice"] = "required"
    elif kind == "tool" and isinstance(name, str) and name in tools.names:
        fields["tool_choice"] = {"type": "function", "function": {"name": tools.names[name]}}
    elif kind == "tool" and not isinstance(name, str):
        raise _invalid("tool_choice.name", "is required")
    elif kind not in ("auto", "any", "tool"):
        raise _invalid("tool_choice.type", "is auto, any, tool or none")
    if choice.get("disable_parallel_tool_use") is True and tools.names:
        fields["parallel_tool_calls"] = False
    return fields


def _output(body: Json) -> Json:
    """The format of the answer, and the effort for it."""
    config = body.get("output_config")
    config = config if isinstance(config, dict) else {}
    fields: Json = {}
    form = config.get("format") or body.get("output_format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        if not isinstance(form.get("schema"), dict):
            raise _invalid("output_config.format.schema", "must be an object")
        fields["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": form["schema"], "strict": True},
        }
    thinking = body.get("thinking")
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    if kind == "enabled" and isinstance(budget, int):
        low_or_medium = "low" if budget <= LOW_BUDGET else "medium"
        fields["reasoning_effort"] = low_or_medium if budget <= MEDIUM_BUDGET else "high"
    elif kind != "adaptive" and isinstance(config.get("effort"), str) and config["effort"] in _EFFORTS:
        # With adaptive thinking the model decides. Claude Code sends it always, also to models that do not reason.
        fields["reasoning_effort"] = _EFFORTS[config["effort"]]
    return fields


def _stop_sequences(sequences: Any) -> tuple[str, ...]:
    if sequences is None:
        return ()
    if not isinstance(sequences, list) or not all(isinstance(one, str) for one in sequences):
        raise _invalid("stop_sequences", "must be a list of strings")
    return tuple(one for one in sequences if one)


def _options(body: Json) -> tuple[Any, tuple[Json, ...]]:
    """`x_bridge` with the workspace of `container`, and the skills of `container`."""
    options, container = body.get("x_bridge"), body.get("container")
    if container is None or not isinstance(options, dict | None):
        return options, ()
    if isinstance(container, str):
        container = {"id": container}
    if not isinstance(container, dict):
        raise _invalid("container", "must be an id or an object")
    id, skills = container.get("id"), container.get("skills")
    if not isinstance(id, str | None) or not isinstance(skills, list | None):
        raise _invalid("container", "has an id and a list of skills")
    if len(skills or ()) > MAX_SKILLS:
        raise _invalid("container.skills", f"at most {MAX_SKILLS} skills are possible")
    for index, skill in enumerate(skills or ()):
        if not isinstance(skill, dict) or not isinstance(skill.get("skill_id"), str):
            raise _invalid(f"container.skills.{index}.skill_id", "is required")
        if not isinstance(skill.get("version"), str | None):
            raise _invalid(f"container.skills.{index}.version", "must be a string")
    if id:
        options = {"workspace": id, **(options or {})}
    return options, tuple(skills or ())


def _string(fields: Json, name: str, where: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise _invalid(f"{where}.{name}", "must be a string")
    return value


def _invalid(where: str, problem: str) -> BadRequestError:
    return BadRequestError(f"{where}: {problem}.", param=where)


def parsed_input(arguments: str) -> Json:
    """The arguments of a model's call as an object, which they may not be."""
    read = loads_or(arguments, None) if arguments.strip() else {}
    return read if isinstance(read, dict) else {"invalid_arguments": arguments}
