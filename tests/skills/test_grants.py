"""Grants: a skill has only permissions that it requests and that are granted to its content. Secrets stay secret."""

import json
import os
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from apexbridge.bridge import Bridge
from apexbridge.errors import ApexBridgeError, InvalidInputError
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.sandbox.launcher import syscalls
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.sandbox.proxy import is_public
from apexbridge.settings import Settings
from apexbridge.skills.package.permissions import parse
from apexbridge.skills.runs.skill_runs import SkillCall
from apexbridge.skills.runs.tracker import Run
from tests.making import skill_zip

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B20")]
SECRET = "s3cr3t+/value with spaces"
PROBE = """
import json, os, socket, sys
given = json.loads(os.environ['INPUT_JSON'])
found = {'env': {name: os.environ.get(name) for name in ('GREETING', 'TOKEN')}}
for host, port in given.get('hosts', []):
    try:
        with socket.create_connection((host, port), timeout=5) as link:
            link.sendall(b'ping')
            link.shutdown(socket.SHUT_WR)
            found[f'{host}:{port}'] = link.makefile().read()
    except OSError as error:
        found[f'{host}:{port}'] = 'refused'
for path in given.get('paths', []):
    try:
        found[path] = open(path).read()
    except OSError:
        found[path] = 'refused'
print(json.dumps(found))
"""


class EchoHandler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(b"pong " + self.rfile.read())


@pytest.fixture
def listener() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), EchoHandler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


async def install(bridge: Bridge, permissions: list[str], script: str = PROBE) -> None:
    package = skill_zip("wants", files={"scripts/execute.py": script}, permissions=permissions)
    await bridge.skills.install_skill(package, overwrite=True)


async def probe(bridge: Bridge, **input: Any) -> dict[str, Any]:
    result = await bridge.skills.execute_skill("wants", input)
    assert isinstance(result, ExecutionResult)
    assert result.success, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


async def test_only_granted_hosts_are_reachable(bridge: Bridge, listener: int) -> None:
    permission = f"net:127.0.0.1:{listener}"
    await install(bridge, [permission, f"net:localhost:{listener}"])
    hosts = [["127.0.0.1", listener], ["localhost", listener], ["127.0.0.1", listener + 1], ["192.0.2.1", 80]]
    before = await probe(bridge, hosts=hosts)
    assert {value for key, value in before.items() if key != "env"} == {"refused"}
    await bridge.skills.grant("wants", permission)
    after = await probe(bridge, hosts=hosts)
    assert after[f"127.0.0.1:{listener}"] == "pong ping"
    assert (after[f"127.0.0.1:{listener + 1}"], after["192.0.2.1:80"]) == ("refused", "refused")
    await bridge.skills.grant("wants", f"net:localhost:{listener}")
    assert (await probe(bridge, hosts=hosts))[f"localhost:{listener}"] == "pong ping"
    result = await bridge.skills.execute_skill("wants")
    assert isinstance(result, ExecutionResult)
    assert str(listener) in str(result.enforcement["net"]), "the result lists the allowed hosts"
    await bridge.skills.revoke("wants", permission)
    await bridge.skills.revoke("wants", f"net:localhost:{listener}")
    assert (await probe(bridge, hosts=hosts))[f"127.0.0.1:{listener}"] == "refused"


@pytest.mark.slow
async def test_a_granted_remote_address_goes_through_the_proxy(bridge: Bridge) -> None:
    await install(bridge, ["net:192.0.2.7:80"])
    await bridge.skills.grant("wants", "net:192.0.2.7:80")
    found = await probe(bridge, hosts=[["192.0.2.7", 80], ["192.0.2.8", 80]])
    assert found["192.0.2.8:80"] == "refused"
    assert found["192.0.2.7:80"] in ("", "refused"), (
        "the proxy may accept the connection, but the remote address does not answer"
    )


