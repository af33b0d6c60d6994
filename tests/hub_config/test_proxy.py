"""The proxy on real sockets: HTTP between raw clients and raw or aiohttp upstreams on loopback."""

import asyncio
import gzip
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web
from aiohttp.http_parser import HttpRequestParser, HttpRequestParserPy
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from jupyterhub.app import JupyterHub
from jupyterhub.objects import Hub
from traitlets.config import Config

from gpudev_hub.proxy import LocalProxy, exchange, routes, upstream

pytestmark = pytest.mark.asyncio

MB = 1024 * 1024
PATIENCE = 20.0
RawHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


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


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


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


def dead_target() -> str:
    """An address where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


# What reaches the upstream


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/a%2Fb%20c/%e4%BD%a0",
        "//x///y",
        "/a/../b/./c",
        "/a?",
        "/a?q=%2F+%20&q=&&=x?y",
        "/a?b#c",
        "/[x]|^`{}~!$&'()*,;=:@",
    ],
)
async def test_path_and_query_pass_byte_for_byte(path: str) -> None:
    heads: list[Any] = []
    async with raw_upstream(answering(OK, heads)) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get(path)
        assert (await client.answer())[0] == 200
    assert heads[0][0] == f"GET {path} HTTP/1.1".encode("latin-1")


async def test_request_headers_pass_and_only_the_forwarding_ones_are_added() -> None:
    heads: list[Any] = []
    async with raw_upstream(answering(OK, heads)) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get(
            "/",
            "X-Latin: caf\xe9",
            "Authorization: token t",
            "Connection: keep-alive, X-Hop",
            "X-Hop: 1",
            "Keep-Alive: timeout=5",
            "TE: trailers",
            "X-Forwarded-For: 1.2.3.4",
            "X-Real-IP: 6.6.6.6",
        )
        assert (await client.answer())[0] == 200
    assert heads[0][1] == [
        ("host", "hub.test:8000"),
        ("x-latin", "caf\xe9"),
        ("authorization", "token t"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-port", "8000"),
        ("x-forwarded-host", "hub.test:8000"),
        ("x-forwarded-for", "1.2.3.4,127.0.0.1"),
        ("x-real-ip", "127.0.0.1"),
    ]


async def test_a_target_with_a_path_gets_it_in_front() -> None:
    heads: list[Any] = []
    async with (
        raw_upstream(answering(OK, heads)) as url,
        proxy_to(url + "/base/") as proxy,
        client_of(proxy) as client,
    ):
        client.get("/x?y")
        await client.answer()
    assert heads[0][0] == b"GET /base/x?y HTTP/1.1"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"])
async def test_any_method_passes(method: str) -> None:
    heads: list[Any] = []
    async with raw_upstream(answering(OK, heads)) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get(method=method)
        assert (await client.answer())[2] == b"ok"
    assert heads[0][0].startswith(method.encode() + b" ")


async def test_a_large_cookie_passes() -> None:
    heads: list[Any] = []
    async with raw_upstream(answering(OK, heads)) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get("/", "Cookie: session=" + "x" * 30_000)
        assert (await client.answer())[0] == 200
    assert len(dict(heads[0][1])["cookie"]) == 30_008


async def test_connections_are_kept_on_both_sides() -> None:
    connections = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        await answering(OK)(reader, writer)

    async with raw_upstream(handler) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        for _ in range(3):
            client.get()
            assert (await client.answer())[2] == b"ok"
    assert len(connections) == 1


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response(text=request.path)

    async with app_upstream(handler) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get("/1")
        client.get("/2")
        assert (await client.answer())[2] == b"/1"
        assert (await client.answer())[2] == b"/2"


# What reaches the client


async def test_response_headers_pass_and_nothing_is_added() -> None:
    response = (
        b"HTTP/1.1 200 Quite Fine\r\nSet-Cookie: a=1\r\nX-Latin: caf\xe9\r\nConnection: X-Hop\r\nX-Hop: 1\r\n"
        b"Set-Cookie: b=2\r\nContent-Length: 2\r\n\r\nok"
    )
    heads: list[Any] = []
    async with (
        raw_upstream(answering(response, heads)) as url,
        proxy_to(url) as proxy,
        client_of(proxy) as client,
    ):
        client.get()
        first, headers = await read_head(client.reader)
        assert await client.exactly(2) == b"ok"
        client.get()
        await client.answer()
    assert first == b"HTTP/1.1 200 Quite Fine"
    assert headers == [
        ("set-cookie", "a=1"),
        ("x-latin", "caf\xe9"),
        ("set-cookie", "b=2"),
        ("content-length", "2"),
    ]
    assert "cookie" not in dict(heads[1][1])


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirects_are_passed_not_followed(status: int) -> None:
    response = f"HTTP/1.1 {status} Moved\r\nLocation: /else//where?\r\nContent-Length: 0\r\n\r\n".encode()
    heads: list[Any] = []
    async with (
        raw_upstream(answering(response, heads)) as url,
        proxy_to(url) as proxy,
        client_of(proxy) as client,
    ):
        client.get()
        got, headers, _ = await client.answer()
    assert (got, headers["location"], len(heads)) == (status, "/else//where?", 1)


async def test_compressed_bodies_are_left_alone_in_both_directions() -> None:
    packed = gzip.compress(b"x" * 1000)
    received = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        received.append(await reader.readexactly(len(packed)))
        length = str(len(packed)).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: " + length + b"\r\n\r\n" + packed
        )
        await writer.drain()
        await reader.read()

    async with raw_upstream(handler) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get("/", "Content-Encoding: gzip", f"Content-Length: {len(packed)}", method="POST")
        client.send(packed)
        _, headers, body = await client.answer()
    assert received == [packed]
    assert (body, headers["content-encoding"]) == (packed, "gzip")


@pytest.mark.parametrize(
    ("method", "response", "length"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", "1000"),
        ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", None),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", None),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 9\r\n\r\n", "9"),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "0"),
    ],
)
async def test_answers_without_a_body_end_at_the_head(
    method: str, response: bytes, length: str | None
) -> None:
    async with raw_upstream(answering(response)) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        for _ in range(2):  # a body that is not there would hide the second answer
            client.get(method=method)
            _, headers = await client.head()
            assert dict(headers).get("content-length") == length
            assert "transfer-encoding" not in dict(headers)


CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\nX-Trail: 1\r\n\r\n"
)


async def test_a_chunked_answer_stays_chunked_and_the_connection_usable() -> None:
    async with raw_upstream(answering(CHUNKED)) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        for _ in range(2):
            client.get()
            _, headers = await client.head()
            assert dict(headers)["transfer-encoding"] == "chunked"
            assert "content-length" not in dict(headers)
            assert await dechunked(client) == b"abcdefg"


async def dechunked(client: Client) -> bytes:
    pieces = []
    while True:
        async with asyncio.timeout(PATIENCE):
            size = int(await client.reader.readuntil(b"\r\n"), 16)
        pieces.append(await client.exactly(size))
        assert await client.exactly(2) == b"\r\n"
        if size == 0:
            return b"".join(pieces)


async def test_an_old_client_gets_a_body_that_ends_with_the_connection() -> None:
    async with raw_upstream(answering(CHUNKED)) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get("/", "Connection: keep-alive", version="1.0")
        _, headers = await client.head()
        assert "transfer-encoding" not in dict(headers)
        assert dict(headers)["connection"] == "close"
        assert await client.rest() == b"abcdefg"


async def test_a_body_that_ends_with_the_upstream_connection_arrives_whole() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + b"z" * 100_000)
        await writer.drain()

    async with raw_upstream(handler) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get()
        await client.head()
        assert await dechunked(client) == b"z" * 100_000


async def test_early_hints_come_before_the_answer() -> None:
    response = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n" + OK
    async with raw_upstream(answering(response)) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get()
        status, headers = await client.head()
        assert (status, dict(headers)["link"]) == (103, "</a.css>")
        assert (await client.answer())[0] == 200


# Streams


async def test_events_arrive_one_by_one_as_they_are_sent() -> None:
    seen = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for number in range(3):
            seen.clear()
            writer.write(b"data: %d\n\n" % number)
            await asyncio.wait_for(seen.wait(), PATIENCE)  # the next event waits until this one was read

    async with raw_upstream(handler) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get()
        await client.head()
        for number in range(3):
            assert await client.exactly(14) == b"9\r\ndata: %d\n\n\r\n" % number
            seen.set()


async def test_the_head_arrives_before_there_is_a_body() -> None:
    release = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
        await asyncio.wait_for(release.wait(), PATIENCE)
        writer.write(b"ok")
        await writer.drain()

    async with raw_upstream(handler) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get()
        assert (await client.head())[0] == 200
        release.set()
        assert await client.exactly(2) == b"ok"


@pytest.mark.parametrize("chunked", [True, False])
async def test_an_upload_arrives_piece_by_piece(chunked: bool) -> None:
    first_piece = asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.Response:
        body = b""
        async for piece in request.content.iter_any():
            body += piece
            first_piece.set()
        framing = request.headers.get("Transfer-Encoding", "") + request.headers.get("Content-Length", "")
        return web.Response(body=body + b" " + framing.encode())

    async with app_upstream(handler) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get("/", "Transfer-Encoding: chunked" if chunked else "Content-Length: 6", method="POST")
        client.send(b"3\r\nabc\r\n" if chunked else b"abc")
        await asyncio.wait_for(first_piece.wait(), PATIENCE)  # before the rest is even sent
        client.send(b"3\r\ndef\r\n0\r\n\r\n" if chunked else b"def")
        assert (await client.answer())[2] == (b"abcdef chunked" if chunked else b"abcdef 6")


async def test_a_small_body_in_one_piece_arrives() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response(body=await request.content.read())

    async with app_upstream(handler) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        for framing, sent in (
            ("Content-Length: 3", b"abc"),
            ("Transfer-Encoding: chunked", b"3\r\nabc\r\n0\r\n\r\n"),
        ):
            client.send(f"POST / HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n".encode() + sent)
            assert (await client.answer())[2] == b"abc"


async def test_request_and_answer_can_stream_at_the_same_time() -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        async for piece in request.content.iter_any():
            await response.write(piece)
        return response

    async with app_upstream(handler) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get("/", "Content-Length: 2", method="POST")
        await client.head()
        client.send(b"a")
        assert await client.exactly(6) == b"1\r\na\r\n"
        client.send(b"b")
        assert await client.exactly(6) == b"1\r\nb\r\n"


TOTAL = 200 * MB
# Socket buffers of two hops can hold tens of megabytes; a proxy that buffers would take all of it.
BOUND = 80 * MB


@pytest.mark.parametrize("framing", [f"Content-Length: {TOTAL}", "Transfer-Encoding: chunked"])
async def test_a_client_that_does_not_read_holds_the_upstream_back(framing: str) -> None:
    sent = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_head(reader)
        writer.write(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode())
        piece = b"x" * MB
        while sent < TOTAL:
            writer.write(b"%x\r\n%b\r\n" % (MB, piece) if "chunked" in framing else piece)
            await writer.drain()
            sent += MB
        writer.write(b"0\r\n\r\n" if "chunked" in framing else b"")
        await writer.drain()
        await reader.read()

    async with raw_upstream(handler) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.get()
        assert await stalled(lambda: sent) < BOUND
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await client.head()
        if "chunked" in framing:
            assert len(await dechunked(client)) == TOTAL
        else:
            for _ in range(200):
                await client.exactly(MB)
        assert sent == TOTAL


async def test_an_upstream_that_does_not_read_holds_the_client_back() -> None:
    go, received = asyncio.Event(), 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        await read_head(reader)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await go.wait()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        while received < TOTAL:
            received += len(await reader.read(MB))
        writer.write(OK)
        await writer.drain()

    sent = 0

    async def upload(client: Client) -> None:
        nonlocal sent
        while sent < TOTAL:
            client.send(b"x" * MB)
            await client.writer.drain()
            sent += MB

    async with raw_upstream(handler) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get("/", f"Content-Length: {TOTAL}", method="PUT")
        task = asyncio.create_task(upload(client))
        assert await stalled(lambda: sent) < BOUND
        go.set()
        await asyncio.wait_for(task, 60)
        assert (await client.answer())[0] == 200
    assert received == TOTAL


# Expectations


async def test_a_client_that_waits_for_100_continue_gets_it() -> None:
    heads: list[Any] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await read_head(reader))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n" + await reader.readexactly(3))
        await writer.drain()
        await reader.read()

    async with raw_upstream(handler) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get("/", "Expect: 100-continue", "Content-Length: 3", method="POST")
        assert (await client.head())[0] == 100
        client.send(b"abc")
        assert (await client.answer())[2] == b"abc"
    assert "expect" not in dict(heads[0][1])


async def test_without_an_upstream_the_body_is_not_asked_for() -> None:
    async with proxy_to(dead_target()) as proxy, client_of(proxy) as client:
        client.get("/", "Expect: 100-continue", "Content-Length: 3", method="POST")
        assert (await client.head())[0] == 503


async def test_an_unknown_expectation_is_refused() -> None:
    async with raw_upstream(answering(OK)) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get("/", "Expect: miracles", "Content-Length: 3", method="POST")
        assert (await client.head())[0] == 417


async def test_an_answer_before_the_upload_is_complete_reaches_the_client() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
        await writer.drain()
        await reader.read()

    async with raw_upstream(handler) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get("/", f"Content-Length: {TOTAL}", method="POST")
        client.send(b"x" * 1000)
        status, _, body = await client.answer()
    assert (status, body) == (413, b"big")


# Upstreams that fail


async def test_nobody_listening_is_503_with_a_page_for_people() -> None:
    async with proxy_to(dead_target()) as proxy, client_of(proxy) as client:
        client.get("/user/<script>/", "Accept: text/html")
        status, headers, body = await client.answer()
    assert status == 503
    assert headers["content-type"].startswith("text/html")
    assert b"This server is not answering right now." in body
    assert b"/hub/home" in body
    assert b"<script>" not in body
    assert b"Traceback" not in body


async def test_nobody_listening_is_503_in_json_for_programs() -> None:
    async with proxy_to(dead_target()) as proxy, client_of(proxy) as client:
        client.get("/", "Accept: application/json")
        status, headers, body = await client.answer()
    assert (status, headers["content-type"]) == (503, "application/json")
    assert json.loads(body)["status"] == 503
    assert json.loads(body)["message"].startswith("This server is not answering")


async def test_503_to_head_has_no_body() -> None:
    async with proxy_to(dead_target()) as proxy, client_of(proxy) as client:
        client.get(method="HEAD")
        assert (await client.head())[0] == 503
        assert await client.rest() == b""


async def test_an_unknown_name_is_503() -> None:
    async with (
        proxy_to("http://no-such-host.invalid:80", connect_timeout=3.0) as proxy,
        client_of(proxy) as client,
    ):
        client.get()
        assert (await client.answer())[0] == 503


async def test_an_upstream_that_never_accepts_is_503_after_the_connect_timeout() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
        target = f"http://127.0.0.1:{full.getsockname()[1]}"
        async with proxy_to(target, connect_timeout=0.2) as proxy, client_of(proxy) as client:
            client.get()
            assert (await client.answer())[0] == 503
        for sock in waiting:
            sock.close()


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_upstream_that_closes_without_an_answer_is_503(method: str) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)

    async with raw_upstream(handler) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get(method=method)
        assert (await client.answer())[0] == 503


@pytest.mark.parametrize(
    "garbage",
    [
        b"220 smtp.example.org ESMTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
    ],
)
async def test_an_answer_that_is_no_good_http_is_502(garbage: bytes) -> None:
    async with raw_upstream(answering(garbage)) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get()
        assert (await client.answer())[0] == 502


async def test_no_route_is_404() -> None:
    async with proxy_to() as proxy, client_of(proxy) as client:
        client.get("/x", "Accept: application/json")
        status, _, body = await client.answer()
    assert (status, json.loads(body)["status"]) == (404, 404)


def hub_at(url: str) -> Any:
    return SimpleNamespace(url=url + "/base/hub/", base_url="/base/hub/", host=url)


@pytest.mark.parametrize(("status", "routed"), [(503, True), (404, False)])
async def test_the_hub_explains_what_went_wrong(status: int, routed: bool) -> None:
    heads: list[Any] = []
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nSet-Cookie: s=1\r\nContent-Length: 3\r\n\r\nhub"
    async with (
        raw_upstream(answering(page, heads)) as hub,
        proxy_to(dead_target() if routed else "", hub=hub_at(hub)) as proxy,
        client_of(proxy) as client,
    ):
        client.get("/user/ada/lab?a=b&c", "Cookie: secret=1")
        got, headers, body = await client.answer()
    assert (got, body) == (status, b"hub")
    assert "set-cookie" not in headers
    expected = f"GET /base/hub/error/{status}?url={quote('/user/ada/lab?a=b&c', safe='')} HTTP/1.1"
    assert heads[0][0].decode() == expected
    assert "cookie" not in dict(heads[0][1])


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 500 Oops\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\noops",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/x\r\nContent-Length: 4\r\n\r\noops",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % (2 * MB)
        + b"x" * 2 * MB,
        b"nonsense\r\n\r\n",
    ],
)
async def test_when_the_hub_has_no_page_the_built_in_one_serves(answer: bytes) -> None:
    async with (
        raw_upstream(answering(answer)) as hub,
        proxy_to(dead_target(), hub=hub_at(hub)) as proxy,
        client_of(proxy) as client,
    ):
        client.get()
        status, _, body = await client.answer()
    assert status == 503
    assert b"This server is not answering" in body
    assert b"/base/hub/home" in body


async def test_when_the_hub_is_down_too_the_built_in_page_serves() -> None:
    dead = dead_target()
    async with proxy_to(dead, hub=hub_at(dead)) as proxy, client_of(proxy) as client:
        client.get()
        assert b"This server is not answering" in (await client.answer())[2]


async def broken_body(head: bytes, version: str) -> tuple[bytes, bool]:
    """What a client gets of a body that its upstream breaks off, and whether it saw an error."""
    got_start = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(head)
        await asyncio.wait_for(got_start.wait(), PATIENCE)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    async with raw_upstream(handler) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get(version=version)
        await client.head()
        got = await client.exactly(3)
        got_start.set()
        try:
            return got + await client.rest(), False
        except ConnectionResetError:
            return got, True


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nabcdef\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nabcdef",
    ],
)
async def test_a_body_that_breaks_off_is_never_ended_as_if_whole(head: bytes, version: str) -> None:
    _, error_seen = await broken_body(head, version)
    assert error_seen


async def test_a_body_cut_short_by_an_orderly_close_is_an_error_too() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nabcdef\r\n")
        await writer.drain()

    async with raw_upstream(handler) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get(version="1.0")
        with pytest.raises(ConnectionResetError):
            await client.head()
            await client.rest()


def drops_the_second(heads: list[bytes]) -> RawHandler:
    """Answers one request per connection and closes, without an answer, when a second one comes."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for last in (False, True):
            first, headers = await read_head(reader)
            await reader.readexactly(int(dict(headers).get("content-length", 0)))
            heads.append(first.split()[0])
            if last:
                return
            writer.write(OK)
            await writer.drain()

    return handler


