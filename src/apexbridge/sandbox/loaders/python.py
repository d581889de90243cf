"""Waits in a warm cell for a job, then runs its script or module as if Python had been started with it.

Python runs with `-I -S`, without the server's packages. While waiting, it imports the modules that most scripts use.
The job arrives on descriptor 3: strings, each followed by a NUL.
"""

import _sitebuiltins
import _thread
import _weakref
import atexit
import builtins
import gc
import io
import os
import sys
import types

JOB = 3
CHUNK_BYTES = 65536
COMMON_MODULES = ("json", "re", "pathlib", "argparse", "datetime", "csv")
RUNPY = "<frozen runpy>"
WARM_UP = "import os\nprint(f'{os.sep}')\n"
AT_EXIT = (io.IOBase, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
"""Kinds of objects that may have something to do when they are finalized."""


def read_first_chunk() -> bytes:
    """The start of the job. Until it arrives, do what is slow the first time: compile code, import common modules."""
    compile(WARM_UP, "", "exec", dont_inherit=True)
    os.set_blocking(JOB, False)
    for name in COMMON_MODULES:
        try:
            return os.read(JOB, CHUNK_BYTES)
        except BlockingIOError:
            __import__(name)
    os.set_blocking(JOB, True)
    return os.read(JOB, CHUNK_BYTES)


def receive() -> tuple[str, str, str, list[str], list[str], list[str]]:
    chunks = [chunk := read_first_chunk()]
    os.set_blocking(JOB, True)
    while chunk:
        chunk = os.read(JOB, CHUNK_BYTES)
        chunks.append(chunk)
    os.close(JOB)
    words = [word.decode("utf-8", "surrogateescape") for word in b"".join(chunks).split(b"\0")[:-1]]
    if not words:
        os._exit(0)  # the cell was closed without a job
    script, module, root, layers, count = words[0], words[1], words[2], words[3].split("\n"), int(words[4])
    return script, module, root, layers, words[5 : 5 + count], words[5 + count :]


def forget_shadowed(folder: str) -> None:
    """Forget imported library modules that a module in the folder shadows."""
    for entry in os.scandir(folder):
        stem, _, suffix = entry.name.partition(".")
        if stem not in sys.modules or stem in sys.builtin_module_names:
            continue
        if suffix == "py" or suffix.endswith("so") or os.path.isfile(f"{folder}/{stem}/__init__.py"):
            del sys.modules[stem]


def compile_script(path: str) -> types.CodeType:
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def needs_normal_exit() -> bool:
    """Whether something has to be done at the end of the script: a file to be written, a finalizer to be called.

    Otherwise the process can end at once. Taking down the modules of the library takes a fifth of the time of a short
    script. Objects from before the script are frozen, and not among those that are looked at.
    """
    streams = (sys.stdout, sys.stderr) == (sys.__stdout__, sys.__stderr__)
    if not streams or sys.stdout is None or sys.stdout.closed or sys.stderr is None or sys.stderr.closed:
        return True
    if _thread._count() or atexit._ncallbacks() or gc.get_debug() or gc.callbacks:
        return True
    for item in gc.get_objects():
        kind = type(item)  # not `isinstance`, which asks the object
        if issubclass(kind, AT_EXIT):
            return True
        if issubclass(kind, type) and "__del__" in type.__getattribute__(item, "__dict__"):
            return True
        if issubclass(kind, _weakref.ReferenceType) and item.__callback__ is not None:
            return True
    return False


def main() -> None:
    # A function, so that its names do not appear in the script's module.
    script, name, root, layers, arguments, variables = receive()
    gc.freeze()  # these objects live until the end, so collections, also the one at exit, can skip them
    for variable in list(os.environ):
        del os.environ[variable]
    for index in range(0, len(variables), 2):
        os.environ[variables[index]] = variables[index + 1]
    os.chdir(os.environ["HOME"])
    # A module is found from the skill's root alone, as by `python -m` in that folder.
    folders = [root] if name else list(dict.fromkeys((os.path.dirname(script), root)))
    for folder in folders:
        forget_shadowed(folder)
    known = frozenset(sys.modules)
    builtins.exit = _sitebuiltins.Quitter("exit", "Ctrl-D (i.e. EOF)")  # as the site module does
    builtins.quit = _sitebuiltins.Quitter("quit", "Ctrl-D (i.e. EOF)")
    sys.argv[:] = [script, *arguments]
    sys.path[:0] = folders
    sys.path.extend(layer for layer in layers if layer)
    module = type(sys)("__main__")
    module.__dict__.update(__file__=script, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module
    try:
        if name:
            __import__("runpy")._run_module_as_main(name)  # what `python -m` calls
        else:
            exec(compile_script(script), module.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        # Print the traceback without the frames before the script's, with the hook of the script if it has set one.
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, RUNPY):
            frames = frames.tb_next
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)
    if not name and sys.modules.keys() == known:
        if not needs_normal_exit():
            os._exit(0)
        gc.unfreeze()  # the script may have stored an object in a module of the library


main()
