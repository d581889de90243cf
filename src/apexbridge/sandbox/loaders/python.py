"""Waits in a warm cell for a job, then runs its script as if Python had been started with it.

Python runs with `-I -S`, without the server's packages. While waiting, it imports the modules that most scripts use.
The job arrives on descriptor 3: strings, each followed by a NUL.
"""

import _sitebuiltins
import builtins
import gc
import os
import sys

JOB = 3
CHUNK_BYTES = 65536
COMMON_MODULES = ("json", "re", "pathlib", "argparse", "datetime", "csv")


def read_first_chunk() -> bytes:
    """The start of the job. Until it arrives, import common modules."""
    os.set_blocking(JOB, False)
    for name in COMMON_MODULES:
        try:
            return os.read(JOB, CHUNK_BYTES)
        except BlockingIOError:
            __import__(name)
    os.set_blocking(JOB, True)
    return os.read(JOB, CHUNK_BYTES)


def receive() -> tuple[str, str, list[str], list[str]]:
    chunks = [chunk := read_first_chunk()]
    os.set_blocking(JOB, True)
    while chunk:
        chunk = os.read(JOB, CHUNK_BYTES)
        chunks.append(chunk)
    os.close(JOB)
    words = [word.decode("utf-8", "surrogateescape") for word in b"".join(chunks).split(b"\0")[:-1]]
    if not words:
        os._exit(0)  # the cell was closed without a job
    script, layer, count = words[0], words[1], int(words[2])
    return script, layer, words[3 : 3 + count], words[3 + count :]


def forget_shadowed(folder: str) -> None:
    """Forget imported library modules that a module next to the script shadows."""
    for name in os.listdir(folder):
        stem = name.partition(".")[0]
        if stem in sys.modules and stem not in sys.builtin_module_names:
            del sys.modules[stem]


def main() -> None:
    # A function, so that its names do not appear in the script's module.
    script, layer, arguments, variables = receive()
    gc.freeze()  # these objects live until the end, so collections, also the one at exit, can skip them
    folder = os.path.dirname(script)
    for name in list(os.environ):
        del os.environ[name]
    for index in range(0, len(variables), 2):
        os.environ[variables[index]] = variables[index + 1]
    forget_shadowed(folder)
    builtins.exit = _sitebuiltins.Quitter("exit", "Ctrl-D (i.e. EOF)")  # as the site module does
    builtins.quit = _sitebuiltins.Quitter("quit", "Ctrl-D (i.e. EOF)")
    sys.argv[:] = [script, *arguments]
    sys.path.insert(0, folder)
    if layer:
        sys.path.append(layer)
    module = type(sys)("__main__")
    module.__dict__.update(__file__=script, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module
    try:
        with open(script, "rb") as file:
            code = compile(file.read(), script, "exec", dont_inherit=True)
        exec(code, module.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        # Print the traceback without this program's frame, with the hook of the script if it has set one.
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)


main()
