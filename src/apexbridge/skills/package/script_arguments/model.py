"""A script's arguments: as JSON Schema for callers, as argv for the script."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

Kind = Literal["string", "integer", "number", "boolean"]
MAX_ARGUMENTS = 50
MAX_CHOICES = 50
MAX_NAME_CHARACTERS = 64
MAX_VALUE_CHARACTERS = 200
MAX_DESCRIPTION_CHARACTERS = 200
_INFORMATIONAL = {"help", "version", "h"}
_SAFE_INTEGER = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One option or one positional argument."""

    name: str
    """Its key in an input object: the long option without dashes, or the positional's name."""
    flag: str | None = None
    """As the script spells it, `--out`; None for a positional. `--out=` takes its value in the same word."""
    off_flag: str | None = None
    """The option that switches it off: `--no-cache`."""
    type: Kind = "string"
    """Of the value, or of each item of a list."""
    description: str = ""
    required: bool = False
    default: Any = None
    choices: tuple[Any, ...] = ()
    is_list: bool = False
    is_flag: bool = False
    repeats: bool = False
    """Whether a list is written with the option before each item, instead of once before all."""
    count: int | None = None
    """The exact number of items of a list."""
    commands: tuple[str, ...] = ()
    """The subcommands that accept it; empty for an argument of the script itself."""
    is_command: bool = False
    """Whether it selects the subcommand."""

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "boolean" if self.is_flag else self.type}
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.is_list:
            schema = {"type": "array", "items": schema}
            if self.count is not None:
                schema |= {"minItems": self.count, "maxItems": self.count}
            elif self.required:
                schema["minItems"] = 1
        if self.description:
            schema["description"] = self.description
        if self.default is not None:
            schema["default"] = self.default
        return schema

    def to_json(self) -> dict[str, Any]:
        """Only the fields that differ from their defaults."""
        values = {known.name: (getattr(self, known.name), known.default) for known in fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Argument":
        """The reverse of `to_json`, after JSON has turned tuples into lists."""
        tuples = {name: tuple(stored.get(name, ())) for name in ("choices", "commands")}
        return cls(**{**stored, **tuples})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptArguments:
    """All arguments of one script."""

    options: tuple[Argument, ...] = ()
    positionals: tuple[Argument, ...] = ()
    """In the script's order."""
    description: str = ""
    joins: bool = True
    """Whether the script accepts `--key=value`, the only safe form for a value that begins with a dash."""

    def to_json(self) -> dict[str, Any]:
        """As plain data for the catalog."""
        return {
            "options": [argument.to_json() for argument in self.options],
            "positionals": [argument.to_json() for argument in self.positionals],
            "description": self.description,
            "joins": self.joins,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "ScriptArguments":
        """The reverse of `to_json`."""
        return cls(
            options=tuple(Argument.from_json(argument) for argument in stored["options"]),
            positionals=tuple(Argument.from_json(argument) for argument in stored["positionals"]),
            description=stored["description"],
            joins=stored["joins"],
        )

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of an input object."""
        arguments = (*self.positionals, *self.options)
        commands = {choice for argument in self.positionals if argument.is_command for choice in argument.choices}
        properties = {}
        for argument in arguments:
            properties[argument.name] = argument.schema()
            if argument.commands and set(argument.commands) != commands:
                text = f"For {', '.join(argument.commands)}: {argument.description}".rstrip(": ")
                properties[argument.name]["description"] = text[:MAX_DESCRIPTION_CHARACTERS]
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        if required := [argument.name for argument in arguments if argument.required]:
            schema["required"] = required
        return schema

    def argv(self, input: Mapping[str, Any]) -> list[str]:
        """Convert an input object to the script's arguments; an unknown key becomes `--key value`.

        Parsers expect options of the script before the subcommand, and options of the subcommand after it.

        Raises:
            ValueError: the script would not read the values that the input contains.
        """
        options = {option.name: option for option in self.options}
        positions = {argument.name: index for index, argument in enumerate(self.positionals)}
        has_command = any(argument.is_command for argument in self.positionals)
        before, after = _Words(joins=self.joins), _Words(joins=self.joins)
        last = -1
        for key, value in input.items():
            if not key:
                raise ValueError("an argument needs a name")
            if key in positions:
                last = max(last, positions[key]) if value is not None else last
                continue
            option = options.get(key) or Argument(name=key, flag=f"--{key}", repeats=True)
            is_global = has_command and key in options and not option.commands
            (before if is_global else after).add_option(option, value)
        for argument in self.positionals[: last + 1]:
            value = input.get(argument.name, argument.default)
            if value is None and not argument.is_command:
                raise ValueError(f"{argument.name} is missing, but an argument after it is not")
            (before if argument.is_command else after).add_positional(argument, value)
        return [*before.all(), *after.all()]


def assemble(found: Iterable[Argument], *, description: str = "", joins: bool = True) -> ScriptArguments | None:
    """Bound and merge what a reader found: one argument per name. Returns None if nothing is left.

    Subcommands that share an argument share one entry. An argument of a subcommand is never required.
    """
    arguments: dict[str, Argument] = {}
    for argument in found:
        if argument.is_flag and argument.name in _INFORMATIONAL:
            continue
        argument = _bounded(argument)
        earlier = arguments.get(argument.name)
        if earlier is not None and (earlier.flag is None) != (argument.flag is None):
            suffix = "argument" if argument.flag is None else "option"
            argument = replace(argument, name=f"{argument.name}-{suffix}")
            earlier = arguments.get(argument.name)
        if earlier is not None:
            both = tuple(dict.fromkeys((*earlier.commands, *argument.commands)))
            arguments[argument.name] = replace(earlier, commands=both if earlier.commands and argument.commands else ())
        elif _is_name(argument.name) and len(arguments) < MAX_ARGUMENTS:
            arguments[argument.name] = argument
    if not arguments:
        return None
    return ScriptArguments(
        options=tuple(argument for argument in arguments.values() if argument.flag is not None),
        positionals=tuple(argument for argument in arguments.values() if argument.flag is None),
        description=_one_line(description),
        joins=joins,
    )


@dataclass(slots=True, kw_only=True)
class _Words:
    """One part of argv: options, then positionals."""

    joins: bool
    options: list[str] = field(default_factory=list)
    positionals: list[str] = field(default_factory=list)
    is_open: bool = False
    """Whether the last option would take the next word as another value."""

    def add_option(self, option: Argument, value: Any) -> None:
        flag = option.flag or ""
        if option.is_flag:
            word = flag if value is True else option.off_flag if value is False else None
            self.options += [word] if word else []
        elif isinstance(value, bool) and option.type == "boolean":
            self.options.append(f"{flag}={'true' if value else ''}")  # bool("") is the only false text
        elif option.is_list and not option.repeats and isinstance(value, list) and len(value) > 1:
            words = [_text(item) for item in value]
            if any(word.startswith("-") for word in words):  # the parser would read it as an option
                raise ValueError(f"{option.name}: an item of this list cannot begin with a dash")
            self.options += [flag, *words]
        else:
            is_plain = isinstance(value, list) and not any(isinstance(item, list | dict) for item in value)
            for item in value if is_plain or (option.is_list and isinstance(value, list)) else [value]:
                self._add_value(flag, item)
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
        elif self.joins and text.startswith("-"):  # a separate word would be read as an option
            self.options.append(f"{flag}={text}" if flag.startswith("--") else flag + text)
        else:
            self.options += [flag, text]

    def add_positional(self, argument: Argument, value: Any) -> None:
        if value is not None:
            items = value if isinstance(value, list) and argument.is_list else [value]
            self.positionals += [_text(item) for item in items]

    def all(self) -> list[str]:
        """All words, with `--` in between if a positional could be read as an option or as an option's value."""
        is_ambiguous = self.is_open or any(word.startswith("-") for word in self.positionals)
        return [*self.options, *(["--"] if is_ambiguous and self.positionals else []), *self.positionals]


def _bounded(argument: Argument) -> Argument:
    choices = tuple(choice for choice in argument.choices if _fits(choice, argument.type))
    return replace(
        argument,
        description=_one_line(argument.description),
        required=argument.required and not argument.commands,
        default=_default(argument),
        choices=choices if len(choices) == len(argument.choices) <= MAX_CHOICES else (),
    )


def _default(argument: Argument) -> Any:
    value = argument.default
    if argument.is_flag or value is None or isinstance(value, list) != argument.is_list:
        return None
    items = value if isinstance(value, list) else [value]
    fits = 0 < len(items) <= MAX_CHOICES and all(_fits(item, argument.type) for item in items)
    return value if fits else None


def _fits(value: Any, kind: Kind) -> bool:
    if isinstance(value, bool) or kind == "boolean":
        return isinstance(value, bool) and kind == "boolean"
    if kind == "string":
        return isinstance(value, str) and len(value) <= MAX_VALUE_CHARACTERS and _storable(value) == value
    return isinstance(value, int if kind == "integer" else int | float) and abs(value) < _SAFE_INTEGER


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME_CHARACTERS and text.isprintable() and not any(map(str.isspace, text))


def _storable(text: str) -> str:
    """Replace lone surrogates: a source can spell them, and UTF-8 cannot encode them."""
    return text.encode("utf-8", "replace").decode()


def _one_line(text: str) -> str:
    line = " ".join(_storable(text[: 4 * MAX_DESCRIPTION_CHARACTERS]).split())
    return line if len(line) <= MAX_DESCRIPTION_CHARACTERS else line[: MAX_DESCRIPTION_CHARACTERS - 1].rstrip() + "…"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
