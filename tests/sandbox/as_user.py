"""A server of a user without privileges: runs hostile scripts with one backend and prints the results.

`test_normal_user.py` starts it as root, `python -m tests.sandbox.as_user KIND USER FOLDER`; it becomes that user first.
"""

import json
import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import anyio

from apexbridge.errors import SkillPermissionError
from apexbridge.sandbox.config import SandboxSettings
from apexbridge.sandbox.launcher import syscalls
from apexbridge.sandbox.launcher.landlock_cell import is_reachable
from apexbridge.sandbox.models import Grants
from apexbridge.sandbox.sandbox import Sandbox
from tests.sandbox.bench import Bench, descendants, named, warm_up_with_retry
from tests.sandbox.hidden_memory_scripts import HIDDEN, IN_NAMESPACES_HIDDEN, ORDINARY_USE, REFUSED
from tests.sandbox.hostile_scripts import EVERYWHERE, IN_NAMESPACES, bait, script

SETTINGS = {
    "cold": SandboxSettings(backend="bubblewrap", warm=0),
    "warm": SandboxSettings(backend="bubblewrap", warm=1),
    "landlock": SandboxSettings(backend="landlock", warm=0),
}
ORDINARY = {
    "python": ("py", "import json, os, sys; print(json.dumps([json.load(sys.stdin), os.listdir('.')]))"),
    "node": ("js", "console.log(JSON.stringify(JSON.parse(require('fs').readFileSync(0, 'utf8'))))"),
    "shell": ("sh", "cat > output/input; chmod 0 tmp; mkdir locked; touch locked/f; chmod 0 locked; cat output/input"),
    "memory": ("py", "taken = []\nwhile True: taken.append(bytearray(8 << 20))"),
    "memory of children": (
        "py",
        "import os, time\nfor _ in range(6):\n    if os.fork() == 0: taken = bytearray(b'x') * (120 << 20); break\n"
        "time.sleep(1000)",
    ),
    "time": ("sh", "setsid sh -c 'sleep 1000; true' $1 & sleep 1000"),
    "output": ("sh", "yes"),
    "daemon": ("sh", "(setsid sh -c 'sleep 1000; true' $1 > /dev/null 2>&1 &); echo left"),
    "bomb": ("py", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"),
}
INOTIFY = """
import ctypes, json
libc, count = ctypes.CDLL(None, use_errno=True), 0
while count < 200 and libc.inotify_init1(0) >= 0: count += 1
print(json.dumps(count))
"""
SHOWN = Path("/mnt/shown")
"""Exists only in the mount namespace of this process, with another file system mounted below."""
BELOW = """
import json, os
path = json.loads(os.environ["INPUT_JSON"])["path"]
print(json.dumps([sorted(os.listdir(path)), os.listdir(path + "/below")]))
"""
ENDLESS = {"time": 1500, "bomb": 1500}
"""Scripts that only the timeout ends; all others end on their own, even on a busy machine."""
PATIENCE_MS = 30_000


async def main(kind: str) -> dict[str, Any]:
    """All results, by name."""
    report: dict[str, Any] = {"user": os.getuid()}
    sandbox = Sandbox(SETTINGS[kind])
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        async with sandbox.running():
            bench = Bench(sandbox, root)
            await warm_up_with_retry(sandbox)
            with bait(root) as payload:
                harms = EVERYWHERE if kind == "landlock" else EVERYWHERE | IN_NAMESPACES
                for harm, text in harms.items():
                    result = await bench.run(script(text), input=payload)
                    report[harm] = [result.error_code, result.stdout or result.stderr]
                    await sandbox.warm_up()
            for name, (suffix, text) in ORDINARY.items():
                mark = f"mark-{os.getpid()}-{name}"
                result = await bench.run(
                    text,
                    suffix,
                    input={"a": 1},
                    args=(mark,),
                    artifacts=root / f"artifacts-{name}",
                    timeout_ms=ENDLESS.get(name, PATIENCE_MS),
                )
                report[name] = [result.error_code, result.stdout[:100] if result.success else result.error]
                report[f"left of {name}"] = named(mark)
            hidden = {} if kind == "warm" else HIDDEN if kind == "landlock" else HIDDEN | IN_NAMESPACES_HIDDEN
            for how, text in hidden.items():
                result = await bench.run(text, timeout_ms=PATIENCE_MS)
                report[how] = [result.error_code, result.stdout]
            report["not refused"] = await bench.run_json(REFUSED)
            shown = SHOWN.stat()
            grants = Grants(paths={str(SHOWN): (shown.st_dev, shown.st_ino)})
            result = await bench.run(BELOW, grants=grants, input={"path": str(SHOWN)})
            report["below"] = [result.error_code, result.stdout]
            report["inotify"] = await bench.run_json(INOTIFY)
            report["ordinary use"] = await bench.run_json(ORDINARY_USE)
            job = bench.job("print(1)")
            Path(f"{job.folder}/{job.script}").chmod(0)
            try:
                await sandbox.check(job)
            except SkillPermissionError as error:
                report["unreadable"] = error.code
    report["processes"] = len(descendants(os.getpid()))
    report["files"] = sorted(path.name for path in Path(tempfile.gettempdir()).iterdir())
    return report


def become(user: int, folder: Path, module: str, *arguments: str) -> None:
    """Start a module as another user, with access to the files that it needs."""
    checkout, packages = Path(__file__).parents[2], Path(sysconfig.get_paths()["purelib"])
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
    os.umask(0o022)
    syscalls.mount("shown", "/mnt", "tmpfs", 0, "mode=755")
    (SHOWN / "below").mkdir(parents=True)
    (SHOWN / "file").touch()
    syscalls.mount("below", str(SHOWN / "below"), "tmpfs", 0, "mode=755")
    (SHOWN / "below/secret").touch()
    _make_reachable([Path(sys.base_prefix), checkout, packages])
    os.chown(folder, user, user)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    os.chdir(checkout)
    path = f"{checkout / 'src'}:{checkout}:{packages}"
    program = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    command = [program, "-B", "-m", module, *arguments]
    os.execve(program, command, {"PATH": os.defpath, "TMPDIR": str(folder), "PYTHONPATH": path})


def _make_reachable(sources: list[Path]) -> None:
    """Mount folders in a private home at the same path, in this mount namespace, without the home."""
    closed = [source for source in sources if not is_reachable(str(source))]
    mounts = [syscalls.clone_mount(str(source), read_only=False) for source in closed]
    for source, mount in zip(closed, mounts, strict=True):
        for folder in (*reversed(source.parents), source):
            if folder.exists() and not is_reachable(str(folder)):
                syscalls.mount("shown", str(folder), "tmpfs", 0, "mode=755")
                break
        source.mkdir(parents=True, exist_ok=True)
        syscalls.attach_mount(mount, str(source))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        become(int(sys.argv[2]), Path(sys.argv[3]), "tests.sandbox.as_user", sys.argv[1])
    print(json.dumps(anyio.run(main, sys.argv[1])))
