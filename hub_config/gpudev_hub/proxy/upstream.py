"""Connections to the servers behind the proxy, kept open between requests.

Promises: connects only to the target it is given; a connection is reused only after an exchange that ended
cleanly; connecting is bounded in time, waiting for an answer is not.

aiohttp's client protocol (its C parser with flow control) is used without ClientSession: the session would
re-encode paths and headers, and costs about as much as all the rest of a forwarded request together.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable

from aiohttp.client_proto import ResponseHandler

from .routes import Target

MAX_HEAD_FIELD = 64 * 1024
MAX_HEADERS = 256
READ_BUFFER = 256 * 1024
IDLE_SECONDS = 30.0
IDLE_PER_TARGET = 64
# Many servers close idle connections after a few seconds. A request that must not be sent twice takes only
# a connection used so recently that its server is not about to close it.
FRESH_SECONDS = 1.0


class UpstreamGone(Exception):
    """The upstream could not be reached, or went away before it answered."""


class UpstreamPool:
    def __init__(self, connect_timeout: float, ssl_context: Callable[[], ssl.SSLContext]) -> None:
        self._connect_timeout = connect_timeout
        self._make_ssl_context = ssl_context
        self._ssl_context: ssl.SSLContext | None = None
        self._idle: dict[str, deque[tuple[float, ResponseHandler]]] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    def reuse(self, target: Target, max_idle: float = IDLE_SECONDS) -> ResponseHandler | None:
        """An idle connection that is still good, or None."""
        idle = self._idle.get(target.url)
        if not idle:
            return None
        oldest_allowed = asyncio.get_running_loop().time() - max_idle
        while idle:
            released, connection = idle.pop()
            if released >= oldest_allowed and connection.is_connected() and not connection.should_close:
                return connection
            connection.close()
        return None

    async def connect(self, target: Target) -> ResponseHandler:
        """A new connection. Raises UpstreamGone when there is none to be had in time."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout):
                if target.unix_path:
                    _, connection = await loop.create_unix_connection(
                        lambda: ResponseHandler(loop), target.unix_path
                    )
                else:
                    _, connection = await loop.create_connection(
                        lambda: ResponseHandler(loop),
                        target.host,
                        target.port,
                        ssl=self._tls() if target.tls else None,
                        happy_eyeballs_delay=0.25,
                    )
        except (OSError, TimeoutError) as error:
            raise UpstreamGone(type(error).__name__) from error
        return connection

    def release(self, target: Target, connection: ResponseHandler) -> None:
        """Keep a connection whose exchange has ended, if it can be used again."""
        idle = self._idle.setdefault(target.url, deque())
        if connection.should_close or not connection.is_connected() or len(idle) >= IDLE_PER_TARGET:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        idle.append((loop.time(), connection))
        if self._sweeper is None:
            self._sweeper = loop.call_later(IDLE_SECONDS, self._sweep)

    def forget(self, target: Target) -> None:
        for _, connection in self._idle.pop(target.url, ()):
            connection.close()

    def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for idle in self._idle.values():
            for _, connection in idle:
                connection.abort()
        self._idle.clear()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest_allowed = loop.time() - IDLE_SECONDS
        for url, idle in list(self._idle.items()):
            while idle and idle[0][0] <= oldest_allowed:
                idle.popleft()[1].close()
            if not idle:
                del self._idle[url]
        self._sweeper = loop.call_later(IDLE_SECONDS, self._sweep) if self._idle else None

    def _tls(self) -> ssl.SSLContext:
        if self._ssl_context is None:
            self._ssl_context = self._make_ssl_context()
        return self._ssl_context


def expect_response(connection: ResponseHandler, method: str) -> None:
    """Make a connection ready to parse the answer to one request."""
    connection.set_response_params(
        skip_payload=method == "HEAD",
        read_until_eof=True,
        auto_decompress=False,
        read_bufsize=READ_BUFFER,
        max_line_size=MAX_HEAD_FIELD,
        max_field_size=MAX_HEAD_FIELD,
        max_headers=MAX_HEADERS,
    )
