"""The arguments of a Python script, as its calls of `argparse` declare them."""

import ast
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from apexbridge.skills.arguments.assembling import assemble
from apexbridge.skills.arguments.depth import is_shallow
from apexbridge.skills.arguments.literals import Literals
from apexbridge.skills.arguments.model import Argument, Kind, ScriptArguments

_KINDS: dict[str, Kind] = {"int": "integer", "integer": "integer", "float": "number", "bool": "boolean"}
_FLAG_ACTIONS = {"store_true", "store_false", "store_const", "append_const", "count", "BooleanOptionalAction"}
_NO_ARGUMENTS = {"help", "version"}
_GROUPS = {"add_argument_group", "add_mutually_exclusive_group"}
_LEVELS = ("command", "subcommand")
_warnings_lock = threading.Lock()


def python_arguments(source: str) -> ScriptArguments | None:
    """Read `argparse` declarations; None where there are none, or where the source is not fit to be parsed."""
    if "ArgumentParser" not in source or not is_shallow(source):
        return None
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a stranger's odd escapes are no news in the server's log
        tree = ast.parse(source)
    return _Reading(tree).arguments()


@dataclass(slots=True, eq=False)
class _Parser:
    """A parser or a group of one."""

    path: tuple[str, ...] = ()
    """The subcommands that lead to it."""
    commands: list[str] = field(default_factory=list)
    """Every subcommand that has its arguments."""


@dataclass(slots=True, eq=False)
class _Subparsers:
    """What subcommands are added to."""

    path: tuple[str, ...]
    dest: str
    required: bool
    help: str
    choices: list[str] = field(default_factory=list)


_Thing = _Parser | _Subparsers


