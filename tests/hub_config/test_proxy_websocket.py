"""Websockets through the proxy: real clients and servers on loopback."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType, web
from certipy import Certipy
from proxy_harness import (
    MB,
    SWITCHED,
    UPGRADE,
    after_head,
    app_upstream,
    dead_target,
    happens,
    proxy_to,
    raw_socket,
    raw_upstream,
    within,
)

from gpudev_hub.proxy import LocalProxy

pytestmark = pytest.mark.asyncio


def url_of(proxy: LocalProxy, path: str = "/kernel", scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{proxy.addresses[0][1]}{path}"


@asynccontextmanager
async def connected(
    proxy: LocalProxy, scheme: str = "http", **options: Any
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url_of(proxy, scheme=scheme), max_msg_size=0, **options) as ws,
    ):
        yield ws


async def echo(request: web.BaseRequest) -> web.WebSocketResponse:
    ws = web.WebSocketResponse(max_msg_size=0, compress=True)
    await ws.prepare(request)
    async for message in ws:
        if message.type is WSMsgType.TEXT:
            await ws.send_str(message.data)
        else:
            await ws.send_bytes(message.data)
    return ws


# Messages


@pytest.mark.parametrize("compress", [0, 15])
async def test_text_and_binary_come_back(compress: int) -> None:
    async with app_upstream(echo) as url, proxy_to(url) as proxy, connected(proxy, compress=compress) as ws:
        assert bool(ws.compress) is bool(compress)
        for text in ("", "hello", "é" * 70_000):
            await ws.send_str(text)
            assert await within(ws.receive_str()) == text
        for data in (b"", b"\0\xff" * 70_000):
            await ws.send_bytes(data)
            assert await within(ws.receive_bytes()) == data


async def test_a_message_far_beyond_four_megabytes_passes() -> None:
    async with app_upstream(echo) as url, proxy_to(url) as proxy, connected(proxy) as ws:
        await ws.send_bytes(b"x" * 24 * MB)
        assert len(await within(ws.receive_bytes())) == 24 * MB


async def test_both_sides_can_talk_first_and_at_any_time() -> None:
    answered = asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        await ws.send_str("one")
        await ws.send_str("two")
        assert await ws.receive_str() == "heard"
        answered.set()
        await ws.receive()
        return ws

    async with app_upstream(handler) as url, proxy_to(url) as proxy, connected(proxy) as ws:
        assert await within(ws.receive_str()) == "one"
        assert await within(ws.receive_str()) == "two"
        await ws.send_str("heard")
        assert await happens(answered)


async def test_pings_reach_the_other_side_and_pongs_come_back() -> None:
    pinged: list[bytes] = []

    async def handler(request: web.BaseRequest) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(autoping=False)
        await ws.prepare(request)
        message = await ws.receive()
        assert message.type is WSMsgType.PING
        pinged.append(message.data)
        await ws.pong(message.data)
        await ws.ping(b"and back")
        await ws.receive()
        return ws

    async with app_upstream(handler) as url, proxy_to(url) as proxy, connected(proxy, autoping=False) as ws:
        await ws.ping(b"there")
        pong = await within(ws.receive())
        assert (pong.type, pong.data) == (WSMsgType.PONG, b"there")
        ping = await within(ws.receive())
        assert (ping.type, ping.data) == (WSMsgType.PING, b"and back")
    assert pinged == [b"there"]


async def test_the_servers_close_code_and_reason_reach_the_client() -> None:
    async def handler(request: web.BaseRequest) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        await ws.close(code=4001, message=b"kernel died")
        return ws

    async with app_upstream(handler) as url, proxy_to(url) as proxy, connected(proxy) as ws:
        message = await within(ws.receive())
    assert (message.type, message.data, message.extra) == (WSMsgType.CLOSE, 4001, "kernel died")


async def test_the_clients_close_code_and_reason_reach_the_server() -> None:
    closed: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    async def handler(request: web.BaseRequest) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        message = await ws.receive()
        closed.set_result((message.data, message.extra))
        return ws

    async with app_upstream(handler) as url, proxy_to(url) as proxy, connected(proxy) as ws:
        await ws.close(code=4002, message=b"tab closed")
        assert await within(closed) == (4002, "tab closed")
        assert ws.close_code == 1000  # the server's reply, not an abnormal end


async def test_websockets_work_over_tls_transports_too(tmp_path: Path) -> None:
    maker = Certipy(store_dir=str(tmp_path))
    maker.create_ca("ca")
    files = maker.create_signed_pair("front", "ca", alt_names=["IP:127.0.0.1"])["files"]
    front = {"public_url": "https://127.0.0.1:0/", "ssl_cert": files["cert"], "ssl_key": files["key"]}
    trusting = ssl.create_default_context(cafile=files["ca"])
    async with (
        app_upstream(echo) as url,
        proxy_to(url, **front) as proxy,
        connected(proxy, scheme="https", ssl=trusting) as ws,
    ):
        await ws.send_bytes(b"x" * 5 * MB)
        assert len(await within(ws.receive_bytes())) == 5 * MB
        await ws.close(code=4003)
        assert ws.close_code == 1000


# The handshake


async def test_the_upstream_chooses_the_subprotocol() -> None:
    async def handler(request: web.BaseRequest) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(protocols=("v1.kernel.websocket.jupyter.org",))
        await ws.prepare(request)
        await ws.receive()
        return ws

    async with app_upstream(handler) as url, proxy_to(url) as proxy:
        offered = ("other", "v1.kernel.websocket.jupyter.org")
        async with connected(proxy, protocols=offered) as ws:
            assert ws.protocol == "v1.kernel.websocket.jupyter.org"


async def test_the_upstream_sees_path_and_headers_of_the_client() -> None:
    seen: asyncio.Future[tuple[str, dict[str, str]]] = asyncio.get_running_loop().create_future()

    async def handler(request: web.BaseRequest) -> web.WebSocketResponse:
        seen.set_result((request.raw_path, dict(request.headers)))
        return await echo(request)

    given = {
        "Cookie": "a=1; b=2",
        "Origin": "http://hub.test",
        "Authorization": "token t",
        "Host": "hub.test:8000",
        "X-Real-IP": "6.6.6.6",
    }
    async with (
        app_upstream(handler) as url,
        proxy_to(url) as proxy,
        aiohttp.ClientSession() as session,
        session.ws_connect(url_of(proxy, "/a//b?session_id=x"), headers=given),
    ):
        path, headers = await within(seen)
    assert path == "/a//b?session_id=x"
    assert {name: headers[name] for name in given if name != "X-Real-IP"} == {
        name: value for name, value in given.items() if name != "X-Real-IP"
    }
    assert headers["X-Real-IP"] == "127.0.0.1"
    assert headers["X-Forwarded-Proto"] == "http"


@pytest.mark.parametrize(
    ("status", "headers"), [(403, {}), (404, {}), (302, {"Location": "/hub/login"}), (200, {})]
)
async def test_a_refused_upgrade_is_passed_on_with_its_body(status: int, headers: dict[str, str]) -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response(status=status, text="not here", headers=headers)

    async with app_upstream(handler) as url, proxy_to(url) as proxy, raw_socket(proxy) as (reader, _):
        whole = await within(reader.read())
    head, _, body = whole.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert body == b"not here"
    for name, value in headers.items():
        assert f"{name}: {value}".encode() in head


async def test_no_upstream_is_503() -> None:
    async with proxy_to(dead_target()) as proxy, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await within(session.ws_connect(url_of(proxy)))
    assert caught.value.status == 503


async def test_an_upgrade_with_a_body_is_refused() -> None:
    async with app_upstream(echo) as url, proxy_to(url) as proxy:
        first = UPGRADE.replace(b"Host: h\r\n", b"Host: h\r\nContent-Length: 2\r\n") + b"xx"
        async with raw_socket(proxy, first) as (reader, _):
            assert (await within(reader.readline())).startswith(b"HTTP/1.1 400")


async def test_other_upgrades_are_answered_as_plain_http() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response(text=str("Upgrade" in request.headers))

    async with app_upstream(handler) as url, proxy_to(url) as proxy:
        first = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n"
        async with raw_socket(proxy, first) as (reader, _):
            assert (await within(reader.read())).endswith(b"\r\n\r\nFalse")


async def test_bytes_that_come_along_with_the_handshake_are_not_lost() -> None:
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SWITCHED + b"right behind")
        heard.set_result(await reader.readexactly(5))
        await reader.read()

    async with (
        raw_upstream(after_head(handler)) as url,
        proxy_to(url) as proxy,
        raw_socket(proxy, UPGRADE + b"early") as (reader, _),
    ):
        await within(reader.readuntil(b"\r\n\r\n"))
        assert await within(reader.readexactly(12)) == b"right behind"
        assert await within(heard) == b"early"
