"""A scripted model server: plays the steps of a test, is as strict as OpenAI's, and misbehaves on request."""

import asyncio
import itertools
import json
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.chat.strictness import problem_of

Json = dict[str, Any]
KEY = "upstream-key"
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "prompt_tokens_details": {"cached_tokens": 2}}
_ids = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One response or failure of the server."""

    text: str = ""
    calls: Sequence[Json] = ()
    finish: str | None = None
    usage: Json | None = field(default_factory=lambda: dict(USAGE))
    fields: Json = field(default_factory=dict)
    """Additional fields of the message or of the first delta."""
    status: int = 200
    body: Any = None
    """Replaces the completion: an object, or raw bytes."""
    headers: Json = field(default_factory=dict)
    events: Sequence[bytes] | None = None
    """Replaces the events of the stream."""
    delay: float = 0.0
    cut_after: int | None = None
    """Number of events after which the connection is aborted."""
    hang_after: int | None = None
    """Number of events after which the stream hangs; -1 hangs before the status line."""
    quirks: frozenset[str] = frozenset()
    """crlf, comments, no_done, no_space, role_always, empty_first, no_index, no_id, whole_calls, object_arguments,
    interleaved, no_usage, usage_always, plain_json, one_byte."""


Play = Step | Callable[[Json], Step]


def call(name: str, arguments: Any = None, id: str | None = None) -> Json:
    """Return a tool call of a model. Arguments that are a string are not encoded again."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    id = id or f"call_{next(_ids):08x}"
    return {"id": id, "type": "function", "function": {"name": name, "arguments": written}}


@dataclass
class Seen:
    """A received request."""

    body: Json
    headers: Json
    raw: bytes
    path: str = ""
    """With its query."""
    peer: Any = None
    """The peer address of the connection."""
    is_over: bool = False
    was_disconnected: bool = False
    """The client disconnected before the end of the response."""


class Upstream:
    """Scripts of the server and the requests it received. Each script has its own model name."""

    def __init__(self) -> None:
        self.url = ""
        self.models: Any = {"object": "list", "data": [_listed("native-listed"), _listed("unserved")]}
        self.listed_with: list[Json] = []
        """The headers of the requests for models."""
        self._plays: dict[str, list[Play]] = {}
        self._seen: dict[str, list[Seen]] = defaultdict(list)
        self._numbers = itertools.count(1)

    def play(self, *steps: Play, kind: str = "native") -> str:
        """Script the responses to successive requests; the last step repeats. Returns the model name."""
        model = f"{kind}-{next(self._numbers)}"
        self._plays[model] = list(steps)
        return model

    def seen(self, model: str) -> list[Seen]:
        return self._seen[model]

    def bodies(self, model: str) -> list[Json]:
        return [seen.body for seen in self._seen[model]]

    # ---------------------------------------------------------------------------------------------------- serving
    async def list_models(self, request: web.Request) -> web.Response:
        self.listed_with.append({name.lower(): value for name, value in request.headers.items()})
        return web.json_response(self.models) if self.models is not None else web.Response(status=404)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer a request for a completion. A request of another API gets the body or the events of the step."""
        raw = await request.read()
        body = json.loads(raw)
        seen = Seen(
            body=body,
            headers=dict(request.headers),
            raw=raw,
            path=request.path_qs,
            peer=request.transport and request.transport.get_extra_info("peername"),
        )
        model = body.get("model", "")
        self._seen[model].append(seen)
        try:
            return await self._answer(request, body, self._step(model, body))
        except (asyncio.CancelledError, ConnectionError):
            seen.was_disconnected = True
            raise
        finally:
            seen.is_over = True

    def _step(self, model: str, body: Json) -> Step:
        plays = self._plays.get(model)
        if plays is None:
            return refusal(404, f"The model '{model}' does not exist", code="model_not_found")
        play = plays[min(len(self._seen[model]), len(plays)) - 1]
        return play(body) if callable(play) else play

    async def _answer(self, request: web.Request, body: Json, step: Step) -> web.StreamResponse:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            step = refusal(401, "Incorrect API key provided", code="invalid_api_key")
        elif request.path.endswith("/chat/completions") and (found := problem_of(body)):
            step = refusal(400, found[1], param=found[0])
        await asyncio.sleep(step.delay)
        if step.hang_after == -1:
            await asyncio.sleep(3600)
        if step.status != 200 or step.body is not None or (not body.get("stream") and step.events is None):
            return await self._send_whole(request, body, step)
        if "plain_json" in step.quirks:
            return web.json_response(completion(body, step), headers=step.headers)
        return await self._send_stream(request, body, step)

    async def _send_whole(self, request: web.Request, body: Json, step: Step) -> web.StreamResponse:
        content = completion(body, step) if step.body is None else step.body
        data = content if isinstance(content, bytes) else json.dumps(content, ensure_ascii=False).encode()
        headers = {"content-type": "application/json", **step.headers}
        if step.cut_after is None:
            return web.Response(status=step.status, body=data, headers=headers)
        response = web.StreamResponse(status=step.status, headers={**headers, "content-length": str(len(data))})
        await response.prepare(request)
        await response.write(data[: len(data) // 2])
        _abort(request)
        return response

    async def _send_stream(self, request: web.Request, body: Json, step: Step) -> web.StreamResponse:
        headers = {"content-type": "text/event-stream; charset=utf-8", **step.headers}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        events = list(step.events) if step.events is not None else written(body, step)
        for index, event in enumerate(events):
            if index == step.cut_after:
                _abort(request)
                return response
            if index == step.hang_after:
                await asyncio.sleep(3600)
            for data in [event[i : i + 1] for i in range(len(event))] if "one_byte" in step.quirks else [event]:
                await response.write(data)
        return response


def _listed(id: str) -> Json:
    return {"id": id, "object": "model", "owned_by": "tests"}


def refusal(status: int, message: str, *, param: str | None = None, code: str | None = None, **headers: str) -> Step:
    """Return an error in OpenAI's format."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": param, "code": code}
    return Step(status=status, body={"error": error}, headers={k.replace("_", "-"): v for k, v in headers.items()})


