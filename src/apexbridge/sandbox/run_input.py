"""What a run is told: its variables, its arguments, its input."""

import json
from collections.abc import Mapping
from typing import Any

from apexbridge.errors import InvalidInputError
from apexbridge.sandbox.models import Job

MAX_VARIABLE_BYTES = 128 * 1024 - 1
"""The kernel's limit for one string, its NUL included."""
MAX_ARGUMENTS = 4000
"""bubblewrap takes a few thousand more, its own included."""
MAX_ARGUMENT_BYTES = 1024 * 1024
"""All arguments together; the kernel takes twice as much with the environment."""
INPUT_VARIABLE = "INPUT_JSON"


def input_json(job: Job) -> str:
    """The input as the script reads it; names of input files are in it.

    Raises:
        InvalidInputError: it cannot be JSON.
    """
    told = dict(job.input)
    if job.files:
        told["files"] = [f"input/{file.name}" for file in job.files]
    try:
        text = json.dumps(told, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode()
    except UnicodeEncodeError:  # half a character can be written down, but not sent
        return json.dumps(told, separators=(",", ":"))
    except ValueError as error:
        raise InvalidInputError("The input holds a number that JSON does not have", skillName=job.skill) from error
    return text


def base_environment(workspace: str, path: str) -> dict[str, str]:
    """What is known before the skill is."""
    return {"PATH": path, "HOME": workspace, "TMPDIR": f"{workspace}/tmp"}  # noqa: S108


def environment(job: Job, *, workspace: str, skill_path: str, path: str, input_text: str) -> dict[str, str]:
    """Every variable of the run. Input that is too large for one arrives on stdin alone."""
    variables = {
        **base_environment(workspace, path),
        **job.grants.variables,
        **job.grants.secrets,
        "SKILL_NAME": job.skill,
        "SKILL_PATH": skill_path,
        "TIMEOUT": str(job.timeout_ms),
    }
    if len(INPUT_VARIABLE) + 1 + len(input_text.encode()) <= MAX_VARIABLE_BYTES and "\0" not in input_text:
        variables[INPUT_VARIABLE] = input_text
    return variables


def arguments(job: Job) -> list[str]:
    """The script's argv; a helper run by name takes an object as options.

    Raises:
        InvalidInputError: an argument is no text, or they are too many or too long.
    """
    words = list(job.args)
    if not job.is_entry and not words:
        words = [word for key, value in job.input.items() for word in _option(key, value)]
    if len(words) > MAX_ARGUMENTS:
        raise InvalidInputError(f"{len(words)} arguments are too many; at most {MAX_ARGUMENTS}", skillName=job.skill)
    try:
        sizes = [len(word.encode()) for word in words]
    except UnicodeEncodeError as error:
        raise InvalidInputError("An argument holds half a character (a lone surrogate)", skillName=job.skill) from error
    if any("\0" in word for word in words):
        raise InvalidInputError("An argument holds a NUL character, which no argument can", skillName=job.skill)
    if sum(sizes) > MAX_ARGUMENT_BYTES or max(sizes, default=0) > MAX_VARIABLE_BYTES:
        raise InvalidInputError(
            f"The arguments are too long ({sum(sizes)} bytes); send large input as `input`, or as a file",
            skillName=job.skill,
        )
    return words


def _option(key: str, value: Any) -> list[str]:
    """`--key value`; true is the option alone, false and null are no option, a list repeats it."""
    name = f"--{key}"
    if value is True:
        return [name]
    if value is False or value is None:
        return []
    if isinstance(value, list) and not any(isinstance(item, list | Mapping) for item in value):
        return [word for item in value for word in _option(key, item)]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    # A value that looks like an option would be taken for one.
    return [f"{name}={text}"] if text.startswith("-") else [name, text]