async def test_a_request_lost_on_an_old_connection_is_repeated_once() -> None:
    heads: list[bytes] = []
    async with (
        raw_upstream(drops_the_second(heads)) as url,
        proxy_to(url) as proxy,
        client_of(proxy) as client,
    ):
        for _ in range(2):
            client.get()
            assert (await client.answer())[0] == 200
    assert heads == [b"GET"] * 3


@pytest.mark.parametrize("body", [b"", b"abc"])
async def test_a_post_is_never_repeated(body: bytes) -> None:
    heads: list[bytes] = []
    async with (
        raw_upstream(drops_the_second(heads)) as url,
        proxy_to(url) as proxy,
        client_of(proxy) as client,
    ):
        client.get()
        assert (await client.answer())[0] == 200
        client.get("/", f"Content-Length: {len(body)}", method="POST")
        client.send(body)
        assert (await client.answer())[0] == 503
    assert heads == [b"GET", b"POST"]


async def test_a_put_with_a_body_is_never_repeated() -> None:
    heads: list[bytes] = []
    async with (
        raw_upstream(drops_the_second(heads)) as url,
        proxy_to(url) as proxy,
        client_of(proxy) as client,
    ):
        client.get()
        await client.answer()
        client.get("/", "Content-Length: 3", method="PUT")
        client.send(b"abc")
        assert (await client.answer())[0] == 503
    assert heads == [b"GET", b"PUT"]


