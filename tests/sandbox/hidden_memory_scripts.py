"""Scripts that use more memory than a run may have, in ways that /proc does not show for a process."""

_MMAP = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
MB, SIZE, SHARED, FAILED = 1 << 20, 16 << 20, 0x21, ctypes.c_void_p(-1).value
def shared(size):
    address = libc.mmap(None, size, 3, SHARED, -1, 0)
    if address == FAILED:
        raise MemoryError
    return address
"""
_SLEEP_AND_REPORT = """
time.sleep(20)
print("reached", flush=True)
"""

HIDDEN: dict[str, str] = {
    "one object in parts whose pages are unmapped": _MMAP
    + """
for _ in range(60):
    address = shared(SIZE)
    libc.mprotect(address, SIZE // 2, 7)
    ctypes.memset(address, 66, SIZE)
    libc.madvise(address, SIZE, 4)
"""
    + _SLEEP_AND_REPORT,
    "one large object": _MMAP
    + """
address = shared(2048 * MB)
for at in range(0, 2048 * MB, SIZE):
    ctypes.memset(address + at, 66, SIZE)
    libc.madvise(address + at, SIZE, 4)
"""
    + _SLEEP_AND_REPORT,
    "objects behind thousands of small mappings": _MMAP
    + """
for count in range(30_000):
    libc.mmap(None, 4096, count % 2, 0x22, -1, 0)
for _ in range(60):
    address = shared(SIZE)
    ctypes.memset(address, 66, SIZE)
    libc.madvise(address, SIZE, 4)
"""
    + _SLEEP_AND_REPORT,
    "objects of which one page stays mapped": _MMAP
    + """
for _ in range(60):
    address = shared(SIZE)
    ctypes.memset(address, 66, SIZE)
    libc.munmap(address + 4096, SIZE - 4096)
"""
    + _SLEEP_AND_REPORT,
    "objects under another name": _MMAP
    + """
name = ctypes.create_string_buffer(b"heap")
for _ in range(60):
    address = shared(SIZE)
    libc.prctl(0x53564D41, 0, address, SIZE, ctypes.addressof(name))
    ctypes.memset(address, 66, SIZE)
    libc.madvise(address, SIZE, 4)
"""
    + _SLEEP_AND_REPORT,
    "objects of a process that may not be inspected": _MMAP
    + """
libc.prctl(4, 0, 0, 0, 0)
for _ in range(60):
    address = shared(SIZE)
    ctypes.memset(address, 66, SIZE)
    libc.madvise(address, SIZE, 4)
"""
    + _SLEEP_AND_REPORT,
    "objects of a program that may not be read": """
import os, subprocess, sys
with open(os.path.realpath(sys.executable), "rb") as file:
    data = file.read()
program = os.open("program", os.O_WRONLY | os.O_CREAT, 0o111)
os.write(program, data)
os.close(program)
text = '''
import mmap, time
held = []
for _ in range(60):
    held.append(mmap.mmap(-1, 16 << 20))
    held[-1][:] = b"x" * (16 << 20)
    held[-1].madvise(4)
time.sleep(20)
'''
subprocess.run([os.path.abspath("program"), "-I", "-S", "-c", text], env={"PYTHONHOME": sys.base_prefix}, check=True)
print("reached", flush=True)
""",
    "processes whose first thread has ended": """
import ctypes, os, platform, threading, time
def hold():
    time.sleep(0.3)
    taken = bytearray(b"x") * (300 << 20)
    time.sleep(20)
for _ in range(4):
    if os.fork() == 0:
        threading.Thread(target=hold).start()
        ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
time.sleep(20)
print("reached", flush=True)
""",
    "what sockets have under way": """
import os, socket, time
for _ in range(40):
    if os.fork() == 0:
        held = []
        try:
            while True:
                left, right = socket.socketpair()
                held.append(right)
                left.setblocking(False)
                try:
                    while True: left.send(b"x" * 32768)
                except BlockingIOError:
                    left.close()
        except OSError:
            time.sleep(20)
        os._exit(0)
time.sleep(20)
print("reached", flush=True)
""",
    "locks on files": """
import fcntl, os, time
for name in range(200):
    file = os.open(str(name), os.O_RDWR | os.O_CREAT)
    for at in range(2000): fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * at)
time.sleep(20)
print("reached", flush=True)
""",
}
IN_NAMESPACES_HIDDEN: dict[str, str] = {
    "a chain of short lives": _MMAP
    + """
held = [shared(SIZE) for _ in range(60)]
if os.fork():
    time.sleep(20)
    print("reached", flush=True)
    os._exit(0)
