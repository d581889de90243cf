"""What was found in a script, made fit to be kept and shown: bounded, and one argument for each name."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from apexbridge.skills.arguments.model import MAX_DESCRIPTION_CHARACTERS, Argument, Kind, ScriptArguments

MAX_ARGUMENTS = 50
MAX_CHOICES = 50
MAX_NAME_CHARACTERS = 64
MAX_VALUE_CHARACTERS = 200
_TALK = {"help", "version", "h"}
"""Options that make a script speak of itself and do nothing."""
_SAFE_INTEGER = 2**53


def assemble(arguments: Iterable[Argument], *, description: str = "", joins: bool = True) -> ScriptArguments | None:
    """Everything found in one script, in order: bounded, with one argument for each name; None for nothing at all.

    What several subcommands have in common is one argument, and none of what belongs to a subcommand is required.
    """
    found: dict[str, Argument] = {}
    for argument in arguments:
        if argument.is_flag and argument.name in _TALK:
            continue
        tidy = _tidied(argument)
        earlier = found.get(tidy.name)
        if earlier is not None and (earlier.flag is None) != (tidy.flag is None):
            tidy = replace(tidy, name=f"{tidy.name}-{'argument' if tidy.flag is None else 'option'}")
            earlier = found.get(tidy.name)
        if earlier is not None:
            both = tuple(dict.fromkeys((*earlier.commands, *tidy.commands)))
            found[tidy.name] = replace(earlier, commands=both if earlier.commands and tidy.commands else ())
        elif _is_name(tidy.name) and len(found) < MAX_ARGUMENTS:
            found[tidy.name] = tidy
    if not found:
        return None
    return ScriptArguments(
        options=tuple(argument for argument in found.values() if argument.flag is not None),
        positionals=tuple(argument for argument in found.values() if argument.flag is None),
        description=_cut(description),
        joins=joins,
    )


def _tidied(argument: Argument) -> Argument:
    choices = tuple(choice for choice in argument.choices if _fits(choice, argument.type))
    return replace(
        argument,
        description=_cut(argument.description),
        required=argument.required and not argument.commands,
        default=_default(argument),
        choices=choices if len(choices) == len(argument.choices) <= MAX_CHOICES else (),
    )


def _default(argument: Argument) -> Any:
    value = argument.default
    if argument.is_flag or value is None:
        return None  # a flag that is not given is off
    items = list(value) if isinstance(value, list | tuple) else [value]
    if isinstance(value, list | tuple) != argument.is_list or not items:
        return None
    if len(items) > MAX_CHOICES or not all(_fits(item, argument.type) for item in items):
        return None
    return items if argument.is_list else value


def _fits(value: Any, kind: Kind) -> bool:
    if isinstance(value, bool) or kind == "boolean":
        return isinstance(value, bool) and kind == "boolean"
    if kind == "string":
        return isinstance(value, str) and len(value) <= MAX_VALUE_CHARACTERS and _clean(value) == value
    if isinstance(value, float):
        return kind == "number" and abs(value) < _SAFE_INTEGER
    return isinstance(value, int) and abs(value) < _SAFE_INTEGER


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME_CHARACTERS and text.isprintable() and not any(map(str.isspace, text))


def _clean(text: str) -> str:
    """Without the half characters that a source can spell and nothing can store."""
    return text.encode("utf-8", "replace").decode()


def _cut(text: str) -> str:
    """One line of bounded length."""
    line = " ".join(_clean(text[: 4 * MAX_DESCRIPTION_CHARACTERS]).split())
    return line if len(line) <= MAX_DESCRIPTION_CHARACTERS else line[: MAX_DESCRIPTION_CHARACTERS - 1].rstrip() + "…"
