"""The input of a run: variables, arguments, JSON on stdin, and files."""

import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from apexbridge.errors import InvalidInputError
from apexbridge.sandbox.launcher.mounts import PACKAGES_VARIABLE, SKILLS_PATH
from apexbridge.sandbox.models import InputFile, Job

MAX_VARIABLE_BYTES = 128 * 1024 - 1
"""The kernel's limit for one string, its NUL included."""
MAX_ARGUMENTS = 4000
"""bubblewrap accepts a few thousand more, including its own."""
MAX_ARGUMENT_BYTES = 1024 * 1024
"""All arguments together; the kernel accepts twice as much, including the environment."""
INPUT_VARIABLE = "INPUT_JSON"
CODE_VARIABLES = {"LC_CTYPE": "C.UTF-8"}
"""For code only, so that `wc -m` and others count characters. Python sets the same for the programs that it starts."""
MAX_INPUT_BYTES = 50 * 1024 * 1024
MAX_INPUT_FILES = 500
MAX_INPUT_FOLDERS = 500
_CHUNK_BYTES = 1024 * 1024


def input_json(job: Job) -> str:
    """The input as the script reads it, with the names of input files. Refuses NaN and infinities."""
    payload = dict(job.input)
    if job.files:
        payload["files"] = [f"input/{file.name}" for file in job.files]
    try:
        text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate can only be sent escaped
        return json.dumps(payload, separators=(",", ":"))
    except ValueError as error:
        raise InvalidInputError("The input contains a number that JSON does not have", skillName=job.skill) from error
    return text


def base_environment(workspace: str, path: str) -> dict[str, str]:
    """The variables that are known before the skill is."""
    return {"PATH": path, "HOME": workspace, "TMPDIR": f"{workspace}/tmp"}  # noqa: S108


def layer_variables(workspace: str, python_path: Sequence[str]) -> dict[str, str]:
    """The variables of a run with Python packages, also for interpreters that it starts.

    PYTHONPATH is there twice: code may set it, and then `python` on the PATH adds the packages to it again.
    matplotlib draws without a display and caches fonts in the workspace. Numeric libraries start one thread, not one
    per core: threads count as processes of the run.
    """
    threads = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS")
    return {
        "PYTHONPATH": os.pathsep.join(python_path),
        PACKAGES_VARIABLE: os.pathsep.join(python_path),
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": f"{workspace}/tmp/matplotlib",  # noqa: S108
        **dict.fromkeys(threads, "1"),
    }


def environment(
    job: Job, base: Mapping[str, str], *, skill_path: str, skills_path: str, input_text: str
) -> dict[str, str]:
    """All variables of the run. Input that is too large for a variable arrives on stdin only."""
    variables = {**base, **job.grants.variables, **job.grants.secrets, "TIMEOUT": str(job.timeout_ms)}
    if job.code is not None:
        is_elsewhere = skills_path != SKILLS_PATH
        return {**CODE_VARIABLES, **variables, **({"SKILLS_PATH": skills_path} if is_elsewhere else {})}
    variables |= {"SKILL_NAME": job.skill, "SKILL_PATH": skill_path}
    if len(INPUT_VARIABLE) + 1 + len(input_text.encode()) <= MAX_VARIABLE_BYTES and "\0" not in input_text:
        variables[INPUT_VARIABLE] = input_text
    return variables


def arguments(job: Job) -> list[str]:
    """The script's arguments. A helper script that is run by name gets its input as options."""
    words = list(job.args)
    if not job.is_entry and not words:
        words = [word for key, value in job.input.items() for word in _option(key, value)]
    if len(words) > MAX_ARGUMENTS:
        raise InvalidInputError(f"{len(words)} arguments are too many; at most {MAX_ARGUMENTS}", skillName=job.skill)
    try:
        sizes = [len(word.encode()) for word in words]
    except UnicodeEncodeError as error:
        raise InvalidInputError("An argument contains a lone surrogate", skillName=job.skill) from error
    if any("\0" in word for word in words):
        raise InvalidInputError("An argument contains a NUL character", skillName=job.skill)
    if sum(sizes) > MAX_ARGUMENT_BYTES or max(sizes, default=0) > MAX_VARIABLE_BYTES:
        raise InvalidInputError(
            f"The arguments are too long ({sum(sizes)} bytes); send large input as `input`, or as a file",
            skillName=job.skill,
        )
    return words


def encode_job(
    script: str,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    *,
    root: str,
    module: str | None = None,
    python_path: Sequence[str] = (),
) -> bytes:
    """A job in the format of the loaders: strings, each followed by a NUL."""
    words = [script, module or "", root, "\n".join(python_path), str(len(arguments)), *arguments]
    words += [word for pair in variables.items() for word in pair]
    return b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words)


def encode_shell_job(command: Sequence[str], variables: Mapping[str, str], *, folder: str) -> bytes:
    """A job as commands of a shell that waits for it: they replace it by the script's own process.

    The shell exports the variables: as arguments of `env` they would be visible to every user of the host.
    """
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    last = f"unset PWD OLDPWD\n{exports}exec 3<&- {shlex.join(command)}\n"
    return f"cd {shlex.quote(folder)} || exit\n{last}".encode("utf-8", "surrogateescape")


def check_file_count(count: int) -> None:
    if count > MAX_INPUT_FILES:
        raise InvalidInputError(f"{count} input files are too many; at most {MAX_INPUT_FILES}")


def check_file_sizes(sizes: Sequence[int]) -> None:
    if sum(sizes) > MAX_INPUT_BYTES:
        limit = MAX_INPUT_BYTES // 1024 // 1024
        raise InvalidInputError(f"The input files have {sum(sizes):,} bytes together; at most {limit} MB are possible")


def input_folders(names: Iterable[str]) -> list[str]:
    """All folders of these input files, each after its own folder."""
    parents = (list(PurePosixPath(name).parents)[-2::-1] for name in names)
    return list(dict.fromkeys(str(parent) for folders in parents for parent in folders))


def copy_input_files(folder: int, files: Sequence[InputFile]) -> None:
    """Copy the files to an open folder, which the run can read but not change. They may have grown meanwhile."""
    copied = 0
    folders = input_folders(file.name for file in files)
    for name in folders:
        os.mkdir(name, 0o755, dir_fd=folder)
    for file in files:
        target = os.open(file.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o444, dir_fd=folder)
        with os.fdopen(target, "wb") as copy:
            while chunk := file.file.read(_CHUNK_BYTES):
                copied += len(chunk)
                check_file_sizes([copied])
                copy.write(chunk)
    for name in folders:
        os.chmod(name, 0o555, dir_fd=folder)  # noqa: S103  # readable by the run's user
    os.chmod(folder, 0o555)  # noqa: S103


def _option(key: str, value: Any) -> list[str]:
    """`--key value`; `--key` for true, nothing for false and null, repeated for a list."""
    name = f"--{key}"
    if value is True:
        return [name]
    if value is False or value is None:
        return []
    if isinstance(value, list) and not any(isinstance(item, list | Mapping) for item in value):
        return [word for item in value for word in _option(key, item)]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    # A value that starts with a dash would be parsed as an option.
    return [f"{name}={text}"] if text.startswith("-") else [name, text]
