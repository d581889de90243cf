"""ReActStrategy: chooses the upstream of a chat request and runs the ReAct loop."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from apexbridge._tracing import NO_TRACER, Tracer
from apexbridge.agent.approver import Approver
from apexbridge.agent.chat_events import ChatFinished, Event, PassedThrough, TextDelta
from apexbridge.agent.config import ChatSettings
from apexbridge.agent.conversation_files import ConversationFiles
from apexbridge.agent.loop import ChatDependencies, run_chat, with_prompt
from apexbridge.agent.model_turn import GRACE_SECONDS, Model
from apexbridge.agent.offline import OFFLINE_MODEL, OFFLINE_UPSTREAM, OfflineModel, check_supported
from apexbridge.agent.pass_through import ForwardedRequest, ForwardedStart, forward
from apexbridge.agent.records.recorder import ChatObserver, ChatRecorder, Recorder
from apexbridge.agent.request import BadRequestError, ChatRequest, read_options, read_request
from apexbridge.agent.suspended_turns import SuspendedTurns
from apexbridge.agent.token_count import estimated_prompt_tokens
from apexbridge.agent.tool_offer import ServerTools, ToolOffer
from apexbridge.agent.usage_feedback import RecordUsage, UsageFeedback
from apexbridge.llm.client import UpstreamClient, encoded
from apexbridge.llm.config import Upstream
from apexbridge.llm.tool_modes import ModeMemory
from apexbridge.llm.upstream_errors import UpstreamError
from apexbridge.tools.registry import ToolRegistry

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    content: str
    finish_reason: str
    tool_calls: tuple[Json, ...] = ()
    usage: Json | None = None
    x_bridge: Json = field(default_factory=dict)


class ReActStrategy:
    """Answers chat requests with the tools of a registry and any number of upstreams."""

    def __init__(
        self,
        registry: ToolRegistry,
        settings: ChatSettings,
        approver: Approver,
        *,
        teach: RecordUsage | None = None,
        recorder: Recorder | None = None,
        observer: ChatObserver | None = None,
        tracer: Tracer = NO_TRACER,
        files: ConversationFiles | None = None,
        suspended: SuspendedTurns | None = None,
        may_run_code: Callable[[str], bool] = lambda caller: True,
    ) -> None:
        self.settings = settings
        self._recorder = recorder
        self._observer = observer
        self._tracer = tracer
        self._client = UpstreamClient(tracer=tracer)
        self._deps = ChatDependencies(
            registry=registry,
            limits=settings.limits,
            system_prompt=settings.system_prompt,
            approver=approver,
            own_tools=ServerTools(registry, may_run_code),
            modes=ModeMemory(),
            suspended=suspended or SuspendedTurns(),
            feedback=UsageFeedback(teach),
            tracer=tracer,
            files=files,
        )

    async def close(self) -> None:
        """Finish recording usage and close the connections to upstreams."""
        await self._deps.feedback.close()
        await self._client.close()

    async def run(self, request: ChatRequest) -> AsyncGenerator[Event, None]:
        """Answer a request and yield its events in order. Raises BadRequestError or UpstreamError."""
        model, upstream = self._chosen(request)
        with ChatRecorder(self._recorder, request, upstream.name, observer=self._observer) as recording:
            async with aclosing(run_chat(self._deps, model, request, upstream)) as events:
                async for event in events:
                    recording.observe(event)
                    yield event

    def forwarded(
        self,
        path: str,
        body: Any,
        data: bytes,
        *,
        headers: Mapping[str, str],
        query: str = "",
        caller: str = "",
        request_id: str = "",
    ) -> ForwardedRequest | None:
        """A request of another API that goes to its upstream as it is; None if the chat loop answers it.

        It goes there if the upstream speaks that API and the request does not use this server's tools, or cannot,
        because the upstream does not speak chat completions. `path` begins with the API's name.

        Raises:
            BadRequestError: `x_bridge` is not valid.
        """
        if not isinstance(body, dict) or not isinstance(body.get("model"), str | None):
            return None
        model = body.get("model") or self.settings.llm.default_model or ""
        upstream = self._serving(model) if self.settings.llm.upstreams and model != OFFLINE_MODEL else None
        if upstream is None or path.partition("/")[0] not in upstream.apis or path.startswith("chat/"):
            return None
        options = read_options(body.get("x_bridge"))
        if options.tools and "chat" in upstream.apis:
            return None
        if "x_bridge" in body or body.get("model") != model:
            data = encoded({**{key: value for key, value in body.items() if key != "x_bridge"}, "model": model})
        messages = body.get("messages") or body.get("input")
        recorded = messages if isinstance(messages, list) else [{"role": "user", "content": messages}]
        request = ChatRequest(
            body={"model": model, "stream": body.get("stream") is True, "messages": recorded},
            options=options,
            caller=caller,
            request_id=request_id,
        )
        return ForwardedRequest(upstream=upstream, path=path, query=query, data=data, request=request, headers=headers)

    def forward(self, forwarded: ForwardedRequest) -> AsyncGenerator[ForwardedStart | bytes, None]:
        """Send a request as it is, and yield the beginning and the bytes of its answer. Raises UpstreamError."""
        seconds = self.settings.limits.seconds + GRACE_SECONDS
        if "/" in forwarded.path:  # a count of tokens is not a chat
            return forward(self._client, forwarded, None, seconds)
        return forward(
            self._client, forwarded, self._recorder, seconds, chat_observer=self._observer, tracer=self._tracer
        )

    async def execute(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any] | None = None, **more: Any
    ) -> ChatAnswer:
        """Answer a conversation. Options are fields of a request, including `x_bridge`.

        Raises:
            BadRequestError: the request cannot be answered.
            UpstreamError: the upstream refused or failed.
        """
        body = {"messages": [dict(message) for message in messages], **(options or {}), **more, "stream": False}
        request = read_request(json.loads(json.dumps(body)))
        parts: list[str] = []
        async with aclosing(self.run(request)) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    parts.append(event.text)
                elif isinstance(event, PassedThrough):
                    return _from_completion(event.chunks[0])
                elif isinstance(event, ChatFinished):
                    return ChatAnswer(
                        content="".join(parts),
                        finish_reason=event.finish_reason,
                        tool_calls=event.calls,
                        usage=event.usage,
                        x_bridge=event.report.to_dict(debug=request.options.debug),
                    )
        raise AssertionError("an answer has an end")

    async def count_tokens(self, request: ChatRequest) -> int:
        """An estimate of the tokens of the first prompt, with this server's tools and the system prompt."""
        offer = ToolOffer(request, self._deps.own_tools)
        messages = with_prompt(request.messages, self._deps.system_prompt, request, offer)
        return await asyncio.to_thread(estimated_prompt_tokens, messages, offer.tools)

    async def models(self) -> list[Json]:
        """The models that upstreams list and that requests for them reach, and the configured ones."""
        upstreams = self.settings.llm.upstreams
        found: dict[str, Json] = {}
        for upstream, listed in zip(upstreams, await asyncio.gather(*map(self._listed, upstreams)), strict=True):
            named = [name for name in upstream.models if "*" not in name]
            for model in [*listed, *({"id": name} for name in named)]:
                if isinstance(model.get("id"), str) and self._serving(model["id"]) is upstream:
                    found.setdefault(model["id"], _model(model, upstream.name))
        if upstreams and (default := self.settings.llm.default_model) is not None:
            found.setdefault(default, _model({"id": default}, "default"))
        if not upstreams:
            found[OFFLINE_MODEL] = _model({"id": OFFLINE_MODEL}, "apexbridge")
        return list(found.values())

    async def _listed(self, upstream: Upstream) -> list[Json]:
        try:
            return await self._client.models(upstream)
        except UpstreamError:
            return []

    def _chosen(self, request: ChatRequest) -> tuple[Model, Upstream]:
        llm = self.settings.llm
        if request.model == OFFLINE_MODEL or not (llm.upstreams or request.model):
            check_supported(request.body)
            return OfflineModel(request.client_names, self._deps.own_tools.skills), OFFLINE_UPSTREAM
        if not llm.upstreams:
            raise BadRequestError(
                f"The model '{request.model[:200]}' does not exist here; there is only {OFFLINE_MODEL}, "
                "because no model server is configured. Set APEX_LLM_BASE_URL to connect one.",
                param="model",
                openai_code="model_not_found",
                code="NOT_FOUND",
                status=404,
            )
        if not request.model:
            if llm.default_model is None:
                raise BadRequestError("you must provide a model parameter", param="model")
            request.body["model"] = llm.default_model
        upstream = self._serving(request.model)
        if upstream is None:
            raise BadRequestError(
                f"The model '{request.model[:200]}' does not exist here; GET /v1/models lists those that do.",
                param="model",
                openai_code="model_not_found",
                code="NOT_FOUND",
                status=404,
            )
        if "chat" not in upstream.apis:
            served = " and ".join(f"/v1/{api}" for api in upstream.apis)
            raise BadRequestError(
                f"The model '{request.model[:200]}' is available through {served} only: its server does not speak "
                "chat completions.",
                param="model",
                openai_code="model_not_found",
                code="NOT_FOUND",
                status=404,
            )
        return self._client, upstream

    def _serving(self, model: str) -> Upstream | None:
        upstream = self.settings.llm.upstream_for(model)
        return None if upstream is None or (upstream.models and not upstream.serves(model)) else upstream


def _from_completion(completion: Json) -> ChatAnswer:
    choice = completion["choices"][0]
    message = choice.get("message") or {}
    return ChatAnswer(
        content=message.get("content") or "",
        finish_reason=choice.get("finish_reason") or "stop",
        tool_calls=tuple(message.get("tool_calls") or ()),
        usage=completion.get("usage"),
    )


def _model(model: Json, owner: str) -> Json:
    return {"object": "model", "created": 0, "owned_by": owner, **model}
