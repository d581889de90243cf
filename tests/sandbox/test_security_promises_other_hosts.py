"""The security page at its word: Landlock, plain and the launcher, where no other test says so."""

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

from apexbridge.sandbox.config import MB, SandboxLimits, SandboxSettings
from apexbridge.sandbox.launcher.main import MAX_UIDS
from apexbridge.sandbox.launcher_client import FIRST_UID
from apexbridge.sandbox.models import InputFile
from apexbridge.sandbox.sandbox import Sandbox
from tests.sandbox.bench import Bench, descendants, put_up, quiet
from tests.sandbox.conftest import KINDS
from tests.sandbox.hostile_scripts import bait
from tests.sandbox.other_hosts import CHANGES_ITS_INPUT, KEPT_IN_MEMORY, LEFT_TO_PLAIN, USER, told_by

pytestmark = pytest.mark.anyio
IS_ROOT = os.getuid() == 0
ROOT = Path(__file__).parents[2]


@pytest.fixture
def given(tmp_path: Path) -> Iterator[dict[str, Any]]:
    with bait(tmp_path) as found:
        yield found


@pytest.fixture
async def plain(tmp_path: Path, anyio_backend: str) -> AsyncIterator[Bench]:
    """No walls, and less memory than usual, so that it is soon too much."""
    limits = SandboxLimits(memory_bytes=64 * MB)
    sandbox = Sandbox(SandboxSettings(backend="plain", require=LEFT_TO_PLAIN, limits=limits))
    async with sandbox.running():
        yield Bench(sandbox, tmp_path)


@pytest.fixture(scope="module")
def of_a_user() -> dict[str, Any]:
    """What the server of a normal user tells."""
    told: dict[str, Any] = told_by("user")
    assert told["user"] == (USER if IS_ROOT else os.getuid())
    return told


# ------------------------------------------------------------------------------------------------- Landlock
async def test_landlock_does_not_hide_that_a_path_exists_its_size_owner_and_times(
    landlock: Bench, given: dict[str, Any]
) -> None:
    text = """
import json, os
path = json.loads(os.environ["INPUT_JSON"])["secret"]
try: told = open(path).read()
except PermissionError: told = None
found = os.stat(path)
print(json.dumps([told, found.st_size, found.st_uid, found.st_mtime_ns, os.path.exists(path + "-not-there")]))
"""
    found = Path(given["secret"]).stat()
    seen = [None, found.st_size, found.st_uid, found.st_mtime_ns, False]
    assert await landlock.told(text, input=given) == seen


async def test_with_landlock_proc_is_closed_and_who_needs_it_fails(landlock: Bench) -> None:
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
    assert await landlock.told(text) == []
    result = await landlock.run("ps", "sh")
    assert (result.error_code, result.stdout) == ("EXIT_NONZERO", "")


async def test_with_landlock_no_file_is_larger_than_64_megabytes(landlock: Bench) -> None:
    # Without contents: nothing is written that the watchdog could count, so what refuses is the kernel.
    text = """
import json
with open("large", "wb") as file:
    file.truncate(64 << 20)
    try: file.truncate((64 << 20) + 1); told = "larger"
    except OSError as error: told = error.strerror
print(json.dumps(told))
"""
    assert await landlock.told(text) == "File too large"


async def test_with_landlock_input_files_can_be_replaced_and_the_originals_stay(
    landlock: Bench, of_a_user: dict[str, Any]
) -> None:
    original = io.BytesIO(b"of the server")
    told = await landlock.told(CHANGES_ITS_INPUT, files=(InputFile(name="private", file=original),))
    assert told == of_a_user["landlock"] == [[], "of the server", "another"]
    assert original.getvalue().decode() == of_a_user["original"] == "of the server"


@pytest.mark.parametrize("kind", ["warm", "landlock"])
async def test_with_landlock_nothing_is_started_beforehand(kind: str) -> None:
    sandbox = Sandbox(KINDS[kind].model_copy(update={"warm": 1}))
    async with sandbox.running():
        await put_up(sandbox)
        await quiet()
        launcher = (await sandbox.ready()).launcher.pid
        assert launcher is not None
        assert bool(descendants(launcher)) == (kind == "warm")


def test_with_landlock_root_gives_the_systems_python_where_its_own_stands_in_a_home() -> None:
    told = told_by("python", "700")
    system = os.path.realpath(shutil.which("python3", path="/usr/bin:/bin") or "")
    assert told["bubblewrap"][0] == told["server"]
    assert told["landlock"][0] == (system if IS_ROOT else told["server"])


async def test_with_landlock_root_gives_no_node_where_its_own_stands_in_a_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    node = home / "node"
    node.write_text("#!/bin/sh\ntest $1 = -p && echo 99.0.0 1000 || echo ran\n")
    node.chmod(0o755)
    sandbox = Sandbox(SandboxSettings(backend="landlock", warm=0, path=f"{home}:{os.defpath}"))
    async with sandbox.running():
        await put_up(sandbox)
        result = await Bench(sandbox, tmp_path).run("", "js")
    assert (result.error_code, result.stdout) == (("SPAWN_FAILED", "") if IS_ROOT else (None, "ran\n"))
    assert result.stderr == ("there is no node on this host" if IS_ROOT else "")


