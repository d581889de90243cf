"""Promises of the security page about Landlock, plain and the launcher that other tests do not cover."""

import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from apexbridge.sandbox.backends import FIRST_UID
from apexbridge.sandbox.config import MB, SandboxLimits, SandboxSettings
from apexbridge.sandbox.launcher.main import MAX_UIDS
from apexbridge.sandbox.models import InputFile
from apexbridge.sandbox.sandbox import Sandbox
from tests.sandbox.bench import Bench, descendants, quiet, warm_up_with_retry
from tests.sandbox.conftest import KINDS
from tests.sandbox.hostile_scripts import bait
from tests.sandbox.other_hosts import CHANGES_ITS_INPUT, GUARANTEES_OF_PLAIN, IN_MEMORY, USER, report_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
IS_ROOT = os.getuid() == 0
ROOT = Path(__file__).parents[2]


@pytest.fixture
def payload(tmp_path: Path) -> Iterator[dict[str, Any]]:
    with bait(tmp_path) as found:
        yield found


@pytest.fixture
async def plain(tmp_path: Path, anyio_backend: str) -> AsyncIterator[Bench]:
    """The plain backend, with little memory, so that the limit is reached soon."""
    limits = SandboxLimits(memory_bytes=64 * MB)
    sandbox = Sandbox(SandboxSettings(backend="plain", require=GUARANTEES_OF_PLAIN, limits=limits))
    async with sandbox.running():
        yield Bench(sandbox, tmp_path)


@pytest.fixture(scope="module")
def of_a_user() -> dict[str, Any]:
    """The report of a normal user's server."""
    report: dict[str, Any] = report_of("user")
    assert report["user"] == (USER if IS_ROOT else os.getuid())
    return report


# ------------------------------------------------------------------------------------------------- Landlock
async def test_landlock_does_not_hide_that_a_path_exists_its_size_owner_and_times(
    landlock: Bench, payload: dict[str, Any]
) -> None:
    text = """
import json, os
path = json.loads(os.environ["INPUT_JSON"])["secret"]
try: report = open(path).read()
except PermissionError: report = None
found = os.stat(path)
print(json.dumps([report, found.st_size, found.st_uid, found.st_mtime_ns, os.path.exists(path + "-not-there")]))
"""
    found = Path(payload["secret"]).stat()
    seen = [None, found.st_size, found.st_uid, found.st_mtime_ns, False]
    assert await landlock.run_json(text, input=payload) == seen


async def test_with_landlock_proc_cannot_be_read_and_programs_that_need_it_fail(landlock: Bench) -> None:
    text = """
import json, os
opened = []
for path in ("/proc", "/proc/self", "/proc/self/fd", "/proc/1"):
    try: os.listdir(path); opened.append(path)
    except PermissionError: pass
for name in ("self/status", "self/environ", "self/maps", "meminfo", "version", "cpuinfo", "1/cmdline"):
    try: open("/proc/" + name, "rb").close(); opened.append(name)
    except PermissionError: pass
print(json.dumps(opened))
"""
    assert await landlock.run_json(text) == []
    result = await landlock.run("ps", "sh")
    assert (result.error_code, result.stdout) == ("EXIT_NONZERO", "")


async def test_with_landlock_no_file_is_larger_than_64_megabytes(landlock: Bench) -> None:
    # A sparse file: the watchdog has nothing to count, so it is the kernel that refuses.
    text = """
import json
with open("large", "wb") as file:
    file.truncate(64 << 20)
    try: file.truncate((64 << 20) + 1); report = "larger"
    except OSError as error: report = error.strerror
print(json.dumps(report))
"""
    assert await landlock.run_json(text) == "File too large"


async def test_with_landlock_input_files_can_be_replaced_and_the_originals_are_unchanged(
    landlock: Bench, of_a_user: dict[str, Any]
) -> None:
    original = io.BytesIO(b"of the server")
    report = await landlock.run_json(CHANGES_ITS_INPUT, files=(InputFile(name="private", file=original),))
    assert report == of_a_user["landlock"] == [[], "of the server", "another"]
    assert original.getvalue().decode() == of_a_user["original"] == "of the server"


