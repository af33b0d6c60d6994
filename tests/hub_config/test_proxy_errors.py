"""What the proxy says when an upstream fails or a request is refused."""

import asyncio
import json
import logging
import socket
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from proxy_harness import (
    MB,
    OK,
    answering,
    client_of,
    client_through,
    dead_target,
    proxy_to,
    raw_upstream,
    read_head,
    within,
)

pytestmark = pytest.mark.asyncio


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

    async with client_through(handler) as client:
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
    async with client_through(answering(garbage)) as client:
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
        await within(got_start.wait())
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    async with client_through(handler) as client:
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

    async with client_through(handler) as client:
        client.get(version="1.0")
        with pytest.raises(ConnectionResetError):
            await client.head()
            await client.rest()


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
    async with client_through(answering(OK, heads)) as client:
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
