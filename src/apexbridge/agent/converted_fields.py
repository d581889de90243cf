"""Fields of a request that was converted from another API, adapted to what its upstream accepts.

Clients of other APIs cannot know these fields, so a server that refuses one must not end their request.
"""

from typing import Any

from apexbridge.llm.upstream_errors import UpstreamError

Json = dict[str, Any]
LIMIT, NEW_LIMIT = "max_tokens", "max_completion_tokens"
"""OpenAI's newer models accept only the second name; many other servers only the first."""
_HINTS = {"reasoning_effort": "thinking", "parallel_tool_calls": "parallel"}
"""Fields that a request can do without, and a word of refusals that do not name them."""
_STATUSES = frozenset({400, 422})


def without_refused(body: Json, error: UpstreamError) -> Json | None:
    """The body without the field that the upstream refuses; None if it refuses something else.

    A limit is renamed first. If the new name is refused as well, the model's own limit applies: Claude Code asks for
    more tokens than many models can write.
    """
    if error.status not in _STATUSES:
        return None
    param, message = error.error.get("param"), str(error.error.get("message") or "")
    for name, word in _HINTS.items():
        if name in body and (param == name or name in message or f"not support {word}" in message):
            return {key: value for key, value in body.items() if key != name}
    for name in (LIMIT, NEW_LIMIT):
        if name in body and (param == name or name in message):
            adapted = {key: value for key, value in body.items() if key != name}
            return adapted | ({NEW_LIMIT: body[LIMIT]} if name == LIMIT and NEW_LIMIT in message else {})
    return None
