"""Reads the arguments of a Python script from its calls of `argparse`."""

import ast
import re
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from apexbridge.skills.package.script_arguments.model import Argument, Kind, ScriptArguments, assemble

MAX_ITEMS = 100
MAX_CHARACTERS = 1_000
_KINDS: dict[str, Kind] = {"int": "integer", "integer": "integer", "float": "number", "bool": "boolean"}
_FLAG_ACTIONS = {"store_true", "store_false", "store_const", "append_const", "count", "BooleanOptionalAction"}
_COMMAND_NAMES = ("command", "subcommand")
_LONG_DOTTED_NAME = re.compile(r"(?:\.[\s\\]*+\w++[\s\\]*+){100}")
"""CPython parses `import a.b.c` in quadratic time: 100,000 parts take half a minute."""
_warnings_lock = threading.Lock()


def argparse_arguments(source: str) -> ScriptArguments | None:
    """Read `argparse` declarations. Returns None if there are none.

    Raises:
        SyntaxError, MemoryError, RecursionError: the source is not Python, or nested deeper than the parser allows.
    """
    if "ArgumentParser" not in source or _LONG_DOTTED_NAME.search(source):
        return None
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # do not log invalid escapes in untrusted source
        tree = ast.parse(source)
    return _Reading(tree).arguments()


@dataclass(slots=True, eq=False)
class _Parser:
    """A parser, or a group of one."""

    path: tuple[str, ...] = ()
    """The subcommands that select it."""
    commands: list[str] = field(default_factory=list)
    """Every subcommand that accepts its arguments."""


@dataclass(slots=True, eq=False)
class _Subparsers:
    path: tuple[str, ...]
    dest: str
    required: bool
    help: str
    choices: list[str] = field(default_factory=list)


_Result = _Parser | _Subparsers | None


class _Reading:
    """Follows the calls in source order, and remembers which parser each name and each call refers to."""

    def __init__(self, tree: ast.Module) -> None:
        self.literals = _Literals(tree)
        nodes = list(ast.walk(tree))
        self.calls = _calls_in_order(nodes)
        self.unowned = _Parser()
        """Owns the arguments of parsers that a function receives: they can belong to any subcommand."""
        self.names: dict[str, _Result] = dict.fromkeys(_function_parameters(nodes), self.unowned)
        self.results: dict[ast.expr, _Result] = {}
        self.found: list[tuple[_Parser, Argument]] = []
        self.subparsers: list[_Subparsers] = []
        self.description = ""

    def arguments(self) -> ScriptArguments | None:
        for call, target in self.calls:
            result = self.results[call] = self.result(call)
            if target is not None:
                self.names[target] = result
        self.unowned.commands += [choice for one in self.subparsers for choice in one.choices if not one.path]
        owned = [replace(argument, commands=tuple(dict.fromkeys(parser.commands))) for parser, argument in self.found]
        return assemble([*self.commands(), *owned], description=self.description or self.literals.first_line)

    def commands(self) -> Iterator[Argument]:
        """One positional for the subcommand, and one for a subcommand below it."""
        for level, name in enumerate(_COMMAND_NAMES):
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

    def result(self, call: ast.Call) -> _Result:
        """The parser or subparsers that a call returns; other calls return None here."""
        name = _last_name(call.func)
        if name is not None and name.endswith("ArgumentParser"):
            self.description = self.description or self.literals.text(_keyword(call, "description"))
            return self.with_parents(_Parser(), call)
        owner = self.owner(call.func.value) if isinstance(call.func, ast.Attribute) else None
        if isinstance(owner, _Subparsers):
            return self.add_command(owner, call) if name == "add_parser" else None
        if owner is None or name in ("add_argument_group", "add_mutually_exclusive_group"):
            return owner
        if name == "add_subparsers":
            subparsers = _Subparsers(
                path=owner.path,
                dest=self.literals.text(_keyword(call, "dest")),
                required=self.literals.value(_keyword(call, "required")) is True,
                help=self.literals.text(_keyword(call, "help")),
            )
            self.subparsers.append(subparsers)
            return subparsers
        if name == "add_argument" and (argument := self.argument(call)) is not None:
            self.found.append((owner, argument))
        return None

    def owner(self, expression: ast.expr) -> _Result:
        if isinstance(expression, ast.Call):
            return self.results.get(expression)
        name = _dotted(expression)
        known = self.names.get(name) if name is not None else None
        return known or (self.unowned if name is not None and "parser" in name.lower() else None)

    def add_command(self, owner: _Subparsers, call: ast.Call) -> _Parser:
        name = self.literals.value(call.args[0]) if call.args else None
        if not isinstance(name, str):
            return self.unowned
        owner.choices.append(name)
        path = (*owner.path, name)
        return self.with_parents(_Parser(path=path, commands=[" ".join(path)]), call)

    def with_parents(self, parser: _Parser, call: ast.Call) -> _Parser:
        parents = _keyword(call, "parents")
        for parent in parents.elts if isinstance(parents, ast.List | ast.Tuple) else []:
            known = self.owner(parent)
            if isinstance(known, _Parser):
                known.commands += parser.commands
        return parser

    def argument(self, call: ast.Call) -> Argument | None:
        words = [self.literals.value(word) for word in (*call.args, *([] if call.args else [_keyword(call, "dest")]))]
        if not all(isinstance(word, str) and word for word in words):
            return None
        expression = _keyword(call, "action")
        action = self.literals.text(expression) or _last_name(expression) or "store"
        if action in ("help", "version") or _last_name(_keyword(call, "help")) == "SUPPRESS":
            return None
        flags = [word for word in words if word.startswith("-")]
        flag = next((word for word in flags if word.startswith("--")), flags[0] if flags else None)
        name = flag.lstrip("-") if flag else words[0]
        is_rest = _last_name(_keyword(call, "nargs")) in ("REMAINDER", "PARSER")
        nargs = "*" if is_rest else self.literals.value(_keyword(call, "nargs"))
        default = self.literals.value(_keyword(call, "default"))
        is_flag = flag is not None and action in _FLAG_ACTIONS
        is_required = (
            self.literals.value(_keyword(call, "required")) is True if flag else nargs not in ("?", "*", "...")
        )
        help_text = self.literals.text(_keyword(call, "help"))
        return Argument(
            name=name,
            flag=flag,
            off_flag=f"--no-{name}" if action == "BooleanOptionalAction" else None,
            type=_kind(_keyword(call, "type"), default),
            description=help_text.replace("%(default)s", str(default)[:80]).replace("%%", "%"),
            required=is_required,
            default=default,
            choices=() if is_flag else self.literals.choices(_keyword(call, "choices")),
            is_list=nargs in ("+", "*", "...") or type(nargs) is int or action in ("append", "extend"),
            is_flag=is_flag,
            repeats=action == "append" and nargs is None,
            count=nargs if type(nargs) is int else None,
        )


