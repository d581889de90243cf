"""Git repositories and an HTTP server on loopback, for installs from addresses."""

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.making import skill_markdown

Answer = Callable[[BaseHTTPRequestHandler], None]
_GIT = ["git", "-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "init.defaultBranch=main"]


def git(folder: Path, *arguments: str, input: bytes = b"") -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        [*_GIT, *arguments], cwd=folder, env=environment, input=input, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def commands() -> str:
    """The command lines of all processes."""
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


class SourceRepository:
    """A repository with a work tree."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        git(folder, "init", "--quiet")

    @property
    def url(self) -> str:
        return f"file://{self.folder}"

    def commit(self, files: Mapping[str, str | bytes | None]) -> str:
        """Write files, or delete those that are None, and commit; returns the commit id."""
        for path, content in files.items():
            target = self.folder / path
            if content is None:
                target.unlink()
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode() if isinstance(content, str) else content)
        git(self.folder, "add", "--all", "--force")
        git(self.folder, "commit", "--quiet", "--allow-empty", "--message", "a change")
        return git(self.folder, "rev-parse", "HEAD")

    def commit_skill(self, name: str, folder: str | None = None, **fields: Any) -> str:
        return self.commit({f"{folder or f'skills/{name}'}/SKILL.md": skill_markdown(name, **fields)})


class SourceServer:
    """An HTTP server whose paths are functions."""

    def __init__(self, port: int, answers: dict[str, Answer]) -> None:
        self.port = port
        self.answers = answers
        self.requests: list[str] = []
        self.bodies: list[bytes] = []
        """Of requests to repositories."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self, path: str, body: bytes, **headers: str) -> str:
        self.answers[path] = lambda handler: send(handler, 200, body, **headers)
        return self.url + path

    def redirect(self, path: str, target: str) -> str:
        self.answers[path] = lambda handler: send(handler, 302, b"", Location=target)
        return self.url + path

    def serve_repository(self, path: str, repository: Path) -> str:
        """Serve a repository with git's own HTTP server program."""
        self.answers[path] = lambda handler: self.bodies.append(_run_http_backend(handler, path, repository))
        return self.url + path


def self_signed(folder: Path) -> Path:
    """A file with a certificate for localhost and its key."""
    path, key = folder / "cert.pem", folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-out", str(path)]
    subprocess.run([*command, "-keyout", str(key), *subject], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + key.read_bytes())
    return path


def send(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


@contextmanager
def source_server() -> Iterator[SourceServer]:
    answers: dict[str, Answer] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            server.requests.append(self.path)
            answer = next((answers[key] for key in answers if path == key or path.startswith(f"{key}/")), None)
            try:
                if answer is None:
                    send(self, 404, b"nothing")
                else:
                    answer(self)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server = SourceServer(http.server_address[1], answers)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def _run_http_backend(handler: BaseHTTPRequestHandler, prefix: str, repository: Path) -> bytes:
    """Answer a request; returns its body."""
    path, _, query = handler.path.partition("?")
    body = handler.rfile.read(int(handler.headers.get("content-length") or 0))
    environment = {
        "PATH": os.environ["PATH"],
        "GIT_PROJECT_ROOT": str(repository),
        "GIT_HTTP_EXPORT_ALL": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_PROTOCOL": handler.headers.get("git-protocol", ""),
        "PATH_INFO": path.removeprefix(prefix),
        "QUERY_STRING": query,
        "REQUEST_METHOD": handler.command,
        "CONTENT_TYPE": handler.headers.get("content-type", ""),
        "HTTP_CONTENT_ENCODING": handler.headers.get("content-encoding", ""),
    }
    done = subprocess.run(["git", "http-backend"], input=body, env=environment, capture_output=True, check=False)
    head, _, data = done.stdout.partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
    status = int(headers.pop("Status", "200").split()[0])
    send(handler, status, data, **headers)
    return body


def shop_of(*plugins: tuple[str, str], name: str = "shop") -> dict[str, str]:
    """A marketplace: plugins with one skill each."""
    entries = [{"name": plugin, "source": f"./{plugin}"} for plugin, _ in plugins]
    manifest = {"name": name, "owner": {"name": "Ada"}, "plugins": entries}
    return {
        ".claude-plugin/marketplace.json": json.dumps(manifest),
        **{f"{plugin}/skills/{skill}/SKILL.md": skill_markdown(skill) for plugin, skill in plugins},
    }
