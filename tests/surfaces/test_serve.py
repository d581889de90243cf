"""A real server in its own process, over loopback."""

import json
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from apexbridge.errors import ServerError
from apexbridge.storage.directory import owned
from apexbridge.surfaces.http.serve import check_host
from tests.making import skill_zip, walk, write_skill
from tests.surfaces.conftest import APEX, Apex, Server, StartServer, environment
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent.parent / "examples/skills"


def upload_head(size: int, *more: str) -> bytes:
    head = "POST /api/skills HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/zip", f"Content-Length: {size}"
    return "\r\n".join([*head, *more, "", ""]).encode()


def test_the_first_start_installs_the_examples_and_prints_the_docs_url(start_server: StartServer) -> None:
    server = start_server("--examples", str(EXAMPLES))
    assert "/docs" in server.startup_output
    names = {
        skill["name"] for skill in httpx.get(f"{server.url}/api/skills", timeout=PATIENCE_SECONDS).json()["skills"]
    }
    assert names == {path.name for path in EXAMPLES.iterdir()}
    assert len(names) == 5
    httpx.delete(f"{server.url}/api/skills/{sorted(names)[0]}", timeout=PATIENCE_SECONDS).raise_for_status()
    assert server.stop() == 0
    again = start_server("--examples", str(EXAMPLES))
    assert httpx.get(f"{again.url}/api/skills", timeout=PATIENCE_SECONDS).json()["total"] == 4, (
        "a removed example is not installed again"
    )


def test_commands_use_the_running_server(start_server: StartServer, apex: Apex, tmp_path: Path) -> None:
    server = start_server()
    announced = json.loads((server.data_dir / "server.json").read_text())
    assert (announced["url"], announced["pid"]) == (server.url, server.process.pid)
    assert (server.data_dir / "server.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "x.zip").write_bytes(skill_zip())
    assert apex("skills", "install", tmp_path / "x.zip").code == 0
    assert httpx.get(f"{server.url}/api/skills/git-commit", timeout=PATIENCE_SECONDS).status_code == 200
    assert apex("skills", "import", write_skill(tmp_path / "more", "one").parent, "--json").json["counts"] == {
        "installed": 1
    }
    assert apex("skills", "list", "--url", server.url, "--json").json["total"] == 2
    assert apex("skills", "export", "one", "--json").json["size"] > 0
    assert server.stop() == 0
    assert not (server.data_dir / "server.json").exists()
    assert apex("skills", "list", "--json").json["total"] == 2


def test_commands_ignore_a_proxy_of_the_environment(
    start_server: StartServer, apex: Apex, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_server()
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert apex("skills", "list", "--json").json["total"] == 0


def test_concurrent_commands_wait_for_each_other(data_dir: Path) -> None:
    write_skill(data_dir / "skills", "a")
    command = [*APEX, "skills", "list", "--json", "--data-dir", str(data_dir)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        for _ in range(6)
    ]
    for process in running:
        out, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert json.loads(out)["total"] == 1


def test_a_stale_server_file_is_ignored(start_server: StartServer, apex: Apex) -> None:
    server = start_server()
    server.stop(signal.SIGKILL)
    assert (server.data_dir / "server.json").exists()
    assert apex("skills", "list", "--json").json["total"] == 0
    assert start_server().process.poll() is None


def test_a_command_never_uses_the_server_of_another_directory(
    start_server: StartServer, apex: Apex, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apexbridge.surfaces.cli.client.WAIT_SECONDS", 0.3)
    other = start_server(folder=tmp_path / "other")
    with owned(data_dir):
        (data_dir / "server.json").write_text(json.dumps({"url": other.url, "pid": 1, "instance": "gone"}))
        assert apex("skills", "list", "--json").json["code"] == "DATA_DIR_IN_USE"
    write_skill(data_dir / "skills", "a")
    assert apex("skills", "list", "--json").code == 0
    assert not (data_dir / "server.json").exists()


def test_a_second_server_on_one_directory_is_refused(start_server: StartServer) -> None:
    server = start_server()
    command = [*APEX, "serve", "--port", "0", "--data-dir", str(server.data_dir)]
    second = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), timeout=30)
    assert second.returncode == 1
    assert "in use" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_port_in_use_is_explained(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server()
    port = server.url.rsplit(":", 1)[1]
    command = [*APEX, "serve", "--port", port, "--data-dir", str(tmp_path / "other")]
    second = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), timeout=30)
    assert second.returncode == 1
    assert "--port" in second.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_only_loopback_is_bound_without_keys(host: str) -> None:
    with pytest.raises(ServerError) as caught:
        check_host(host)
    assert caught.value.code == "FORBIDDEN"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_addresses_are_bound_without_keys(host: str) -> None:
    check_host(host)


