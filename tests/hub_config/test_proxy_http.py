"""What passes through the proxy on real sockets, and how little of it is changed."""

import asyncio
import gzip
from typing import Any

import pytest
from aiohttp import web
from proxy_harness import (
    OK,
    answering,
    app_upstream,
    client_of,
    client_through,
    dechunked,
    proxy_to,
    raw_upstream,
    read_head,
)

pytestmark = pytest.mark.asyncio


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
    async with client_through(answering(OK, heads)) as client:
        client.get(path)
        assert (await client.answer())[0] == 200
    assert heads[0][0] == f"GET {path} HTTP/1.1".encode("latin-1")


async def test_request_headers_pass_and_only_the_forwarding_ones_are_added() -> None:
    heads: list[Any] = []
    async with client_through(answering(OK, heads)) as client:
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
    async with client_through(answering(OK, heads)) as client:
        client.get(method=method)
        assert (await client.answer())[2] == b"ok"
    assert heads[0][0].startswith(method.encode() + b" ")


async def test_a_large_cookie_passes() -> None:
    heads: list[Any] = []
    async with client_through(answering(OK, heads)) as client:
        client.get("/", "Cookie: session=" + "x" * 30_000)
        assert (await client.answer())[0] == 200
    assert len(dict(heads[0][1])["cookie"]) == 30_008


async def test_connections_are_kept_on_both_sides() -> None:
    connections = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        await answering(OK)(reader, writer)

    async with client_through(handler) as client:
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
    async with client_through(answering(response, heads)) as client:
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
    async with client_through(answering(response, heads)) as client:
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

    async with client_through(handler) as client:
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
    async with client_through(answering(response)) as client:
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
    async with client_through(answering(CHUNKED)) as client:
        for _ in range(2):
            client.get()
            _, headers = await client.head()
            assert dict(headers)["transfer-encoding"] == "chunked"
            assert "content-length" not in dict(headers)
            assert await dechunked(client) == b"abcdefg"


async def test_an_old_client_gets_a_body_that_ends_with_the_connection() -> None:
    async with client_through(answering(CHUNKED)) as client:
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

    async with client_through(handler) as client:
        client.get()
        await client.head()
        assert await dechunked(client) == b"z" * 100_000


async def test_early_hints_come_before_the_answer() -> None:
    response = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n" + OK
    async with client_through(answering(response)) as client:
        client.get()
        status, headers = await client.head()
        assert (status, dict(headers)["link"]) == (103, "</a.css>")
        assert (await client.answer())[0] == 200
