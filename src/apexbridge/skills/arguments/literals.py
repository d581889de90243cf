"""Values that stand in Python source as they are: literals, and names that the module gives to literals."""

import ast
from typing import Any

MAX_ITEMS = 100
MAX_CHARACTERS = 1_000
_COLLECTIONS = (ast.List, ast.Tuple, ast.Set)


class Literals:
    """Reads values of one module; whatever would have to be computed is None."""

    def __init__(self, tree: ast.Module) -> None:
        self._constants: dict[str, ast.expr] = {}
        self.first_line = (ast.get_docstring(tree) or "").partition("\n")[0]
        """Of the module's docstring."""
        if self.first_line and isinstance(tree.body[0], ast.Expr):
            self._constants["__doc__"] = tree.body[0].value
        for statement in tree.body:
            if isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        self._constants[target.id] = statement.value
            elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
                self._constants[statement.target.id] = statement.value

    def value(self, expression: ast.expr | None) -> Any:
        """A text, number, truth, or a list of them."""
        expression = self._resolved(expression)
        if isinstance(expression, _COLLECTIONS):
            if len(expression.elts) > MAX_ITEMS:
                return None
            items = [self._scalar(self._resolved(item)) for item in expression.elts]
            return None if any(item is None for item in items) else items
        return self._scalar(expression)

    def text(self, expression: ast.expr | None) -> str:
        """A text for people: what cannot be known of it is left out with a mark."""
        parts: list[str] = []
        waiting = [expression]
        for _ in range(2 * MAX_ITEMS):  # a name may stand for a sum in which it occurs itself
            if not waiting:
                break
            part = self._resolved(waiting.pop())
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add):
                waiting += [part.right, part.left]
            elif isinstance(part, ast.JoinedStr):
                waiting += reversed(part.values[:MAX_ITEMS])
            elif isinstance(part, ast.FormattedValue):
                known = self.value(part.value)
                parts.append("…" if known is None else str(known))
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                parts.append(part.value[:MAX_CHARACTERS])
            elif part is not None and (parts or waiting):
                parts.append("…")
        return "".join(parts)[:MAX_CHARACTERS]

    def choices(self, expression: ast.expr | None) -> tuple[Any, ...]:
        """The items of a list, the keys of a mapping, or a small range; empty where they are not known."""
        expression = self._resolved(expression)
        if isinstance(expression, ast.Call):
            return self._choices_of_call(expression)
        if isinstance(expression, ast.Dict):
            if len(expression.keys) > MAX_ITEMS:
                return ()
            keys = [self._scalar(key) for key in expression.keys]
            return () if any(key is None for key in keys) else tuple(keys)
        found = self.value(expression)
        return tuple(found) if isinstance(found, list) else ()

    def _choices_of_call(self, call: ast.Call) -> tuple[Any, ...]:
        """`list(NAMES)`, `sorted(NAMES)`, `NAMES.keys()`, `range(1, 5)`."""
        if isinstance(call.func, ast.Attribute) and call.func.attr == "keys" and not call.args:
            inner = self._resolved(call.func.value)
            return self.choices(inner) if isinstance(inner, ast.Dict) else ()
        if not isinstance(call.func, ast.Name) or call.keywords:
            return ()
        if call.func.id == "range":
            bounds = [self.value(argument) for argument in call.args]
            if 0 < len(bounds) <= 3 and all(type(bound) is int for bound in bounds) and bounds[2:] != [0]:
                numbers = range(*bounds)
                return tuple(numbers) if len(numbers) <= MAX_ITEMS else ()
        if call.func.id in ("list", "tuple", "set", "sorted") and len(call.args) == 1:
            inner = self._resolved(call.args[0])
            found = () if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) else self.choices(inner)
            is_sorted = call.func.id == "sorted" and len({type(choice) for choice in found}) == 1
            return tuple(sorted(found)) if is_sorted else found
        return ()

    def _resolved(self, expression: ast.expr | None) -> ast.expr | None:
        """What a name stands for, one step only: names could refer to each other without end."""
        return self._constants.get(expression.id) if isinstance(expression, ast.Name) else expression

    def _scalar(self, expression: ast.expr | None) -> str | int | float | None:
        sign = 1
        if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.USub):
            sign, expression = -1, expression.operand
        if not isinstance(expression, ast.Constant):
            return None
        value = expression.value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return sign * value
        return value if sign == 1 and isinstance(value, str | bool) else None
