"""From a parsed request to its route: plain HTTP is relayed, a websocket becomes a tunnel.

Promises: only registered routes are ever contacted; every request gets exactly one answer or a broken
connection; when the client leaves, its upstream connection is dropped; no header value or query is logged.
"""

import asyncio
import socket
import struct
from contextlib import suppress
from logging import Logger, LoggerAdapter
from typing import Any

from aiohttp import web
from aiohttp.http import HttpVersion11

from .errors import ErrorAnswers
from .exchange import BrokenOff, Exchange, Refused
from .headers import BadHead, asks_for_websocket, switching_head
from .routes import RouteTable
from .tunnel import Tunnel, open_tunnel
from .upstream import UpstreamGone, UpstreamPool

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Answered:
    """Stands in for aiohttp's response object: everything has been written to the socket already."""

    __slots__ = ("keep_alive",)

    def __init__(self, keep_alive: bool) -> None:
        self.keep_alive = keep_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        pass

    async def write_eof(self) -> None:
        pass


ANSWERED_KEEP = Answered(True)
ANSWERED_CLOSE = Answered(False)


def reset(transport: asyncio.Transport | None) -> None:
    """Break a connection off so that the other side sees an error, not an end."""
    if transport is None:
        return
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family != socket.AF_UNIX:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()


class Forwarder:
    def __init__(
        self,
        table: RouteTable,
        pool: UpstreamPool,
        errors: ErrorAnswers,
        log: "Logger | LoggerAdapter[Any]",
    ) -> None:
        self._table = table
        self._pool = pool
        self._errors = errors
        self._log = log
        self.tunnels: set[Tunnel] = set()

    async def handle(self, request: web.BaseRequest) -> Answered:
        """Answer one request; the only exception that leaves here is cancellation."""
        status = 500
        try:
            return ANSWERED_KEEP if await self._pass_on(request) else ANSWERED_CLOSE
        except UpstreamGone as gone:
            status = 503
            self._log.warning("503 %s %s (%s)", request.method, _loggable(request), gone)
        except Refused as refused:
            status = refused.status
        except BrokenOff:
            self._log.debug("Broken off: %s %s", request.method, _loggable(request))
            reset(request.transport)
            return ANSWERED_CLOSE
        except Exception:
            self._log.exception("Proxying failed: %s %s", request.method, _loggable(request))
        if request.writer.output_size:
            reset(request.transport)
        else:
            await self._errors.answer(request, status)
        return ANSWERED_CLOSE

    async def _pass_on(self, request: web.BaseRequest) -> bool:
        if request.method == "CONNECT":
            raise Refused(405)
        host = request.headers.get("Host")
        if not request.raw_path.startswith("/") or (host is None and request.version >= HttpVersion11):
            raise Refused(400)
        route = self._table.match(host or "", request.raw_path)
        if route is None:
            raise Refused(404)
        exchange = Exchange(request, route, self._pool)
        try:
            if asks_for_websocket(request.method, exchange.head):
                return await self._upgrade(exchange)
            answer = await exchange.send()
            if answer.code == 101:
                raise Refused(502)
            return await exchange.relay()
        except BadHead as bad:
            raise Refused(502 if exchange.answer_began else 400) from bad
        finally:
            exchange.finish()

    async def _upgrade(self, exchange: Exchange) -> bool:
        message = await exchange.send(upgrade=True)
        if message.code != 101:
            return await exchange.relay(keep_alive=False)
        assert exchange.connection is not None
        head = switching_head(message.reason, message.raw_headers)
        exchange.route.touch()
        try:
            tunnel = open_tunnel(exchange.request, exchange.connection, head, exchange.route.touch)
        except ConnectionResetError as gone:
            raise BrokenOff from gone
        exchange.hand_over()
        self.tunnels.add(tunnel)
        tunnel.closed.add_done_callback(lambda _: self.tunnels.discard(tunnel))
        await asyncio.shield(tunnel.closed)
        return False


def _loggable(request: web.BaseRequest) -> str:
    """The path without its query, which may carry tokens."""
    return request.raw_path.partition("?")[0]
