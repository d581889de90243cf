"""`apex chat`: one question or a conversation. Answers are streamed; tool calls are shown dimmed."""

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apexbridge.surfaces.cli import interrupts
from apexbridge.surfaces.cli.options import DataDir, Json, Url, call
from apexbridge.surfaces.cli.printable import printable, printable_json

if TYPE_CHECKING:
    from apexbridge.surfaces.cli.client import Api

Message = dict[str, Any]


def chat(
    message: Annotated[str | None, typer.Argument(help="The question; without one, a conversation begins.")] = None,
    skill: Annotated[
        list[str] | None, typer.Option("--skill", help="A skill to offer by name; may be repeated.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="The model to ask.")] = None,
    json: Json = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Ask a model that can use every tool and skill of the server."""
    if message is None and json:
        raise typer.BadParameter("--json answers one MESSAGE")
    body: dict[str, Any] = {"x_bridge": {"skills": skill or [], "activity": not json}}
    body |= {"model": model} if model else {}
    if json:
        _answer_as_json({**body, "messages": [{"role": "user", "content": message}]}, data_dir, url)
        return
    questions = [message] if message is not None else _questions()
    # One connection for the whole conversation: suspended turns are in the server's memory, and it may be this process.
    call(partial(_converse, body=body, questions=questions), data_dir=data_dir, url=url)


def _questions() -> Iterator[str]:
    """Yield the lines that the user types, until an empty line or end of file."""
    sys.stderr.write("Ask; an empty line or Ctrl-D ends.\n")
    while True:
        line = interrupts.ask("> ").strip()
        if not line:
            return
        yield line


def _answer_as_json(body: dict[str, Any], data_dir: str | None, url: str | None) -> None:
    answer = call(lambda api: api.complete(body), data_dir=data_dir, url=url)
    sys.stdout.write(printable_json(answer))


async def _converse(api: "Api", body: dict[str, Any], questions: Iterable[str]) -> None:
    messages: list[Message] = []
    for asked in questions:
        messages.append({"role": "user", "content": asked})
        await _answer(api, body, messages)


async def _answer(api: "Api", body: dict[str, Any], messages: list[Message]) -> None:
    """Get one answer. On a terminal, the user is asked to approve dangerous skills; otherwise they are denied."""
    can_ask = sys.stdin.isatty() and sys.stderr.isatty()
    options = {**body["x_bridge"], "approvals": "tool" if can_ask else "deny"}
    while True:
        wanted = {**body, "x_bridge": options, "messages": messages, "stream": True}
        answer = await _shown(api, wanted)
        messages.append(answer)
        if not answer.get("tool_calls"):
            return
        messages += [
            {"role": "tool", "tool_call_id": asked["id"], "content": _decided(asked)} for asked in answer["tool_calls"]
        ]


def _decided(asked: dict[str, Any]) -> str:
    import json as jsonlib

    told = jsonlib.loads(asked["function"]["arguments"])
    question = " ".join(str(told.get("summary")).split())
    words = f"{told.get('skill')} calls itself dangerous. The call: {told.get('call')}\n"
    words += f"All of it: apex approvals show {told.get('approvalId')}\n{question} [y/N]: "
    agreed = interrupts.ask(printable(words)).strip().lower() in ("y", "yes")
    return jsonlib.dumps({"approve": agreed})


async def _shown(api: "Api", body: dict[str, Any]) -> Message:
    """Print an answer as it is streamed and return it as a message."""
    said: list[str] = []
    calls: list[dict[str, Any]] = []
    async for chunk in api.completion_chunks(body):
        choice = (chunk.get("choices") or [{}])[0]
        delta = choice.get("delta") or {}
        if "activity" in (chunk.get("x_bridge") or {}):
            _step(str(delta.get("reasoning_content", "")))
        elif isinstance(text := delta.get("content"), str) and text:
            said.append(text)
            sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
            sys.stdout.flush()
        calls += [
            {key: value for key, value in piece.items() if key != "index"} for piece in delta.get("tool_calls") or ()
        ]
    sys.stdout.write("\n" if said else "")
    message: Message = {"role": "assistant", "content": "".join(said) or None}
    return message | ({"tool_calls": calls} if calls else {})


def _step(text: str) -> None:
    """Print a tool call to stderr."""
    line = printable(text.strip())
    sys.stderr.write(f"\x1b[2m{line}\x1b[0m\n" if sys.stderr.isatty() else f"{line}\n")
