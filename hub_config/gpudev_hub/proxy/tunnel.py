"""Websockets, as a tunnel of raw bytes between the client's and the upstream's socket.

Promises: every byte after the upgrade passes unchanged and at once in both directions; a side that reads
slowly slows the other down; when one side ends, the other is ended too within a bounded time.

Bytes rather than websocket frames, because that is the least work and leaves everything to the two ends
that negotiated it: message sizes, text and binary, ping and pong, close codes, subprotocols, compression.
There is no message size limit because no message is ever held whole.
"""

import asyncio
from collections.abc import Callable

from aiohttp import web
from aiohttp.client_proto import ResponseHandler

LINGER_SECONDS = 5.0


class _Early:
    """Takes over bytes that came with the upgrade, before the tunnel was in place."""

    def __init__(self) -> None:
        self.data = b""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        pass


class _End(asyncio.Protocol):
    """One end of a tunnel: what it receives is written to the other end."""

    def __init__(self, tunnel: "Tunnel", transport: asyncio.Transport, former: asyncio.Protocol) -> None:
        self.transport = transport
        self.ended = False
        self.lost = False
        self.other: _End
        self._tunnel = tunnel
        self._former = former

    def data_received(self, data: bytes) -> None:
        self.other.transport.write(data)
        self._tunnel.on_traffic()

    def pause_writing(self) -> None:
        if not self.other.lost:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if not self.other.lost:
            self.other.transport.resume_reading()

    def eof_received(self) -> bool:
        self.ended = True
        if self.other.lost or self.other.ended or not self.other.transport.can_write_eof():
            return False
        # The other direction may still carry the last words (a close frame), so it stays open for a while.
        self._tunnel.wind_down()
        self.other.transport.write_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._former.connection_lost(exc)
        self._tunnel.end_lost(self)


class Tunnel:
    def __init__(
        self,
        client: asyncio.Transport,
        client_protocol: asyncio.Protocol,
        upstream: asyncio.Transport,
        upstream_protocol: asyncio.Protocol,
        on_traffic: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._winding_down: asyncio.TimerHandle | None = None
        self.on_traffic = on_traffic
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._client = _End(self, client, client_protocol)
        self._upstream = _End(self, upstream, upstream_protocol)
        self._client.other, self._upstream.other = self._upstream, self._client
        client.set_protocol(self._client)
        upstream.set_protocol(self._upstream)

    def wind_down(self) -> None:
        """Bound the time the tunnel may stay open once one side has ended."""
        if self._winding_down is None:
            self._winding_down = self._loop.call_later(LINGER_SECONDS, self.abort)

    def abort(self) -> None:
        self._client.transport.abort()
        self._upstream.transport.abort()

    def end_lost(self, end: _End) -> None:
        if not end.other.lost:
            self.wind_down()
            end.other.transport.close()
            return
        if self._winding_down is not None:
            self._winding_down.cancel()
        if not self.closed.done():
            self.closed.set_result(None)


def open_tunnel(
    request: web.BaseRequest, connection: ResponseHandler, head: bytes, on_traffic: Callable[[], None]
) -> Tunnel:
    """Answer the client with the upstream's 101 head and join the two sockets.

    Nothing is awaited in here: between the 101 and the switch no byte may reach the HTTP parsers.
    """
    client, upstream = request.transport, connection.transport
    if client is None or upstream is None:
        raise ConnectionResetError("one side left during the upgrade")
    from_client, from_upstream = _Early(), _Early()
    request.protocol.set_parser(from_client)  # type: ignore[arg-type]
    connection.set_parser(from_upstream, None)
    tunnel = Tunnel(client, request.protocol, upstream, connection, on_traffic)
    client.write(head + from_upstream.data)
    upstream.write(from_client.data)
    return tunnel