# -------------------------------------------------------------------------------------------------------- rendering
def completion(body: Json, step: Step) -> Json:
    """Return a whole completion, with `n` choices."""
    message: Json = {"role": "assistant", "content": step.text or (None if step.calls else ""), **step.fields}
    if step.calls:
        message["tool_calls"] = [_quirky(one, step, None) for one in step.calls]
    choices = [
        {"index": index, "message": message, "logprobs": None, "finish_reason": _finish(step)}
        for index in range(body.get("n") or 1)
    ]
    head = {"id": "up-1", "object": "chat.completion", "created": 1, "model": f"{body.get('model')}-2026"}
    return {**head, "choices": choices, **({"usage": step.usage} if step.usage else {})}


def chunks(body: Json, step: Step) -> list[Json]:
    """Return the completion as chunks of a stream."""
    head = {"id": "up-1", "object": "chat.completion.chunk", "created": 1, "model": f"{body.get('model')}-2026"}
    deltas: list[Json] = [{"role": "assistant", "content": "", **step.fields}]
    deltas += [{"content": text} for text in _words(step.text)]
    deltas += [{"tool_calls": [chunk]} for chunk in _call_chunks(step)]
    if "role_always" in step.quirks:
        deltas = [{"role": "assistant", **delta} for delta in deltas]
    result = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    result.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(step)}]})
    wants_usage = (body.get("stream_options") or {}).get("include_usage")
    if "usage_always" in step.quirks:
        result = [{**chunk, "usage": step.usage} for chunk in result]
    elif wants_usage and step.usage and "no_usage" not in step.quirks:
        result.append({**head, "choices": [], "usage": step.usage})
    return [{"choices": [], "prompt_filter_results": []}, *result] if "empty_first" in step.quirks else result


def written(body: Json, step: Step) -> list[bytes]:
    """Return the encoded events of a stream."""
    end = b"\r\n" if "crlf" in step.quirks else b"\n"
    prefix = b"data:" if "no_space" in step.quirks else b"data: "
    events = [prefix + json.dumps(chunk, ensure_ascii=False).encode() + end + end for chunk in chunks(body, step)]
    if "comments" in step.quirks:
        noise = b": ping" + end + end + b"event: message" + end + b"id: 7" + end + b"retry: 10" + end
        events = [noise + event for event in events]
    return events if "no_done" in step.quirks else [*events, prefix + b"[DONE]" + end + end]


def _finish(step: Step) -> str:
    return step.finish or ("tool_calls" if step.calls else "stop")


def _words(text: str) -> list[str]:
    return [text[start : start + 5] for start in range(0, len(text), 5)]


def _call_chunks(step: Step) -> list[Json]:
    calls = [list(_chunks_of(one, step, index)) for index, one in enumerate(step.calls)]
    if "interleaved" in step.quirks:
        return [chunk for row in itertools.zip_longest(*calls) for chunk in row if chunk is not None]
    return [chunk for call_chunks in calls for chunk in call_chunks]


def _chunks_of(one: Json, step: Step, index: int) -> Iterator[Json]:
    whole = _quirky(one, step, index)
    arguments = whole["function"]["arguments"]
    if "whole_calls" in step.quirks or not isinstance(arguments, str):
        yield whole
        return
    yield {**whole, "function": {"name": one["function"]["name"], "arguments": ""}}
    size = max(7, len(arguments) // 500)
    for start in range(0, len(arguments), size):
        chunk: Json = {"function": {"arguments": arguments[start : start + size]}}
        yield chunk if "no_index" in step.quirks else {"index": index, **chunk}


def _quirky(one: Json, step: Step, index: int | None) -> Json:
    result = {**one} if index is None or "no_index" in step.quirks else {"index": index, **one}
    if "no_id" in step.quirks:
        result = {key: value for key, value in result.items() if key != "id"}
    if "object_arguments" in step.quirks:
        result["function"] = {**one["function"], "arguments": json.loads(one["function"]["arguments"])}
    return result


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


# ---------------------------------------------------------------------------------------------------------- running
@contextmanager
def upstreams() -> Iterator[Upstream]:
    """Run a server on a free loopback port, in its own thread, until the block ends."""
    upstream, is_ready, loop = Upstream(), threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", upstream.complete)
        for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/responses"):
            app.router.add_post(path, upstream.complete)
        app.router.add_get("/v1/models", upstream.list_models)
        quiet = logging.getLogger("tests.upstream")
        quiet.disabled = True  # it aborts connections on purpose
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None, logger=quiet)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        upstream.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        is_ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert is_ready.wait(60)
        yield upstream
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()