def hop():
    if os.fork():
        os._exit(0)
for address in held:
    for at in range(0, SIZE, MB):
        hop()
        ctypes.memset(address + at, 66, MB)
        libc.madvise(address + at, MB, 4)
while True:
    hop()
""",
    "what waits to be accepted": """
import socket, time
listener = socket.socket(socket.AF_UNIX)
listener.bind("s")
listener.listen(4096)
for _ in range(4000):
    with socket.socket(socket.AF_UNIX) as link:
        link.setblocking(False)
        link.connect("s")
        try:
            while True: link.send(b"x" * 32768)
        except BlockingIOError: pass
time.sleep(20)
print("reached", flush=True)
""",
}
FILL = """
import os, socket, time
def fill(link):
    link.setblocking(False)
    try:
        while True: link.send(b"x" * 32768)
    except OSError: pass
held = []
"""
INTERNET_HIDDEN: dict[str, str] = {
    "TCP connections that are never accepted": FILL
    + """
listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
for _ in range(40):
    if os.fork() == 0:
        for _ in range(200):
            held.append(socket.create_connection(listener.getsockname()))
            fill(held[-1])
        time.sleep(20)
        os._exit(0)
time.sleep(20)
print("reached", flush=True)
""",
    "TCP connections that were closed with data under way": FILL
    + """
listener = socket.create_server(("::1", 0), family=socket.AF_INET6, backlog=4096)
for _ in range(4000):
    with socket.create_connection(listener.getsockname()[:2]) as link: fill(link)
time.sleep(20)
print("reached", flush=True)
""",
    "datagrams that nobody reads": FILL
    + """
for _ in range(20):
    if os.fork() == 0:
        for _ in range(200):
            receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            receiver.bind(("127.0.0.1", 0))
            held.append(receiver)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
                link.connect(receiver.getsockname())
                for _ in range(20): link.send(b"x" * 32768)
        time.sleep(20)
        os._exit(0)
time.sleep(20)
print("reached", flush=True)
""",
}
REFUSED = """
import fcntl, json, mmap, os, socket, struct, ctypes
def refused(do):
    try: do()
    except OSError: return True
    return False
def zero():
    file = os.open("/dev/zero", os.O_RDWR)
    mmap.mmap(file, 1 << 20, mmap.MAP_SHARED)
def program():
    code = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0xFFFF))
    left, right = socket.socketpair()
    left.setsockopt(1, 26, struct.pack("HxxxxxxQ", 1, ctypes.addressof(code)))
def spliced():
    with open("f", "wb") as file: file.write(b"x" * 4096)
    libc = ctypes.CDLL(None, use_errno=True)
    file, (_, end) = os.open("f", os.O_RDONLY), os.pipe()
    if libc.splice(file, None, end, None, ctypes.c_size_t(1), 0) < 0: raise OSError(ctypes.get_errno())
def sent():
    with open("f", "wb") as file: file.write(b"x" * 4096)
    left, right = socket.socketpair()
    os.sendfile(left.fileno(), os.open("f", os.O_RDONLY), 0, 1)
def owned():
    file = os.open("f", os.O_RDWR | os.O_CREAT)
    fcntl.fcntl(file, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0))
tries = {
    "/dev/zero mapped shared": zero,
    "huge pages": lambda: mmap.mmap(-1, 2 << 20, 0x40022),
    "a program for a socket": program,
    "splice": spliced,
    "sendfile": sent,
    "a lock that names no process": owned,
}
print(json.dumps([name for name, do in tries.items() if not refused(do)]))
"""
ORDINARY_USE = """
import json, mmap, multiprocessing, os, shutil
def work(array, number): array[number] = number
done = []
shared = mmap.mmap(-1, 8 << 20)
shared[0] = 1
small = [mmap.mmap(-1, 4096) for _ in range(20)]
done.append("shared memory")
try: os.close(os.open("/dev/shm/probe", os.O_WRONLY | os.O_CREAT)); can_share = True
except OSError: can_share = False
if can_share:
    array = multiprocessing.get_context("fork").RawArray("i", 1000)
    child = multiprocessing.get_context("fork").Process(target=work, args=(array, 7))
    child.start()
    child.join()
    assert array[7] == 7
done.append("multiprocessing")
with open("one", "wb") as file: file.write(b"x" * 100_000)
shutil.copyfile("one", "two")
assert os.path.getsize("two") == 100_000
with open("two", "r+b") as file: mmap.mmap(file.fileno(), 0)[5] = 7
done.append("files")
with open("/dev/full", "rb") as file: assert file.read(4) == bytes(4)
done.append("zeros")
print(json.dumps(done))
"""