@pytest.mark.parametrize("kind", ["warm", "landlock"])
async def test_with_landlock_nothing_is_started_beforehand(kind: str) -> None:
    sandbox = Sandbox(KINDS[kind].model_copy(update={"warm": 1}))
    async with sandbox.running():
        await warm_up_with_retry(sandbox)
        await quiet()
        launcher = (await sandbox.ready()).launcher.pid
        assert launcher is not None
        assert bool(descendants(launcher)) == (kind == "warm")


def test_with_landlock_root_uses_the_systems_python_if_its_own_is_in_a_private_home() -> None:
    report = report_of("python", "700")
    system = os.path.realpath(shutil.which("python3", path="/usr/bin:/bin") or "")
    assert report["bubblewrap"][0] == report["server"]
    assert report["landlock"][0] == (system if IS_ROOT else report["server"])


async def test_with_landlock_root_has_no_node_if_its_own_is_in_a_private_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    node = home / "node"
    node.write_text("#!/bin/sh\ntest $1 = -p && echo 99.0.0 1000 || echo ran\n")
    node.chmod(0o755)
    sandbox = Sandbox(SandboxSettings(backend="landlock", warm=0, path=f"{home}:{os.defpath}"))
    async with sandbox.running():
        await warm_up_with_retry(sandbox)
        result = await Bench(sandbox, tmp_path).run("", "js")
    assert (result.error_code, result.stdout) == (("SPAWN_FAILED", "") if IS_ROOT else (None, "ran\n"))
    assert result.stderr == ("there is no node on this host" if IS_ROOT else "")


@pytest.mark.parametrize(("scopes", "is_signalled"), [(0, True), (3, False)])
def test_signals_to_the_same_user_are_refused_by_scopes_of_landlock_since_linux_6_12(
    scopes: int, is_signalled: bool
) -> None:
    # Older kernels have all of this except the scopes; there, a run of a normal user is restricted like this child.
    text = f"""
import os
from apexbridge.sandbox.launcher import syscalls
from apexbridge.sandbox.seccomp import filter_program
syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
syscalls.restrict_with_landlock(0x1FFF, 0, {scopes}, [])
syscalls.install_seccomp_filter(filter_program(unix_sockets=False, metadata=False))
try: os.kill(os.getppid(), 0); print("signalled")
except PermissionError: print("refused")
"""
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert ended.stdout == ("signalled\n" if is_signalled else "refused\n")


# ------------------------------------------------------------------------------------------------- plain
async def test_plain_reads_writes_and_connects_like_its_user(plain: Bench, payload: dict[str, Any]) -> None:
    text = """
import json, os, socket
payload = json.loads(os.environ["INPUT_JSON"])
with open(payload["secret"]) as file: report = [file.read()]
with open(payload["folder"] + "/made", "w") as file: file.write("by a run")
for family, address in (
    (socket.AF_INET, ("127.0.0.1", payload["port"])),
    (socket.AF_INET6, ("::1", payload["port"])),
    (socket.AF_UNIX, payload["unix"]),
    (socket.AF_UNIX, "\\0" + payload["abstract"]),
):
    with socket.socket(family) as link: link.connect(address)
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()
print(json.dumps([*report, os.path.exists("/proc/%d" % payload["pid"])]))
"""
    assert await plain.run_json(text, input=payload) == ["out of reach", True]
    made = Path(payload["folder"]) / "made"
    assert made.read_text() == "by a run"
    made.unlink()


