"""What crosses a boundary: snake_case in Python, camelCase in JSON."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class WireModel(BaseModel):
    """Base of everything that is sent to or received from a client."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, serialize_by_alias=True, frozen=True)


class WireInput(WireModel):
    """A request body: what it does not know, it refuses."""

    model_config = ConfigDict(extra="forbid")