class _Literals:
    """Values that the source spells out: literals, and names that the module assigns literals to."""

    def __init__(self, tree: ast.Module) -> None:
        self._constants: dict[str, ast.expr] = {}
        self.first_line = (ast.get_docstring(tree) or "").partition("\n")[0]
        if self.first_line and isinstance(tree.body[0], ast.Expr):
            self._constants["__doc__"] = tree.body[0].value
        for statement in tree.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                self._constants |= {target.id: statement.value for target in targets if isinstance(target, ast.Name)}

    def value(self, expression: ast.expr | None) -> Any:
        """A string, number, bool, or a list of them; None for anything else."""
        expression = self._resolved(expression)
        if isinstance(expression, ast.List | ast.Tuple | ast.Set):
            items = [_scalar(self._resolved(item)) for item in expression.elts[: MAX_ITEMS + 1]]
            return None if None in items or len(items) > MAX_ITEMS else items
        return _scalar(expression)

    def text(self, expression: ast.expr | None) -> str:
        """A text for display, also from sums and f-strings. `…` replaces computed parts."""
        parts: list[str] = []
        pending = [self._resolved(expression)]
        for _ in range(2 * MAX_ITEMS):
            if not pending:
                break
            operand = pending.pop()
            if isinstance(operand, ast.BinOp) and isinstance(operand.op, ast.Add):
                pending += [operand.right, operand.left]
            elif isinstance(operand, ast.JoinedStr):
                pending += reversed(operand.values[:MAX_ITEMS])
            else:
                known = self.value(operand.value if isinstance(operand, ast.FormattedValue) else operand)
                parts.append(str(known)[:MAX_CHARACTERS] if isinstance(known, str | int | float) else "…")
        text = "".join(parts)
        return "" if text == "…" else text

    def choices(self, expression: ast.expr | None) -> tuple[Any, ...]:
        """The items of a list or the keys of a dict, also within `list(…)`, `sorted(…)` and `.keys()`."""
        expression = self._resolved(expression)
        for _ in range(2):
            if isinstance(expression, ast.Call) and _last_name(expression.func) in ("list", "sorted", "keys"):
                inner = [expression.func.value] if isinstance(expression.func, ast.Attribute) else expression.args
                expression = self._resolved(inner[0]) if inner else None
        if isinstance(expression, ast.Dict):
            expression = ast.List(elts=[key or ast.Constant(None) for key in expression.keys[: MAX_ITEMS + 1]])
        found = self.value(expression)
        return tuple(found) if isinstance(found, list) else ()

    def _resolved(self, expression: ast.expr | None) -> ast.expr | None:
        """The value of a name, one step only: names can refer to each other cyclically."""
        return self._constants.get(expression.id) if isinstance(expression, ast.Name) else expression


def _scalar(expression: ast.expr | None) -> str | int | float | None:
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.USub):
        number = _scalar(expression.operand) if isinstance(expression.operand, ast.Constant) else None
        return -number if isinstance(number, int | float) and not isinstance(number, bool) else None
    value = expression.value if isinstance(expression, ast.Constant) else None
    return value if isinstance(value, str | int | float) else None


def _kind(expression: ast.expr | None, default: Any) -> Kind:
    """From `type=`: a known name, or one that contains it (`positive_int`); without `type=`, from the default."""
    if expression is None:
        return "integer" if type(default) is int else "number" if type(default) is float else "string"
    words = (_last_name(expression) or "").lower().split("_")
    return next((_KINDS[word] for word in words if word in _KINDS), "string")


def _calls_in_order(nodes: list[ast.AST]) -> list[tuple[ast.Call, str | None]]:
    """Every call, inner before outer, with the name that its result is assigned to."""
    targets: dict[ast.expr, str | None] = {}
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets[node.value] = _dotted(node.targets[0] if isinstance(node, ast.Assign) else node.target)
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    calls.sort(key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0))
    return [(call, targets.get(call)) for call in calls]


def _function_parameters(nodes: list[ast.AST]) -> Iterator[str]:
    """Parameters may receive a parser. Not `options`: browser options have an `add_argument` too."""
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
