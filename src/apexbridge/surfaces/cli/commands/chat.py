"""`apex chat`: one question or a conversation. Answers are streamed; tool calls are shown dimmed."""

import json
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apexbridge.surfaces.cli import interrupts
from apexbridge.surfaces.cli.session import Session, ask_approval, can_ask, command
from apexbridge.surfaces.cli.terminal_text import printable

if TYPE_CHECKING:
    from apexbridge.surfaces.cli.client import Api

Message = dict[str, Any]
app = typer.Typer(rich_markup_mode=None)


@command(app, "chat")
def chat(
    session: Session,
    message: Annotated[str | None, typer.Argument(help="The question; without one, a conversation begins.")] = None,
    skill: Annotated[
        list[str] | None, typer.Option("--skill", help="A skill to offer by name; may be repeated.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="The model to ask.")] = None,
) -> None:
    """Ask a model that can use every tool and skill of the server."""
    if message is None and session.json:
        raise typer.BadParameter("--json needs a MESSAGE")
    body: dict[str, Any] = {"x_bridge": {"skills": skill or [], "activity": not session.json}}
    body |= {"model": model} if model else {}
    if session.json:
        body["messages"] = [{"role": "user", "content": message}]
        session.show_json(session.call(lambda api: api.complete(body)))
        return
    questions = [message] if message is not None else _questions()
    # One connection for the whole conversation: suspended turns are in the server's memory, and it may be this process.
    session.call(partial(_converse, body=body, questions=questions))


def _questions() -> Iterator[str]:
    sys.stderr.write("Ask; an empty line or Ctrl-D ends.\n")
    while line := interrupts.ask("> ").strip():
        yield line


async def _converse(api: "Api", body: dict[str, Any], questions: Iterable[str]) -> None:
    """On a terminal, the user is asked to approve dangerous skills; otherwise they are denied."""
    options = {**body["x_bridge"], "approvals": "tool" if can_ask() else "deny"}
    messages: list[Message] = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        while True:
            request = {**body, "x_bridge": options, "messages": messages, "stream": True}
            answer = await _print_answer(api, request)
            messages.append(answer)
            if not answer.get("tool_calls"):
                break
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": _decision(call)}
                for call in answer["tool_calls"]
            ]


def _decision(call: dict[str, Any]) -> str:
    asked = json.loads(call["function"]["arguments"])
    approve = ask_approval(asked.get("skill"), asked.get("call"), asked.get("approvalId"), asked.get("summary"))
    return json.dumps({"approve": approve})


async def _print_answer(api: "Api", request: dict[str, Any]) -> Message:
    """Print an answer as it is streamed and return it as a message."""
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    async for chunk in api.completion_chunks(request):
        choice = (chunk.get("choices") or [{}])[0]
        delta = choice.get("delta") or {}
        if "activity" in (chunk.get("x_bridge") or {}):
            step = printable(str(delta.get("reasoning_content", "")).strip())
            sys.stderr.write(f"\x1b[2m{step}\x1b[0m\n" if sys.stderr.isatty() else f"{step}\n")
        elif isinstance(text := delta.get("content"), str) and text:
            texts.append(text)
            sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
            sys.stdout.flush()
        calls += [
            {key: value for key, value in call.items() if key != "index"} for call in delta.get("tool_calls") or ()
        ]
    sys.stdout.write("\n" if texts else "")
    message: Message = {"role": "assistant", "content": "".join(texts) or None}
    return message | ({"tool_calls": calls} if calls else {})
