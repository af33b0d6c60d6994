"""Answers for requests that could not be passed on.

Promises: the client always gets a complete, readable answer. Where the hub is up its own error page is
shown (as configurable-http-proxy does with --error-target), else the built-in one; asking the hub is bounded
in time and size.
"""

import asyncio
from collections.abc import Callable
from urllib.parse import quote

from aiohttp import ClientError, web
from aiohttp.http import HttpProcessingError, HttpVersion11
from aiohttp.streams import EofStream

from .pages import REASONS, error_json, error_page, prefers_json
from .routes import Target
from .upstream import UpstreamGone, UpstreamPool, expect_response

HUB_PAGE_SECONDS = 3.0
HUB_PAGE_BYTES = 1024 * 1024
# The hub has words of its own for these; the others are about the request's form.
HUB_EXPLAINS = frozenset([404, 503])


class ErrorAnswers:
    def __init__(
        self, pool: UpstreamPool, hub: Callable[[], Target | None], home_url: Callable[[], str]
    ) -> None:
        self._pool = pool
        self._hub = hub
        self._home_url = home_url

    async def answer(self, request: web.BaseRequest, status: int) -> None:
        content_type, body = await self._content(request, status)
        lines = [
            b"HTTP/1.1 %d %s" % (status, REASONS[status].encode()),
            b"Content-Type: " + content_type,
            b"Content-Length: %d" % len(body),
            b"Cache-Control: no-store",
            b"Connection: close",
        ]
        head = b"\r\n".join(lines) + b"\r\n\r\n"
        if request.transport is not None:
            request.transport.write(head if request.method == "HEAD" else head + body)

    async def _content(self, request: web.BaseRequest, status: int) -> tuple[bytes, bytes]:
        if prefers_json(request.headers.get("Accept", "")):
            return error_json(status)
        if status in HUB_EXPLAINS and request.version >= HttpVersion11:
            try:
                async with asyncio.timeout(HUB_PAGE_SECONDS):
                    page = await self._from_hub(request.raw_path, status)
            except (UpstreamGone, ClientError, OSError, TimeoutError, HttpProcessingError, EofStream):
                page = None
            if page is not None:
                return page
        return error_page(status, self._home_url())

    async def _from_hub(self, raw_path: str, status: int) -> tuple[bytes, bytes] | None:
        """The hub's page for this status, or None when it has no good one."""
        hub = self._hub()
        if hub is None:
            return None
        connection = await self._pool.connect(hub)
        try:
            query = quote(raw_path, safe="", errors="replace").encode()
            expect_response(connection, "GET")
            if connection.transport is None:
                return None
            connection.transport.write(
                b"GET %b/error/%d?url=%b HTTP/1.1\r\nHost: %b:%d\r\n"
                b"Connection: close\r\nAccept: text/html\r\n\r\n"
                % (hub.path_prefix, status, query, hub.host.encode() or b"localhost", hub.port)
            )
            message, payload = await connection.read()
            body = b""
            while not payload.at_eof():
                body += await payload.readany()
                if len(body) > HUB_PAGE_BYTES:
                    return None
        finally:
            connection.abort()
        content_type = message.headers.get("Content-Type", "")
        if message.code != 200 or not content_type.startswith("text/html"):
            return None
        return content_type.encode(), body
