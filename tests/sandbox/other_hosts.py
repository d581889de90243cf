"""Servers in other circumstances: each runs a few scripts and prints what came of it.

A test starts one as `python -m tests.sandbox.other_hosts HOST FOLDER`: a process cannot undo what makes the difference
(another user, other mounts, a kernel that refuses).
"""

import ctypes
import json
import os
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
from apexbridge.sandbox.models import InputFile
from apexbridge.sandbox.sandbox import Sandbox
from apexbridge.sandbox.seccomp import refused_numbers
from tests.sandbox.as_user import become
from tests.sandbox.bench import SECONDS, Bench, put_up

ROOT = Path(__file__).parents[2]
MODULE = "tests.sandbox.other_hosts"
USER = 61_358
"""Nobody's number, and not the one of other tests."""
LEFT_TO_PLAIN: tuple[Guarantee, ...] = ("tree_kill", "memory", "pids", "disk", "env", "fds")
KEPT_IN_MEMORY = ctypes.create_string_buffer(b"in the server's memory")
LANDLOCK_CREATE_RULESET = 444

LOOKS_AT_THE_SERVER = """
import json, os
given, told = json.loads(os.environ["INPUT_JSON"]), {"user": os.getuid()}
def attempt(name, action):
    try: told[name] = action()
    except OSError: told[name] = None
def memory():
    with open(f"/proc/{given['pid']}/mem", "rb", 0) as file:
        file.seek(given["address"])
        return file.read(given["length"]).decode()
attempt("data", lambda: open(given["private"]).read())
attempt("variables", lambda: "PATH=" in open(f"/proc/{given['pid']}/environ").read())
attempt("memory", memory)
print(json.dumps(told))
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
CLINGS_TO_MEMORY = """
import json
try:
    with open("/proc/self/oom_score_adj", "w") as file: file.write("0")
except OSError: pass
print(json.dumps(int(open("/proc/self/oom_score_adj").read())))
"""
SHOWS_ITS_PYTHON = """
import json, os, sys
packages = "%s/lib/python%d.%d/site-packages" % (sys.base_prefix, *sys.version_info[:2])
print(json.dumps([sys.executable, os.listdir(packages) if os.path.isdir(packages) else []]))
"""


def told_by(where: str, *words: str) -> Any:
    """What the server there tells."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        command = [sys.executable, "-m", MODULE, where, folder, *words]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS * 2)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def settings_for(backend: BackendChoice) -> SandboxSettings:
    """Walls of one kind, with everything required that this kind has."""
    if backend == "plain":
        return SandboxSettings(backend=backend, require=LEFT_TO_PLAIN, warm=0)
    return SandboxSettings(backend=backend, warm=0)


async def refused(folder: Path) -> Any:
    """Where the kernel knows neither namespaces nor Landlock: what comes of `auto`, and of plain by its name."""
    refuse_calls(refused_numbers()["unshare"], LANDLOCK_CREATE_RULESET)
    told: list[str] = []
    choices: tuple[BackendChoice, ...] = ("auto", "plain")
    for backend in choices:
        # Nothing is required: if `auto` thought of plain, plain would do.
        sandbox = Sandbox(SandboxSettings(backend=backend, require=(), warm=0))
        async with sandbox.running():
            try:
                told.append((await Bench(sandbox, folder).run("print('ran')")).stdout)
            except ServerError as error:
                told.append(error.code)
    return told


async def full(folder: Path) -> Any:
    """Artifacts go to a disk with a megabyte and a half more than the server needs, and then with half a megabyte."""
    disk = folder / "disk"
    disk.mkdir()
    syscalls.mount("disk", str(disk), "tmpfs", 0, f"size={256 * MB + MB * 3 // 2},mode=755")
    sandbox = Sandbox(settings_for("bubblewrap"))
    text = "for name in 'ab': open('output/' + name, 'wb').write(bytes(1 << 20))"
    async with sandbox.running():
        bench = Bench(sandbox, folder)
        results = [await bench.run(text, artifacts=disk / place) for place in ("first", "second")]
    return [[[file.path for file in result.files], result.warnings] for result in results]


