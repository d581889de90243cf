"""Attacks the sandbox without doing harm, and prints what it could reach. The self-test runs it like a skill.

The input may name one `attack`, which a limit should stop. Otherwise, the results of quick checks are printed as JSON.
"""

import ctypes
import errno
import json
import mmap
import os
import resource
import signal
import socket
import sys
import time

INPUT = json.loads(os.environ["INPUT_JSON"])
SET_BY_THE_SANDBOX = {"PATH", "HOME", "TMPDIR", "SKILL_NAME", "SKILL_PATH", "INPUT_JSON", "TIMEOUT"}
EXPECTED = {*SET_BY_THE_SANDBOX, "PWD", "LC_CTYPE"}
MAX_FORKS = 2000


def files() -> tuple[list[str], str]:
    reached = []
    for path in (INPUT["secret"], "/etc/shadow", "/proc/1/root" + INPUT["secret"]):
        try:
            with open(path, "rb") as file:
                file.read(1)
            reached.append("read " + path)
        except OSError:
            pass
    for folder in ("/", "/etc", "/usr", "/tmp", "/var/tmp", os.environ["SKILL_PATH"], INPUT["folder"]):
        path = folder + "/apexbridge-canary"
        try:
            if folder == "/tmp" and not is_of_host(folder):
                continue  # the run's own
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
            os.unlink(path)
            reached.append("write " + folder)
        except OSError:
            pass
    return reached, "the host's files are out of reach"


def is_of_host(folder: str) -> bool:
    found = os.stat(folder)
    return bool([found.st_dev, found.st_ino] == INPUT["tmp"])


def network() -> tuple[list[str], str]:
    reached = []
    targets = [
        (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", INPUT["port"])),
        (socket.AF_UNIX, socket.SOCK_STREAM, "\0" + INPUT["abstract"]),
        (socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 80)),  # succeeds if there is a route to the internet
    ]
    for family, kind, address in targets:
        try:
            with socket.socket(family, kind) as link:
                link.settimeout(1)
                link.connect(address)
            reached.append(str(address))
        except OSError:
            pass
    own = "its own loopback works" if has_loopback() else "it has no loopback"
    return reached, f"no listener of the host and no route can be reached; {own}"


def has_loopback() -> bool:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), 1).close()
    except OSError:
        return False
    return True


def variables() -> tuple[list[str], str]:
    return sorted(set(os.environ) - EXPECTED), "only the documented variables are set"


def descriptors() -> tuple[list[str], str]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened: list[int] = []
    try:
        while len(opened) <= INPUT["files"]:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    count = len(opened)
    for descriptor in opened:
        os.close(descriptor)
    too_many = count >= INPUT["files"] or hard > INPUT["files"]
    return [f"{count} files were opened"] if too_many else [], f"no more than {hard} files can be open"


def processes() -> tuple[list[str], str]:
    children = []
    refused = False
    for _ in range(min(MAX_FORKS, INPUT["processes"] + 20)):
        try:
            child = os.fork()
        except OSError:
            refused = True
            break
        if child == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        children.append(child)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return [] if refused else [f"{len(children)} processes were started"], f"refused after {len(children)} processes"


def syscalls() -> tuple[list[str], str]:
    numbers = INPUT["syscalls"]
    libc = ctypes.CDLL(None, use_errno=True)
    reached = []
    for name, number in numbers.items():
        ctypes.set_errno(0)
        result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(0)] * 6)
        if result >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS, errno.EACCES):
            reached.append(name)
    return reached, f"{len(numbers)} dangerous calls are refused"


def take_memory() -> None:
    """Take memory in this process and in a child, so that only a limit on the whole tree stops it."""
    is_child = os.fork() == 0
    taken = []
    for _ in range(64):
        taken.append(bytearray(os.urandom(1) * (16 << 20)))
        time.sleep(0.005)
    time.sleep(5)
    if is_child:
        os._exit(0)
    print("reached")


def take_shared_memory() -> None:
    """Take shared memory and unmap its pages, so that no figure of a process shows it."""
    taken = []
    for _ in range(INPUT["limit"] * 3 // 2 // INPUT["size"]):
        mapping = mmap.mmap(-1, INPUT["size"])
        mapping.write(b"x" * INPUT["size"])
        mapping.madvise(mmap.MADV_DONTNEED)
        taken.append(mapping)
    time.sleep(5)
    print("reached")


def fill_disk() -> None:
    """Fill the workspace with bytes and then with files until both are refused."""
    written = created = refused = 0
    try:
        with open("large", "wb", 0) as file:
            while written < INPUT["bytes"] * 3:
                written += file.write(b"x" * (1 << 20))
    except OSError:
        refused += 1
    os.unlink("large")
    os.mkdir("many")
    try:
        while created < INPUT["inodes"] * 3:
            os.close(os.open(f"many/{created}", os.O_WRONLY | os.O_CREAT))
            created += 1
    except OSError:
        refused += 1
    print(json.dumps({"bytes": written, "files": created, "refused": refused}))


def leave_daemon() -> None:
    """Leave a process behind that has a new session and no parent, and ignores signals."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            code = "import time; time.sleep(30)"
            os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", code, INPUT["marker"]])
        os._exit(0)
    time.sleep(0.2)
    print("left")


CHECKS = {"fs": files, "net": network, "env": variables, "fds": descriptors, "pids": processes, "syscalls": syscalls}
ATTACKS = {
    "none": lambda: print("Python", sys.version.split()[0]),
    "memory": take_memory,
    "shared_memory": take_shared_memory,
    "disk": fill_disk,
    "daemon": leave_daemon,
}
if "attack" in INPUT:
    ATTACKS[INPUT["attack"]]()
else:
    report = {}
    for name, check in CHECKS.items():
        reached, proof = check()
        report[name] = {"held": not reached, "proof": "; ".join(reached) or proof}
    print(json.dumps(report))
