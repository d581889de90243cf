"""Untrusted responses of a server to the command line: files of a run, and text."""

import http.server
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apexbridge.surfaces.cli import artifacts, client
from tests.making import write_skill
from tests.surfaces.conftest import Apex

CONTROLS = "\x1b]0;title\x07 \x9b31m \u202e \u2028 \x7f"
Response = tuple[str, dict[str, str], bytes]


class HostileServer(http.server.ThreadingHTTPServer):
    """A server whose responses are defined by the test."""

    daemon_threads = True

    def __init__(self, run_result: dict[str, Any], file: Callable[[str], Response]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.run_result, self.file, self.requested_paths = run_result, file, list[str]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: HostileServer

    def log_message(self, *_: Any) -> None:
        pass

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self._send(202, {}, b'{"id": "r"}')

    def do_GET(self) -> None:
        self.server.requested_paths.append(self.path)
        if self.path.endswith("/events"):
            data = json.dumps(self.server.run_result)
            self._send(200, {}, f"event: result\ndata: {data}\n\n".encode())
        else:
            _, headers, body = self.server.file(self.path)
            self._send(200, headers, body)


def run_result(*paths: str, **more: Any) -> dict[str, Any]:
    files = [{"path": path, "size": 1} for path in paths]
    return {"id": "r", "success": True, "warnings": [], "files": files, **more}


def plain_file(path: str) -> Response:
    return path, {}, b"from the server"


@pytest.fixture
def serve() -> Iterator[Callable[..., HostileServer]]:
    started: list[HostileServer] = []

    def start(run_result: dict[str, Any], file: Callable[[str], Response] = plain_file) -> HostileServer:
        server = HostileServer(run_result, file)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


Serve = Callable[..., HostileServer]


@pytest.mark.parametrize(
    "path",
    [
        "../up",
        "a/../../up",
        "/tmp/absolute",
        "//double",
        "a//b",
        "a/",
        "./a",
        "a/./b",
        "",
        ".",
        "..",
        "nul\0byte",
        "line\nend",
        "escape\x1b[31m",
        "bidi\u202etxt",
        "half\ud800",
        ".bashrc",
        "HEAD",
        "sub/HEAD",
        ".git/config",
        "a/.envrc",
        "a/.b/c",
    ],
)
def test_an_unsafe_or_hidden_path_is_not_written(apex: Apex, tmp_path: Path, serve: Serve, path: str) -> None:
    before = tree(tmp_path)
    server = serve(run_result(path, "fine.txt"))
    completed = apex("skills", "run", "x", "--url", server.url, "--out", tmp_path / "out")
    assert completed.code == 1
    assert tree(tmp_path) - before == {"out/fine.txt"}
    assert "1 file not written" in completed.err
    assert "/api/executions/r/files/PATH" in completed.err
    assert [requested for requested in server.requested_paths if "/files/" in requested] == [
        "/api/executions/r/files/fine.txt"
    ]


@pytest.mark.parametrize("json", [False, True])
def test_existing_files_are_not_replaced(apex: Apex, tmp_path: Path, json: bool) -> None:
    files = "import os\nos.makedirs('output/deep')\nfor name in ('a.txt', 'deep/b.txt', 'c.txt'):\n"
    write_skill(
        tmp_path, "leaves", files={"scripts/execute.py": f"{files}    open('output/' + name, 'w').write('new')"}
    )
    assert apex("skills", "install", tmp_path / "leaves").code == 0
    out = tmp_path / "out"
    (out / "deep").mkdir(parents=True)
    for name in ("a.txt", "deep/b.txt"):
        (out / name).write_text("mine")
    completed = apex("skills", "run", "leaves", "--out", out, *(["--json"] if json else []))
    assert completed.code == 1
    assert [(out / name).read_text() for name in ("a.txt", "deep/b.txt", "c.txt")] == ["mine", "mine", "new"]
    assert "2 files not written" in completed.err
    assert "a.txt: exists already" in completed.err
    assert "another folder with --out" in completed.err
    assert apex("skills", "run", "leaves", "--out", tmp_path / "other").code == 0


def test_symlinks_in_the_output_folder_are_not_followed(apex: Apex, tmp_path: Path, serve: Serve) -> None:
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    elsewhere.mkdir()
    out.mkdir()
    (out / "folder").symlink_to(elsewhere)
    (out / "dangling").symlink_to(elsewhere / "made")
    (out / "pipe").write_text("a file where a folder is named")
    os.mkfifo(out / "fifo")
    server = serve(run_result("folder/x", "dangling", "pipe/x", "fifo", "deep/fine"))
    completed = apex("skills", "run", "x", "--url", server.url, "--out", out)
    assert completed.code == 1
    assert tree(elsewhere) == set()
    assert (out / "deep/fine").read_bytes() == b"from the server"
    assert "4 files not written" in completed.err
    assert "folder is a link or a file" in completed.err


def test_the_output_folder_itself_may_be_a_symlink(apex: Apex, tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert apex("skills", "run", "x", "--url", serve(run_result("a")).url, "--out", tmp_path / "link").code == 0
    assert tree(tmp_path / "real") == {"a"}


def test_an_output_folder_that_is_a_file_is_reported(apex: Apex, tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "file").write_text("x")
    completed = apex("skills", "run", "x", "--url", serve(run_result("a")).url, "--out", tmp_path / "file")
    assert (completed.code, "--out" in completed.err) == (1, True)


def test_the_number_and_size_of_files_are_limited(
    apex: Apex, tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "MAX_FILES", 3)
    monkeypatch.setattr(artifacts, "MAX_BYTES", 100)
    sizes = {"a": 60, "b": 60, "c": 40}
    server = serve(run_result("a", "b", "c", "d"), lambda path: (path, {}, b"x" * sizes[path[-1]]))
    completed = apex("skills", "run", "x", "--url", server.url, "--out", tmp_path / "out")
    assert completed.code == 1
    assert tree(tmp_path / "out") == {"a", "c"}
    assert "b: the files are larger" in completed.err
    assert "d: more than 3 files" in completed.err


def test_an_interrupted_download_leaves_no_file(apex: Apex, tmp_path: Path, serve: Serve) -> None:
    server = serve(run_result("a"), lambda path: (path, {"content-length": "100"}, b"half"))
    assert apex("skills", "run", "x", "--url", server.url, "--out", tmp_path / "out").code == 1
    assert tree(tmp_path / "out") == set()


@pytest.mark.parametrize("files", ["all", [1], {"path": "x"}])
def test_an_invalid_list_of_files_is_refused(apex: Apex, tmp_path: Path, serve: Serve, files: Any) -> None:
    completed = apex(
        "skills", "run", "x", "--url", serve({**run_result(), "files": files}).url, "--out", tmp_path / "out"
    )
    assert (completed.code, "Traceback" in completed.err) == (1, False)


def test_a_response_is_limited_and_never_decompressed(
    apex: Apex, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 1000)
    large = serve(run_result(), lambda path: (path, {}, b'"' + b"x" * 2000 + b'"'))
    assert "larger than" in apex("skills", "show", "x", "--url", large.url).err
    endless = serve(run_result(error="x" * 2000))
    assert "larger than" in apex("skills", "run", "x", "--url", endless.url).err
    packed = serve(run_result(), lambda path: (path, {"content-encoding": "gzip"}, b"{}"))
    assert "compressed" in apex("skills", "show", "x", "--url", packed.url).err
    completed = apex("skills", "export", "x", "--url", large.url, "--out", tmp_path / "x.zip")
    assert (completed.code, tree(tmp_path)) == (1, set())


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["skills", "show", "x"], {CONTROLS: CONTROLS}),
        (["skills", "stats"], {"total": 1, "byMode": {CONTROLS: 1}, "byTag": {}, "byDerivedTag": {}, "calls": CONTROLS}
         | {"successRate": 1, "unused": [CONTROLS]}),
        (["tools", "show", "x"], {CONTROLS: CONTROLS, "parameters": {CONTROLS: CONTROLS}}),
        (["tools", "list"], {"tools": [{"id": CONTROLS, "category": CONTROLS, "enabled": True, "dangerous": True}
         | {"description": CONTROLS}]}),
        (["approvals", "list"], [dict.fromkeys(("id", "tool", "confirm", "summary"), CONTROLS)]),
        (["secrets", "list"], {"names": [CONTROLS]}),
        (["skills", "problems"], [dict.fromkeys(("sourcePath", "source", "kind", "reason"), CONTROLS)]),
        (["chats", "show", "x"], {CONTROLS: CONTROLS}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) and isinstance(value[0], str) else "",
)  # fmt: skip
@pytest.mark.parametrize("json", [False, True])
def test_control_characters_of_a_server_do_not_reach_the_terminal(
    apex: Apex, serve: Serve, words: list[str], answer: Any, json: bool
) -> None:
    server = serve(run_result(), lambda path: (path, {}, _encoded(answer)))
    completed = apex(*words, "--url", server.url, *(["--json"] if json else []))
    assert completed.out + completed.err
    for character in completed.out + completed.err:
        assert character.isprintable() or character in "\n\t", repr(character)
    if json and completed.code == 0:
        assert completed.json == answer


def test_control_characters_of_a_run_do_not_reach_the_terminal(apex: Apex, serve: Serve, tmp_path: Path) -> None:
    failure = {"error": CONTROLS, "errorCode": CONTROLS, "exitCode": 1, "duration": 1, "warnings": [CONTROLS]}
    server = serve({**run_result(CONTROLS, f"a/{CONTROLS}"), **failure, "success": False, "id": CONTROLS})
    for more in ([], ["--out", tmp_path / "out"]):
        completed = apex("skills", "run", "x", "--url", server.url, *more)
        assert completed.code == 1
        assert all(character.isprintable() or character in "\n\t" for character in completed.out + completed.err)


def _encoded(answer: Any) -> bytes:
    return json.dumps(answer, ensure_ascii=False).encode()
