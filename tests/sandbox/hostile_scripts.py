"""Hostile scripts: each attacks one guarantee in many ways, and prints what it reached.

Their input contains bait: a file and a folder that any user of the host may read and write, a skill that is
not theirs, listening sockets, the server's process, and the numbers of the calls that are refused.
"""

import json
import os
import platform
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from apexbridge.sandbox.seccomp import refused_numbers

PRELUDE = """
import ctypes, errno, json, mmap, os, resource, signal, socket, stat, sys
INPUT = json.loads(os.environ["INPUT_JSON"])
LIBC = ctypes.CDLL(None, use_errno=True)
reached = []

def attempt(name, action):
    try:
        action()
    except (OSError, ValueError):
        return
    reached.append(str(name))

def syscall(number, *arguments):
    ctypes.set_errno(0)
    words = [ctypes.c_long(word) for word in (*arguments, *[0] * (6 - len(arguments)))]
    result = LIBC.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result

def read(path):
    with open(path, "rb") as file: file.read(1)

def write(path):
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND))

def create(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))

def ended_by_signal(action):
    child = os.fork()
    if child == 0:
        try: action()
        finally: os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])
"""
EPILOGUE = """
print(json.dumps(reached))
"""

EVERYWHERE = {
    "read the host's files": """
os.symlink(INPUT["secret"], "link")
os.symlink("/", "root")
for path in (INPUT["secret"], "link", "root" + INPUT["secret"], "../" * 40 + INPUT["secret"], "/etc/shadow"):
    attempt(path, lambda: read(path))
for path in ("/proc/self/root", "/proc/1/root", "/proc/self/cwd/../.."):
    attempt(path, lambda: read(path + INPUT["secret"]))
top = os.open("/", os.O_PATH)
attempt("below a descriptor", lambda: os.close(os.open(INPUT["secret"][1:], os.O_RDONLY, dir_fd=top)))
attempt("hard link", lambda: os.link(INPUT["secret"], "hard"))
for folder in (INPUT["folder"], "/root", "/home", "/var/lib", "/var/log", "/run"):
    attempt("list " + folder, lambda: os.listdir(folder))
""",
    "write the host's files": """
folders = ["/", "/etc", "/usr", "/usr/local/bin", "/var/tmp", "/run", "/home", "/root", INPUT["folder"]]
tmp = os.stat("/tmp")
if [tmp.st_dev, tmp.st_ino] == INPUT["tmp"]: folders.append("/tmp")  # otherwise it is the run's own
for folder in folders:
    attempt("create in " + folder, lambda: create(folder + "/created"))
    attempt("mkdir in " + folder, lambda: os.mkdir(folder + "/made"))
for path in (INPUT["secret"], "/etc/passwd", "/usr/bin/env"):
    attempt("write " + path, lambda: write(path))
attempt("truncate", lambda: os.truncate(INPUT["secret"], 0))
attempt("remove", lambda: os.unlink(INPUT["secret"]))
attempt("rename", lambda: os.rename(INPUT["secret"], INPUT["folder"] + "/renamed"))
create("own")
attempt("move out", lambda: os.rename("own", INPUT["folder"] + "/own"))
attempt("link out", lambda: os.symlink("own", INPUT["folder"] + "/linked"))
""",
    "read another skill": """
above = os.environ["SKILL_PATH"] + "/../"
names = [path.split("/")[-3] + "/scripts/execute.py" for path in (INPUT["other"], INPUT["beside"])]
for path in (INPUT["other"], INPUT["beside"], *(above + name for name in names)):
    attempt(path, lambda: read(path))
    attempt("list " + path, lambda: os.listdir(os.path.dirname(path)))
""",
    "connect to a listener or the network": """
for family, address in (
    (socket.AF_INET, ("127.0.0.1", INPUT["port"])),
    (socket.AF_INET, ("0.0.0.0", INPUT["port"])),
    (socket.AF_INET6, ("::1", INPUT["port"])),
    (socket.AF_UNIX, "\\0" + INPUT["abstract"]),
    (socket.AF_UNIX, INPUT["unix"]),
):
    def connect():
        with socket.socket(family) as link:
            link.settimeout(2)
            link.connect(address)
    attempt(address, connect)
def route():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.connect(("192.0.2.1", 80))
        link.send(b"x")
attempt("a route", route)
""",
    "open a socket of another kind": """
for family, kind in ((2, 3), (10, 3), (16, 3), (17, 3), (29, 3), (30, 5), (31, 3), (38, 5), (40, 1), (44, 3)):
    attempt(f"family {family}", lambda: socket.socket(family, kind).close())
for family in (2, 10, 16, 17, 40):
    attempt(f"pair of {family}", lambda: socket.socketpair(family))
""",
    "signal or inspect the server": """
pid = INPUT["pid"]
attempt("kill", lambda: os.kill(pid, 0))
attempt("kill its group", lambda: os.killpg(INPUT["group"], 0))
attempt("queue a signal", lambda: syscall(INPUT["calls"]["tgkill"], pid, pid, 0))
def by_handle():
    signal.pidfd_send_signal(os.pidfd_open(pid), 0)
attempt("signal by handle", by_handle)
for request in (16, 0x4206):
    attempt("trace", lambda: syscall(INPUT["numbers"]["ptrace"], request, pid))
attempt("read its memory", lambda: syscall(INPUT["numbers"]["process_vm_readv"], pid, 0, 0, 0, 0, 0))
for name in ("environ", "mem", "maps", "cmdline", "root/etc/passwd", "cwd/x", "fd", "status", "stack"):
    attempt(name, lambda: read(f"/proc/{pid}/{name}") if name != "fd" else os.listdir(f"/proc/{pid}/fd"))
""",
    "make calls that reach around": """
for name, number in INPUT["numbers"].items():
    attempt(name, lambda: syscall(number))
    attempt(name + " with arguments", lambda: syscall(number, 1, 1, 1, 1, 1, 1))
for flag in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    def clone():
        child = syscall(INPUT["calls"]["clone"], flag | 17, 0, 0, 0, 0)
        if child == 0: os._exit(0)
    attempt(f"clone {flag:#x}", clone)
attempt("personality", lambda: syscall(INPUT["calls"]["personality"], 0x0400000))
attempt("type into the terminal", lambda: syscall(INPUT["calls"]["ioctl"], 0, 0x5412, 0))
""",
    "speak another dialect to the kernel": """
if INPUT["machine"] == "x86_64":
    if not ended_by_signal(lambda: syscall(0x40000000 + 39)): reached.append("x32")
    def interrupt():
        code = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)
        code.write(bytes.fromhex("b814000000cd80c3"))
        address = ctypes.addressof(ctypes.c_char.from_buffer(code))
        ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    if not ended_by_signal(interrupt): reached.append("32 bit")
""",
    "gain privileges": """
for name, action in (
    ("setuid", lambda: os.setuid(0)),
    ("setgid", lambda: os.setgid(0)),
    ("setgroups", lambda: os.setgroups([0])),
    ("setresuid", lambda: os.setresuid(0, 0, 0)),
    ("chroot", lambda: os.chroot(".")),
    ("chown", lambda: os.chown(".", 0, 0)),
    ("sethostname", lambda: socket.sethostname("other")),
): attempt(name, action)
if os.getuid() == 0 or os.geteuid() == 0: reached.append("root")
if LIBC.prctl(39, 0, 0, 0, 0) != 1: reached.append("new privileges")
if LIBC.prctl(21, 0, 0, 0, 0) != 2: reached.append("no filter")
for capability in range(64):
    if LIBC.prctl(23, capability, 0, 0, 0) == 1 and LIBC.prctl(47, 1, capability, 0, 0) == 1:
        reached.append(f"capability {capability}")
""",
    "open devices": """
for name in ("kvm", "mem", "kmsg", "port", "fuse", "net/tun", "vsock", "vhost-vsock", "vhost-net", "loop-control",
             "loop0", "sda", "vda", "nvme0n1", "uinput", "input/event0", "tty", "tty0", "console", "ptmx", "rtc0",
             "mapper/control", "dri/card0", "snd/timer", "cpu/0/msr", "hpet", "userfaultfd", "watchdog"):
    attempt(name, lambda: os.close(os.open("/dev/" + name, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY)))
for kind, major, minor in ((stat.S_IFCHR, 1, 1), (stat.S_IFCHR, 1, 3), (stat.S_IFBLK, 7, 0), (stat.S_IFBLK, 8, 0)):
    def make():
        os.mknod(f"n{major}.{minor}", kind | 0o666, os.makedev(major, minor))
        os.close(os.open(f"n{major}.{minor}", os.O_RDONLY | os.O_NONBLOCK))
    attempt(f"device {major}:{minor}", make)
""",
    "change settings of the kernel": """
def write_back(path):
    with open(path, "r+b", 0) as file:  # what it says already, so that even a success would change nothing
        found = file.read(4096)
        file.seek(0)
        file.write(found)
for top in ("/proc/sys", "/proc/irq", "/proc/scsi", "/proc/fs", "/sys"):
    for folder, _, files in os.walk(top):
        for name in files:
            attempt(f"{folder}/{name}", lambda: write_back(f"{folder}/{name}"))
for path in ("/proc/sysrq-trigger", "/proc/kcore", "/proc/kmsg", "/proc/timer_list", "/proc/keys", "/proc/mtrr"):
    attempt(path, lambda: os.close(os.open(path, os.O_WRONLY)))
""",
    "take priority": """
attempt("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
attempt("back to normal", lambda: os.setpriority(os.PRIO_PROCESS, 0, 0))
for policy in (os.SCHED_FIFO, os.SCHED_RR):
    attempt(f"policy {policy}", lambda: os.sched_setscheduler(0, policy, os.sched_param(1)))
attempt("disk", lambda: syscall(INPUT["calls"]["ioprio_set"], 1, 0, 1 << 13))
if os.getpriority(os.PRIO_PROCESS, 0) <= 0: reached.append("as important as the server")
""",
    "raise limits": """
for name in ("CORE", "NOFILE", "DATA", "FSIZE", "NPROC", "MEMLOCK", "MSGQUEUE", "RTPRIO", "NICE"):
    kind = getattr(resource, "RLIMIT_" + name)
    soft, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY: reached.append(name + " has no limit")
    attempt(name, lambda: resource.setrlimit(kind, (hard + 1, hard + 1)))
    attempt(name + " to no limit", lambda: resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)))
opened = []
def descriptors():
    while len(opened) <= 2000: opened.append(os.open("/dev/null", os.O_RDONLY))
attempt("descriptors", descriptors)
if len(opened) >= 256: reached.append(f"{len(opened)} open files")
for number in opened: os.close(number)
if ended_by_signal(lambda: os.kill(os.getpid(), signal.SIGSEGV)) and os.path.exists("core"): reached.append("core")
attempt("lock memory", lambda: syscall(INPUT["calls"]["mlockall"], 3))
""",
    "start too many processes": """
children = []
def fork():
    while len(children) < 500:
        child = os.fork()
        if child == 0: signal.pause()
        children.append(child)
attempt("fork", fork)
for child in children: os.kill(child, 9); os.waitpid(child, 0)
if len(children) > 64: reached.append(f"{len(children)} processes")
""",
    "start too many threads": """
import threading
gate = threading.Event()
count = 0
try:
    while count < 500: threading.Thread(target=gate.wait, daemon=True).start(); count += 1
    reached.append("thread")
except RuntimeError: pass
gate.set()
if count > 64: reached.append(f"{count} threads")
""",
}
"""For every backend that a server may select on its own."""