class _Reading:
    """Goes through the calls in the order in which they are written, and remembers what each name stands for."""

    def __init__(self, tree: ast.Module) -> None:
        self.literals = Literals(tree)
        nodes = list(ast.walk(tree))
        self.calls = _calls_in_order(nodes)
        self.unowned = _Parser()
        self.names: dict[str, _Thing | None] = dict.fromkeys(_parameters_of_functions(nodes), self.unowned)
        self.things: dict[ast.expr, _Thing | None] = {}
        self.found: list[tuple[_Parser, Argument]] = []
        self.subparsers: list[_Subparsers] = []
        self.description = ""

    def arguments(self) -> ScriptArguments | None:
        for call, target in self.calls:
            thing = self.things[call] = self.thing(call)
            if target is not None:
                self.names[target] = thing
        self.unowned.commands += [choice for one in self.subparsers for choice in one.choices if not one.path]
        owned = [replace(argument, commands=tuple(dict.fromkeys(parser.commands))) for parser, argument in self.found]
        return assemble([*self.commands(), *owned], description=self.description or self.literals.first_line)

    def commands(self) -> Iterator[Argument]:
        """One positional for the subcommand, and one for what it may have below it."""
        for level, name in enumerate(_LEVELS):
            peers = [one for one in self.subparsers if len(one.path) == level and one.choices]
            if peers:
                choices = dict.fromkeys(choice for one in peers for choice in one.choices)
                yield Argument(
                    name=peers[0].dest or name,
                    description=peers[0].help,
                    required=peers[0].required and level == 0,
                    choices=tuple(choices),
                    is_command=True,
                )

    def thing(self, call: ast.Call) -> _Thing | None:
        """What a call gives: a parser, a place for subcommands, or nothing of interest."""
        name = _last_name(call.func)
        if name is not None and name.endswith("ArgumentParser"):
            return self.new_parser(call)
        if not isinstance(call.func, ast.Attribute):
            return None
        owner = self.owner(call.func.value)
        if name == "add_parser" and isinstance(owner, _Subparsers):
            return self.add_command(owner, call)
        if not isinstance(owner, _Parser):
            return None
        if name in _GROUPS:
            return owner
        if name == "add_subparsers":
            return self.add_subparsers(owner, call)
        if name == "add_argument" and (argument := self.argument(call)) is not None:
            self.found.append((owner, argument))
        return None

    def owner(self, expression: ast.expr) -> _Thing | None:
        if isinstance(expression, ast.Call):
            return self.things.get(expression)
        name = _dotted(expression)
        if name in self.names:
            return self.names[name] or (self.unowned if "parser" in name.lower() else None)
        return self.unowned if name is not None and "parser" in name.lower() else None

    def new_parser(self, call: ast.Call) -> _Parser:
        told = self.literals.text(_keyword(call, "description"))
        self.description = self.description or told
        parser = _Parser()
        self.adopt(parser, call)
        return parser

    def adopt(self, parser: _Parser, call: ast.Call) -> None:
        """Let the arguments of `parents` belong to a subcommand too."""
        parents = _keyword(call, "parents")
        for parent in parents.elts if isinstance(parents, ast.List | ast.Tuple) else []:
            known = self.owner(parent)
            if isinstance(known, _Parser):
                known.commands += parser.commands

    def add_subparsers(self, owner: _Parser, call: ast.Call) -> _Subparsers:
        made = _Subparsers(
            path=owner.path,
            dest=self.literals.text(_keyword(call, "dest")),
            required=self.literals.value(_keyword(call, "required")) is True,
            help=self.literals.text(_keyword(call, "help")),
        )
        self.subparsers.append(made)
        return made

    def add_command(self, owner: _Subparsers, call: ast.Call) -> _Parser:
        name = self.literals.value(call.args[0]) if call.args else None
        if not isinstance(name, str):
            return self.unowned
        owner.choices.append(name)
        path = (*owner.path, name)
        parser = _Parser(path=path, commands=[" ".join(path)])
        self.adopt(parser, call)
        return parser

    # --------------------------------------------------------------------------------------------- one argument
    def argument(self, call: ast.Call) -> Argument | None:
        words = [self.literals.value(word) for word in call.args]
        words = words or [self.literals.value(_keyword(call, "dest"))]
        if not all(isinstance(word, str) and word for word in words):
            return None
        action = self.action(call)
        is_hidden = _last_name(_keyword(call, "help")) == "SUPPRESS"
        if action in _NO_ARGUMENTS or is_hidden:
            return None
        flags = [word for word in words if word.startswith("-")]
        flag = next((word for word in flags if word.startswith("--")), flags[0] if flags else None)
        nargs = self.literals.value(_keyword(call, "nargs"))
        if _last_name(_keyword(call, "nargs")) in ("REMAINDER", "PARSER"):
            nargs = "*"
        is_list = nargs in ("+", "*", "...") or isinstance(nargs, int) or action in ("append", "extend")
        default = self.literals.value(_keyword(call, "default"))
        is_flag = flag is not None and action in _FLAG_ACTIONS
        name = flag.lstrip("-") if flag else words[0]
        return Argument(
            name=name,
            flag=flag,
            off_flag=f"--no-{name}" if action == "BooleanOptionalAction" else None,
            type=_kind(_keyword(call, "type"), default),
            description=self.help(call, default),
            required=self.is_required(call, flag, nargs),
            default=default,
            choices=() if is_flag else self.literals.choices(_keyword(call, "choices")),
            is_list=is_list,
            is_flag=is_flag,
            repeats=action == "append" and nargs is None,
            count=nargs if isinstance(nargs, int) and not isinstance(nargs, bool) else None,
        )

    def action(self, call: ast.Call) -> str:
        expression = _keyword(call, "action")
        value = self.literals.value(expression)
        return value if isinstance(value, str) else _last_name(expression) or "store"

    def is_required(self, call: ast.Call, flag: str | None, nargs: Any) -> bool:
        if flag is not None:
            return self.literals.value(_keyword(call, "required")) is True
        return nargs not in ("?", "*", "...")

    def help(self, call: ast.Call, default: Any) -> str:
        text = self.literals.text(_keyword(call, "help"))
        return text.replace("%(default)s", str(default)[:80]).replace("%%", "%")


def _kind(expression: ast.expr | None, default: Any) -> Kind:
    """What `type=` asks for: a known name, one that says so (`positive_int`), else what the default is."""
    if expression is None:
        return "integer" if type(default) is int else "number" if type(default) is float else "string"
    words = (_last_name(expression) or "").lower().split("_")
    return next((_KINDS[word] for word in words if word in _KINDS), "string")


def _calls_in_order(nodes: list[ast.AST]) -> list[tuple[ast.Call, str | None]]:
    """Every call, inner before outer, and the name that its result is given."""
    targets: dict[ast.expr, str | None] = {}
    calls = []
    for node in nodes:
        if isinstance(node, ast.Assign):
            targets[node.value] = _dotted(node.targets[0])
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets[node.value] = _dotted(node.target)
        elif isinstance(node, ast.Call):
            calls.append(node)
    calls.sort(key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0))
    return [(call, targets.get(call)) for call in calls]


def _parameters_of_functions(nodes: list[ast.AST]) -> Iterator[str]:
    """Names that a caller fills, a parser maybe; options of a browser, which has `add_argument` too, are none."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (argument.arg for argument in node.args.args if "option" not in argument.arg)


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _last_name(expression: ast.expr | None) -> str | None:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else None


def _dotted(expression: ast.expr) -> str | None:
    """`parser` or `self.parser`; None for anything longer."""
    if isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name):
        return f"{expression.value.id}.{expression.attr}"
    return expression.id if isinstance(expression, ast.Name) else None