async def test_a_post_takes_no_connection_that_may_be_about_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "FRESH_SECONDS", -1.0)
    heads: list[bytes] = []
    async with (
        raw_upstream(drops_the_second(heads)) as url,
        proxy_to(url) as proxy,
        client_of(proxy) as client,
    ):
        client.get()
        await client.answer()
        client.get("/", "Content-Length: 0", method="POST")
        assert (await client.answer())[0] == 200
    assert heads == [b"GET", b"POST"]


async def test_idle_connections_are_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "IDLE_SECONDS", 0.05)
    closed = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answering(OK)(reader, writer)
        finally:
            closed.set()

    async with (
        raw_upstream(handler) as url,
        proxy_to(url, idle_timeout=0.1) as proxy,
        client_of(proxy) as client,
    ):
        client.get()
        await client.answer()
        await asyncio.wait_for(closed.wait(), PATIENCE)
        assert await client.rest() == b""


async def test_a_deleted_route_drops_its_idle_connections() -> None:
    closed = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answering(OK)(reader, writer)
        finally:
            closed.set()

    async with raw_upstream(handler) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get()
        await client.answer()
        await proxy.delete_route("/")
        await asyncio.wait_for(closed.wait(), PATIENCE)
        client.get()
        assert (await client.answer())[0] == 404


