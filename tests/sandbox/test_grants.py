"""A run gets exactly what an operator granted: hosts, variables, secrets, paths."""

import base64
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import anyio
import anyio.abc
import pytest

from apexbridge.sandbox.launcher import syscalls
from apexbridge.sandbox.models import Grants
from apexbridge.sandbox.proxy import MAX_CONNECTIONS, host_endpoints
from tests.sandbox.bench import Bench, OutputRecorder

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B20")]


@pytest.fixture
async def echo(anyio_backend: str) -> AsyncIterator[int]:
    """An echo server on this host; yields its port."""

    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            async for chunk in stream:
                await stream.send(chunk)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        yield listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        path = Path(made)
        path.chmod(0o755)
        for name in ("shown/inner.txt", "beside.txt"):
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_text(name)
        yield path


TALKS = """
import json, os, socket
payload = json.loads(os.environ["INPUT_JSON"])
with socket.create_connection((payload["host"], payload["port"]), 10) as link:
    for chunk in (b"hello ", b"x" * 500_000): link.sendall(chunk)
    link.shutdown(socket.SHUT_WR)
    got = b""
    while data := link.recv(65536): got += data
print(json.dumps([got[:6].decode(), len(got)]))
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_granted_host_can_be_reached(bench: Bench, echo: int, host: str) -> None:
    grants = Grants(hosts=((host, echo),))
    assert await bench.run_json(TALKS, grants=grants, input={"host": host, "port": echo}) == ["hello ", 500_006]


async def test_with_one_host_granted_no_other_can_be_reached(bench: Bench, echo: int) -> None:
    text = """
import json, os, socket
payload, reached = json.loads(os.environ["INPUT_JSON"]), []
def attempt(name, action):
    try: action(); reached.append(name)
    except OSError: pass
for address in [["127.0.0.1", payload["closed"]], ["127.0.0.2", payload["echo"]], ["192.0.2.1", 80], ["8.8.8.8", 53]]:
    attempt(address, lambda: socket.create_connection(tuple(address), 2).close())
for name in ("example.com", "localhost.localdomain", payload["host"]):
    attempt(name, lambda: socket.getaddrinfo(name, 80))
attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect("\\0" + payload["abstract"]))
attempt("udp", lambda: socket.create_connection(("192.0.2.1", 53), 2))
for family, kind in ((16, 3), (17, 3), (38, 5), (40, 1), (2, 3)):
    attempt(f"family {family}", lambda: socket.socket(family, kind).close())
print(json.dumps(reached))
"""
    with ExitStack() as stack:
        closed = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        name = f"apexbridge-test-{os.getpid()}"
        abstract.bind(f"\0{name}")
        abstract.listen()
        payload = {"closed": closed.getsockname()[1], "echo": echo, "abstract": name, "host": socket.gethostname()}
        assert await bench.run_json(text, grants=Grants(hosts=(("127.0.0.1", echo),)), input=payload) == []


async def test_the_number_of_connections_of_a_run_is_limited(cold: Bench, echo: int) -> None:
    text = """
import json, os, socket
port, links, answered = json.loads(os.environ["INPUT_JSON"])["port"], [], 0
for _ in range(100):
    link = socket.create_connection(("127.0.0.1", port), 10)
    links.append(link)
    link.settimeout(10)
    try: link.sendall(b"x"); answered += link.recv(1) == b"x"
    except OSError: pass
print(json.dumps(answered))
"""
    answered = await cold.run_json(text, grants=Grants(hosts=(("127.0.0.1", echo),)), input={"port": echo})
    assert answered == MAX_CONNECTIONS


async def test_an_unreachable_host_only_closes_the_connection(cold: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    text = f"""
import json, socket
with socket.create_connection(("127.0.0.1", {port}), 10) as link: print(json.dumps(link.recv(1).decode()))
"""
    assert await cold.run_json(text, grants=Grants(hosts=(("127.0.0.1", port),))) == ""


async def test_a_run_with_open_connections_can_time_out(bench: Bench, echo: int) -> None:
    recorder = OutputRecorder()
    text = f"""
