"""One request and its answer, passed through.

Promises: bodies are streamed in both directions, piece by piece as they come, and a slow reader slows the
writer; path and query reach the upstream byte for byte; an answer that breaks off raises BrokenOff and is
never ended as if it were whole; finish() leaves no connection and no task behind.
"""

import asyncio

from aiohttp import ClientError, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_exceptions import ClientOSError
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError, HttpVersion11, RawResponseMessage, StreamWriter
from aiohttp.streams import EMPTY_PAYLOAD, EofStream, StreamReader

from .headers import (
    Framing,
    Peer,
    request_framing,
    request_head,
    response_framing,
    response_head,
    sort_request,
    sort_response,
)
from .routes import Route
from .upstream import FRESH_SECONDS, IDLE_SECONDS, UpstreamGone, UpstreamPool, expect_response

# Sending one of these twice has the effect of sending it once (RFC 9110, 9.2.2).
REPEATABLE = frozenset(["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"])
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
_WIRE_ERRORS = (ClientError, OSError, HttpProcessingError, EofStream)


class Refused(Exception):
    """The request or its answer cannot be passed on; the client gets this status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class BrokenOff(Exception):
    """One side went away when the answer was partly sent."""


def peer_of(request: web.BaseRequest) -> Peer:
    name = request.protocol.peername
    address = name[0] if isinstance(name, tuple) else ""
    return Peer(address.encode(), request.protocol.ssl_context is not None)


class Exchange:
    def __init__(self, request: web.BaseRequest, route: Route, pool: UpstreamPool) -> None:
        self.request = request
        self.route = route
        self.connection: ResponseHandler | None = None
        self.head = sort_request(request.raw_headers)
        self.answer_began = False
        self._pool = pool
        self._message: RawResponseMessage
        self._payload: StreamReader = EMPTY_PAYLOAD
        self._upload: asyncio.Task[None] | None = None
        self._complete = False

    async def send(self, upgrade: bool = False) -> RawResponseMessage:
        """Send the request upstream and return the head of the answer."""
        request, target = self.request, self.route.target
        framing = request_framing(self.head)
        has_body = request.body_exists
        if upgrade and has_body:
            raise Refused(400)
        path = target.path_prefix + request.raw_path.encode("utf-8", "surrogateescape")
        head = request_head(request.method, path, self.head, peer_of(request), framing, upgrade=upgrade)
        repeatable = not has_body and not upgrade and request.method in REPEATABLE
        connection = self._pool.reuse(target, IDLE_SECONDS if repeatable else FRESH_SECONDS)
        if connection is not None:
            try:
                return await self._ask(connection, head, framing)
            except UpstreamGone:
                # The server closed an idle connection just as it was used again. Whether it acted on the
                # request cannot be known, so only one that may be repeated is, once, on a new connection.
                if not repeatable:
                    raise
        return await self._ask(await self._pool.connect(target), head, framing)

    async def _ask(self, connection: ResponseHandler, head: bytes, framing: Framing) -> RawResponseMessage:
        self.connection = connection
        expect_response(connection, self.request.method)
        transport, body = connection.transport, self.request.content
        if transport is None:
            raise UpstreamGone("closed")
        transport.write(head)
        if self.request.body_exists:
            writer = StreamWriter(connection, asyncio.get_running_loop())
            if framing is Framing.CHUNKED:
                writer.enable_chunking()
            self._greenlight_body()
            if body.is_eof():
                await writer.write_eof(body.read_nowait())
            else:
                self._upload = asyncio.create_task(self._send_body(connection, body, writer))
        return await self._read_head(connection)

    def _greenlight_body(self) -> None:
        """Answer 'Expect: 100-continue' here, now that there is an upstream to take the body."""
        expected = self.head.all(b"expect")
        if not expected or self.request.version < HttpVersion11:
            return
        if expected[0].lower() != b"100-continue":
            raise Refused(417)
        if not self.request.content.is_eof():
            self._write_to_client(CONTINUE)

    async def _send_body(self, connection: ResponseHandler, body: StreamReader, writer: StreamWriter) -> None:
        try:
            async for chunk in body.iter_any():
                await writer.write(chunk)
            await writer.write_eof()
        except Exception:
            # The upstream must not take what came so far for the whole.
            connection.abort()
            raise

    async def _read_head(self, connection: ResponseHandler) -> RawResponseMessage:
        while True:
            try:
                message, payload = await connection.read()
            except HttpProcessingError as error:
                raise Refused(502) from error
            except _WIRE_ERRORS as error:
                raise UpstreamGone(type(error).__name__) from error
            if message.code >= 200 or message.code == 101:
                break
            if message.code != 100 and self.request.version >= HttpVersion11:
                hints = sort_response(message.raw_headers)
                self._write_to_client(response_head(message.code, message.reason, hints, Framing.NONE))
        self.answer_began = True
        self._message, self._payload = message, payload
        return message

    async def relay(self, keep_alive: bool = True) -> bool:
        """Send the answer to the client; returns whether the client's connection can be kept."""
        request, message = self.request, self._message
        old_client = request.version < HttpVersion11
        sorted_head = sort_response(message.raw_headers)
        framing = response_framing(request.method, message.code, sorted_head, old_client)
        keep_alive = keep_alive and request.keep_alive and framing is not Framing.CLOSE
        head = response_head(
            message.code,
            message.reason,
            sorted_head,
            framing,
            keep_alive=keep_alive,
            old_client=old_client,
        )
        try:
            await self._relay_body(head, framing)
        except _WIRE_ERRORS as error:
            raise BrokenOff from error
        self._complete = True
        return keep_alive

    async def _relay_body(self, head: bytes, framing: Framing) -> None:
        payload, writer = self._payload, self.request.writer
        # What has come of the body travels with the head: most answers are then a single write.
        body = b"" if framing is Framing.NONE else payload.read_nowait()
        more = framing is not Framing.NONE and not payload.at_eof()
        if framing is Framing.CHUNKED:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else LAST_CHUNK)
        self._write_to_client(head + body)
        writer.output_size += len(head)
        if more:
            if framing is Framing.CHUNKED:
                writer.enable_chunking()
            await self._stream_rest(payload, writer)
        self._count_activity()

    async def _stream_rest(self, payload: StreamReader, writer: AbstractStreamWriter) -> None:
        while not payload.at_eof():
            chunk = await payload.readany()
            if chunk:
                self._count_activity()
                await writer.write(chunk)
        self._check_whole()
        await writer.write_eof()

    def _count_activity(self) -> None:
        """As CHP: only successful answers count, so that polling a broken server does not keep it alive."""
        if self._message.code < 300:
            self.route.touch()

    def _check_whole(self) -> None:
        """A body that lasts until the connection closes is whole only if it closed without an error."""
        if self.connection is not None and isinstance(self.connection.exception(), ClientOSError):
            raise BrokenOff

    def _write_to_client(self, data: bytes) -> None:
        transport = self.request.transport
        if transport is None or transport.is_closing():
            raise BrokenOff
        transport.write(data)

    def hand_over(self) -> None:
        """The connection now belongs to a tunnel."""
        self.connection = None

    def finish(self) -> None:
        upload, connection = self._upload, self.connection
        whole = self._complete
        if upload is not None:
            whole = whole and upload.done() and not upload.cancelled() and upload.exception() is None
            upload.cancel()
        if connection is None:
            return
        if whole:
            self._pool.release(self.route.target, connection)
        else:
            connection.abort()