# Clients that leave


@pytest.mark.parametrize("answered", [False, True])
async def test_when_the_client_leaves_the_upstream_hears_of_it(answered: bool) -> None:
    started, left = asyncio.Event(), asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        if answered:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\ndata: 1\n\n")
        started.set()
        with suppress(ConnectionError):
            await reader.read()
        left.set()

    async with raw_upstream(handler) as url, proxy_to(url) as proxy:
        async with client_of(proxy) as client:
            client.get()
            await asyncio.wait_for(started.wait(), PATIENCE)
            if answered:
                await client.head()
        await asyncio.wait_for(left.wait(), PATIENCE)


async def test_an_upload_that_breaks_off_is_not_ended_as_if_whole() -> None:
    received, ended = bytearray(), asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        with suppress(ConnectionError):
            while data := await reader.read(1000):
                received.extend(data)
        ended.set()

    async with raw_upstream(handler) as url, proxy_to(url) as proxy:
        async with client_of(proxy) as client:
            client.get("/", "Transfer-Encoding: chunked", method="POST")
            client.send(b"3\r\nabc\r\n")
            await until(lambda: bytes(received) == b"3\r\nabc\r\n")
        await asyncio.wait_for(ended.wait(), PATIENCE)
    assert bytes(received) == b"3\r\nabc\r\n"


