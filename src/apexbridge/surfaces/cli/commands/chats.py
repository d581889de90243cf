"""`apex chats …`: records of chat requests and of the steps to each answer."""

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from apexbridge.errors import RequestError
from apexbridge.surfaces.cli.session import Limit, Page, Session, command

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
ChatId = Annotated[str, typer.Argument(metavar="ID", help="The record's id, as in `apex chats list`.")]
_FACTS = ("id", "outcome", "stopCause", "model", "upstream", "caller", "keyName", "startedAt")


@command(app, "list", "ls")
def list_chats(
    session: Session,
    model: Annotated[str | None, typer.Option("--model", help="Only requests to this model.")] = None,
    caller: Annotated[str | None, typer.Option("--caller", help="Only requests with this API key's id.")] = None,
    stop_cause: Annotated[str | None, typer.Option("--stop-cause", help="Only with this end: answered, …")] = None,
    outcome: Annotated[str | None, typer.Option("--outcome", help="answered, failed or cancelled.")] = None,
    page: Page = None,
    limit: Limit = None,
) -> None:
    """List chat requests, the newest first."""
    filters = {"model": model, "caller": caller, "stopCause": stop_cause, "outcome": outcome}
    params = {key: value for key, value in filters.items() if value is not None}
    answer = session.ask_page("/api/chats", "chats", params, page=page, limit=limit)
    if session.show_json(answer):
        return
    rows = [
        (
            chat["id"],
            chat["startedAt"][:19].replace("T", " "),
            f"{chat['durationMs']} ms",
            chat["stopCause"],
            chat["turns"],
            chat["calls"],
            chat["usage"] and chat["usage"]["totalTokens"],
            chat["keyName"] or chat["caller"],
            chat["model"],
        )
        for chat in answer["chats"]
    ]
    columns = ("ID", "STARTED", "TOOK", "END", "TURNS", "CALLS", "TOKENS", "KEY", "MODEL")
    session.console.table(columns, rows, empty="No chat request is recorded.")
    session.console.say_more(len(rows), answer)


@command(app, "show")
def show_chat(session: Session, id: ChatId) -> None:
    """Show one request, step by step."""
    chat = session.ask("GET", _path(id))
    if session.show_json(chat):
        return
    console, error = session.console, chat["error"]
    facts = {key: chat[key] for key in _FACTS}
    facts |= {"took": f"{chat['durationMs']} ms", "tokens": _tokens(chat["usage"])}
    facts["error"] = f"{error['code']}: {error['message']}" if error else None
    console.facts(facts)
    rows = [
        (number, step["kind"], _state(step), _duration(step), _tokens(step.get("usage")), _summary(step, chat["model"]))
        for number, step in enumerate(chat["trajectory"], 1)
    ]
    console.line("")
    console.table(("STEP", "KIND", "HOW", "TOOK", "TOKENS", "WHAT"), rows, empty="No step was taken.")
    for message in chat["messages"] or ():
        content = message.get("content")
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        console.line(f"\n{message.get('role')}:\n{text}")
    if chat["answer"] is not None:
        console.line(f"\nanswer:\n{chat['answer']}")


@command(app, "delete", "rm")
def delete_chat(session: Session, id: ChatId) -> None:
    """Delete the record of a request."""
    answer = session.ask("DELETE", _path(id))
    session.report(answer, f"{answer['id']} is deleted")


@command(app, "stats")
def chat_statistics(
    session: Session, days: Annotated[int, typer.Option("--days", help="The number of days to count.")] = 30
) -> None:
    """Show requests, tokens and averages of the last days, by model."""
    totals = session.ask("GET", "/api/chats/stats", params={"days": days})
    models = [*totals["models"], {**totals, "model": "all"}] if totals["requests"] else []
    counts = ("requests", "failed", "cancelled", "totalTokens", "meanTurns", "meanCalls")
    rows = [(*(model[key] for key in counts), f"{model['meanDurationMs']} ms", model["model"]) for model in models]
    columns = ("REQUESTS", "FAILED", "CANCELLED", "TOKENS", "TURNS", "CALLS", "TOOK", "MODEL")
    session.table(totals, columns, rows, empty=f"No chat request is recorded for the last {days} days.")


def _path(id: str) -> str:
    if id in ("", ".", "..", "stats") or "/" in id:  # these would lead to another route
        raise RequestError(f"There is no record of a chat {id}", code="CHAT_NOT_FOUND")
    return f"/api/chats/{quote(id, safe='')}"


def _tokens(usage: dict[str, Any] | None) -> str | None:
    """Tokens in both directions. A step has the upstream's field names, a record has ours."""
    if not usage:
        return None
    prompt, answer = (usage.get(f"{kind}Tokens", usage.get(f"{kind}_tokens")) for kind in ("prompt", "completion"))
    return f"{prompt if prompt is not None else '?'} in, {answer if answer is not None else '?'} out"


def _state(step: dict[str, Any]) -> str:
    if step["kind"] == "cut":
        return ""
    return "ok" if step.get("success", True) else "failed"


def _duration(step: dict[str, Any]) -> str:
    return f"{step['durationMs']} ms" if "durationMs" in step else ""


def _summary(step: dict[str, Any], model: str) -> str:
    if step["kind"] == "cut":
        return str(step["text"])
    unnamed = model if step["kind"] == "model" else "a tool that does not exist"
    name = str(step.get("name") or unnamed)
    hits = [f"{hit['name']} {hit['score']:.2f}" for hit in step.get("results") or ()]
    run = f", run {step['executionId']}" if "executionId" in step else ""
    return f"{name}: {', '.join(hits)}" if hits else f"{name}{run}"
