"""What a client accepts and has already: `Accept-Encoding` and `If-None-Match`."""

MAX_ELEMENTS = 32
"""Elements of a header that are read."""


def accepts_gzip(accept_encoding: str | None) -> bool:
    """Whether a client accepts gzip. A weight of 0 refuses it, and gzip's own element wins over `*`."""
    accepted: dict[str, bool] = {}
    for element in _elements(accept_encoding):
        name, *parameters = (part.strip().lower() for part in element.split(";"))
        accepted[name] = not any(_is_zero(parameter) for parameter in parameters)
    return accepted.get("gzip", accepted.get("*", False))


def is_known(etag: str, if_none_match: str | None) -> bool:
    """Whether the client has this version. Proxies that compress answers mark the tag as weak."""
    tags = [tag.strip().removeprefix("W/") for tag in _elements(if_none_match)]
    return etag.removeprefix("W/") in tags or "*" in tags


def _elements(header: str | None) -> list[str]:
    return (header or "").split(",", MAX_ELEMENTS)[:MAX_ELEMENTS]


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    try:
        return name.strip() == "q" and float(value) == 0
    except ValueError:
        return False
