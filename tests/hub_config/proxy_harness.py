"""What the proxy's tests share: running proxies, raw and well-behaved upstreams, and clients of bytes."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any

from aiohttp import web

from gpudev_hub.proxy import LocalProxy

MB = 1024 * 1024
PATIENCE = 20.0
TOTAL = 200 * MB
# Socket buffers of two hops can hold tens of megabytes; a proxy that buffers would take all of it.
BOUND = 80 * MB

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
UPGRADE = (
    b"GET /kernel HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"

RawHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


# Patience


async def within(awaitable: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(awaitable, PATIENCE)


async def happens(event: asyncio.Event) -> bool:
    """Whether the event comes while there is patience."""
    with suppress(TimeoutError):
        await within(event.wait())
    return event.is_set()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


async def stalled(counter: Callable[[], int], quiet: float = 0.5) -> int:
    """The count once it has stopped growing."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        seen, since = counter(), loop.time()
        while loop.time() - since < quiet or seen == 0:
            await asyncio.sleep(0.01)
            if counter() != seen:
                seen, since = counter(), loop.time()
    return seen


# The proxy


@asynccontextmanager
async def proxy_to(target: str = "", **settings: Any) -> AsyncIterator[LocalProxy]:
    """A running proxy; all paths lead to the target."""
    settings = {"public_url": "http://127.0.0.1:0/", "stop_timeout": 0.1, **settings}
    proxy = LocalProxy(**settings)
    await proxy.start()
    try:
        if target:
            await proxy.add_route("/", target, {})
        yield proxy
    finally:
        async with asyncio.timeout(PATIENCE):
            await proxy.stop()


async def activity_of(proxy: LocalProxy) -> float:
    """When the route for all paths was last active."""
    listed = await proxy.get_all_routes()
    return datetime.fromisoformat(listed["/"]["data"]["last_activity"]).timestamp()


# Upstreams


@asynccontextmanager
async def raw_upstream(handler: RawHandler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server of bytes: each connection goes to the handler."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await handler(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls, limit=MB)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


@asynccontextmanager
async def app_upstream(
    handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
) -> AsyncIterator[str]:
    """A well-behaved HTTP server."""
    runner = web.ServerRunner(web.Server(handler, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def dead_target() -> str:
    """An address where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


async def read_head(reader: asyncio.StreamReader) -> tuple[bytes, list[tuple[str, str]]]:
    """First line and headers of a message, read to the byte."""
    async with asyncio.timeout(PATIENCE):
        block = await reader.readuntil(b"\r\n\r\n")
    first, *lines = block[:-4].split(b"\r\n")
    pairs = [line.partition(b": ") for line in lines]
    return first, [(name.decode().lower(), value.decode("latin-1")) for name, _, value in pairs]


def answering(response: bytes, heads: list[Any] | None = None) -> RawHandler:
    """Answers every request (without a body) on a connection with the same bytes."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await read_head(reader)
            if heads is not None:
                heads.append(head)
            writer.write(response)
            await writer.drain()

    return handler


def answering_until_closed(closed: asyncio.Event) -> RawHandler:
    """Answers every request and notes when the connection has ended."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answering(OK)(reader, writer)
        finally:
            closed.set()

    return handler


def after_head(handler: RawHandler) -> RawHandler:
    """Leaves to the handler what follows the head of a request."""

    async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        await handler(reader, writer)

    return whole


async def take_all_when_told(
    go: asyncio.Event, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> int:
    """Reads nothing until it is told to, then the total; how much it read."""
    received = 0
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await go.wait()
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    while received < TOTAL:
        data = await reader.read(MB)
        if not data:
            raise asyncio.IncompleteReadError(b"", TOTAL - received)
        received += len(data)
    return received


class Flood:
    """Sends the total, megabyte by megabyte, and counts what it could hand over."""

    def __init__(self) -> None:
        self.sent = 0

    async def pour(self, writer: asyncio.StreamWriter, piece: bytes = b"x" * MB) -> None:
        while self.sent < TOTAL:
            writer.write(piece)
            await writer.drain()
            self.sent += MB


# Clients


class Client:
    """A client that sends and reads exactly the bytes it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def get(self, path: str = "/", *headers: str, method: str = "GET", version: str = "1.1") -> None:
        lines = [f"{method} {path} HTTP/{version}", "Host: hub.test:8000", *headers]
        self.send(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    async def head(self) -> tuple[int, list[tuple[str, str]]]:
        first, headers = await read_head(self.reader)
        return int(first.split()[1]), headers

    async def exactly(self, count: int) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.readexactly(count)

    async def rest(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        status, headers = await self.head()
        known = dict(headers)
        return status, known, await self.exactly(int(known.get("content-length", 0)))


@asynccontextmanager
async def client_of(proxy: LocalProxy, tls: ssl.SSLContext | None = None) -> AsyncIterator[Client]:
    address = proxy.addresses[0]
    if isinstance(address, str):
        reader, writer = await asyncio.open_unix_connection(address)
    else:
        reader, writer = await asyncio.open_connection(*address[:2], ssl=tls, limit=MB)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def client_through(handler: RawHandler, **settings: Any) -> AsyncIterator[Client]:
    """A client of a proxy in front of a server of bytes."""
    async with (
        raw_upstream(handler) as url,
        proxy_to(url, **settings) as proxy,
        client_of(proxy) as client,
    ):
        yield client


@asynccontextmanager
async def raw_socket(
    proxy: LocalProxy, first: bytes = UPGRADE
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection whose first bytes ask for a websocket."""
    async with client_of(proxy) as client:
        client.send(first)
        yield client.reader, client.writer


async def dechunked(client: Client) -> bytes:
    pieces = []
    while True:
        async with asyncio.timeout(PATIENCE):
            size = int(await client.reader.readuntil(b"\r\n"), 16)
        pieces.append(await client.exactly(size))
        assert await client.exactly(2) == b"\r\n"
        if size == 0:
            return b"".join(pieces)