async def user(folder: Path) -> Any:
    """A normal user's server: what its runs can do with what is that user's."""
    private = folder / "private"
    private.write_text("of the server")
    private.chmod(0o600)
    given = {"private": str(private), "pid": os.getpid(), "address": ctypes.addressof(KEPT_IN_MEMORY)}
    given["length"] = len(KEPT_IN_MEMORY.value)
    tried: dict[BackendChoice, str] = {
        "plain": LOOKS_AT_THE_SERVER,
        "landlock": CHANGES_ITS_INPUT,
        "bubblewrap": CLINGS_TO_MEMORY,
    }
    told: dict[str, Any] = {}
    for backend, text in tried.items():
        sandbox = Sandbox(settings_for(backend))
        async with sandbox.running():
            await put_up(sandbox)
            with private.open("rb") as file:
                files = (InputFile(name="private", file=file),)
                told[backend] = await Bench(sandbox, folder).told(text, input=given, files=files)
    return {"user": os.getuid(), "original": private.read_text(), **told}


async def python(folder: Path) -> Any:
    """Python stands somewhere else: which one runs get, and what packages they see in it."""
    told: dict[str, Any] = {"server": sys.executable}
    backends: tuple[BackendChoice, ...] = ("bubblewrap", "landlock")
    for backend in backends:
        sandbox = Sandbox(settings_for(backend))
        async with sandbox.running():
            await put_up(sandbox)
            told[backend] = await Bench(sandbox, folder).told(SHOWS_ITS_PYTHON)
    return told


def refuse_calls(*numbers: int) -> None:
    """Have the kernel answer "no such call" to these, for this process and all that it starts."""
    load, compare, answer = 0x20, 0x15, 0x06
    rules = [(load, 0, 0, 0)]
    rules += [(compare, len(numbers) - position, 0, number) for position, number in enumerate(numbers)]
    rules += [(answer, 0, 0, 0x7FFF_0000), (answer, 0, 0, 0x0005_0000 | 38)]
    syscalls.set_no_new_privileges()
    syscalls.install_seccomp_filter(b"".join(struct.pack("HBBI", *rule) for rule in rules))


def own_mounts() -> None:
    """Let this process mount for itself alone; whoever is not root needs a user namespace for that."""
    uid, gid = os.getuid(), os.getgid()
    syscalls.unshare(syscalls.CLONE_NEWNS | (syscalls.CLONE_NEWUSER if uid else 0))
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)


def move_python(place: Path, *words: str) -> None:
    """Start this module again with the same Python, which then stands at another place."""
    prefix = Path(os.path.realpath(sys.base_prefix))
    program = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    place.mkdir()
    syscalls.mount(str(prefix), str(place), None, syscalls.MS_BIND | syscalls.MS_REC)
    moved = str(place / Path(program).relative_to(prefix))
    path = f"{ROOT / 'src'}:{ROOT}:{Path(anyio.__file__).parents[1]}"
    os.execve(moved, [moved, "-B", "-m", MODULE, *words], {"PATH": os.defpath, "PYTHONPATH": path})


PLACES: dict[str, Callable[[Path], Awaitable[Any]]] = {"refused": refused, "full": full, "user": user, "python": python}


def main(where: str, folder: Path, mode: str | None = None) -> None:
    if where == "user" and os.getuid() == 0:
        become(USER, folder, MODULE, where, str(folder))
    if where == "full":
        own_mounts()
    if mode is not None:
        own_mounts()
        home = folder / "home"
        home.mkdir()
        home.chmod(int(mode, 8))
        move_python(home / "python", where, str(folder))
    print(json.dumps(anyio.run(PLACES[where], folder)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
