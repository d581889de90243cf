"""The arguments of a JavaScript program, as it declares them to commander, yargs or node's own `parseArgs`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from apexbridge.skills.arguments.assembling import assemble
from apexbridge.skills.arguments.model import Argument, Kind, ScriptArguments
from apexbridge.skills.arguments.tokens import Span, Tokens

_LIBRARIES = ("commander", "yargs", "util", "node:util")
_INTEGERS = {"parseInt"}
_NUMBERS = {"parseFloat", "Number"}
_YARGS_KINDS: dict[str, Kind] = {"number": "number", "count": "integer"}
MAX_FOUND = 200
"""Declarations that are looked at; a script with more of them is no script."""
_LEVELS = ("command", "subcommand")

Path = tuple[str, ...]
"""The subcommands that lead to a place; empty for the program itself."""


def javascript_arguments(source: str) -> ScriptArguments | None:
    """Read declarations of options; None where there are none, or where the source cannot be told apart."""
    if not any(library in source for library in _LIBRARIES):
        return None
    return _Reading(Tokens(source)).arguments()


class _Reading:
    """Goes through the calls in the order in which they are written, and remembers whose options each adds."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.found: list[Argument] = []
        self.choices: tuple[list[str], ...] = tuple([] for _ in _LEVELS)
        self.demanded: set[str] = set()
        self.description = ""
        self.variables: dict[str, Path] = {}
        self.after: dict[int, tuple[Path, int]] = {}
        """By the bracket of a call: whose options a call chained to it adds, and where the chain begins."""
        self.inside: list[tuple[int, Path]] = []
        """Subcommands of yargs whose builder is being read, each with the place where it ends."""
        self.handlers: dict[str, Callable[[Path, list[Span]], Path | None]] = {
            "option": self.option,
            "options": self.option,
            "requiredOption": self.required_option,
            "addOption": self.add_option,
            "argument": self.positionals,
            "arguments": self.positionals,
            "positional": self.yargs_positional,
            "command": self.command,
            "demandOption": self.demand,
            "description": self.describe,
        }

    def arguments(self) -> ScriptArguments | None:
        texts = {token.value for token in self.tokens.all if token.kind == "text"}
        is_yargs = any(text.partition("/")[0] == "yargs" for text in texts)
        for place in range(len(self.tokens.all) - 1):
            name = self.tokens.name(place)
            if len(self.found) > MAX_FOUND:
                break
            if name is None or not self.tokens.is_mark(place + 1, "("):
                continue
            if name == "parseArgs":
                self.parse_args(self.tokens.parts(place + 1))
            elif (is_yargs or "commander" in texts) and self.tokens.is_mark(place - 1, "."):
                self.call(name, place, is_yargs=is_yargs)
        commands = [
            Argument(name=name, choices=tuple(dict.fromkeys(choices)), is_command=True)
            for name, choices in zip(_LEVELS, self.choices, strict=True)
            if choices
        ]
        known = [replace(one, required=one.required or one.name in self.demanded) for one in self.found]
        return assemble([*commands, *known], description=self.description)

    def call(self, name: str, place: int, *, is_yargs: bool) -> None:
        """`receiver.name(…)`: find whose options it adds, read it, and note whose the next in the chain are."""
        bracket, end_of_receiver = place + 1, place - 2
        while self.inside and self.inside[-1][0] < place:
            self.inside.pop()
        owner, root = self.inside[-1][1] if self.inside else (), end_of_receiver
        if (opened := self.tokens.opening.get(end_of_receiver)) is not None:
            owner, root = self.after.get(opened, (owner, opened))
        elif (receiver := self.tokens.name(end_of_receiver)) is not None and not self.inside:
            owner = self.variables.get(receiver, ())
        if (handler := self.handlers.get(name)) is not None:
            changed = handler(owner, self.tokens.parts(bracket))
            if changed is not None and is_yargs:
                self.inside.append((self.tokens.closing[bracket], changed))
            elif changed is not None:
                owner = changed
        self.after[bracket] = (owner, root)
        if self.tokens.is_mark(root - 1, "=") and (variable := self.tokens.name(root - 2)) is not None:
            self.variables[variable] = owner

    # -------------------------------------------------------------------------------------------------- handlers
    def command(self, owner: Path, parts: list[Span]) -> Path | None:
        """`.command('get <source> [proxy]', …)`; yargs' `$0` is the program itself."""
        value = self.tokens.value(parts[0]) if parts else None
        spec = value[0] if isinstance(value, list) and value else value
        if not isinstance(spec, str) or not spec.split():
            return None
        name = spec.split()[0]
        inner = owner
        if name not in ("$0", "*") and len(owner) < len(_LEVELS):
            self.choices[len(owner)].append(name)
            inner = (*owner, name)
        self.found += [replace(one, commands=_commands(inner)) for one in _placeholders(spec)]
        return inner

    def option(self, owner: Path, parts: list[Span], *, required: bool = False) -> None:
        first = self.tokens.value(parts[0]) if parts else None
        if isinstance(first, str) and first.startswith("-"):
            self.found.append(replace(self.commander_option(first, parts[1:], required), commands=_commands(owner)))
        elif isinstance(first, str) and len(parts) > 1:
            self.found.append(replace(self.yargs_option(first, parts[1]), commands=_commands(owner)))
        elif parts:
            for name, span in self.tokens.fields(parts[0]).items():
                self.found.append(replace(self.yargs_option(name, span), commands=_commands(owner)))

    def required_option(self, owner: Path, parts: list[Span]) -> None:
        self.option(owner, parts, required=True)

    def add_option(self, owner: Path, parts: list[Span]) -> None:
        """`.addOption(new Option('--size <name>', 'how big').choices(['s', 'm']).default('s'))`."""
        if not parts:
            return
        start, end = parts[0]
        bracket = next((place for place in range(start, min(end, start + 6)) if self.tokens.is_mark(place, "(")), None)
        inner = self.tokens.parts(bracket) if bracket is not None else []
        flags = self.tokens.text(inner[0]) if inner else ""
        if bracket is None or not flags.startswith("-"):
            return
        option = self.commander_option(flags, inner[1:], False)
        place = self.tokens.closing[bracket] + 1
        while place < end and self.tokens.is_mark(place, ".") and place + 2 in self.tokens.closing:
            given = [self.tokens.value(part) for part in self.tokens.parts(place + 2)]
            name = self.tokens.name(place + 1)
            if name == "choices" and given and isinstance(given[0], list):
                option = replace(option, choices=tuple(given[0]))
            elif name == "default" and given:
                option = replace(option, default=given[0])
            elif name == "makeOptionMandatory":
                option = replace(option, required=True)
            place = self.tokens.closing[place + 2] + 1
        self.found.append(replace(option, commands=_commands(owner)))

    def positionals(self, owner: Path, parts: list[Span]) -> None:
        """`.argument('<file>', 'what to read', default)`, or `.arguments('<from> [to]')`."""
        values = [self.tokens.value(part) for part in parts]
        if not values or not isinstance(values[0], str):
            return
        spec = values[0] if values[0][:1] in ("<", "[") else f"<{values[0]}>"
        description = values[1] if len(values) > 1 and isinstance(values[1], str) else ""
        default = values[-1] if len(values) > 2 else None
        self.found += [
            replace(one, description=description, default=default, commands=_commands(owner))
            for one in _placeholders(spec)
        ]

    def yargs_positional(self, owner: Path, parts: list[Span]) -> None:
        name = self.tokens.text(parts[0]) if parts else ""
        if not name:
            return
        told = self.yargs_option(name, parts[1]) if len(parts) > 1 else Argument(name=name)
        for place, one in enumerate(self.found):
            if one.name == name and one.flag is None and one.commands == _commands(owner):
                self.found[place] = replace(
                    one, type=told.type, description=told.description, default=told.default, choices=told.choices
                )
                return
        told = replace(told, flag=None, off_flag=None, is_flag=False, commands=_commands(owner))
        self.found.append(told)

    def demand(self, owner: Path, parts: list[Span]) -> None:
        value = self.tokens.value(parts[0]) if parts else None
        names = value if isinstance(value, list) else [value]
        self.demanded.update(name for name in names if isinstance(name, str))

    def describe(self, owner: Path, parts: list[Span]) -> None:
        if parts and not owner:
            self.description = self.description or self.tokens.text(parts[0])

    def parse_args(self, parts: list[Span]) -> None:
        """`parseArgs({options: {out: {type: 'string', short: 'o'}}, allowPositionals: true})`."""
        config = self.tokens.fields(parts[0]) if parts else {}
        options = self.tokens.fields(config["options"]) if "options" in config else {}
        for name, span in options.items():
            told = {key: self.tokens.value(inner) for key, inner in self.tokens.fields(span).items()}
            is_list = told.get("multiple") is True
            is_flag = told.get("type") == "boolean"
            self.found.append(
                Argument(
                    name=name,
                    flag=f"--{name}",
                    default=told.get("default"),
                    is_list=is_list and not is_flag,
                    repeats=is_list,
                    is_flag=is_flag,
                )
            )
        if "allowPositionals" in config and self.tokens.value(config["allowPositionals"]) is True:
            self.found.append(Argument(name="positionals", is_list=True, description="Arguments without an option."))

    # ------------------------------------------------------------------------------------------------ one option
    def commander_option(self, spec: str, rest: list[Span], required: bool) -> Argument:
        """From `-o, --out <file>`, the description, and then a default, or a function and a default."""
        head, placeholder = _split_placeholder(spec)
        words = head.replace(",", " ").replace("|", " ").replace("=", " ").split()
        flag = next((word for word in words if word.startswith("--")), words[0])
        default = self.tokens.value(rest[-1]) if len(rest) > 1 else None
        is_variadic = "..." in placeholder
        is_collected = isinstance(default, list) and not is_variadic
        return Argument(
            name=flag.lstrip("-"),
            flag=flag,
            type=self.kind(rest[1:], default),
            description=self.tokens.text(rest[0]) if rest else "",
            required=required and default is None,
            default=default,
            is_list=bool(placeholder) and (is_variadic or is_collected),
            repeats=is_collected,
            is_flag=not placeholder,
        )

    def kind(self, spans: list[Span], default: Any) -> Kind:
        self.tokens.spend(sum(end - start for start, end in spans))
        names = {self.tokens.name(place) for start, end in spans for place in range(start, end)}
        if names & _INTEGERS or type(default) is int:
            return "integer"
        return "number" if names & _NUMBERS or type(default) is float else "string"

    def yargs_option(self, name: str, span: Span) -> Argument:
        """From `{type: 'string', alias: 'o', describe: '…', demandOption: true, default: …, choices: […]}`."""
        told = {key: self.tokens.value(inner) for key, inner in self.tokens.fields(span).items()}
        kind = told.get("type") or next(
            (key for key in ("boolean", "array", "number", "count", "string") if told.get(key) is True), None
        )
        default = told.get("default")
        if kind is None and isinstance(default, bool):
            kind = "boolean"
        aliases = told["alias"] if isinstance(told.get("alias"), list) else [told.get("alias")]
        names = [name, *(alias for alias in aliases if isinstance(alias, str))]
        spelled = next((one for one in names if len(one) > 1), name)
        description = next((told[key] for key in ("describe", "description", "desc") if told.get(key)), "")
        choices = told.get("choices")
        is_flag = kind in ("boolean", "count")
        return Argument(
            name=spelled,
            flag=f"--{spelled}" if len(spelled) > 1 else f"-{spelled}",
            off_flag=f"--no-{spelled}" if kind == "boolean" else None,
            type=_YARGS_KINDS.get(str(kind)) or self.kind([], default),
            description=description if isinstance(description, str) else "",
            required=(told.get("demandOption") or told.get("demand") or told.get("required")) is True,
            default=default,
            choices=tuple(choices) if isinstance(choices, list) else (),
            is_list=kind == "array" or told.get("array") is True,
            is_flag=is_flag,
        )


def _commands(path: Path) -> tuple[str, ...]:
    return (" ".join(path),) if path else ()


def _split_placeholder(spec: str) -> tuple[str, str]:
    """`-o, --out <file>` as its flags and its placeholder."""
    place = min((found for found in (spec.find("<"), spec.find("[")) if found >= 0), default=len(spec))
    return spec[:place], spec[place:]


def _placeholders(spec: str) -> list[Argument]:
    """`<source> [proxy] [files...]` as positionals."""
    found = []
    for word in spec.split():
        if len(word) > 2 and (word[0], word[-1]) in (("<", ">"), ("[", "]")):
            name = word[1:-1].partition("|")[0]
            found.append(Argument(name=name.rstrip("."), required=word[0] == "<", is_list=name.endswith("..")))
    return found
