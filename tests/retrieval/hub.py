"""A hub of models on loopback, with the routes that the client of Hugging Face's hub uses."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "5617a9f61b028005a4858fdac845db406aefb181"
ABOUT = re.compile(r"/api/models/([\w.-]+/[\w.-]+?)(?:/revision/([^/?]+))?(?:\?.*)?")
FILE = re.compile(r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)")


class Hub:
    """Each folder `owner/name` is a model with one commit."""

    commit = COMMIT

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.revisions: list[str] = []
        """Of the requests."""

    @contextmanager
    def running(self) -> Iterator["Hub"]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub._answer(self)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        if (about := ABOUT.fullmatch(handler.path)) is not None:
            folder, revision = self.folder / about[1], about[2] or "main"
            if not folder.is_dir():
                return _send(handler, 404, b"{}", {"X-Error-Code": "RepoNotFound"})
            self.revisions.append(revision)
            if revision not in ("main", COMMIT):
                return _send(handler, 404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
            found = {"id": about[1], "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
            return _send(handler, 200, json.dumps(found).encode(), {})
        if (file := FILE.fullmatch(handler.path)) is not None and (self.folder / file[1] / file[3]).is_file():
            self.revisions.append(file[2])
            content = (self.folder / file[1] / file[3]).read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            return _send(handler, 200, content, {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT})
        return _send(handler, 404, b"{}", {"X-Error-Code": "EntryNotFound"})


def _send(handler: BaseHTTPRequestHandler, status: int, content: bytes, headers: dict[str, str]) -> None:
    handler.send_response(status)
    for name, value in {**headers, "Content-Length": str(len(content))}.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command == "GET":
        handler.wfile.write(content)