@pytest.mark.parametrize("parser", [HttpRequestParser, HttpRequestParserPy])
async def test_a_malformed_upload_is_not_ended_as_if_whole(
    parser: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiohttp.web_protocol.HttpRequestParser", parser)
    received, ended = bytearray(), asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        with suppress(ConnectionError):
            while data := await reader.read(1000):
                received.extend(data)
        ended.set()

    async with raw_upstream(handler) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get("/", "Transfer-Encoding: chunked", method="POST")
        client.send(b"3\r\nabc\r\n")
        await until(lambda: bytes(received) == b"3\r\nabc\r\n")
        client.send(b"zz\r\n0\r\n\r\n")
        if parser is HttpRequestParser:
            # The compiled parser tells the connection, not the body, so the upload ends with the client.
            client.writer.close()
        await asyncio.wait_for(ended.wait(), PATIENCE)
    assert bytes(received) == b"3\r\nabc\r\n"


# Requests that are refused


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET http://127.0.0.1:1/x HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: h\r\n\r\n", 405),
        (b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET /j\xfc HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ],
)
async def test_requests_that_could_be_misread_are_refused(request_bytes: bytes, status: int) -> None:
    heads: list[Any] = []
    async with raw_upstream(answering(OK, heads)) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.send(request_bytes)
        assert (await client.head())[0] == status
    assert heads == []


