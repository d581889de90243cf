"""`/v1/messages`: Anthropic's Messages API over the same loop as chat completions."""

from collections.abc import Sequence
from typing import Any

from starlette.datastructures import QueryParams
from starlette.types import Scope

from apexbridge._time import MAX_MS, from_ms
from apexbridge.agent.request import BadRequestError, ChatRequest, read_request
from apexbridge.errors import SkillError
from apexbridge.llm.upstream_errors import UpstreamError
from apexbridge.skills.store.skill_versions import SkillVersions
from apexbridge.surfaces.http.chat.messages_input import MessagesRequest, read_messages_request
from apexbridge.surfaces.http.chat.messages_output import PING, Answered, Message, MessageStream, error_json
from apexbridge.surfaces.http.chat.wire_format import dumped
from apexbridge.surfaces.http.transport.api_dialects import MESSAGES_PATH
from apexbridge.surfaces.http.transport.requests import caller_of

Json = dict[str, Any]
COUNT_PATH = f"{MESSAGES_PATH}/count_tokens"
MAX_LISTED = 1_000
LATEST = "latest"
"""The version of a skill that a client means if it names none: the installed one runs."""
CLAUDE_CODE_HEADER = b"x-claude-code-session-id"


class MessagesApi:
    """Anthropic's messages."""

    path = MESSAGES_PATH
    request_id_header = b"request-id"
    keep_alive = PING

    def __init__(self, versions: SkillVersions, workspace_days: int) -> None:
        self._versions = versions
        self._days = workspace_days

    async def open(self, body: Any, *, scope: Scope, request_id: str) -> "MessagesExchange":
        asked = read_messages_request(body)
        names, skills = await self._skills(asked)
        request = read_request(
            _with_skills(asked.body, names), caller=caller_of(scope), request_id=request_id, may_pass_through=False
        )
        is_for_claude_code = any(name == CLAUDE_CODE_HEADER for name, _ in scope["headers"])
        return MessagesExchange(
            Answered(
                request=request,
                asked=asked,
                days=self._days,
                skills=skills,
                is_for_claude_code=is_for_claude_code,
            )
        )

    async def open_count(self, body: Any, *, scope: Scope, request_id: str) -> ChatRequest:
        """Read a request whose tokens are counted. Raises BadRequestError."""
        asked = read_messages_request(body, needs_limit=False)
        names, _ = await self._skills(asked)
        return read_request(
            _with_skills(asked.body, names), caller=caller_of(scope), request_id=request_id, may_pass_through=False
        )

    async def _skills(self, asked: MessagesRequest) -> tuple[list[str], list[Json]]:
        """The names of the skills of `container`, and what the answer says about them."""
        names: list[str] = []
        resolved: list[Json] = []
        for index, skill in enumerate(asked.skills):
            where, version = f"container.skills.{index}", skill.get("version") or LATEST
            try:
                found = await self._versions.of(await self._versions.named(skill["skill_id"]))
            except SkillError as error:
                raise BadRequestError(
                    f"{where}: {error.message}", param=where, openai_code="skill_not_found"
                ) from error
            if version not in (LATEST, str(found.default.number), found.default.id):
                raise BadRequestError(
                    f"{where}.version: only the installed version {found.default.number} of {found.name} can run.",
                    param=f"{where}.version",
                )
            names.append(found.name)
            own = {"type": skill.get("type", "custom"), "skill_id": skill["skill_id"], "version": found.default.id}
            resolved.append(own)
        return names, resolved

    def error_body(self, error: UpstreamError, request_id: str) -> bytes:
        return dumped(error_json(error, request_id))


def _with_skills(body: Json, names: Sequence[str]) -> Json:
    """The body of a chat request that offers more skills."""
    options = body.get("x_bridge")
    if not names or not isinstance(options, dict | None):
        return body
    named = (options or {}).get("skills", [])
    return {**body, "x_bridge": {**(options or {}), "skills": [*named, *names] if isinstance(named, list) else named}}


class MessagesExchange:
    def __init__(self, answered: Answered) -> None:
        self.request = answered.request
        self._answered = answered

    def whole(self) -> Message:
        return Message(self._answered)

    def stream(self) -> MessageStream:
        return MessageStream(self._answered)

    async def before_end(self) -> None:
        """There is nothing to store."""


def anthropic_model(model: Json) -> Json:
    """A model in Anthropic's form."""
    created = model.get("created")
    milliseconds = created * 1000 if isinstance(created, int) and 0 <= created <= MAX_MS // 1000 else 0
    moment = from_ms(milliseconds).isoformat().replace("+00:00", "Z")
    return {"type": "model", "id": model["id"], "display_name": model["id"], "created_at": moment}


def anthropic_models(models: Sequence[Json], scope: Scope) -> Json:
    """A page of models in Anthropic's form. All of them are one page unless the client has a limit.

    Raises:
        BadRequestError: the page cannot be found.
    """
    query = QueryParams(scope.get("query_string", b""))
    listed = [anthropic_model(model) for model in models]
    ids = [model["id"] for model in listed]
    limit = query.get("limit", str(MAX_LISTED))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:5]) <= MAX_LISTED):
        raise BadRequestError(f"limit: must be a whole number from 1 to {MAX_LISTED:,}.", param="limit")
    start, stop = 0, len(ids)
    for name in ("after_id", "before_id"):
        id = query.get(name)
        if id and id not in ids:
            raise BadRequestError(f"{name}: no model has this id.", param=name)
        if id and name == "after_id":
            start = ids.index(id) + 1
        elif id:
            stop = ids.index(id)
    if query.get("before_id"):
        page, has_more = listed[start:stop][-int(limit) :], stop - start > int(limit)
    else:
        page, has_more = listed[start:stop][: int(limit)], stop - start > int(limit)
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"data": page, "has_more": has_more, **ends}