def test_serving_on_all_interfaces_without_keys_is_refused(apex: Apex) -> None:
    completed = apex("serve", "--host", "0.0.0.0")
    assert completed.code == 1
    assert "127.0.0.1" in completed.err


@pytest.mark.requirement("D10")
def test_an_install_is_visible_to_the_next_request(start_server: StartServer) -> None:
    server = start_server()
    for number in range(5):
        installed = httpx.post(
            f"{server.url}/api/skills",
            timeout=PATIENCE_SECONDS,
            content=skill_zip(f"s-{number}"),
            headers={"content-type": "application/zip"},
        )
        assert installed.status_code == 201
        assert httpx.get(f"{server.url}/api/skills/s-{number}", timeout=PATIENCE_SECONDS).status_code == 200
        assert httpx.delete(f"{server.url}/api/skills/s-{number}", timeout=PATIENCE_SECONDS).status_code == 200
        assert httpx.get(f"{server.url}/api/skills/s-{number}", timeout=PATIENCE_SECONDS).status_code == 404


def test_an_interrupted_upload_leaves_no_files(start_server: StartServer) -> None:
    server = start_server()
    before = walk(server.data_dir)
    host, port = server.url.removeprefix("http://").split(":")
    for body in (skill_zip()[:100], b""):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(upload_head(5000) + body)
    assert httpx.get(f"{server.url}/healthz", timeout=PATIENCE_SECONDS).status_code == 200
    assert walk(server.data_dir) == before


def test_a_refused_large_upload_gets_a_response(start_server: StartServer) -> None:
    server = start_server()
    data = b"PK\3\4" + bytes(52 * 1024 * 1024)
    response = httpx.post(
        f"{server.url}/api/skills",
        timeout=PATIENCE_SECONDS,
        content=data,
        headers={"content-type": "application/zip"},
    )
    assert (response.status_code, response.json()["code"]) == (413, "ARCHIVE_TOO_LARGE")


@contextmanager
def upload_in_progress(server: Server, size: int) -> Iterator[socket.socket]:
    """Start an upload and wait until the application asks for its body."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(upload_head(size, "Expect: 100-continue"))
        assert b"100 Continue" in connection.recv(1000)
        yield connection


def wait_until_connections_are_refused(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")

    def is_refused() -> bool:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return True
        return False

    wait_until(is_refused)


def test_a_request_in_progress_is_answered_before_shutdown(start_server: StartServer) -> None:
    server, body = start_server(), skill_zip()
    with upload_in_progress(server, len(body)) as connection:
        server.process.send_signal(signal.SIGTERM)
        wait_until_connections_are_refused(server)
        connection.sendall(body)
        response = connection.recv(65536)
    assert b" 201 " in response.split(b"\r\n", 1)[0]
    assert server.process.wait(60) == 0


def test_a_second_signal_stops_the_server_immediately(start_server: StartServer) -> None:
    server = start_server()
    with upload_in_progress(server, 99):
        server.process.send_signal(signal.SIGTERM)
        wait_until_connections_are_refused(server)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
    assert not (server.data_dir / "server.json").exists()


@pytest.mark.slow
def test_a_real_browser_renders_the_documentation_offline(start_server: StartServer, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert browser, "a browser is needed; make test installs one"
    server = start_server()
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    quiet = "--disable-component-update --disable-quic --virtual-time-budget=20000 --dump-dom"
    loopback_only = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"
    command = [
        browser,
        *flags.split(),
        *quiet.split(),
        loopback_only,
        f"--user-data-dir={tmp_path / 'profile'}",
        f"{server.url}/docs",
    ]
    page = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert len(re.findall(r'class="opblock ', page)) > 15, "one block per route"
    assert "/api/skills/install" in page


def test_serve_prints_its_url_as_json(data_dir: Path) -> None:
    command = [*APEX, "serve", "--port", "0", "--data-dir", str(data_dir), "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        announced = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        assert httpx.get(f"{announced['url']}/healthz", timeout=PATIENCE_SECONDS).status_code == 200
        assert announced["pid"] == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
