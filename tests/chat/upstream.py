"""A model's server for tests: plays steps that a test wrote, is as strict as OpenAI's, and misbehaves when told to."""

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
    """One answer, or one way to fail."""

    text: str = ""
    calls: Sequence[Json] = ()
    finish: str | None = None
    usage: Json | None = field(default_factory=lambda: dict(USAGE))
    fields: Json = field(default_factory=dict)
    """More fields of the message or of a delta."""
    status: int = 200
    body: Any = None
    """In place of a completion: an object, or bytes as they are."""
    headers: Json = field(default_factory=dict)
    events: Sequence[bytes] | None = None
    """In place of the stream's own events."""
    delay: float = 0.0
    cut_after: int | None = None
    """Events after which the connection is torn."""
    hang_after: int | None = None
    """Events after which nothing comes any more; -1 hangs before the status."""
    quirks: frozenset[str] = frozenset()
    """crlf, comments, no_done, no_space, role_always, empty_first, no_index, no_id, whole_calls, object_arguments,
    interleaved, no_usage, usage_always, plain_json, one_byte."""


Play = Step | Callable[[Json], Step]


def call(name: str, arguments: Any = None, id: str | None = None) -> Json:
    """A call as a model makes it; arguments that are a text stay as they are."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    id = id or f"call_{next(_ids):08x}"
    return {"id": id, "type": "function", "function": {"name": name, "arguments": written}}


@dataclass
class Seen:
    """A request that came in."""

    body: Json
    headers: Json
    raw: bytes
    peer: Any = None
    """The other end of the connection it came on."""
    is_over: bool = False
    was_left: bool = False
    """The other side went away before the end."""


class Upstream:
    """What the server is told to do, and what it saw; each script has a model name of its own."""

    def __init__(self) -> None:
        self.url = ""
        self.models: Any = {"object": "list", "data": [_listed("native-listed"), _listed("unserved")]}
        self._plays: dict[str, list[Play]] = {}
        self._seen: dict[str, list[Seen]] = defaultdict(list)
        self._numbers = itertools.count(1)

    def play(self, *steps: Play, kind: str = "native") -> str:
        """Have steps answered one after the other, the last one again and again; gives the model's name."""
        model = f"{kind}-{next(self._numbers)}"
        self._plays[model] = list(steps)
        return model

    def seen(self, model: str) -> list[Seen]:
        """The requests for a model."""
        return self._seen[model]

    def bodies(self, model: str) -> list[Json]:
        """What they asked."""
        return [seen.body for seen in self._seen[model]]

    # ---------------------------------------------------------------------------------------------------- serving
    async def list_models(self, request: web.Request) -> web.Response:
        return web.json_response(self.models) if self.models is not None else web.Response(status=404)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw)
        seen = Seen(
            body=body,
            headers=dict(request.headers),
            raw=raw,
            peer=request.transport and request.transport.get_extra_info("peername"),
        )
        model = body.get("model", "")
        self._seen[model].append(seen)
        try:
            return await self._answer(request, body, self._step(model, body))
        except (asyncio.CancelledError, ConnectionError):
            seen.was_left = True
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
        elif found := problem_of(body):
            step = refusal(400, found[1], param=found[0])
        await asyncio.sleep(step.delay)
        if step.hang_after == -1:
            await asyncio.sleep(3600)
        if step.status != 200 or step.body is not None or (not body.get("stream") and step.events is None):
            return await self._in_one_piece(request, body, step)
        if "plain_json" in step.quirks:
            return web.json_response(completion(body, step), headers=step.headers)
        return await self._in_pieces(request, body, step)

    async def _in_one_piece(self, request: web.Request, body: Json, step: Step) -> web.StreamResponse:
        told = completion(body, step) if step.body is None else step.body
        data = told if isinstance(told, bytes) else json.dumps(told, ensure_ascii=False).encode()
        headers = {"content-type": "application/json", **step.headers}
        if step.cut_after is None:
            return web.Response(status=step.status, body=data, headers=headers)
        response = web.StreamResponse(status=step.status, headers={**headers, "content-length": str(len(data))})
        await response.prepare(request)
        await response.write(data[: len(data) // 2])
        _tear(request)
        return response

    async def _in_pieces(self, request: web.Request, body: Json, step: Step) -> web.StreamResponse:
        headers = {"content-type": "text/event-stream; charset=utf-8", **step.headers}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        events = list(step.events) if step.events is not None else written(body, step)
        for place, event in enumerate(events):
            if place == step.cut_after:
                _tear(request)
                return response
            if place == step.hang_after:
                await asyncio.sleep(3600)
            for piece in [event[i : i + 1] for i in range(len(event))] if "one_byte" in step.quirks else [event]:
                await response.write(piece)
        return response


def _listed(id: str) -> Json:
    return {"id": id, "object": "model", "owned_by": "tests"}


def refusal(status: int, message: str, *, param: str | None = None, code: str | None = None, **headers: str) -> Step:
    """An error as OpenAI words it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": param, "code": code}
    return Step(status=status, body={"error": error}, headers={k.replace("_", "-"): v for k, v in headers.items()})


# -------------------------------------------------------------------------------------------------------- rendering
def completion(body: Json, step: Step) -> Json:
    """A whole answer; as many choices as were asked for."""
    message: Json = {"role": "assistant", "content": step.text or (None if step.calls else ""), **step.fields}
    if step.calls:
        message["tool_calls"] = [_quirky(one, step, None) for one in step.calls]
    choices = [
        {"index": place, "message": message, "logprobs": None, "finish_reason": _finish(step)}
        for place in range(body.get("n") or 1)
    ]
    told = {"id": "up-1", "object": "chat.completion", "created": 1, "model": f"{body.get('model')}-2026"}
    return {**told, "choices": choices, **({"usage": step.usage} if step.usage else {})}


def chunks(body: Json, step: Step) -> list[Json]:
    """The same in pieces."""
    head = {"id": "up-1", "object": "chat.completion.chunk", "created": 1, "model": f"{body.get('model')}-2026"}
    deltas: list[Json] = [{"role": "assistant", "content": "", **step.fields}]
    deltas += [{"content": piece} for piece in _words(step.text)]
    deltas += [{"tool_calls": [piece]} for piece in _call_pieces(step)]
    if "role_always" in step.quirks:
        deltas = [{"role": "assistant", **delta} for delta in deltas]
    told = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    told.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(step)}]})
    wants_usage = (body.get("stream_options") or {}).get("include_usage")
    if "usage_always" in step.quirks:
        told = [{**chunk, "usage": step.usage} for chunk in told]
    elif wants_usage and step.usage and "no_usage" not in step.quirks:
        told.append({**head, "choices": [], "usage": step.usage})
    return [{"choices": [], "prompt_filter_results": []}, *told] if "empty_first" in step.quirks else told


def written(body: Json, step: Step) -> list[bytes]:
    """The events of a stream as they go over the wire."""
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
    return [text[place : place + 5] for place in range(0, len(text), 5)]


def _call_pieces(step: Step) -> list[Json]:
    pieces = [list(_pieces_of(one, step, place)) for place, one in enumerate(step.calls)]
    if "interleaved" in step.quirks:
        return [piece for row in itertools.zip_longest(*pieces) for piece in row if piece is not None]
    return [piece for own in pieces for piece in own]


def _pieces_of(one: Json, step: Step, place: int) -> Iterator[Json]:
    whole = _quirky(one, step, place)
    arguments = whole["function"]["arguments"]
    if "whole_calls" in step.quirks or not isinstance(arguments, str):
        yield whole
        return
    yield {**whole, "function": {"name": one["function"]["name"], "arguments": ""}}
    for start in range(0, len(arguments), 7):
        piece: Json = {"function": {"arguments": arguments[start : start + 7]}}
        yield piece if "no_index" in step.quirks else {"index": place, **piece}


def _quirky(one: Json, step: Step, place: int | None) -> Json:
    told = {**one} if place is None or "no_index" in step.quirks else {"index": place, **one}
    if "no_id" in step.quirks:
        told = {key: value for key, value in told.items() if key != "id"}
    if "object_arguments" in step.quirks:
        told["function"] = {**one["function"], "arguments": json.loads(one["function"]["arguments"])}
    return told


def _tear(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


# ---------------------------------------------------------------------------------------------------------- running
@contextmanager
def upstreams() -> Iterator[Upstream]:
    """A server on a free port of loopback, in a thread of its own, until the block ends."""
    upstream, is_ready, loop = Upstream(), threading.Event(), asyncio.new_event_loop()
    leave = asyncio.Event()

    async def serve() -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", upstream.complete)
        app.router.add_get("/v1/models", upstream.list_models)
        quiet = logging.getLogger("tests.upstream")
        quiet.disabled = True  # it tears connections on purpose
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None, logger=quiet)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        upstream.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        is_ready.set()
        await leave.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert is_ready.wait(60)
        yield upstream
    finally:
        loop.call_soon_threadsafe(leave.set)
        thread.join(20)
        loop.close()
