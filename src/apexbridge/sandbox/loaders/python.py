"""Waits inside the sandbox for a job and becomes it: the script runs as if Python had been started with it.

Runs with `-I -S`: nothing of the server's packages is there. What most scripts import is imported while there is time.
The job is one packet on descriptor 3: strings, each ended by a NUL.
"""

import _sitebuiltins
import builtins
import gc
import os
import sys

JOB = 3
PIECE = 65536
OFTEN_IMPORTED = ("json", "re", "pathlib", "argparse", "datetime", "csv")


def first_piece() -> bytes:
    """The beginning of the job; as long as there is none, import what most scripts begin with."""
    os.set_blocking(JOB, False)
    for name in OFTEN_IMPORTED:
        try:
            return os.read(JOB, PIECE)
        except BlockingIOError:
            __import__(name)
    os.set_blocking(JOB, True)
    return os.read(JOB, PIECE)


def receive() -> tuple[str, str, list[str], list[str]]:
    pieces = [piece := first_piece()]
    os.set_blocking(JOB, True)
    while piece:
        piece = os.read(JOB, PIECE)
        pieces.append(piece)
    os.close(JOB)
    words = [word.decode("utf-8", "surrogateescape") for word in b"".join(pieces).split(b"\0")[:-1]]
    if not words:
        os._exit(0)  # nobody needed us
    script, layer, count = words[0], words[1], int(words[2])
    return script, layer, words[3 : 3 + count], words[3 + count :]


def forget_shadowed(folder: str) -> None:
    """A module of the script's own comes before one of the library, also where the library's was imported already."""
    for name in os.listdir(folder):
        stem = name.partition(".")[0]
        if stem in sys.modules and stem not in sys.builtin_module_names:
            del sys.modules[stem]


def main() -> None:
    """A function, so that none of its names are left behind in the script's module."""
    script, layer, arguments, variables = receive()
    gc.freeze()  # what is here by now stays until the end; nobody need look through it again, least of all when leaving
    folder = os.path.dirname(script)
    for name in list(os.environ):
        del os.environ[name]
    for position in range(0, len(variables), 2):
        os.environ[variables[position]] = variables[position + 1]
    forget_shadowed(folder)
    builtins.exit = _sitebuiltins.Quitter("exit", "Ctrl-D (i.e. EOF)")  # what the site module would have added
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
        # Shown without this program's own frame; a hook that the script set is honoured.
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)


main()
