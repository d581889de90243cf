"""The workspace of a chat: which one a request continues, files that the client sends, files that the answer lists."""

import base64
import binascii
import functools
import hashlib
import json
import urllib.parse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from apexbridge._tasks import in_thread
from apexbridge.agent.request import BadRequestError, ChatRequest
from apexbridge.errors import ApexBridgeError
from apexbridge.llm.turn import Turn
from apexbridge.llm.upstream_errors import UpstreamError
from apexbridge.skills.runs.input_files import safe_name
from apexbridge.workspaces.workspaces import Workspace, Workspaces

Json = dict[str, Any]
OpenUpload = Callable[[str, str], tuple[str, BinaryIO]]
"""Opens an uploaded file by its id and the caller; returns its name and the file."""
MAX_FILE_BYTES = 50 * 1024 * 1024
MAX_ANSWERS = 128
"""Of one request (`n`)."""
NO_FILE = "file_not_found"
"""OpenAI's code."""


class ConversationFiles:
    """Finds the workspaces of chats, and puts the client's files into them."""

    def __init__(self, workspaces: Workspaces, open_upload: OpenUpload) -> None:
        self._workspaces = workspaces
        self._open_upload = open_upload

    def open(self, request: ChatRequest) -> Workspace:
        """The workspace that the request names, or the one of the conversation that it continues, or a new one."""
        workspace = self._find(request)
        workspace.named_skills = request.options.skills
        return workspace

    def _find(self, request: ChatRequest) -> Workspace:
        name = request.options.workspace
        if name is not None:
            return self._workspaces.open(name, caller=request.caller)
        if self._workspaces.has_conversations and (earlier := _earlier_messages(request.messages)):
            found = self._workspaces.of_conversation(digest(request.caller, earlier), caller=request.caller)
            if found is not None:
                return found
        return self._workspaces.open(None, caller=request.caller)

    async def remember(self, request: ChatRequest, workspace: Workspace | None, answers: Sequence[Json]) -> None:
        """Remember that a request was answered with these messages, and its workspace, if it has one.

        Answers without files count as well: a conversation that has the same messages must not get the files.
        """
        for answer in answers:
            answered = digest(request.caller, [*request.messages, answer])
            await self._workspaces.link(answered, workspace, caller=request.caller)

    async def receive(self, request: ChatRequest, workspace: Workspace, messages: Sequence[Json]) -> list[Json]:
        """Put the `file` parts of messages into the workspace; returns the messages with a note in their place.

        A request that continues a conversation repeats earlier messages. Their files are in the workspace already.

        Raises:
            BadRequestError: a part cannot be read, or its file does not exist.
        """
        if not any(map(_has_files, messages)):
            return list(messages)
        known = await self._workspaces.parts(workspace)
        seen: Counter[str] = Counter()
        answered = _last_answer(messages)
        received: list[Json] = []
        for index, message in enumerate(messages):
            if not _has_files(message):
                received.append(message)
                continue
            parts: list[Json] = []
            for part in message["content"]:
                if not _is_file(part):
                    parts.append(part)
                    continue
                identity = _part_digest(part)
                seen[identity] += 1
                identity = f"{identity}-{seen[identity]}"
                is_new = index > answered
                if is_new or identity not in known:
                    note = await self._store(request, workspace, part.get("file"), identity, is_new=is_new)
                else:
                    note = _note(*known[identity])
                parts.append({"type": "text", "text": note})
            if all(map(_is_text, parts)):
                received.append({**message, "content": "\n".join(str(part.get("text", "")) for part in parts)})
            else:
                received.append({**message, "content": parts})
        workspace.changed.clear()  # the answer lists what it made itself
        return received

    async def _store(
        self, request: ChatRequest, workspace: Workspace, file: Any, identity: str, *, is_new: bool
    ) -> str:
        """Put the file of a part into the workspace; returns a note about it for the model."""
        try:
            name, data = await self._content(file, request.caller)
        except BadRequestError as error:
            if is_new or error.openai_code != NO_FILE:
                raise
            return f"[File {str(file['file_id'])[:64]}, which no longer exists]"  # the conversation can go on
        name = await workspace.change(functools.partial(_write, name=name, data=data))
        await self._workspaces.add_part(workspace, identity, name, len(data))
        return _note(name, len(data))

    async def _content(self, file: Any, caller: str) -> tuple[str, bytes]:
        param = "messages"
        if not isinstance(file, dict):
            raise BadRequestError("A 'file' part needs 'file_id', or 'file_data' and 'filename'.", param=param)
        name, identity, data = file.get("filename"), file.get("file_id"), file.get("file_data")
        if isinstance(identity, str):
            try:
                own_name, opened = await in_thread(self._open_upload, identity, caller)
            except ApexBridgeError as error:
                raise BadRequestError(
                    f"No such File object: {identity[:64]}", param=param, openai_code=NO_FILE, status=404
                ) from error
            with opened:
                content = await in_thread(opened.read, MAX_FILE_BYTES + 1)
        elif isinstance(data, str):
            own_name = "file"
            try:
                content = base64.b64decode(data.partition(",")[2] if data.startswith("data:") else data, validate=True)
            except (ValueError, binascii.Error) as error:
                raise BadRequestError("'file_data' must be base64, or a data URL with it.", param=param) from error
        else:
            raise BadRequestError("A 'file' part needs 'file_id', or 'file_data' and 'filename'.", param=param)
        if len(content) > MAX_FILE_BYTES:
            limit = MAX_FILE_BYTES // 1024 // 1024
            raise BadRequestError(f"{safe_name(str(name or own_name))} is larger than {limit} MB.", param=param)
        return safe_name(name if isinstance(name, str) and name else own_name), content


