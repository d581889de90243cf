"""Security headers of every response."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
_POLICY = (b"content-security-policy", b"frame-ancestors 'none'")
_NOTHING = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_PAGES = b"text/html"


class SecurityHeaders:
    """Adds the headers, unless a route has set its own. No page may frame a response of this server."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _completed(message.get("headers", ()))}
            await send(message)

        await self._app(scope, receive, with_headers)


def _completed(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    known = dict(headers)
    is_page = known.get(b"content-type", b"").startswith(_PAGES)
    wanted = (*_ALWAYS, _POLICY if is_page else _NOTHING)
    return [*headers, *(pair for pair in wanted if pair[0] not in known)]