async def test_a_host_name_that_resolves_to_a_private_address_is_refused(
    bridge: Bridge, listener: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    loop = asyncio.get_running_loop()

    async def resolve_to_loopback(host: str, port: int, **_: Any) -> list[Any]:
        return [(2, 1, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(loop, "getaddrinfo", resolve_to_loopback)
    await install(bridge, [f"net:rebinding.example:{listener}"])
    await bridge.skills.grant("wants", f"net:rebinding.example:{listener}")
    found = await probe(bridge, hosts=[["rebinding.example", listener]])
    assert "pong" not in found[f"rebinding.example:{listener}"]


async def test_variables_and_paths_are_available_only_when_granted(
    bridge: Bridge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GREETING", "hello")
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "a.txt").write_text("read me")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder.name:
            folder.chmod(folder.stat().st_mode | 0o011)
    (tmp_path / "beside.txt").write_text("not me")
    await install(bridge, ["env:GREETING", f"fs:ro:{shown}"])
    paths = [str(shown / "a.txt"), str(tmp_path / "beside.txt")]
    before = await probe(bridge, paths=paths)
    assert (before["env"]["GREETING"], before[paths[0]]) == (None, "refused")
    for permission in ("env:GREETING", f"fs:ro:{shown}"):
        await bridge.skills.grant("wants", permission)
    after = await probe(bridge, paths=paths)
    assert (after["env"]["GREETING"], after[paths[0]], after[paths[1]]) == ("hello", "read me", "refused")
    monkeypatch.delenv("GREETING")
    with pytest.raises(ApexBridgeError) as caught:
        await probe(bridge)
    assert caught.value.code == "PERMISSION_DENIED"


async def test_secrets_reach_only_the_skill(bridge: Bridge, data_dir: Path) -> None:
    script = """
import base64, os, sys, urllib.parse
token = os.environ.get('TOKEN', 'none')
print(token)
print(token, file=sys.stderr)
print(base64.b64encode(token.encode()).decode(), urllib.parse.quote(token), repr(token))
for character in token:
    sys.stdout.write(character); sys.stdout.flush()
open('output/safe.txt', 'w').write('nothing here')
open('output/leak.txt', 'w').write('token=' + token)
open('output/coded.txt', 'w').write(base64.b64encode(token.encode()).decode())
open('output/' + urllib.parse.quote(token, safe='') + '.txt', 'w').write('')
raise SystemExit(token)
"""
    await install(bridge, ["secret:TOKEN"], script)
    await bridge.skills.grant("wants", "secret:TOKEN")
    with pytest.raises(ApexBridgeError) as caught:
        await bridge.skills.execute_skill("wants")
    assert (caught.value.code, "apex secrets set TOKEN" in caught.value.message) == ("PERMISSION_DENIED", True)
    bridge.skills.grants.secrets.set("TOKEN", SECRET)
    assert bridge.skills.grants.secrets.names() == ["TOKEN"]
    assert (data_dir / "secrets.json").stat().st_mode & 0o777 == 0o600
    result = await bridge.skills.execute_skill("wants")
    assert isinstance(result, ExecutionResult)
    payload = result.model_dump_json() + json.dumps(
        [event.data async for event in bridge.runs.events(result.id)], default=str
    )
    assert SECRET not in payload
    assert result.stdout.startswith("***\n")
    assert result.error == "***"
    assert [file.path for file in result.files] == ["safe.txt"]
    assert any("leak.txt" in warning for warning in result.warnings)
    written = b"".join(
        path.read_bytes() for path in data_dir.rglob("*") if path.is_file() and path.name != "secrets.json"
    )
    assert SECRET.encode() not in written
    bridge.skills.grants.secrets.remove("TOKEN")
    with pytest.raises(ApexBridgeError):
        bridge.skills.grants.secrets.remove("TOKEN")


async def test_concurrent_secret_writes_are_all_saved(bridge: Bridge) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(anyio.to_thread.run_sync, bridge.skills.grants.secrets.set, f"S{number}", "value")
    assert len(bridge.skills.grants.secrets.names()) == 30


async def test_a_content_change_voids_every_grant(bridge: Bridge, data_dir: Path, listener: int) -> None:
    permission = f"net:127.0.0.1:{listener}"
    await install(bridge, [permission])
    await bridge.skills.grant("wants", permission)
    assert (await bridge.skills.get_skill("wants")).grants == [permission]
    script = data_dir / "skills/wants/scripts/execute.py"
    script.write_text(PROBE + "# changed by hand, and nobody has noticed yet\n")
    assert (await probe(bridge, hosts=[["127.0.0.1", listener]]))[f"127.0.0.1:{listener}"] == "refused"
    with pytest.raises(InvalidInputError, match="changed"):
        await bridge.skills.grant("wants", permission)
    await bridge.skills.reload_skill("wants")
    (view,) = await bridge.skills.grants_of("wants")
    assert (view.permission, view.state) == (permission, "void")
    assert (await bridge.skills.get_skill("wants")).grants == []
    await bridge.skills.grant("wants", permission)
    await bridge.skills.uninstall_skill("wants")
    await install(bridge, [permission])
    assert [view.state for view in await bridge.skills.grants_of("wants")] == ["requested"]


async def test_a_queued_run_fails_if_its_content_changed(data_dir: Path, embedder: Embedder) -> None:
    settings = Settings(data_dir=data_dir, sandbox_max_concurrency=1)
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge:
        bridge.skills.grants.secrets.set("TOKEN", SECRET)
        await bridge.skills.install_skill(skill_zip("waits", files={"scripts/execute.sh": "sleep 60"}))
        await install(bridge, ["secret:TOKEN"])
        await bridge.skills.grant("wants", "secret:TOKEN")
        blocking = await bridge.skills.runner.call(SkillCall(skill="waits"))
        waiting = await bridge.skills.runner.call(SkillCall(skill="wants"))
        assert isinstance(blocking, Run)
        assert isinstance(waiting, Run)
        await install(bridge, ["secret:TOKEN"], "import os\nprint(os.environ.get('TOKEN', 'nothing')[::-1])")
        blocking.cancel()
        with pytest.raises(ApexBridgeError) as caught:
            await waiting.result()
        assert caught.value.code == "BUSY"
        record = await bridge.runs.get(waiting.id)
        assert record.result is not None
        assert (record.state, record.result.stdout) == ("error", "")


async def test_only_requested_permissions_can_be_granted_and_only_granted_ones_revoked(
    bridge: Bridge, data_dir: Path
) -> None:
    await install(bridge, ["env:GREETING", f"fs:ro:{data_dir}", "fs:ro:/no/such/path", "net:*:443"])
    with pytest.raises(InvalidInputError, match="does not ask"):
        await bridge.skills.grant("wants", "env:OTHER")
    with pytest.raises(InvalidInputError, match="server's own data"):
        await bridge.skills.grant("wants", f"fs:ro:{data_dir}")
    with pytest.raises(InvalidInputError, match="does not exist"):
        await bridge.skills.grant("wants", "fs:ro:/no/such/path")
    with pytest.raises(InvalidInputError, match="wildcards"):
        await bridge.skills.grant("wants", "net:*:443")
    with pytest.raises(InvalidInputError, match="was not granted"):
        await bridge.skills.revoke("wants", "env:GREETING")


async def test_a_grant_is_removed_when_its_skill_is_moved_away_by_hand(
    bridge: Bridge, data_dir: Path, tmp_path: Path
) -> None:
    await install(bridge, ["env:GREETING"])
    await bridge.skills.grant("wants", "env:GREETING")
    (data_dir / "skills/wants").rename(tmp_path / "away")
    await bridge.skills.reconcile()
    (tmp_path / "away").rename(data_dir / "skills/wants")
    await bridge.skills.reconcile()
    assert [view.state for view in await bridge.skills.grants_of("wants")] == ["requested"]


async def test_access_to_the_server_is_never_granted(bridge: Bridge, data_dir: Path) -> None:
    (data_dir / "server.json").write_text(json.dumps({"url": "http://127.0.0.1:8420"}))
    await install(bridge, ["net:127.0.0.1:8420", "net:localhost:8420"])
    for permission in ("net:127.0.0.1:8420", "net:localhost:8420"):
        with pytest.raises(InvalidInputError, match="this server"):
            await bridge.skills.grant("wants", permission)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "net",
        "net:host",
        "net:host:0",
        "net:host:65536",
        "net:host:80:90",
        "net:*.example.com:80",
        "net:[::1]:80",
        "net:::1:80",
        "net:1.2.3:80",
        "net:999.1.1.1:80",
        "net:0x7f000001:80",
        "net:127.0.0.0x1:80",
        "net:0:80",
        "fs:ro:/a\nb",
        "net:-bad:80",
        "env:",
        "env:A B",
        "env:PATH",
        "env:INPUT_JSON",
        "secret:a-b",
        "secret:HOME",
        "fs:rw:/x",
        "fs:ro:relative",
        "fs:ro:/",
        "fs:ro:/a/../b",
        "fs:ro:/proc/1",
        "fs:ro:/dev/mem",
        "fs:ro://sys",
        "fs:ro:///proc/1",
        "net:a.b:²",
        "all",
    ],
)
def test_an_invalid_permission_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidInputError):
        parse(wrong)


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("net:EXAMPLE.com:0443", "net:example.com:443"),
        ("net:LocalHost:80", "net:localhost:80"),
        ("net:10.0.0.1:00080", "net:10.0.0.1:80"),
        ("fs:ro:/srv//data/./x/", "fs:ro:/srv/data/x"),
        ("fs:ro://srv", "fs:ro:/srv"),
        ("env:GREETING", "env:GREETING"),
        ("secret:TOKEN", "secret:TOKEN"),
    ],
)
def test_a_permission_has_one_canonical_form(written: str, canonical: str) -> None:
    assert parse(written).text == canonical
    assert parse(canonical).text == canonical


