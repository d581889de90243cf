"""A skill that means harm and does none: it tries each wall and says what it met."""

import ctypes
import errno
import json
import os
import resource
import socket
from collections.abc import Callable

GIVEN = json.loads(os.environ["INPUT_JSON"])
EXPECTED = {"PATH", "HOME", "TMPDIR", "SKILL_NAME", "SKILL_PATH", "INPUT_JSON", "TIMEOUT", "PWD", "LC_CTYPE"}
MAX_FORKS = 2000


def files() -> tuple[list[str], str]:
    reached = []
    for path in (GIVEN["secret"], "/etc/shadow", "/proc/1/root" + GIVEN["secret"]):
        try:
            with open(path, "rb") as file:
                file.read(1)
            reached.append("read " + path)
        except OSError:
            pass
    for folder in ("/", "/etc", "/usr", "/tmp", "/var/tmp", os.environ["SKILL_PATH"], GIVEN["folder"]):
        path = folder + "/apexbridge-canary"
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
            os.unlink(path)
            reached.append("write " + folder)
        except OSError:
            pass
    return reached, "the host's files are out of reach"


def network() -> tuple[list[str], str]:
    reached = []
    targets = [(socket.AF_INET, ("127.0.0.1", GIVEN["port"])), (socket.AF_UNIX, "\0" + GIVEN["abstract"])]
    for family, address in targets:
        try:
            with socket.socket(family) as link:
                link.settimeout(1)
                link.connect(address)
            reached.append(str(address))
        except OSError:
            pass
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
            link.connect(("192.0.2.1", 80))
        reached.append("a route to the internet")
    except OSError:
        pass
    return reached, "no listener of the host and no route can be reached"


def variables() -> tuple[list[str], str]:
    found = sorted(set(os.environ) - EXPECTED)
    return found, "only the documented variables are set"


def descriptors() -> tuple[list[str], str]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened: list[int] = []
    try:
        while len(opened) <= GIVEN["files"]:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    count = len(opened)
    for descriptor in opened:
        os.close(descriptor)
    too_many = count >= GIVEN["files"] or hard > GIVEN["files"]
    return [f"{count} files were opened"] if too_many else [], f"no more than {hard} files can be open"


def processes() -> tuple[list[str], str]:
    children = []
    refused = False
    for _ in range(min(MAX_FORKS, GIVEN["processes"] + 20)):
        try:
            child = os.fork()
        except OSError:
            refused = True
            break
        if child == 0:
            os.kill(os.getpid(), 19)
            os._exit(0)
        children.append(child)
    for child in children:
        os.kill(child, 9)
        os.waitpid(child, 0)
    return [] if refused else [f"{len(children)} processes were started"], f"refused after {len(children)} processes"


def syscalls() -> tuple[list[str], str]:
    numbers = GIVEN["syscalls"]
    libc = ctypes.CDLL(None, use_errno=True)
    reached = []
    for name, number in numbers.items():
        ctypes.set_errno(0)
        result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(0)] * 6)
        if result >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS, errno.EACCES):
            reached.append(name)
    return reached, f"{len(numbers)} dangerous calls are refused"


def judge(check: "Callable[[], tuple[list[str], str]]") -> dict[str, object]:
    reached, proof = check()
    return {"held": not reached, "proof": proof if not reached else "; ".join(reached)}


CHECKS = {
    "fs": files,
    "net": network,
    "env": variables,
    "fds": descriptors,
    "pids": processes,
    "syscalls": syscalls,
}
print(json.dumps({name: judge(CHECKS[name]) for name in GIVEN["checks"]}))
