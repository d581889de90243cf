"""Models that cross a boundary: snake_case in Python, camelCase in JSON."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

MAX_UNKNOWN_FIELDS = 20
MAX_PROBLEMS = 20
MAX_PROBLEM_CHARACTERS = 300
"""Length of a path or message: both can quote the input."""


class WireModel(BaseModel):
    """Base of everything that is sent to or received from a client."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, serialize_by_alias=True, frozen=True)


class SparseModel(WireModel):
    """Leaves out some of its fields where they are null or empty."""

    OMITTED_IF_EMPTY: ClassVar[frozenset[str]] = frozenset()
    """Names of these fields. They have a default, so the schema does not require them."""

    @model_serializer(mode="wrap")
    def _omit_empty(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(self)
        for name in self.OMITTED_IF_EMPTY:
            if not getattr(self, name):
                fields.pop(name, None)
                fields.pop(to_camel(name), None)
        return fields

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema with all fields. pydantic would describe only the type that the serializer returns."""
        plain = {key: value for key, value in schema.items() if key != "serialization"}
        return handler(plain)


class WireInput(WireModel):
    """A request body: what it does not know, it refuses."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_many_unknown_fields(cls, data: Any) -> Any:
        """Report one error instead of one per field: a body can contain very many unknown fields."""
        fields = cls.model_fields
        if isinstance(data, dict) and len(data) > 2 * len(fields) + MAX_UNKNOWN_FIELDS:
            raise PydanticCustomError("too_many_fields", f"has {len(data)} fields; it knows only {len(fields)}")
        return data


def problem(path: Iterable[object], message: str) -> dict[str, str]:
    """One problem with an input, of bounded length. pydantic's prefix of our own messages is left out."""
    parts = (str(part)[:MAX_PROBLEM_CHARACTERS] for part in path)
    return {
        "path": ".".join(islice(parts, MAX_PROBLEMS))[:MAX_PROBLEM_CHARACTERS],
        "message": _cut(message.removeprefix("Value error, ")),
    }


def _cut(message: str) -> str:
    """Cut the middle of a long message: messages begin with the input and end with the reason."""
    half = MAX_PROBLEM_CHARACTERS // 2
    return message if len(message) <= MAX_PROBLEM_CHARACTERS else f"{message[:half]}…{message[1 - half :]}"


def summary_of(problems: Sequence[dict[str, str]], *, total: int | None = None) -> str:
    """Problems in one line; `total` is their number before truncation."""
    listed = "; ".join(f"{item['path']}: {item['message']}".removeprefix(": ") for item in problems)
    more = (total or 0) - len(problems)
    return f"{listed}; and {more} more" if more > 0 else listed
