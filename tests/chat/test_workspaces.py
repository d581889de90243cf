"""The workspace of a conversation: its files stay between calls and requests, and nobody else sees them."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from apexbridge.retrieval.embedders.embedder import Embedder
from tests.chat.live import Live, live
from tests.chat.upstream import Step, Upstream, call

Json = dict[str, Any]
FILL = "import sys\nopen(sys.argv[2], 'w').write('filled ' + open(sys.argv[1]).read())\nprint('filled')\n"


@pytest.fixture(scope="module")
def server(upstream: Upstream, embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("served") / "data", upstream, embedder) as opened:
        files = {
            "scripts/fill.py": FILL,
            "scripts/run.sh": "echo 1\n",
            "scripts/show.js": "console.log(1)\n",
            "lib/forms.py": "NAME = 'forms'\n",
            "reference.md": "# Reference\n",
        }
        opened.install("forms", files, body="# Forms\n")
        opened.install("risky", {"scripts/execute.py": "print(1)\n"}, dangerous=True)
        yield opened


def run(server: Live, upstream: Upstream, *calls: tuple[str, Json], is_stream: bool = False, **fields: Any) -> Any:
    """Let the model make these calls one after the other; returns the tool messages it got, and the answer."""
    steps = [Step(calls=[call(name, arguments)]) for name, arguments in calls]
    model = upstream.play(*steps, Step(text="Done."))
    answer = server.answer(is_stream, model, **fields)
    messages = upstream.bodies(model)[-1]["messages"]
    return [message["content"] for message in messages if message["role"] == "tool"][-len(calls) :], answer


def python(code: str) -> tuple[str, Json]:
    return "run_code", {"language": "python", "code": code}


def test_code_and_file_tools_see_the_same_files(server: Live, upstream: Upstream, is_stream: bool) -> None:
    results, answer = run(
        server,
        upstream,
        ("file_write", {"path": "data.csv", "content": "a,b\n1,2\n"}),
        python("text = open('data.csv').read()\nopen('sum.txt', 'w').write('3')\nprint(text)"),
        ("file_read", {"path": "sum.txt"}),
        ("file_read", {"path": "/workspace/data.csv"}),
        ("list_files", {}),
        ("run_code", {"language": "shell", "code": "mkdir -p out && cp sum.txt out/copy.txt && rm data.csv && pwd"}),
        ("run_code", {"language": "javascript", "code": "console.log(require('fs').readdirSync('.').join(' '))"}),
        is_stream=is_stream,
    )
    assert "1,2" in results[1]
    assert results[2] == "3"
    assert "1,2" in results[3]
    assert "sum.txt (1 bytes)" in results[4]
    assert results[5].startswith("/workspace\nFiles: out/copy.txt")
    assert "out" in results[6]
    assert "data.csv" not in results[6]
    files = answer["x_bridge"]["files"]
    assert [(file["path"], file["size"]) for file in files] == [("out/copy.txt", 1), ("sum.txt", 1)]
    assert server.http.get(files[0]["url"]).text == "3"


def test_file_tools_take_the_path_that_code_sees(server: Live, upstream: Upstream) -> None:
    results, answer = run(
        server,
        upstream,
        ("file_write", {"path": "/workspace/sub/new.txt", "content": "a"}),
        ("file_write", {"path": "/workspace/sub/new.txt", "content": "b", "append": True, "backup": True}),
        python("print(open('/workspace/sub/new.txt').read())"),
        ("file_read", {"path": "/workspace/sub/new.txt"}),
        ("list_files", {"path": "/workspace/sub/"}),
    )
    assert results[0] == "Wrote 1 bytes to sub/new.txt."
    assert results[1] == "Added 1 bytes to sub/new.txt. The old file is sub/new.txt.bak."
    assert results[2] == "ab"
    assert results[3] == "ab"
    assert "sub/new.txt (2 bytes)" in results[4]
    assert [file["path"] for file in answer["x_bridge"]["files"]] == ["sub/new.txt", "sub/new.txt.bak"]


def test_file_tools_see_a_folder_named_runs(server: Live, upstream: Upstream) -> None:
    results, _ = run(
        server,
        upstream,
        python("import os\nos.makedirs('runs/exp1')\nopen('runs/exp1/log.txt', 'w').write('logged')"),
        ("list_files", {"recursive": True}),
        ("file_read", {"path": "runs/exp1/log.txt"}),
        ("file_write", {"path": "runs/exp1/more.txt", "content": "x"}),
    )
    assert "runs/exp1/log.txt (6 bytes)" in results[1]
    assert results[2] == "logged"
    assert results[3] == "Wrote 1 bytes to runs/exp1/more.txt."


def test_loaded_skills_are_mounted_and_their_scripts_work_on_the_files(server: Live, upstream: Upstream) -> None:
    results, answer = run(
        server,
        upstream,
        ("load_skill", {"name": "forms"}),
        ("file_write", {"path": "form.txt", "content": "form"}),
        ("run_code", {"language": "shell", "code": "python3 /skills/forms/scripts/fill.py form.txt out.txt"}),
        python(
            "import sys; sys.path.append('/skills/forms/lib')\nimport forms\nprint(forms.NAME, open('out.txt').read())"
        ),
        ("run_skill", {"name": "forms", "script": "scripts/fill.py", "args": ["out.txt", "again.txt"]}),
        ("file_read", {"path": "again.txt"}),
    )
    assert "/skills/forms" in results[0]
    assert results[2].startswith("filled")
    assert results[3].startswith("forms filled form")
    assert results[5] == "filled filled form"
    assert [file["path"] for file in answer["x_bridge"]["files"]] == ["again.txt", "form.txt", "out.txt"]


def test_a_skill_that_was_not_loaded_is_not_mounted(server: Live, upstream: Upstream) -> None:
    results, _ = run(server, upstream, ("run_code", {"language": "shell", "code": "ls /skills"}))
    assert "forms" not in results[0]


def test_a_skill_that_needs_approval_is_not_mounted(server: Live, upstream: Upstream) -> None:
    results, _ = run(
        server,
        upstream,
        ("load_skill", {"name": "risky"}),
        ("run_code", {"language": "shell", "code": "ls /skills"}),
    )
    assert "needs approval" in results[1]


@pytest.mark.parametrize("has_files", [True, False])
def test_a_conversation_continues_with_its_files_and_skills(
    server: Live, upstream: Upstream, is_stream: bool, has_files: bool
) -> None:
    question = {"role": "user", "content": f"make a file {has_files} {is_stream}"}
    first: list[tuple[str, Json]] = [("load_skill", {"name": "forms"})]
    first += [python("open('mine.txt', 'w').write('kept')")] if has_files else []
    _, answer = run(server, upstream, *first, is_stream=is_stream, messages=[question])
    history = [question, {"role": "assistant", "content": answer["content"]}, {"role": "user", "content": "go on"}]
    results, second = run(
        server,
        upstream,
        ("run_code", {"language": "shell", "code": "ls /skills . "}),
        is_stream=is_stream,
        messages=history,
    )
    assert "forms" in results[0]
    assert ("mine.txt" in results[0]) == has_files
    assert second["x_bridge"]["workspace"] == answer["x_bridge"]["workspace"]
    assert second["x_bridge"]["files"] == []


def test_other_conversations_do_not_see_the_files(server: Live, upstream: Upstream) -> None:
    _, answer = run(server, upstream, python("open('mine.txt', 'w').write('x')"), messages="one")
    results, other = run(server, upstream, ("list_files", {}), messages="another")
    assert results == ["[Nothing there.]"]
    assert "workspace" not in other["x_bridge"]
    assert answer["x_bridge"]["workspace"]


def test_two_conversations_with_the_same_messages_do_not_share_files(server: Live, upstream: Upstream) -> None:
    question = {"role": "user", "content": "the same question"}
    for name in ("a", "b"):
        _, answer = run(server, upstream, python(f"open('{name}.txt', 'w').write('x')"), messages=[question])
    history = [question, {"role": "assistant", "content": answer["content"]}, {"role": "user", "content": "list"}]
    results, _ = run(server, upstream, ("list_files", {}), messages=history)
    assert results == ["[Nothing there.]"]


def talk(server: Live, upstream: Upstream, *messages: Json, makes_file: bool = False, **fields: Any) -> Json:
    """Send messages that are answered with "Hello!", maybe after a file was made; returns the answer as a message."""
    calls = [Step(calls=[call("run_code", {"language": "python", "code": "open('mine.txt','w')"})])]
    model = upstream.play(*(calls if makes_file else ()), Step(text="Hello!"))
    answer = server.answer(fields.pop("is_stream", False), model, list(messages), **fields)
    return {"role": "assistant", "content": answer["content"]}


def files_seen(server: Live, upstream: Upstream, *messages: Json, **fields: Any) -> str:
    """Continue a conversation; returns the files that the model sees."""
    listed: str = run(server, upstream, ("list_files", {}), messages=[*messages, user("list")], **fields)[0][0]
    return listed


def user(text: Any) -> Json:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("first", ["with files", "without files"])
@pytest.mark.parametrize("other", [{}, {"x_bridge": {"tools": False}}, {"tool_choice": "none"}, {"is_stream": True}])
def test_a_conversation_with_the_same_messages_but_without_files_gets_no_files(
    server: Live, upstream: Upstream, first: str, other: Json
) -> None:
    question = user(f"hi {first} {json.dumps(other)}")
    system = {"role": "system", "content": "another prompt"}
    if first == "with files":
        answer = talk(server, upstream, question, makes_file=True)
        assert talk(server, upstream, system, question, **other) == answer
    else:
        answer = talk(server, upstream, system, question, **other)
        assert talk(server, upstream, question, makes_file=True) == answer
    assert files_seen(server, upstream, system, question, answer) == "[Nothing there.]"
    assert files_seen(server, upstream, question, answer) == "[Nothing there.]"


def test_a_twin_without_tools_that_is_streamed_gets_no_files(server: Live, upstream: Upstream) -> None:
    question = user("a streamed twin")
    answer = talk(server, upstream, question, is_stream=True, x_bridge={"tools": False})
    assert talk(server, upstream, question, makes_file=True) == answer
    assert files_seen(server, upstream, question, answer) == "[Nothing there.]"


def test_an_answer_that_is_generated_again_keeps_the_files(server: Live, upstream: Upstream) -> None:
    question, more = user("make it, then again"), user("go on")
    answer = talk(server, upstream, question, makes_file=True)
    for _ in range(3):
        second = talk(server, upstream, question, answer, more)
    assert "mine.txt" in files_seen(server, upstream, question, answer, more, second)


def test_a_request_that_failed_and_is_sent_again_keeps_the_files(server: Live, upstream: Upstream) -> None:
    question = user("fails at first")
    code = call("run_code", {"language": "python", "code": "open('mine.txt','w')"})
    failed = server.post(upstream.play(Step(calls=[code]), Step(status=400, body=b"{}")), [question])
    assert failed.status_code == 400
    answer = talk(server, upstream, question, makes_file=True)
    assert "mine.txt" in files_seen(server, upstream, question, answer)


def test_twins_are_known_after_a_restart(upstream: Upstream, embedder: Embedder, tmp_path: Path) -> None:
    question, alone = user("hi"), user("alone")
    with live(tmp_path / "data", upstream, embedder) as first:
        answer = talk(first, upstream, question)
        talk(first, upstream, alone, makes_file=True)
    with live(tmp_path / "data", upstream, embedder) as second:
        talk(second, upstream, question, makes_file=True)
        assert files_seen(second, upstream, question, answer) == "[Nothing there.]"
        assert "mine.txt" in files_seen(second, upstream, alone, answer)


def test_text_and_text_parts_are_the_same_message(server: Live, upstream: Upstream) -> None:
    answer = talk(server, upstream, user("in parts"), makes_file=True)
    parts = [{"type": "text", "text": "in parts"}]
    assert "mine.txt" in files_seen(server, upstream, user(parts), answer)
    in_parts = {"role": "assistant", "content": [{"type": "text", "text": answer["content"]}]}
    assert "mine.txt" in files_seen(server, upstream, user("in parts"), in_parts)


def test_conversations_with_the_same_calls_are_distinguished_by_the_ids_of_the_calls(
    server: Live, upstream: Upstream
) -> None:
    tools = [{"type": "function", "function": {"name": "ask", "parameters": {"type": "object"}}}]
    question, histories = user("ask me"), []
    for name in ("a", "b"):
        code = call("run_code", {"language": "python", "code": f"open('{name}.txt','w')"})
        model = upstream.play(Step(calls=[code]), Step(calls=[call("ask", {}, id=f"call_{name}")]))
        answer = server.answer(False, model, [question], tools=tools)
        reply = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "yes"}
        histories.append([question, {"role": "assistant", "content": None, "tool_calls": answer["tool_calls"]}, reply])
    for name, history in zip("ab", histories, strict=True):
        listed, _ = run(server, upstream, ("list_files", {}), messages=history, tools=tools)
        assert listed[-1] == f"{name}.txt (0 bytes)"


def test_a_request_can_name_its_workspace(server: Live, upstream: Upstream) -> None:
    run(server, upstream, python("open('n.txt', 'w').write('1')"), x_bridge={"workspace": "named-1"})
    results, answer = run(server, upstream, ("list_files", {}), x_bridge={"workspace": "named-1"})
    assert "n.txt" in results[0]
    assert answer["x_bridge"]["workspace"] == "named-1"


@pytest.mark.parametrize("name", ["", "../up", "a/b", "x" * 65, "a\nb", 7])
def test_a_workspace_id_that_is_not_valid_is_refused(server: Live, upstream: Upstream, name: Any) -> None:
    response = server.post(upstream.play(Step(text="never")), x_bridge={"workspace": name})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x_bridge.workspace"


# ------------------------------------------------------------------------------------------------------------- files
def test_a_file_part_lands_in_the_workspace(server: Live, upstream: Upstream) -> None:
    data = base64.b64encode(b"%PDF-1.7 x").decode()
    part = {"type": "file", "file": {"filename": "dir/form.pdf", "file_data": f"data:application/pdf;base64,{data}"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "fill it"}, part]}]
    results, answer = run(server, upstream, python("print(open('form.pdf','rb').read())"), messages=messages)
    assert "%PDF-1.7 x" in results[0]
    assert answer["x_bridge"]["files"] == []


def test_a_file_of_the_files_api_lands_in_the_workspace_once(server: Live, upstream: Upstream) -> None:
    made = server.http.post("/v1/files", files={"file": ("t.csv", b"a,b")}, data={"purpose": "user_data"}).json()
    assert (made["object"], made["filename"], made["bytes"], made["purpose"]) == ("file", "t.csv", 3, "user_data")
    message = {"role": "user", "content": [{"type": "file", "file": {"file_id": made["id"]}}]}
    code = call("run_code", {"language": "python", "code": "open('t.csv', 'a').write(',c')"})
    model = upstream.play(Step(calls=[code]), Step(text="Done."))
    answer = server.answer(False, model, [message])
    assert upstream.bodies(model)[0]["messages"][-1]["content"] == "[File t.csv, 3 bytes, in the workspace]"
    history = [message, {"role": "assistant", "content": answer["content"]}, {"role": "user", "content": "read it"}]
    results, _ = run(server, upstream, ("file_read", {"path": "t.csv"}), ("list_files", {}), messages=history)
    assert results[0] == "a,b,c"
    assert results[1].count("t") == "t.csv (5 bytes)".count("t")


def sent(name: str, data: bytes) -> Json:
    return {"type": "file", "file": {"filename": name, "file_data": base64.b64encode(data).decode()}}


def test_two_files_of_one_name_keep_their_own_names_in_later_requests(server: Live, upstream: Upstream) -> None:
    first, second = user([sent("data.csv", b"1")]), user([sent("data.csv", b"22"), {"type": "text", "text": "more"}])
    answer = talk(server, upstream, first)
    again = talk(server, upstream, first, answer, second)
    model = upstream.play(Step(text="Done."))
    server.answer(False, model, [first, answer, second, again, user("go on")])
    notes = [message["content"] for message in upstream.bodies(model)[0]["messages"] if message["role"] == "user"]
    assert notes[:2] == [
        "[File data.csv, 1 bytes, in the workspace]",
        "[File data-1.csv, 2 bytes, in the workspace]\nmore",
    ]


def test_a_deleted_file_does_not_end_the_conversation_that_has_it(server: Live, upstream: Upstream) -> None:
    made = server.http.post("/v1/files", files={"file": ("t.csv", b"a,b")}, data={"purpose": "user_data"}).json()
    message = user([{"type": "file", "file": {"file_id": made["id"]}}])
    answer = talk(server, upstream, message)
    server.http.delete(f"/v1/files/{made['id']}").raise_for_status()
    model = upstream.play(Step(calls=[call("file_read", {"path": "t.csv"})]), Step(text="Done."))
    server.answer(False, model, [message, answer, user("read it")])
    messages = upstream.bodies(model)[-1]["messages"]
    assert "[File t.csv, 3 bytes, in the workspace]" in [message["content"] for message in messages]
    assert messages[-1]["content"] == "a,b"
    new = server.post(upstream.play(Step(text="never")), [message])
    assert (new.status_code, new.json()["error"]["code"]) == (404, "file_not_found")
    elsewhere = upstream.play(Step(text="Done."))
    server.answer(False, elsewhere, [message, {"role": "assistant", "content": "other"}, user("and?")])
    notes = [message["content"] for message in upstream.bodies(elsewhere)[0]["messages"]]
    assert f"[File {made['id']}, which no longer exists]" in notes


def test_a_file_is_not_stored_again_with_the_result_of_a_clients_tool(server: Live, upstream: Upstream) -> None:
    tools = [{"type": "function", "function": {"name": "ask", "parameters": {"type": "object"}}}]
    message = user([sent("t.csv", b"1")])
    code = call("run_code", {"language": "python", "code": "open('t.csv', 'a').write('2')"})
    model = upstream.play(Step(calls=[code]), Step(calls=[call("ask", {})]))
    answer = server.answer(False, model, [message], tools=tools)
    calls = answer["tool_calls"]
    history = [
        message,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": calls[0]["id"], "content": "yes"},
    ]
    listed, _ = run(server, upstream, ("list_files", {}), messages=history, tools=tools)
    assert listed[-1] == "t.csv (2 bytes)"


@pytest.mark.parametrize(
    "identity",
    [
        "/etc",
        "../workspaces",
        "**",
        "*" * 200,
        "**/" * 30,
        "file-",
        "upload-",
        "file-" + "0" * 32,
        "\ud800",
        "a\0b",
        "",
    ],
)
def test_a_text_that_cannot_be_a_file_id_is_not_found(server: Live, upstream: Upstream, identity: str) -> None:
    server.http.post("/v1/files", files={"file": ("t.csv", b"a,b")}).raise_for_status()
    response = server.http.post(
        "/v1/chat/completions",
        content=json.dumps(
            {
                "model": upstream.play(Step(text="never")),
                "messages": [user([{"type": "file", "file": {"file_id": identity}}])],
            }
        ),
        headers={"content-type": "application/json"},
    )
    assert (response.status_code, response.json()["error"]["code"]) == (404, "file_not_found")
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        shown = server.http.request(method, f"/v1/files/{quote(identity, safe='', errors='replace') or '%20'}{path}")
        assert shown.status_code == 404


def test_a_full_quota_is_an_error_of_this_server(upstream: Upstream, embedder: Embedder, tmp_path: Path) -> None:
    with live(tmp_path / "data", upstream, embedder, workspace_files=1) as small:
        messages = [user([sent("a", b"1"), sent("b", b"2")])]
        response = small.post(upstream.play(Step(text="never")), messages)
        assert response.status_code == 507
        assert response.json()["error"].items() >= {"type": "server_error", "code": "storage_full"}.items()


@pytest.mark.parametrize(
    "file", [{}, "x", {"file_id": "file-0"}, {"file_data": "not base64 !"}, {"filename": "x"}, None]
)
def test_a_file_part_that_cannot_be_read_is_refused(server: Live, upstream: Upstream, file: Any) -> None:
    messages = [{"role": "user", "content": [{"type": "file", "file": file}]}]
    response = server.post(upstream.play(Step(text="never")), messages)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == "messages"


def test_parts_of_any_shape_never_cause_an_internal_error(server: Live, upstream: Upstream) -> None:
    missing = server.post(upstream.play(Step(text="never")), [user([{"type": "file"}])])
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "messages")
    answer = talk(server, upstream, user([sent("a.txt", b"1"), "text that is not a part"]))
    assert answer["content"] == "Hello!"


def test_the_files_api_lists_shows_and_deletes(server: Live) -> None:
    made = [
        server.http.post("/v1/files", files={"file": (f"{n}.txt", b"x" * n)}, data={"purpose": "assistants"}).json()
        for n in (1, 2)
    ]
    listed = server.http.get("/v1/files", params={"purpose": "assistants"}).json()
    assert {file["id"] for file in made} <= {file["id"] for file in listed["data"]}
    assert server.http.get("/v1/files", params={"limit": 1}).json()["has_more"]
    assert server.http.get(f"/v1/files/{made[1]['id']}").json() == made[1]
    assert server.http.get(f"/v1/files/{made[1]['id']}/content").content == b"xx"
    assert server.http.delete(f"/v1/files/{made[0]['id']}").json()["deleted"]
    missing = server.http.get(f"/v1/files/{made[0]['id']}")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "file_not_found")


# ---------------------------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("code", "word"),
    [("x" * 1_000_000, "256 KB"), ("print(1)\0", "NUL"), ("  ", "empty")],
)
def test_code_that_cannot_run_is_refused(server: Live, upstream: Upstream, code: str, word: str) -> None:
    results, _ = run(server, upstream, python(code))
    assert word in results[0] or "1,000,000 characters" in results[0]


def test_a_killed_run_leaves_the_workspace_as_it_was(server: Live, upstream: Upstream) -> None:
    code = "open('half.txt','w').write('x' * 100)\nopen('kept.txt','w').write('changed')\nimport time\ntime.sleep(60)"
    results, _ = run(
        server,
        upstream,
        ("file_write", {"path": "kept.txt", "content": "as it was"}),
        ("run_code", {"language": "python", "code": code, "timeout": 500}),
        ("list_files", {}),
        ("file_read", {"path": "kept.txt"}),
    )
    assert "TIMEOUT" in results[1]
    assert "half.txt" not in results[2]
    assert results[3] == "as it was"


def test_odd_names_and_links_are_refused_with_a_word(server: Live, upstream: Upstream) -> None:
    code = "import os\nopen('a\\nb','w')\nos.symlink('/etc/passwd','link')\nopen('plain','w').write('1')"
    results, answer = run(server, upstream, python(code), ("list_files", {}))
    assert "a\\nb was skipped" in results[0]
    assert "link was skipped" in results[0]
    assert results[1] == "plain (1 bytes)"
    assert [file["path"] for file in answer["x_bridge"]["files"]] == ["plain"]


# -------------------------------------------------------------------------------------------------------- HTTP
def test_a_skill_runs_in_a_named_workspace_over_http(server: Live) -> None:
    uploaded = server.http.post("/api/uploads", files={"file": ("in.txt", b"form")}, data={"workspace": "http-1"})
    assert uploaded.json() == {"id": "in.txt", "name": "in.txt", "size": 4, "workspace": "http-1"}
    body = {"script": "scripts/fill.py", "args": ["in.txt", "out.txt"], "workspace": "http-1"}
    result = server.http.post("/api/skills/forms/execute", json=body).json()
    assert (result["success"], result["files"]) == (True, [{"path": "out.txt", "size": 11}])
    shown = server.http.get("/api/workspaces/http-1").json()
    assert [entry["path"] for entry in shown["entries"]] == ["in.txt", "out.txt"]
    assert server.http.get("/api/workspaces/http-1/files/out.txt").text == "filled form"
    code = {"input": {"language": "python", "code": "print(open('out.txt').read())"}, "workspace": "http-1"}
    assert server.http.post("/api/tools/run-code/execute", json=code).json()["stdout"] == "filled form\n"
    assert server.http.delete("/api/workspaces/http-1/files/in.txt").json()["success"]
    assert server.http.delete("/api/workspaces/http-1").json()["success"]
    assert server.http.get("/api/workspaces/http-1").json()["code"] == "WORKSPACE_NOT_FOUND"


def test_a_request_for_a_file_outside_a_workspace_is_refused(server: Live) -> None:
    server.http.post("/api/uploads", files={"file": ("in.txt", b"form")}, data={"workspace": "http-2"})
    for path in ("../current", "%2e%2e/x", "/etc/passwd", "..%2f..%2fapex.sqlite3"):
        assert server.http.get(f"/api/workspaces/http-2/files/{path}").status_code == 404
    assert json.loads(server.http.get("/api/workspaces").text)["total"] > 0


def test_bash_in_allowed_tools_means_code(server: Live, upstream: Upstream) -> None:
    server.install("shell-only", {"scripts/x.py": "print(1)\n"}, allowed_tools="Bash(python:*)")
    results, _ = run(
        server,
        upstream,
        ("load_skill", {"name": "shell-only"}),
        ("run_code", {"language": "shell", "code": "ls /skills/shell-only"}),
        ("calculate", {"expression": "1+1"}),
    )
    assert "scripts" in results[1]
    assert "PERMISSION_DENIED" in results[2]


@pytest.mark.parametrize(
    ("language", "code", "path"),
    [
        ("shell", "python3 scripts/fill.py a b", "scripts/fill.py"),
        ("shell", "python ./scripts/fill.py", "scripts/fill.py"),
        ("shell", "cd /tmp; cd /workspace; bash scripts/run.sh", "scripts/run.sh"),
        ("shell", "sh scripts/run.sh", "scripts/run.sh"),
        ("shell", "./scripts/run.sh", "scripts/run.sh"),
        ("shell", "scripts/run.sh", "scripts/run.sh"),
        ("shell", "node scripts/show.js", "scripts/show.js"),
        ("shell", "cat reference.md; true", "reference.md"),
        ("python", "open('scripts/fill.py')", "scripts/fill.py"),
        ("python", "import subprocess; subprocess.run(['python3', 'scripts/fill.py'], check=True)", "scripts/fill.py"),
        ("javascript", "require('./scripts/show.js')", "scripts/show.js"),
        ("javascript", "require('fs').readFileSync('scripts/show.js')", "scripts/show.js"),
    ],
)
def test_a_file_of_a_skill_that_is_looked_for_in_the_workspace_is_found_by_a_hint(
    server: Live, upstream: Upstream, language: str, code: str, path: str
) -> None:
    results, _ = run(
        server, upstream, ("load_skill", {"name": "forms"}), ("run_code", {"language": language, "code": code})
    )
    assert f"the skill forms has it at /skills/forms/{path}" in results[1]


def test_a_missing_package_is_named_to_the_model(server: Live, upstream: Upstream) -> None:
    results, _ = run(server, upstream, ("load_skill", {"name": "forms"}), python("import pypdf"))
    assert "apex packages install documents" in results[1]


@pytest.mark.parametrize(
    ("language", "code"),
    [("shell", "cat /skills/forms/SKILL.md"), ("python", "open('/skills/forms/scripts/fill.py')")],
)
def test_a_skill_that_is_not_loaded_is_named_when_its_files_are_looked_for(
    server: Live, upstream: Upstream, language: str, code: str
) -> None:
    results, _ = run(server, upstream, ("run_code", {"language": language, "code": code}))
    assert "/skills/forms is there only after the skill is loaded: call load_skill first." in results[0]
    results, _ = run(server, upstream, ("run_code", {"language": "shell", "code": "ls /skills/no-such-skill"}))
    assert "load_skill" not in results[0]


# ---------------------------------------------------------------------------------------------------- instructions
@pytest.mark.parametrize(
    ("name", "files", "fields", "present", "absent"),
    [
        ("own-js", {"scripts/a.js": "1"}, {}, ["`node /skills/own-js/scripts/a.js`"], ["x.py", "-m scripts"]),
        ("no-scripts", {}, {}, ["/skills/no-scripts (read-only): write code"], ["python3", "x.py"]),
        ("danger", {"scripts/a.py": "1"}, {"dangerous": True}, ["needs approval", "run_skill"], ["/skills/danger"]),
        (
            "read-only",
            {"scripts/a.py": "1"},
            {"allowed_tools": "Read"},
            ["file_read, list_files"],
            ["run_code", "run_skill", "file-read"],
        ),
        (
            "package",
            {"scripts/__init__.py": "", "scripts/a.py": "1"},
            {},
            ['"-m scripts.a"'],
            ["-m scripts.__init__", "args or input):\nscripts/__init__.py"],
        ),
    ],
)
def test_load_skill_says_how_the_skill_can_be_used(
    server: Live,
    upstream: Upstream,
    name: str,
    files: dict[str, str],
    fields: Json,
    present: list[str],
    absent: list[str],
) -> None:
    server.install(name, files, body="# Title\n", **fields)
    (text,), _ = run(server, upstream, ("load_skill", {"name": name}))
    assert [words for words in present if words not in text] == [], text
    assert [words for words in absent if words in text] == [], text


@pytest.mark.parametrize("by", ["setting", "key"])
def test_without_run_code_the_instructions_do_not_mention_it(
    upstream: Upstream, embedder: Embedder, tmp_path_factory: pytest.TempPathFactory, by: str
) -> None:
    with live(tmp_path_factory.mktemp("served") / "data", upstream, embedder, run_code=by != "setting") as server:
        server.install("forms", {"scripts/fill.py": FILL})
        if by == "key":
            _, key = server.do(server.bridge.keys.create("no code", ["chat", "read"]))
            server.http.headers["Authorization"] = f"Bearer {key}"
        model = upstream.play(Step(calls=[call("load_skill", {"name": "forms"})]), Step(text="Done."))
        server.ask(model)
    assert "run_skill" in upstream.bodies(model)[0]["messages"][0]["content"]
    assert "run_code" not in json.dumps(upstream.bodies(model))
