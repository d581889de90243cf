"""What crosses a boundary: snake_case in Python, camelCase in JSON."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

MAX_UNKNOWN_FIELDS = 20


class WireModel(BaseModel):
    """Base of everything that is sent to or received from a client."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, serialize_by_alias=True, frozen=True)


class WireInput(WireModel):
    """A request body: what it does not know, it refuses."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_many_unknown_fields(cls, data: Any) -> Any:
        """One error instead of one for each field: a body can hold very many of them."""
        fields = cls.model_fields
        if isinstance(data, dict) and len(data) > 2 * len(fields) + MAX_UNKNOWN_FIELDS:
            raise PydanticCustomError("too_many_fields", f"has {len(data)} fields; it knows only {len(fields)}")
        return data