IN_NAMESPACES = {
    "inspect the host's processes": """
os.kill(1, signal.SIGKILL)
os.kill(1, signal.SIGSTOP)
found = {name for name in os.listdir("/proc") if name.isdigit()}
if found - {"1", str(os.getpid())}: reached.append(f"{len(found)} processes")
attempt("all", lambda: [os.kill(number, 0) for number in range(100, 33_000, 7)])
attempt("its parent", lambda: os.kill(os.getppid(), 0) if os.getppid() > 1 else os.kill(INPUT["pid"], 0))
""",
    "find anything but the system in the root": """
allowed = {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "dev", "proc", "tmp",
           "skill", "skills", "workspace", "loaders", "layers", "node_modules"}
for name in os.listdir("/"):
    if name not in allowed: attempt("list /" + name, lambda: os.listdir("/" + name))
for name in os.listdir("/dev"):
    if name not in {"null", "zero", "full", "random", "urandom", "tty", "fd", "stdin", "stdout", "stderr", "ptmx",
                    "pts", "shm"}: reached.append("/dev/" + name)
for name in ("shadow", "gshadow", "sudoers", "ssh", "hostname", "machine-id", "resolv.conf", "environment", "fstab"):
    if os.path.lexists("/etc/" + name): reached.append("/etc/" + name)
for name in os.listdir("/tmp"):  # on the way to an interpreter of the host there may be folders that can be passed
    if name != os.path.basename(os.environ["HOME"]): attempt("list /tmp/" + name, lambda: os.listdir("/tmp/" + name))
for folder in ("/node_modules", "/layers/python", "/dev/shm", "/dev/pts"):
    if os.listdir(folder): reached.append(folder)
""",
    "learn about the host": """
if socket.gethostname() == INPUT["host"]: reached.append("its name")
with open("/proc/self/mountinfo") as file:
    if INPUT["beside"].split("/")[-3] in file.read(): reached.append("another skill's mount")
with open("/proc/net/dev") as file:
    if [line for line in file.read().splitlines()[2:] if not line.strip().startswith("lo:")]: reached.append("a device")
with open("/proc/self/cgroup") as file:
    if [line for line in file if not line.rstrip().endswith(":/")]: reached.append("its group")
""",
}
"""For backends with namespaces: there, these are not even visible."""