import os, socket, time
link = socket.create_connection(("127.0.0.1", {echo}), 10)
print("begun", flush=True)
time.sleep(1000)
"""
    result = await bench.run(text, grants=Grants(hosts=(("127.0.0.1", echo),)), listener=recorder, timeout_ms=800)
    assert (result.status, recorder.text) == ("timeout", "begun\n")


def test_every_granted_host_name_has_its_own_address() -> None:
    hosts = (("a.example", 80), ("b.example", 80), ("a.example", 443), ("192.0.2.7", 80), ("localhost", 80))
    found = host_endpoints(Grants(hosts=(*hosts, *hosts)))
    assert [(port, name) for _, port, name in found] == [(port, name) for name, port in hosts]
    addresses = {name: address for address, _, name in found}
    assert len(set(addresses.values())) == 4
    assert (addresses["192.0.2.7"], addresses["localhost"]) == ("192.0.2.7", "127.0.0.1")


async def test_granted_variables_may_have_names_that_a_shell_cannot_set(bench: Bench) -> None:
    result = await bench.run("/usr/bin/env", "sh", grants=Grants(variables={"PPID": "1", "REGION": "north"}))
    assert "REGION=north" in result.stdout.splitlines()


async def test_granted_variables_are_set_for_that_run_only(bench: Bench) -> None:
    grants = Grants(variables={"REGION": "日本"})
    text = "import json, os; print(json.dumps(dict(os.environ)))"
    found = await bench.run_json(text, grants=grants)
    assert found["REGION"] == "日本"
    assert "REGION" not in await bench.run_json(text)


@pytest.mark.parametrize("suffix", ["py", "js", "sh"])
async def test_a_secret_reaches_the_script_and_neither_output_nor_listener_nor_files(
    bench: Bench, suffix: str, tmp_path: Path
) -> None:
    secret = 'key "with/odd+letters"=='
    text = {
        "py": "import os, time\nfor letter in os.environ['TOKEN']: os.write(1, letter.encode()); time.sleep(0.002)",
        "js": "process.stdout.write(JSON.stringify(process.env.TOKEN)); console.error(process.env.TOKEN)",
        "sh": 'printf %s "$TOKEN" | tee output/leak; printf %s "$TOKEN" | base64 >&2',
    }[suffix]
    recorder = OutputRecorder()
    result = await bench.run(
        text, suffix, grants=Grants(secrets={"TOKEN": secret}), listener=recorder, artifacts=tmp_path / "artifacts"
    )
    assert result.success, result.error
    everything = result.model_dump_json() + recorder.text + json.dumps(result.warnings)
    for shape in (secret, json.dumps(secret)[1:-1], base64.b64encode(secret.encode()).decode()):
        assert shape not in everything
        assert json.dumps(shape)[1:-1] not in everything
    assert "***" in result.stdout
    assert result.files == []


async def test_a_secret_in_an_error_is_masked(bench: Bench) -> None:
    result = await bench.run(
        "import os; raise ValueError(os.environ['TOKEN'])", grants=Grants(secrets={"TOKEN": "hunter2"})
    )
    assert (result.error, "hunter2" in result.stderr) == ("ValueError: ***", False)


def identity(path: str | Path) -> tuple[int, int]:
    found = Path(path).stat()
    return found.st_dev, found.st_ino


async def test_only_a_granted_path_can_be_read(bench: Bench, folder: Path) -> None:
    text = """
import json, os
payload, report = json.loads(os.environ["INPUT_JSON"]), {}
def attempt(name, action):
    try: action(); report[name] = True
    except OSError: report[name] = False
attempt("read", lambda: open(payload["shown"] + "/inner.txt").read())
attempt("write", lambda: open(payload["shown"] + "/inner.txt", "a"))
attempt("create", lambda: open(payload["shown"] + "/new", "w"))
attempt("beside", lambda: open(payload["beside"]))
attempt("list above", lambda: os.listdir(os.path.dirname(payload["beside"])))
print(json.dumps(report))
"""
    shown, beside = str(folder / "shown"), str(folder / "beside.txt")
    payload = {"shown": shown, "beside": beside}
    report = await bench.run_json(text, grants=Grants(paths={shown: identity(shown)}), input=payload)
    assert report == {"read": True, "write": False, "create": False, "beside": False, "list above": False}
    assert not (await bench.run_json(text, input=payload))["read"]


async def test_mounts_below_a_granted_path_are_hidden(each_backend: Bench, folder: Path) -> None:
    if os.getuid() != 0:
        return  # `test_normal_user.py` tests the same
    shown = folder / "shown"
    for name in ("proc", "other", "file"):
        (shown / name).touch() if name == "file" else (shown / name).mkdir()
    text = f"""
import json, os
os.chdir({str(shown)!r})
print(json.dumps([os.listdir("proc"), os.listdir("other"), open("file").read()]))
"""
    try:
        syscalls.mount("proc", str(shown / "proc"), "proc", 0)
        syscalls.mount("tmpfs", str(shown / "other"), "tmpfs", 0)
        (shown / "other/secret").touch()
        syscalls.mount(str(folder / "beside.txt"), str(shown / "file"), None, syscalls.MS_BIND)
        result = await each_backend.run(text, grants=Grants(paths={str(shown): identity(shown)}))
    finally:
        for name in ("proc", "other", "file"):
            with suppress(OSError):  # not mounted
                syscalls.unmount(str(shown / name))
    if each_backend.sandbox.settings.backend == "landlock":
        assert (result.error_code, "mounted below" in (result.error or "")) == ("SPAWN_FAILED", True)
    else:
        assert result.stdout == '[[], [], ""]\n'


async def test_a_folder_that_replaced_the_granted_one_is_not_mounted(each_backend: Bench, folder: Path) -> None:
    result = await each_backend.run("print('ran')", grants=Grants(paths={str(folder / "shown"): identity(folder)}))
    assert (result.error_code, result.stdout) == ("SPAWN_FAILED", "")


async def test_a_result_lists_what_was_granted(bench: Bench, folder: Path) -> None:
    grants = Grants(hosts=(("192.0.2.1", 443),), paths={str(folder / "shown"): identity(folder / "shown")})
    result = await bench.run("pass", grants=grants)
    assert str(result.enforcement["net"]).endswith("192.0.2.1:443")
    assert str(folder / "shown") in str(result.enforcement["fs"])


async def test_grants_that_the_backend_cannot_provide_are_refused(each_backend: Bench) -> None:
    backend = (await each_backend.sandbox.ready()).backend
    result = await each_backend.run("print('ran')", grants=Grants(hosts=(("192.0.2.1", 443),)))
    if backend.has_namespaces:
        assert result.stdout == "ran\n"
    else:
        assert (result.error_code, result.stdout) == ("SPAWN_FAILED", "")
        assert "granted hosts" in (result.error or "")
