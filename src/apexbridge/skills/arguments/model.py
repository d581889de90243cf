"""The shape of a script's arguments: as JSON Schema for whoever calls it, as argv for the script."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

Kind = Literal["string", "integer", "number", "boolean"]
MAX_DESCRIPTION_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One option or one positional argument."""

    name: str
    """Its key in an input object: the long option without its dashes, or the positional's name."""
    flag: str | None = None
    """As the script spells it, `--out`; None for a positional. One that ends in `=` takes its value in one word."""
    off_flag: str | None = None
    """What switches it off, `--no-cache`, where there is such a thing."""
    type: Kind = "string"
    """Of the value, or of each item."""
    description: str = ""
    required: bool = False
    default: Any = None
    choices: tuple[Any, ...] = ()
    is_list: bool = False
    is_flag: bool = False
    repeats: bool = False
    """How a list is written: the option before each item, or once before all."""
    count: int | None = None
    """How many items a list must have."""
    commands: tuple[str, ...] = ()
    """The subcommands that know it; empty where it is the script's own."""
    is_command: bool = False
    """Whether it chooses the subcommand."""

    def schema(self) -> dict[str, Any]:
        """Its JSON Schema."""
        one: dict[str, Any] = {"type": "boolean" if self.is_flag else self.type}
        if self.choices:
            one["enum"] = list(self.choices)
        whole = one
        if self.is_list:
            whole = {"type": "array", "items": one}
            if self.count is not None:
                whole |= {"minItems": self.count, "maxItems": self.count}
            elif self.required:
                whole["minItems"] = 1
        if self.description:
            whole["description"] = self.description
        if self.default is not None:
            whole["default"] = self.default
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptArguments:
    """Everything that a script takes."""

    options: tuple[Argument, ...] = ()
    positionals: tuple[Argument, ...] = ()
    """In the order in which the script wants them."""
    description: str = ""
    joins: bool = True
    """Whether the script reads `--key=value`, as a value that itself looks like an option must be written."""

    def to_json(self) -> dict[str, Any]:
        """As plain data, to be kept; what is as usual is left out."""
        return {
            "options": [_told(argument) for argument in self.options],
            "positionals": [_told(argument) for argument in self.positionals],
            "description": self.description,
            "joins": self.joins,
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "ScriptArguments":
        """From what `to_json` gave."""
        return cls(
            options=tuple(_read(argument) for argument in told["options"]),
            positionals=tuple(_read(argument) for argument in told["positionals"]),
            description=told["description"],
            joins=told["joins"],
        )

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of an input object."""
        everything = (*self.positionals, *self.options)
        commands = {choice for argument in self.positionals if argument.is_command for choice in argument.choices}
        properties = {}
        for argument in everything:
            properties[argument.name] = argument.schema()
            if argument.commands and set(argument.commands) != commands:
                words = f"For {', '.join(argument.commands)}: {argument.description}".rstrip(": ")
                properties[argument.name]["description"] = words[:MAX_DESCRIPTION_CHARACTERS]
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        if required := [argument.name for argument in everything if argument.required]:
            schema["required"] = required
        return schema

    def argv(self, input: Mapping[str, Any]) -> list[str]:
        """An input object as the script's arguments; a key that is not known becomes `--key value`.

        Options of the script itself stand before the subcommand and those of the subcommand after it, because parsers
        want them there.

        Raises:
            ValueError: it cannot be written so that the script reads what is meant.
        """
        known = {argument.name: argument for argument in self.options}
        places = {argument.name for argument in self.positionals}
        before, after = _Words(self.joins), _Words(self.joins)
        has_command = any(argument.is_command for argument in self.positionals)
        for key, value in input.items():
            if not key:
                raise ValueError("an argument needs a name")
            if key not in places:
                option = known.get(key) or Argument(name=key, flag=f"--{key}", repeats=True)
                is_own = has_command and key in known and not option.commands
                (before if is_own else after).add_option(option, value)
        given = [place for place, argument in enumerate(self.positionals) if input.get(argument.name) is not None]
        for argument in self.positionals[: max(given, default=-1) + 1]:
            words = before if argument.is_command else after
            value = input.get(argument.name, argument.default)
            if value is None and not argument.is_command:
                raise ValueError(f"{argument.name} is left out, and what follows it would take its place")
            words.add_positional(argument, value)
        return [*before.all(), *after.all()]


def _told(argument: Argument) -> dict[str, Any]:
    values = {known.name: (getattr(argument, known.name), known.default) for known in fields(argument)}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, (value, usual) in values.items()
        if value != usual
    }


def _read(told: Mapping[str, Any]) -> Argument:
    values: dict[str, Any] = dict(told)
    for name in ("choices", "commands"):
        values[name] = tuple(values.get(name, ()))
    return Argument(**values)


@dataclass(slots=True)
class _Words:
    """A part of argv in the making: options, then positionals."""

    joins: bool
    options: list[str] = field(default_factory=list)
    positionals: list[str] = field(default_factory=list)
    is_open: bool = False
    """Whether the last option would take what follows it for one more value."""

    def add_option(self, option: Argument, value: Any) -> None:
        """`--key value`; true is the option alone, false and null are no option."""
        flag = option.flag or ""
        if option.is_flag:
            written = flag if value is True else option.off_flag if value is False else None
            self.options += [written] if written else []
        elif isinstance(value, bool) and option.type == "boolean":
            # Whatever reads a truth from text takes every text for true but the empty one.
            self.options.append(f"{flag}={'true' if value else ''}")
        elif option.is_list or (isinstance(value, list) and not any(isinstance(item, list | dict) for item in value)):
            self._add_list(option, flag, value)
        else:
            self._add_value(flag, value)

    def _add_list(self, option: Argument, flag: str, value: Any) -> None:
        items = value if isinstance(value, list) else [value]
        if option.repeats or not option.is_list or len(items) == 1:
            for item in items:
                self._add_value(flag, item)
        elif items:
            words = [_text(item) for item in items]
            if any(word.startswith("-") for word in words):  # it would be taken for an option of its own
                raise ValueError(f"{option.name}: an item of this list cannot begin with a dash")
            self.options += [flag, *words]
        self.is_open = self.is_open or (option.is_list and not option.repeats and option.count is None)

    def _add_value(self, flag: str, value: Any) -> None:
        if value is None or value is False:
            return
        if value is True:
            self.options.append(flag.removesuffix("="))
            self.is_open = True
            return
        text = _text(value)
        if flag.endswith("="):
            self.options.append(flag + text)
        elif self.joins and text.startswith("-"):  # else it would be taken for an option
            self.options.append(f"{flag}={text}" if flag.startswith("--") else flag + text)
        else:
            self.options += [flag, text]

    def add_positional(self, argument: Argument, value: Any) -> None:
        """Its value, or one word for each item."""
        if value is not None:
            items = value if isinstance(value, list) and argument.is_list else [value]
            self.positionals += [_text(item) for item in items]

    def all(self) -> list[str]:
        """The words; `--` ends the options where a positional could be taken for a part of them."""
        is_unclear = self.is_open or any(word.startswith("-") for word in self.positionals)
        return [*self.options, *(["--"] if is_unclear and self.positionals else []), *self.positionals]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
