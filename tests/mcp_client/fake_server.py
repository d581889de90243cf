# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""A small MCP server over stdio for tests, without the SDK: it starts at once, and can break every rule.

The first argument is a JSON object: `tools` lists its tools, `more` is a number of further ones, `mode` names what it
does wrong, `log` is a file for what it receives.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

Json = dict[str, Any]
OPTIONS: Json = json.loads(sys.argv[1])
MODE = OPTIONS.get("mode", "")
MEGABYTES = 10


def tool(name: str, **fields: Any) -> Json:
    return {"name": name, "description": f"The tool {name}.", "inputSchema": {"type": "object"}, **fields}


TOOLS = OPTIONS.get("tools") or [tool("echo", annotations={"readOnlyHint": True})]
TOOLS += [tool(f"tool-{number}", description=f"Does the work {number}.") for number in range(OPTIONS.get("more", 0))]


def send(message: Json) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def log(text: str) -> None:
    if "log" in OPTIONS:
        with Path(OPTIONS["log"]).open("a") as file:
            file.write(f"{text}\n")


def page(cursor: str | None) -> Any:
    if MODE == "endless-pages":
        number = int(cursor or 0)
        return {"tools": [tool(f"page-{number}")], "nextCursor": str(number + 1)}
    if MODE == "large-pages":
        number = int(cursor or 0)
        large = {"type": "object", "properties": {"x": {"description": "x" * 3_000_000}}}
        return {"tools": [tool("small"), tool(f"page-{number}", inputSchema=large)], "nextCursor": str(number + 1)}
    if MODE == "same-page":
        return {"tools": [tool("again")], "nextCursor": "x"}
    if MODE == "huge-description":
        return {"tools": [tool("huge", description="x" * MEGABYTES * 1024 * 1024)]}
    if MODE == "nonsense-list":
        return {"tools": [{"name": 7}, "what"]}
    if MODE == "deep-list":
        return json.loads("[" * 90 + "]" * 90)
    return {"tools": TOOLS}


def called(params: Json) -> Json:
    name, arguments = params["name"], params.get("arguments") or {}
    if name == "die":
        os._exit(9)
    if name == "environment":
        return {"content": [{"type": "text", "text": json.dumps(dict(os.environ))}]}
    if name == "look":
        return {"content": [{"type": "text", "text": json.dumps(Path(arguments["path"]).exists())}]}
    if name == "connect":
        try:
            socket.create_connection(arguments["address"], 5).close()
            text = "connected"
        except OSError as error:
            text = type(error).__name__
        return {"content": [{"type": "text", "text": text}]}
    if name == "fail":
        return {"content": [{"type": "text", "text": "it did not work"}], "isError": True}
    if name == "nonsense":
        return {"content": "seven"}
    if name == "huge":
        return {"content": [{"type": "text", "text": "x" * arguments["size"]}]}
    if name == "grow":
        TOOLS.append(tool(f"grown-{len(TOOLS)}"))
        send({"method": "notifications/tools/list_changed"})
    return {"content": [{"type": "text", "text": json.dumps(arguments, sort_keys=True)}]}


def answer(request: Json) -> Any:
    method, params = request["method"], request.get("params") or {}
    if method == "initialize":
        capabilities = {"tools": {"listChanged": True}} if MODE != "no-tools" else {}
        info = {"name": "fake", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
    if method == "tools/list":
        return page(params.get("cursor"))
    if method == "tools/call":
        return called(params)
    return None


def ask(request: Json) -> None:
    """Ask the user a question before the result."""
    form = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    send({"id": "question", "method": "elicitation/create", "params": {"message": "Sure?", "requestedSchema": form}})
    while (reply := json.loads(sys.stdin.readline())).get("id") != "question":
        pass
    text = json.dumps(reply.get("result") or reply.get("error"))
    send({"id": request["id"], "result": {"content": [{"type": "text", "text": text}]}})


def main() -> None:
    log(f"started {os.getpid()}")
    if MODE == "exit":
        stream = sys.stdout if OPTIONS.get("on_stdout") else sys.stderr
        stream.write(
            f"{OPTIONS.get('before', '')}no licence for {os.environ.get('LICENCE')}{OPTIONS.get('after', '')}\n"
        )
        sys.exit(3)
    if MODE == "stderr-flood" and os.fork() == 0:
        while True:
            os.write(2, b"x" * 65_536)
    for line in sys.stdin:
        if MODE == "silent":
            continue
        request = json.loads(line)
        log(line.strip())
        if MODE == "noise":
            sys.stdout.write("starting…\n{not json\n[]\n")
        if MODE == "not-mcp":
            sys.stdout.write("hello\n")
            sys.stdout.flush()
            continue
        if "id" not in request or "method" not in request:
            continue
        name = (request.get("params") or {}).get("name")
        if name == "hang":
            continue
        if name == "ask":
            ask(request)
            continue
        if name == "progress":
            token = request["params"]["_meta"]["progressToken"]
            send({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1, "total": 4}})
        result = answer(request)
        if result is None:
            send({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})
        else:
            send({"id": request["id"], "result": result})
        if MODE == "notification-flood" and request["method"] == "tools/list":
            while True:
                send({"method": "notifications/tools/list_changed"})
        if MODE == "exit-later" and request["method"] == "tools/list":
            time.sleep(0.1)
            sys.exit(0)


main()