@pytest.mark.parametrize(("scopes", "is_signalled"), [(0, True), (3, False)])
def test_signals_to_the_same_user_are_held_by_what_landlock_has_since_linux_6_12(
    scopes: int, is_signalled: bool
) -> None:
    # Older kernels have everything of this but the scopes, so a run of a normal user is held as this child is.
    text = f"""
import os
from apexbridge.sandbox.launcher import syscalls
from apexbridge.sandbox.seccomp import filter_program
syscalls.set_no_new_privileges()
syscalls.restrict_with_landlock(0x1FFF, 0, {scopes}, [])
syscalls.install_seccomp_filter(filter_program(unix_sockets=False, metadata=False))
try: os.kill(os.getppid(), 0); print("signalled")
except PermissionError: print("refused")
"""
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert ended.stdout == ("signalled\n" if is_signalled else "refused\n")


# ------------------------------------------------------------------------------------------------- plain
async def test_plain_reads_writes_and_reaches_whatever_its_user_can(plain: Bench, given: dict[str, Any]) -> None:
    text = """
import json, os, socket
given = json.loads(os.environ["INPUT_JSON"])
with open(given["secret"]) as file: told = [file.read()]
with open(given["folder"] + "/made", "w") as file: file.write("by a run")
for family, address in (
    (socket.AF_INET, ("127.0.0.1", given["port"])),
    (socket.AF_INET6, ("::1", given["port"])),
    (socket.AF_UNIX, given["unix"]),
    (socket.AF_UNIX, "\\0" + given["abstract"]),
):
    with socket.socket(family) as link: link.connect(address)
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()
print(json.dumps([*told, os.path.exists("/proc/%d" % given["pid"])]))
"""
    assert await plain.told(text, input=given) == ["out of reach", True]
    made = Path(given["folder"]) / "made"
    assert made.read_text() == "by a run"
    made.unlink()


async def test_plain_still_has_an_environment_of_its_own_and_limits(
    plain: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_THE_SERVER", "secret")
    text = """
import json, os, resource
limits = [resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)]
print(json.dumps([sorted(os.environ), limits]))
"""
    variables, limits = await plain.told(text)
    documented = {"PATH", "HOME", "TMPDIR", "SKILL_NAME", "SKILL_PATH", "TIMEOUT", "INPUT_JSON"}
    assert documented <= set(variables) <= documented | {"LC_CTYPE"}
    assert limits == [256, 64 * MB, 0]


async def test_plain_is_another_user_where_root_started_it_and_else_has_all_that_is_the_servers(
    plain: Bench, of_a_user: dict[str, Any]
) -> None:
    told = await plain.told("import json, os; print(json.dumps([os.getuid(), os.getgid(), os.getgroups()]))")
    if IS_ROOT:
        assert told[0] in range(FIRST_UID, FIRST_UID + MAX_UIDS)
        assert told == [told[0], told[0], []]
    found = of_a_user["plain"]
    assert (found["user"], found["data"], found["variables"]) == (of_a_user["user"], "of the server", True)
    # Some distributions let nobody but a parent look into memory; that is their wall, not ours.
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    is_open = not scope.exists() or scope.read_text().strip() == "0"
    assert found["memory"] == (KEPT_IN_MEMORY.value.decode() if is_open else None)


async def test_with_plain_memory_in_memory_files_is_not_counted(plain: Bench) -> None:
    # Twice the limit, in several because a file has a limit too; then the watchdog has time for more than one look.
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


async def test_a_run_of_a_normal_user_cannot_make_itself_dearer_to_the_kernel(of_a_user: dict[str, Any]) -> None:
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
            await put_up(sandbox)
            await quiet()
            launcher = (await sandbox.ready()).launcher.pid
            assert launcher is not None
            assert Path(f"/proc/{launcher}/environ").read_bytes() == f"PATH={os.defpath}\0".encode()
            found = files_of(launcher)
    assert found.pop(0) == found.pop(1) == os.devnull
    assert found.pop(2) == before[2]
    # What is left is its own: made after it was started, and so none of the files that the server had open.
    assert {name for name in found.values() if name in before.values()} <= {"anon_inode:[eventpoll]"}
    own = {name for name in found.values() if not name.startswith("/run/apexbridge/users")}  # the users of runs
    assert {name.partition(":")[0] for name in own} <= {"socket", "pipe", "anon_inode"}


@contextmanager
def standard_input(descriptor: int) -> Iterator[None]:
    """Have this process read from another file, so that the launcher would, too, if it was not kept from it."""
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
    assert words[1:3] == ["-I", "-S"]  # nothing of a user's, and no packages on its path
    text = "import json, sys; import apexbridge.sandbox.launcher.main; print(json.dumps(list(sys.modules)))"
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(ROOT / 'src')!r}); {text}"]
    ended = await anyio.run_process(command)
    used = {name.partition(".")[0] for name in json.loads(ended.stdout)}
    assert used - set(sys.stdlib_module_names) == {"__main__", "apexbridge"}