async def test_neither_headers_nor_queries_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    log = logging.getLogger("proxy-under-test")
    async with proxy_to(dead_target(), log=log) as proxy:
        async with client_of(proxy) as client:
            client.get("/visible?token=hidden", "Authorization: hidden", "Cookie: hidden")
            assert (await client.answer())[0] == 503
        async with client_of(proxy) as client:
            client.send(b"GET / HTTP/1.1\r\nHost: h\r\nCookie: hidden\x01\r\n\r\n")
            assert (await client.head())[0] == 400
    assert "/visible" in caplog.text
    assert "hidden" not in caplog.text


# JupyterHub's side


async def test_it_is_made_the_way_the_hub_makes_it() -> None:
    app = JupyterHub(config=Config({"LocalProxy": {"connect_timeout": 2.5}}))
    hub = Hub(ip="127.0.0.1", port=8081, base_url="/hub/", proto="http", routespec="/")
    proxy = LocalProxy(
        db_factory=lambda: None,
        public_url="http://127.0.0.1:0/",
        parent=app,
        app=app,
        log=app.log,
        hub=hub,
        host_routing=False,
        ssl_cert="",
        ssl_key="",
    )
    assert proxy.connect_timeout == 2.5
    assert proxy.should_start
    await proxy.start()
    try:
        await proxy.add_hub_route(hub)
        assert (await proxy.get_all_routes())["/"]["target"] == "http://127.0.0.1:8081"
    finally:
        await proxy.stop()


