"""`apex chats …`: records of chat requests and of the steps to each answer."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from apexbridge.surfaces.cli.options import DataDir, Json, Url, call, show

app = typer.Typer(help="Records of chat requests.", no_args_is_help=True, rich_markup_mode=None)
ChatId = Annotated[str, typer.Argument(metavar="ID", help="The record's id, as `apex chats list` tells it.")]
_FACTS = ("id", "outcome", "stopCause", "model", "upstream", "caller", "keyName", "startedAt")


@app.command("list")
@app.command("ls", hidden=True)
def list_chats(
    model: Annotated[str | None, typer.Option("--model", help="Only requests to this model.")] = None,
    caller: Annotated[str | None, typer.Option("--caller", help="Only those with this API key's id.")] = None,
    stop_cause: Annotated[str | None, typer.Option("--stop-cause", help="Only with this end: answered, …")] = None,
    outcome: Annotated[str | None, typer.Option("--outcome", help="answered, failed or cancelled.")] = None,
    page: Annotated[int, typer.Option("--page", help="Which page.")] = 1,
    limit: Annotated[int, typer.Option("--limit", help="Requests on a page.")] = 50,
    json: Json = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """List chat requests, the newest first."""
    given = {"model": model, "caller": caller, "stopCause": stop_cause, "outcome": outcome, "page": page}
    params = {key: value for key, value in {**given, "limit": limit}.items() if value is not None}
    answer = call(lambda api: api.ask("GET", "/api/chats", params=params), data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import say, table

        rows = [
            (
                chat["id"],
                _moment(chat["startedAt"]),
                f"{chat['durationMs']} ms",
                chat["stopCause"],
                chat["turns"],
                chat["calls"],
                _total(chat["usage"]),
                chat["keyName"] or chat["caller"],
                chat["model"],
            )
            for chat in answer["chats"]
        ]
        columns = ("ID", "STARTED", "TOOK", "END", "TURNS", "CALLS", "TOKENS", "KEY", "MODEL")
        table(columns, rows, empty="No chat request is recorded.")
        if rows and answer["total"] > len(rows):
            say(f"{len(rows)} of {answer['total']}; more with --page and --limit")

    show(answer, json=json, people=people)


@app.command("show")
def show_chat(id: ChatId, json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Show one request, step by step."""
    chat = call(lambda api: api.ask("GET", _path(id)), data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import facts, line, table

        error, usage = chat["error"], chat["usage"]
        told = {key: chat[key] for key in _FACTS} | {"took": f"{chat['durationMs']} ms"}
        told |= {"tokens": _tokens(usage), "error": f"{error['code']}: {error['message']}" if error else None}
        facts(told)
        rows = [
            (number, step["kind"], _how(step), _took(step), _tokens(step.get("usage")), _what(step, chat["model"]))
            for number, step in enumerate(chat["trajectory"], 1)
        ]
        line("")
        table(("STEP", "KIND", "HOW", "TOOK", "TOKENS", "WHAT"), rows, empty="No step was taken.")
        for message in chat["messages"] or ():
            line(f"\n{message.get('role')}:\n{_text(message.get('content'))}")
        if chat["answer"] is not None:
            line(f"\nanswer:\n{chat['answer']}")

    show(chat, json=json, people=people)


@app.command("delete")
@app.command("rm", hidden=True)
def delete_chat(id: ChatId, json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Forget a request."""
    answer = call(lambda api: api.ask("DELETE", _path(id)), data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import say

        say(f"{answer['id']} is forgotten")

    show(answer, json=json, people=people)


@app.command("stats")
def chat_statistics(
    days: Annotated[int, typer.Option("--days", help="How far back.")] = 30,
    json: Json = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Show requests, tokens and means of the last days, by model."""
    told = call(lambda api: api.ask("GET", "/api/chats/stats", params={"days": days}), data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import table

        columns = ("REQUESTS", "FAILED", "CANCELLED", "TOKENS", "TURNS", "CALLS", "TOOK", "MODEL")
        several = [*told["models"], {**told, "model": "all"}] if told["requests"] else []
        rows = [
            (
                own["requests"],
                own["failed"],
                own["cancelled"],
                own["totalTokens"],
                own["meanTurns"],
                own["meanCalls"],
                f"{own['meanDurationMs']} ms",
                own["model"],
            )
            for own in several
        ]
        table(columns, rows, empty=f"No chat request is recorded for the last {days} days.")

    show(told, json=json, people=people)


def _path(id: str) -> str:
    """The path of a record's route.

    Raises:
        RequestError: the id is empty, or would lead to another route.
    """
    from apexbridge.errors import RequestError

    if id in ("", ".", "..", "stats") or "/" in id:
        raise RequestError(f"There is no record of a chat {id}", code="CHAT_NOT_FOUND")
    return f"/api/chats/{quote(id, safe='')}"


def _moment(text: str) -> str:
    return text[:19].replace("T", " ")


def _total(usage: dict[str, Any] | None) -> Any:
    return usage["totalTokens"] if usage else None


def _tokens(usage: dict[str, Any] | None) -> str | None:
    """Tokens in both directions. A step has the upstream's field names, a record has ours."""
    if not usage:
        return None
    into, out = (usage.get(f"{kind}Tokens", usage.get(f"{kind}_tokens")) for kind in ("prompt", "completion"))
    return f"{into if into is not None else '?'} in, {out if out is not None else '?'} out"


def _how(step: dict[str, Any]) -> str:
    if step["kind"] == "cut":
        return ""
    return "ok" if step.get("success", True) else "failed"


def _took(step: dict[str, Any]) -> str:
    return f"{step['durationMs']} ms" if "durationMs" in step else ""


def _what(step: dict[str, Any], model: str) -> str:
    if step["kind"] == "cut":
        return str(step["text"])
    unnamed = model if step["kind"] == "model" else "a tool that does not exist"
    name = str(step.get("name") or unnamed)
    found = [f"{hit['name']} {hit['score']:.2f}" for hit in step.get("results") or ()]
    run = f", run {step['executionId']}" if "executionId" in step else ""
    return f"{name}: {', '.join(found)}" if found else f"{name}{run}"


def _text(content: Any) -> str:
    import json as jsonlib

    return content if isinstance(content, str) else jsonlib.dumps(content, ensure_ascii=False)