class PassedAnswers:
    """The answers in chunks of a model that are forwarded unchanged; their shape is untrusted."""

    def __init__(self) -> None:
        self._turns: dict[int, Turn] = {}
        self.model: Any = None
        self.usage: Any = None

    @property
    def finish_reason(self) -> str | None:
        return self._turns[0].finish_reason if 0 in self._turns else None

    def add(self, chunks: Sequence[Json]) -> None:
        for chunk in chunks:
            self.model, self.usage = chunk.get("model") or self.model, chunk.get("usage") or self.usage
            choices = chunk.get("choices")
            for choice in choices if isinstance(choices, list) else ():
                index = choice.get("index", 0) if isinstance(choice, dict) else None
                if isinstance(index, int) and (index in self._turns or len(self._turns) < MAX_ANSWERS):
                    with suppress(UpstreamError):  # too long to be remembered
                        self._turns.setdefault(index, Turn()).take_chunk({"choices": [choice]})

    def messages(self) -> list[Json]:
        return [{"role": "assistant", **turn.message()} for turn in self._turns.values()]


def digest(caller: str, messages: Sequence[Mapping[str, Any]]) -> str:
    """Identifies a conversation by its messages. System messages are left out: some clients put the time there."""
    hashed = hashlib.sha256(caller.encode())
    for message in messages:
        if message["role"] in ("system", "developer"):
            continue
        calls = [[call.get("id"), call.get("function")] for call in message.get("tool_calls") or ()]
        words = [message["role"], _normalized(message.get("content")), calls]
        hashed.update(json.dumps(words, sort_keys=True, default=str).encode("utf-8", "surrogatepass") + b"\n")
    return hashed.hexdigest()


def listed_files(workspace: Workspace) -> list[Json]:
    """The files that a request made or changed, with addresses relative to the server."""
    base = f"/api/workspaces/{workspace.id}/files"
    return [
        {"path": path, "size": size, "url": f"{base}/{urllib.parse.quote(path)}"}
        for path, size in sorted(workspace.changed.items())
    ]


def _earlier_messages(messages: Sequence[Json]) -> Sequence[Json]:
    """The messages up to the last answer."""
    return messages[: _last_answer(messages) + 1]


def _last_answer(messages: Sequence[Json]) -> int:
    """The index of the last answer; -1 if there is none."""
    return max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=-1)


def _normalized(content: Any) -> Any:
    """The content of a message, the same for a text and for text parts with that text."""
    if not isinstance(content, list):
        return content.strip() if isinstance(content, str) else ""
    if all(map(_is_text, content)):
        return "".join(str(part.get("text", "")) for part in content).strip()
    return content


def _part_digest(part: Json) -> str:
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()


def _note(name: str, size: int) -> str:
    return f"[File {name}, {size} bytes, in the workspace]"


def _has_files(message: Json) -> bool:
    return isinstance(message.get("content"), list) and any(map(_is_file, message["content"]))


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text"


def _is_file(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "file"


def _write(top: Path, *, name: str, data: bytes) -> str:
    """Write a file, under another name if there is another one of this name; returns its name."""
    known, free, number = PurePosixPath(name), name, 1
    while (top / free).exists():
        if (top / free).is_file() and (top / free).read_bytes() == data:
            return free
        free, number = f"{known.stem}-{number}{known.suffix}", number + 1
    (top / free).write_bytes(data)
    (top / free).chmod(0o600)
    return free