async def test_requested_and_granted_permissions_are_compared_in_canonical_form(bridge: Bridge, tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    await install(bridge, ["net:EXAMPLE.com:0443", f"fs:ro:{shown}//.", "net:example.com:443"])
    canonical = ["net:example.com:443", f"fs:ro:{shown}"]
    assert [view.permission for view in await bridge.skills.grants_of("wants")] == canonical
    await bridge.skills.grant("wants", "net:Example.COM:443")
    await bridge.skills.grant("wants", f"fs:ro:{shown}/")
    views = await bridge.skills.grants_of("wants")
    assert [(view.permission, view.state) for view in views] == [(permission, "granted") for permission in canonical]
    await bridge.skills.revoke("wants", "net:EXAMPLE.com:00443")
    assert [view.state for view in await bridge.skills.grants_of("wants")] == ["requested", "granted"]


# ------------------------------------------------------------------------------------------------------------- mounts
Mounter = Callable[..., Path]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Mounter]:
    """Mount below the test's folder, and unmount afterwards."""
    points: list[Path] = []

    def mount(source: str | Path, name: str, kind: str | None = None) -> Path:
        point = tmp_path / name
        point.mkdir(parents=True, exist_ok=True)
        syscalls.mount(str(source), str(point), kind, 0 if kind else syscalls.MS_BIND)
        points.append(point)
        return point

    assert os.getuid() == 0, "mounting needs root: run the tests as root, for example in a container"
    try:
        yield mount
    finally:
        for point in reversed(points):
            with suppress(OSError):  # unmount the others anyway
                syscalls.unmount(str(point))


