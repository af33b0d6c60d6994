"""Bodies through the proxy: they flow as they come, and break off where they break off."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import web
from aiohttp.http_parser import HttpRequestParser, HttpRequestParserPy
from proxy_harness import (
    BOUND,
    MB,
    OK,
    TOTAL,
    Flood,
    RawHandler,
    answering,
    app_upstream,
    client_of,
    client_through,
    dead_target,
    dechunked,
    happens,
    proxy_to,
    raw_upstream,
    read_head,
    stalled,
    take_all_when_told,
    until,
    within,
)

pytestmark = pytest.mark.asyncio


# Streams


async def test_events_arrive_one_by_one_as_they_are_sent() -> None:
    seen = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for number in range(3):
            seen.clear()
            writer.write(b"data: %d\n\n" % number)
            await within(seen.wait())  # the next event waits until this one was read

    async with client_through(handler) as client:
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
        await within(release.wait())
        writer.write(b"ok")
        await writer.drain()

    async with client_through(handler) as client:
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
        assert await happens(first_piece)  # before the rest is even sent
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


@pytest.mark.parametrize("framing", [f"Content-Length: {TOTAL}", "Transfer-Encoding: chunked"])
async def test_a_client_that_does_not_read_holds_the_upstream_back(framing: str) -> None:
    flood, piece = Flood(), b"x" * MB

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode())
        await flood.pour(writer, b"%x\r\n%b\r\n" % (MB, piece) if "chunked" in framing else piece)
        writer.write(b"0\r\n\r\n" if "chunked" in framing else b"")
        await writer.drain()
        await reader.read()

    async with client_through(handler) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.get()
        assert await stalled(lambda: flood.sent) < BOUND
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await client.head()
        if "chunked" in framing:
            assert len(await dechunked(client)) == TOTAL
        else:
            for _ in range(200):
                await client.exactly(MB)
        assert flood.sent == TOTAL


async def test_an_upstream_that_does_not_read_holds_the_client_back() -> None:
    go, flood, received = asyncio.Event(), Flood(), 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        await read_head(reader)
        received = await take_all_when_told(go, reader, writer)
        writer.write(OK)
        await writer.drain()

    async with client_through(handler) as client:
        client.get("/", f"Content-Length: {TOTAL}", method="PUT")
        task = asyncio.create_task(flood.pour(client.writer))
        assert await stalled(lambda: flood.sent) < BOUND
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

    async with client_through(handler) as client:
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
    async with client_through(answering(OK)) as client:
        client.get("/", "Expect: miracles", "Content-Length: 3", method="POST")
        assert (await client.head())[0] == 417


async def test_an_answer_before_the_upload_is_complete_reaches_the_client() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
        await writer.drain()
        await reader.read()

    async with client_through(handler) as client:
        client.get("/", f"Content-Length: {TOTAL}", method="POST")
        client.send(b"x" * 1000)
        status, _, body = await client.answer()
    assert (status, body) == (413, b"big")


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
            assert await happens(started)
            if answered:
                await client.head()
            assert not left.is_set()
        assert await happens(left)


def collecting(received: bytearray, ended: asyncio.Event) -> RawHandler:
    """Collects what follows the head of a request and notes when there is no more."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        with suppress(ConnectionError):
            while data := await reader.read(1000):
                received.extend(data)
        ended.set()

    return handler


async def test_an_upload_that_breaks_off_is_not_ended_as_if_whole() -> None:
    received, ended = bytearray(), asyncio.Event()
    async with raw_upstream(collecting(received, ended)) as url, proxy_to(url) as proxy:
        async with client_of(proxy) as client:
            client.get("/", "Transfer-Encoding: chunked", method="POST")
            client.send(b"3\r\nabc\r\n")
            await until(lambda: bytes(received) == b"3\r\nabc\r\n")
        assert await happens(ended)
    assert bytes(received) == b"3\r\nabc\r\n"


@pytest.mark.parametrize("parser", [HttpRequestParser, HttpRequestParserPy])
async def test_a_malformed_upload_is_not_ended_as_if_whole(
    parser: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiohttp.web_protocol.HttpRequestParser", parser)
    received, ended = bytearray(), asyncio.Event()
    async with client_through(collecting(received, ended)) as client:
        client.get("/", "Transfer-Encoding: chunked", method="POST")
        client.send(b"3\r\nabc\r\n")
        await until(lambda: bytes(received) == b"3\r\nabc\r\n")
        client.send(b"zz\r\n0\r\n\r\n")
        if parser is HttpRequestParser:
            # The compiled parser tells the connection, not the body, so the upload ends with the client.
            client.writer.close()
        assert await happens(ended)
    assert bytes(received) == b"3\r\nabc\r\n"