async def test_routes_are_listed_as_they_were_given_and_as_copies() -> None:
    proxy = LocalProxy(public_url="http://127.0.0.1:0/")
    data = {"user": "a@b", "server_name": ""}
    await proxy.add_route("/user/a%40b", "http://127.0.0.1:5000", data)
    listed = await proxy.get_all_routes()
    assert list(listed) == ["/user/a%40b/"]
    entry = listed["/user/a%40b/"]
    assert entry["target"] == "http://127.0.0.1:5000"
    assert entry["data"]["user"] == "a@b"
    assert datetime.fromisoformat(entry["data"]["last_activity"]).tzinfo is not None
    entry["data"]["user"] = "eve"
    assert (await proxy.get_route("/user/a%40b/"))["data"]["user"] == "a@b"
    assert data == {"user": "a@b", "server_name": ""}
    await proxy.delete_route("/user/a%40b/")
    assert await proxy.get_all_routes() == {}
    await proxy.delete_route("/user/a%40b/")


async def test_host_routes_need_host_routing_and_the_other_way_round() -> None:
    with pytest.raises(ValueError, match="host-routing"):
        await LocalProxy(public_url="http://127.0.0.1:0/").add_route("h/x/", "http://127.0.0.1:1", {})
    hosts = LocalProxy(public_url="http://127.0.0.1:0/", host_routing=True)
    with pytest.raises(ValueError, match="host-routing"):
        await hosts.add_route("/x/", "http://127.0.0.1:1", {})