async def check_refused(bridge: Bridge, paths: list[Path], reason: str) -> None:
    await install(bridge, [f"fs:ro:{path}" for path in paths])
    for path in paths:
        with pytest.raises(InvalidInputError, match=reason):
            await bridge.skills.grant("wants", f"fs:ro:{path}")


async def test_kernel_file_systems_are_not_granted_at_any_mount_point(
    bridge: Bridge, mounted: Mounter, tmp_path: Path
) -> None:
    paths = [
        mounted("proc", "some/proc", "proc"),
        mounted("sysfs", "some/sys", "sysfs"),
        mounted("/dev", "some/dev"),
        mounted("/dev/pts", "some/pts"),
        mounted("mqueue", "some/queues", "mqueue"),
        tmp_path / "some/proc/self",
    ]
    await check_refused(bridge, paths, "kernel")


async def test_server_data_is_not_granted_through_another_mount_or_hard_link(
    bridge: Bridge, data_dir: Path, mounted: Mounter, tmp_path: Path
) -> None:
    bridge.skills.grants.secrets.set("TOP", "topsecret")
    linked = tmp_path / "linked.json"
    linked.hardlink_to(data_dir / "secrets.json")
    paths = [
        mounted(data_dir, "aliases/data"),
        mounted(data_dir / "skills", "aliases/skills"),
        mounted(data_dir.parent, "aliases/parent"),
        tmp_path / "aliases/data/skills",
        tmp_path / "aliases/data/secrets.json",
        linked,
        data_dir / "secrets.json",
        data_dir.parent,
    ]
    await check_refused(bridge, paths, "server's own data")


async def test_granted_paths_are_checked_for_new_mounts_before_each_run(
    bridge: Bridge, data_dir: Path, mounted: Mounter, tmp_path: Path
) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    await install(bridge, [f"fs:ro:{shown}"])
    await bridge.skills.grant("wants", f"fs:ro:{shown}")
    mounted(data_dir, "shown")
    with pytest.raises(ApexBridgeError) as caught:
        await probe(bridge)
    assert "server's own data" in str(caught.value)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("64:ff9b::5db8:d822", True),
        ("10.0.0.1", False),
        ("169.254.169.254", False),
        ("168.63.129.16", False),
        ("100.100.100.200", False),
        ("224.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:168.63.129.16", False),
        ("::10.0.0.1", False),
        ("64:ff9b::a00:1", False),
        ("64:ff9b::a83f:8110", False),
        ("64:ff9b:1::5db8:d822", False),
        ("2002:a00:1::1", False),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", False),
        ("fe80::1%eth0", False),
        ("fd00:ec2::254", False),
    ],
)
def test_only_internet_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize("bad", ["", "a\0b", "x" * 40_000, "\ud800"])
async def test_an_invalid_secret_value_is_refused(bridge: Bridge, bad: str) -> None:
    with pytest.raises(InvalidInputError):
        bridge.skills.grants.secrets.set("TOKEN", bad)