async def test_plain_still_has_a_separate_environment_and_limits(plain: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_OF_THE_SERVER", "secret")
    text = """
import json, os, resource
limits = [resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)]
print(json.dumps([sorted(os.environ), limits]))
"""
    variables, limits = await plain.run_json(text)
    documented = {"PATH", "HOME", "TMPDIR", "SKILL_NAME", "SKILL_PATH", "TIMEOUT", "INPUT_JSON"}
    assert documented <= set(variables) <= documented | {"LC_CTYPE"}
    assert limits == [256, 64 * MB, 0]


async def test_plain_has_another_user_if_started_by_root_and_otherwise_all_rights_of_the_server(
    plain: Bench, of_a_user: dict[str, Any]
) -> None:
    report = await plain.run_json("import json, os; print(json.dumps([os.getuid(), os.getgid(), os.getgroups()]))")
    if IS_ROOT:
        assert report[0] in range(FIRST_UID, FIRST_UID + MAX_UIDS)
        assert report == [report[0], report[0], []]
    found = of_a_user["plain"]
    assert (found["user"], found["data"], found["variables"]) == (of_a_user["user"], "of the server", True)
    # Some distributions allow only a parent to read memory; that is not a guarantee of this sandbox.
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    is_open = not scope.exists() or scope.read_text().strip() == "0"
    assert found["memory"] == (IN_MEMORY.value.decode() if is_open else None)


async def test_with_plain_memory_in_memory_files_is_not_counted(plain: Bench) -> None:
    # Twice the limit, in several files because a file has a limit too; then there is time for more than one check.
    text = """
import os, time
files = [os.memfd_create("hole") for _ in range(4)]
for file in files:
    for _ in range(32): os.write(file, bytes(1 << 20))
time.sleep(0.5)
print(sum(os.fstat(file).st_size for file in files) >> 20)
"""
    result = await plain.run(text)
    assert result.stdout == "128\n", result.error
    assert (result.peak_memory or 0) < 64 * MB


async def test_a_run_of_a_normal_user_cannot_lower_its_oom_score(of_a_user: dict[str, Any]) -> None:
    assert of_a_user["bubblewrap"] == 1000


# ------------------------------------------------------------------------------------------------- the launcher
@pytest.mark.parametrize("kind", ["cold", "landlock"])
async def test_the_launcher_has_a_plain_path_and_no_other_variable_and_no_file_but_stderr(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_THE_SERVER", "secret")
    with tempfile.TemporaryFile() as private, socket.socket() as link, standard_input(private.fileno()):
        for opened in (private, link):
            os.set_inheritable(opened.fileno(), True)
        before = files_of(os.getpid())
        sandbox = Sandbox(KINDS[kind])
        async with sandbox.running():
            await warm_up_with_retry(sandbox)
            await quiet()
            launcher = (await sandbox.ready()).launcher.pid
            assert launcher is not None
            assert Path(f"/proc/{launcher}/environ").read_bytes() == f"PATH={os.defpath}\0".encode()
            found = files_of(launcher)
    assert found.pop(0) == found.pop(1) == os.devnull
    assert found.pop(2) == before[2]
    # The others are its own: opened after its start, so none of the files that the server had open.
    assert {name for name in found.values() if name in before.values()} <= {"anon_inode:[eventpoll]"}
    own = {name for name in found.values() if not name.startswith("/run/apexbridge/users")}  # the users of runs
    assert {name.partition(":")[0] for name in own} <= {"socket", "pipe", "anon_inode"}


@contextmanager
def standard_input(descriptor: int) -> Iterator[None]:
    """Replace stdin of this process; without isolation the launcher would inherit it."""
    usual = os.dup(0)
    try:
        os.dup2(descriptor, 0)
        yield
    finally:
        os.dup2(usual, 0)
        os.close(usual)


def files_of(pid: int) -> dict[int, str]:
    """The open files of a process, each as the kernel names it."""
    return {int(path.name): str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}


async def test_the_launcher_uses_no_packages(cold: Bench) -> None:
    launcher = (await cold.sandbox.ready()).launcher.pid
    words = Path(f"/proc/{launcher}/cmdline").read_text().split("\0")
    assert words[1:3] == ["-I", "-S"]  # no settings of a user, and no packages on its path
    text = "import json, sys; import apexbridge.sandbox.launcher.main; print(json.dumps(list(sys.modules)))"
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(ROOT / 'src')!r}); {text}"]
    ended = await anyio.run_process(command)
    used = {name.partition(".")[0] for name in json.loads(ended.stdout)}
    assert used - set(sys.stdlib_module_names) == {"__main__", "apexbridge"}
