"""Servers on other hosts: each runs a few scripts and prints the results.

A test starts one as `python -m tests.sandbox.other_hosts HOST FOLDER`: a process cannot undo what makes the difference
(another user, other mounts, a kernel that refuses).
"""

import ctypes
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio

from apexbridge.errors import ServerError
from apexbridge.sandbox.config import MB, BackendChoice, Guarantee, SandboxSettings
from apexbridge.sandbox.launcher import syscalls
from apexbridge.sandbox.models import InputFile, Job
from apexbridge.sandbox.sandbox import Sandbox
from apexbridge.sandbox.seccomp import refused_numbers
from tests.sandbox.as_user import become
from tests.sandbox.bench import SECONDS, Bench, warm_up_with_retry

ROOT = Path(__file__).parents[2]
MODULE = "tests.sandbox.other_hosts"
USER = 61_358
"""An unused user ID, different from those of other tests."""
GUARANTEES_OF_PLAIN: tuple[Guarantee, ...] = ("tree_kill", "memory", "pids", "disk", "env", "fds")
IN_MEMORY = ctypes.create_string_buffer(b"in the server's memory")
LANDLOCK_CREATE_RULESET = 444

READS_THE_SERVER = """
import json, os
payload, report = json.loads(os.environ["INPUT_JSON"]), {"user": os.getuid()}
def attempt(name, action):
    try: report[name] = action()
    except OSError: report[name] = None
def memory():
    with open(f"/proc/{payload['pid']}/mem", "rb", 0) as file:
        file.seek(payload["address"])
        return file.read(payload["length"]).decode()
attempt("data", lambda: open(payload["private"]).read())
attempt("variables", lambda: "PATH=" in open(f"/proc/{payload['pid']}/environ").read())
attempt("memory", memory)
print(json.dumps(report))
"""
CHANGES_ITS_INPUT = """
import json, os
done = []
def attempt(name, action):
    try: action()
    except OSError: return
    done.append(name)
for _ in range(2):
    attempt("write", lambda: open("input/private", "r+"))
    attempt("remove", lambda: os.unlink("input/private"))
    attempt("create", lambda: open("input/new", "x"))
    for path in ("input", "input/private"):
        try: os.chmod(path, 0o777)
        except OSError: pass
os.rename("input", "elsewhere")
os.mkdir("input")
with open("input/private", "w") as file: file.write("another")
print(json.dumps([done, open("elsewhere/private").read(), open("input/private").read()]))
"""
LOWERS_OOM_SCORE = """
import json
try:
    with open("/proc/self/oom_score_adj", "w") as file: file.write("0")
except OSError: pass
print(json.dumps(int(open("/proc/self/oom_score_adj").read())))
"""
SHOWS_ITS_PYTHON = """
import json, os, sys
packages = "%s/lib/python%d.%d/site-packages" % (sys.base_prefix, *sys.version_info[:2])
print(json.dumps([os.path.realpath("/proc/self/exe"), os.listdir(packages) if os.path.isdir(packages) else []]))
"""
LISTS_ETC = """
import json, os
top = "/etc/libreoffice"
print(json.dumps(sorted(os.path.relpath(parent, top) for parent, _, _ in os.walk(top))))
"""