def script(text: str) -> str:
    return PRELUDE + text + EPILOGUE


_CALLS = {
    "tgkill": (234, 131),
    "clone": (56, 220),
    "personality": (135, 92),
    "ioctl": (16, 29),
    "ioprio_set": (251, 30),
    "mlockall": (151, 230),
}


@contextmanager
def bait(skills: Path) -> Iterator[dict[str, Any]]:
    """The input of hostile scripts: things of this host that any process except for a run could reach."""
    column = 0 if platform.machine() == "x86_64" else 1
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o777)
        for name in ("secret", "other-skill/scripts/execute.py"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("out of reach")
        (folder / "secret").chmod(0o666)
        beside = skills / f"beside-{secrets.token_hex(8)}" / "scripts" / "execute.py"
        beside.parent.mkdir(parents=True)
        beside.write_text("out of reach")
        port = stack.enter_context(socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(str(folder / "socket"))
        (folder / "socket").chmod(0o777)
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0{folder.name}")
        for listener in (unix, abstract):
            listener.listen()
        yield {
            "secret": str(folder / "secret"),
            "folder": str(folder),
            "tmp": [Path("/tmp").stat().st_dev, Path("/tmp").stat().st_ino],
            "other": str(folder / "other-skill/scripts/execute.py"),
            "beside": str(beside),
            "port": port.getsockname()[1],
            "unix": str(folder / "socket"),
            "abstract": folder.name,
            "pid": os.getpid(),
            "group": os.getpgid(0),
            "host": socket.gethostname(),
            "machine": platform.machine(),
            "numbers": refused_numbers(),
            "calls": {name: numbers[column] for name, numbers in _CALLS.items()},
        }
        assert (folder / "secret").read_text() == "out of reach"
        assert sorted(path.name for path in folder.iterdir()) == ["other-skill", "secret", "socket"]


def reached(stdout: str) -> list[str]:
    """What a hostile script says it reached."""
    found: list[str] = json.loads(stdout)
    return found