async def test_host_routing_on_the_wire() -> None:
    page = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nada"
    async with (
        raw_upstream(answering(OK)) as hub,
        raw_upstream(answering(page)) as ada,
        proxy_to(hub, host_routing=True) as proxy,
        client_of(proxy) as client,
    ):
        await proxy.add_route("ada.hub.test/user/ada/", ada, {})
        for host, body in (("ada.hub.test:8000", b"ada"), ("hub.test", b"ok")):
            client.send(f"GET /user/ada/lab HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert (await client.answer())[2] == body


@pytest.mark.parametrize(("status", "counts"), [(200, True), (302, False), (404, False), (500, False)])
async def test_only_successful_requests_count_as_activity(
    status: int, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    response = f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode()
    monkeypatch.setattr(routes, "time", SimpleNamespace(time=lambda: 1000.0))
    async with raw_upstream(answering(response)) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        monkeypatch.setattr(routes, "time", SimpleNamespace(time=lambda: 2000.0))
        client.get()
        await client.answer()
        client.get()  # when the second answer is here, the first has been counted
        await client.answer()
        listed = await proxy.get_all_routes()
    stamp = datetime.fromisoformat(listed["/"]["data"]["last_activity"])
    assert stamp.timestamp() == (2000.0 if counts else 1000.0)


async def test_a_stream_counts_as_activity_while_it_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(routes, "time", SimpleNamespace(time=lambda: clock.now))
    more = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
        await more.wait()
        writer.write(b"def")
        await reader.read()

    async with raw_upstream(handler) as url, proxy_to(url) as proxy, client_of(proxy) as client:
        client.get()
        await client.head()
        await client.exactly(3)
        clock.now = 2000.0
        more.set()
        await client.exactly(3)
        listed = await proxy.get_all_routes()
    assert datetime.fromisoformat(listed["/"]["data"]["last_activity"]).timestamp() == 2000.0


# Starting and stopping


async def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        proxy = LocalProxy(public_url=f"http://127.0.0.1:{port}/")
        with pytest.raises(OSError, match=f"Port {port} on 127.0.0.1 is taken"):
            await proxy.start()
        assert proxy.addresses == []
    await proxy.start()  # free now: a start that failed has left nothing behind
    assert proxy.addresses == [("127.0.0.1", port)]
    await proxy.stop()


async def test_it_can_be_stopped_and_started_again_with_its_routes() -> None:
    upstream_closed = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answering(OK)(reader, writer)
        finally:
            upstream_closed.set()

    async with raw_upstream(handler) as url, proxy_to(url) as proxy:
        await proxy.start()  # already running: nothing happens
        address = proxy.addresses[0]
        async with client_of(proxy) as client:
            client.get()
            await client.answer()
            await proxy.stop()
            assert await client.rest() == b""
        await asyncio.wait_for(upstream_closed.wait(), PATIENCE)
        assert proxy.addresses == []
        await proxy.stop()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        await proxy.start()
        async with client_of(proxy) as client:
            client.get()
            assert (await client.answer())[2] == b"ok"


async def test_stopping_is_bounded_whatever_is_open() -> None:
    sent, left = 0, []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        first, _ = await read_head(reader)
        try:
            if first.startswith(b"GET /silent"):
                await reader.read()
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                writer.write(b"x" * MB)
                await writer.drain()
                sent += MB
        finally:
            left.append(first)

    async with (
        raw_upstream(handler) as url,
        proxy_to(url) as proxy,
        client_of(proxy) as silent,
        client_of(proxy) as stuck,
        client_of(proxy) as idle,
    ):
        stuck.writer.transport.pause_reading()  # type: ignore[attr-defined]
        stuck.get("/endless")
        silent.get("/silent")
        await stalled(lambda: sent, quiet=0.2)
        sockets = [each.transport.get_extra_info("socket") for each in proxy._server.connections]  # type: ignore
        assert len(sockets) == 3
        async with asyncio.timeout(5):
            await proxy.stop()
        await until(lambda: len(left) == 2)
        await until(lambda: all(sock.fileno() == -1 for sock in sockets))
        assert await idle.rest() == b""
        with suppress(ConnectionResetError):
            assert await silent.rest() == b""


# TLS and unix sockets


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that vouches for itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return cert_file, key_file


async def test_it_serves_tls_and_says_so_upstream(certificate: tuple[Path, Path]) -> None:
    heads: list[Any] = []
    cert, key = certificate
    trusting = ssl.create_default_context(cafile=str(cert))
    async with (
        raw_upstream(answering(OK, heads)) as url,
        proxy_to(url, ssl_cert=str(cert), ssl_key=str(key)) as proxy,
        client_of(proxy, tls=trusting) as client,
    ):
        client.get()
        assert (await client.answer())[2] == b"ok"
    assert dict(heads[0][1])["x-forwarded-proto"] == "https"


def tls_server(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*map(str, certificate))
    return context


async def test_with_internal_ssl_upstreams_are_spoken_to_with_the_hubs_certificates(
    certificate: tuple[Path, Path],
) -> None:
    cert, key = map(str, certificate)
    server = tls_server(certificate)
    server.load_verify_locations(cert)
    server.verify_mode = ssl.CERT_REQUIRED
    app = SimpleNamespace(
        internal_ssl=True,
        internal_proxy_certs={"proxy-client": {"keyfile": key, "certfile": cert, "cafile": cert}},
        internal_trust_bundles={"proxy-client-ca": cert},
    )
    async with (
        raw_upstream(answering(OK), tls=server) as url,
        proxy_to(url, app=app) as proxy,
        client_of(proxy) as client,
    ):
        client.get()
        assert (await client.answer())[2] == b"ok"


async def test_an_upstream_with_an_untrusted_certificate_is_not_spoken_to(
    certificate: tuple[Path, Path],
) -> None:
    heads: list[Any] = []
    async with (
        raw_upstream(answering(OK, heads), tls=tls_server(certificate)) as url,
        proxy_to(url) as proxy,
        client_of(proxy) as client,
    ):
        client.get()
        assert (await client.answer())[0] == 503
    assert heads == []


async def test_unix_sockets_on_both_sides(tmp_path: Path) -> None:
    heads: list[Any] = []
    behind, front = tmp_path / "up.sock", tmp_path / "front.sock"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            await answering(OK, heads)(reader, writer)
        writer.close()

    server = await asyncio.start_unix_server(serve, behind)
    target = "http+unix://" + quote(str(behind), safe="")
    async with (
        proxy_to(target, public_url="http+unix://" + quote(str(front), safe="")) as proxy,
        client_of(proxy) as client,
    ):
        client.get("/", "X-Real-IP: 6.6.6.6")
        assert (await client.answer())[2] == b"ok"
    server.close()
    assert "x-real-ip" not in dict(heads[0][1])