def report_of(host: str, *arguments: str) -> Any:
    """The report of the server on that host."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        command = [sys.executable, "-m", MODULE, host, folder, *arguments]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS * 2)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def settings_for(backend: BackendChoice) -> SandboxSettings:
    """One backend, with all guarantees required that it has."""
    if backend == "plain":
        return SandboxSettings(backend=backend, require=GUARANTEES_OF_PLAIN, warm=0)
    return SandboxSettings(backend=backend, warm=0)


async def refused(folder: Path) -> Any:
    """A kernel without namespaces and Landlock: the results of `auto`, and of `plain`."""
    refuse_calls(refused_numbers()["unshare"], LANDLOCK_CREATE_RULESET)
    report: list[str] = []
    choices: tuple[BackendChoice, ...] = ("auto", "plain")
    for backend in choices:
        # Nothing is required, so `auto` could select plain if it considered it.
        sandbox = Sandbox(SandboxSettings(backend=backend, require=(), warm=0))
        async with sandbox.running():
            try:
                report.append((await Bench(sandbox, folder).run("print('ran')")).stdout)
            except ServerError as error:
                report.append(error.code)
    return report


async def full(folder: Path) -> Any:
    """Two runs collect artifacts on a disk with 1.5 MB more than the server needs; the second finds 0.5 MB."""
    disk = folder / "disk"
    disk.mkdir()
    syscalls.mount("disk", str(disk), "tmpfs", 0, f"size={256 * MB + MB * 3 // 2},mode=755")
    sandbox = Sandbox(settings_for("bubblewrap"))
    text = "for name in 'ab': open('output/' + name, 'wb').write(bytes(1 << 20))"
    async with sandbox.running():
        bench = Bench(sandbox, folder)
        results = [await bench.run(text, artifacts=disk / name) for name in ("first", "second")]
    return [[[file.path for file in result.files], result.warnings] for result in results]


async def installing(folder: Path) -> Any:
    """Programs are installed while the server runs: what cold and warm runs see of their files in /etc."""
    program = Path("/etc/libreoffice")
    report: dict[str, list[list[str]]] = {}
    code = Job(script=".code.py", code=LISTS_ETC, timeout_ms=20_000)
    for kind in ("cold", "warm", "code"):
        shutil.rmtree(program, ignore_errors=True)
        sandbox = Sandbox(SandboxSettings(backend="bubblewrap", warm=kind != "cold"))
        async with sandbox.running():
            await warm_up_with_retry(sandbox)
            seen = report.setdefault(kind, [])
            for name in ("first", "first/second", "third"):
                (program / name).mkdir(parents=True)
                bench = Bench(sandbox, folder)
                run = await (sandbox.run(code) if kind == "code" else bench.run(LISTS_ETC))
                seen.append(json.loads(run.stdout))
                await sandbox.warm_up()
    return report


async def user(folder: Path) -> Any:
    """A normal user's server: what its runs can do with that user's files and processes."""
    private = folder / "private"
    private.write_text("of the server")
    private.chmod(0o600)
    payload = {"private": str(private), "pid": os.getpid(), "address": ctypes.addressof(IN_MEMORY)}
    payload["length"] = len(IN_MEMORY.value)
    tried: dict[BackendChoice, str] = {
        "plain": READS_THE_SERVER,
        "landlock": CHANGES_ITS_INPUT,
        "bubblewrap": LOWERS_OOM_SCORE,
    }
    report: dict[str, Any] = {}
    for backend, text in tried.items():
        sandbox = Sandbox(settings_for(backend))
        async with sandbox.running():
            await warm_up_with_retry(sandbox)
            with private.open("rb") as file:
                files = (InputFile(name="private", file=file),)
                report[backend] = await Bench(sandbox, folder).run_json(text, input=payload, files=files)
    return {"user": os.getuid(), "original": private.read_text(), **report}


async def python(folder: Path) -> Any:
    """Python in another folder: which one runs get, and which packages they see in it."""
    report: dict[str, Any] = {"server": sys.executable}
    backends: tuple[BackendChoice, ...] = ("bubblewrap", "landlock")
    for backend in backends:
        sandbox = Sandbox(settings_for(backend))
        async with sandbox.running():
            await warm_up_with_retry(sandbox)
            report[backend] = await Bench(sandbox, folder).run_json(SHOWS_ITS_PYTHON)
    return report


def refuse_calls(*numbers: int) -> None:
    """Make these calls fail with ENOSYS, for this process and its children."""
    load, compare, answer = 0x20, 0x15, 0x06
    rules = [(load, 0, 0, 0)]
    rules += [(compare, len(numbers) - position, 0, number) for position, number in enumerate(numbers)]
    rules += [(answer, 0, 0, 0x7FFF_0000), (answer, 0, 0, 0x0005_0000 | 38)]
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.install_seccomp_filter(b"".join(struct.pack("HBBI", *rule) for rule in rules))


def own_mounts() -> None:
    """Create a mount namespace for this process; without root it needs a user namespace too."""
    uid, gid = os.getuid(), os.getgid()
    syscalls.unshare(syscalls.CLONE_NEWNS | (syscalls.CLONE_NEWUSER if uid else 0))
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)


def move_python(target: Path, *arguments: str) -> None:
    """Start this module again with the same Python at another path."""
    prefix = Path(os.path.realpath(sys.base_prefix))
    program = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    target.mkdir()
    syscalls.mount(str(prefix), str(target), None, syscalls.MS_BIND | syscalls.MS_REC)
    moved = str(target / Path(program).relative_to(prefix))
    path = f"{ROOT / 'src'}:{ROOT}:{Path(anyio.__file__).parents[1]}"
    os.execve(moved, [moved, "-B", "-m", MODULE, *arguments], {"PATH": os.defpath, "PYTHONPATH": path})


HOSTS: dict[str, Callable[[Path], Awaitable[Any]]] = {
    "refused": refused,
    "full": full,
    "installing": installing,
    "user": user,
    "python": python,
}


def main(host: str, folder: Path, mode: str | None = None) -> None:
    if host == "user" and os.getuid() == 0:
        become(USER, folder, MODULE, host, str(folder))
    if host in ("full", "installing"):
        own_mounts()
    if host == "installing":
        (folder / "etc").mkdir()
        for name in ("passwd", "group", "nsswitch.conf", "ld.so.cache"):
            shutil.copyfile(f"/etc/{name}", folder / "etc" / name)
        shutil.copytree("/etc/alternatives", folder / "etc/alternatives", symlinks=True)
        syscalls.mount(str(folder / "etc"), "/etc", None, syscalls.MS_BIND)
    if mode is not None:
        own_mounts()
        home = folder / "home"
        home.mkdir()
        home.chmod(int(mode, 8))
        move_python(home / "python", host, str(folder))
    print(json.dumps(anyio.run(HOSTS[host], folder)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
